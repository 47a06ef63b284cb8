"""LoLCATs' published code, by its masks, equals `lolcats-terraced` in the stated cases and differs in others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.composer.model.models import student
from tests.composer.model.test_equalities import LENGTH, Layer, hedgehog


def masks(window: int, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Return the pairs of the code's window and of its linear part for a whole text. A matrix of whole chunks, in which a chunk
    sees itself and the chunk before it, is cut to its last rows and columns, so the last chunk is always full. In a text of
    one chunk, the chunk before is the chunk itself, and its pairs have the value 2, which belongs to neither part.
    """
    chunks = -(-length // window)
    place = torch.arange(chunks * window)[-length:] // window
    own = (place[:, None] == place).int()
    before = ((place[:, None] - 1) % chunks == place).int()
    causal = torch.ones(length, length).tril().bool()
    return (own + before).bool() & causal, (1 - own - before).bool() & causal


def published(layer: Layer, near: Tensor, far: Tensor) -> Tensor:
    exponents = layer.exponents().masked_fill(~near, -1e8)
    exponentials = (exponents - exponents.amax(-1, keepdim=True)).exp() * layer.parameter("window.weight").sigmoid()[:, None, None]
    linear = layer.products(hedgehog).masked_fill(~far, 0)
    return layer.output((exponentials + linear) / (exponentials.sum(-1, keepdim=True) + linear.sum(-1, keepdim=True)))


@pytest.mark.parametrize(("window", "same"), [(4, True), (8, True), (20, True), (6, False), (7, False), (40, False), (64, False)])
@torch.no_grad()
def test_whole_texts_equal_the_published_code_at_multiples_of_the_window(window: int, same: bool) -> None:
    """This holds as in its training, on 1,024 tokens with a window of 64. In a text of one chunk its pairs count twice."""
    layer = Layer(student("lolcats-terraced", f"head.memory.0.size={window}"))
    difference = (layer.answer() - published(layer, *masks(window))).abs().max()
    assert difference < 1e-6 if same else difference > 1e-3


@torch.no_grad()
def test_decode_of_the_published_code_uses_a_sliding_window() -> None:
    """A decoded token sees the last ``window`` keys and a state of all earlier ones, as with a sliding window."""
    layer = Layer(student("lolcats-terraced", "head.memory.0.size=4", "head.memory.0.shape=sliding"))
    near, far = (layer.back >= 0) & (layer.back < 4), layer.back >= 4
    decoded = published(layer, near, far)
    torch.testing.assert_close(layer.answer(), decoded, rtol=0, atol=1e-6)
    assert (published(layer, *masks(4)) - decoded)[:, 8:].abs().max() > 1e-3


def test_chunks_of_the_published_code_depend_on_the_length_of_the_text() -> None:
    """Its chunks are not offered as a memory, since one more token changes what earlier tokens see."""
    for window in (4, 6):
        (near, far), (nearer, farther) = masks(window), masks(window, LENGTH - 1)
        assert not torch.equal(near[:-1, :-1], nearer)
        assert not torch.equal(far[:-1, :-1], farther)
