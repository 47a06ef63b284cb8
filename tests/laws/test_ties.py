"""Law 2 where text repeats itself: pairs that are worth the same to a sparse cache are told apart by age, not by rounding."""

from __future__ import annotations

import pytest
import torch

from blocks.scores import SCORES
from tests.laws.cases import SMALL, Inputs, built, complete, inputs, pieces, run

LENGTH = 72
SPLITS = [(33, 34, 41), (*range(36), *range(60, LENGTH))]
"""Uneven; and one by one, until the cache has overflowed two dozen times, and again across the border of a chunk."""
TEXTS = torch.stack(
    (
        torch.zeros(LENGTH, dtype=torch.int64),
        torch.arange(LENGTH) % 11,
        torch.arange(LENGTH) // 2 % 7,
        torch.randint(3, (LENGTH,), generator=torch.Generator().manual_seed(3)),
        torch.randint(8, (LENGTH,), generator=torch.Generator().manual_seed(4)),
    )
)
"""Rows of words: one word, two sentences again and again, vocabularies of three and of eight."""


def saying(texts: torch.Tensor, dtype: torch.dtype, seed: int) -> Inputs:
    """Wherever a word stands, it is the same numbers."""
    words = inputs(SMALL.shape(4), 1, 11, seed=seed).to(dtype)
    return Inputs(*(tensor[0, texts] for tensor in words.tensors), inputs(SMALL.shape(4), *texts.shape).tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", ["sliding", "terraced"])
@pytest.mark.parametrize("keep", SCORES)
def test_what_is_worth_the_same_stays_by_age(keep: str, shape: str, dtype: torch.dtype) -> None:
    """However a text is split, the same pairs stay, and the answers are those of the whole."""
    memory = [{"kind": "window", "size": 6, "shape": shape}, {"kind": "sparse", "size": 5, "keep": keep}, "state"]
    spec = complete({"position": "rope", "feature_map": "hedgehog", "memory": memory})
    head, data = built(spec, SMALL.shape(4)).to(dtype), saying(TEXTS, dtype, seed=0)
    with torch.no_grad():
        wanted, whole = run(head, data)
        for bounds in SPLITS:
            outputs, state = [], None
            for piece in pieces(LENGTH, bounds):
                output, state = run(head, data.cut(piece), state)
                outputs.append(output)
            assert state is not None
            assert torch.equal(state["sparse.position"], whole["sparse.position"])
            nearness = 4 * torch.finfo(dtype).eps * wanted.abs().max().item()
            torch.testing.assert_close(torch.cat(outputs, dim=1), wanted, rtol=0, atol=max(nearness, 1e-5))
