"""On a GPU every form of fla equals its definition in float64, forward and backward. `make gpu` runs these tests. Without a GPU
they are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.fla_kernels import refuse_wrong_gradients
from blocks.flow import Tokens
from blocks.kernels import Refused
from blocks.recurrences import additive, cumulative_fla, delta, elementwise
from blocks.recurrences.additive import fla_forms as additive_fla
from blocks.recurrences.cumulative import cumulate
from blocks.recurrences.delta import fla_forms as delta_fla
from blocks.recurrences.elementwise import fla_forms as elementwise_fla
from blocks.softmax import dense
from blocks.softmax.fla_forms import attend_causally, attend_in_window
from blocks.taps import filter_by_kernel, filter_inputs

pytestmark = pytest.mark.gpu
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
ROWS, LENGTH, HEADS, KEY_HEADS, FEATURES, WIDTH = 2, 517, 4, 2, 64, 65
Run = Callable[..., Sequence[Tensor]]


def of(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def documents() -> Tensor:
    starts = torch.rand(ROWS, LENGTH) < 0.01
    starts[:, 0] = torch.tensor([True, False])
    return starts.cumsum(1)


def compared(definition: Run, form: Run, narrow: Sequence[Tensor], wide: Sequence[Tensor | None], kind: torch.dtype) -> None:
    """Compare outputs and gradients. narrow: tensors in the model's dtype. wide: tensors in float32, such as the state."""
    # What the model's dtype rounds away is no fault of the form.
    rounded = [tensor.to(kind).double() for tensor in narrow]
    wanted = _computed(definition, [*rounded, *wide], [torch.float64] * (len(narrow) + len(wide)), "cpu")
    actual = _computed(form, [*narrow, *wide], [kind] * len(narrow) + [torch.float32] * len(wide), "cuda")
    for first, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(first.double().cpu(), other, rtol=0, atol=CLOSE[kind] * max(other.abs().max().item(), 1e-6))


def _computed(run: Run, tensors: Sequence[Tensor | None], kinds: Sequence[torch.dtype], device: str) -> list[Tensor]:
    leaves = [
        None if tensor is None else tensor.to(device, kind).requires_grad_() for tensor, kind in zip(tensors, kinds, strict=True)
    ]
    answers = run(*leaves)
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(answer.shape, generator=generator, dtype=torch.float64).to(device) for answer in answers]
    loss: Any = sum((answer.double() * weight).sum() for answer, weight in zip(answers, weights, strict=True))
    return [
        *(tensor.detach() for tensor in answers),
        *torch.autograd.grad(loss, [tensor for tensor in leaves if tensor is not None]),
    ]


def skip_where_refused() -> None:
    """Skip the test if fla refuses gradients of gates per head with an old Triton on Hopper."""
    try:
        refuse_wrong_gradients(torch.zeros(1, device="cuda"))
    except Refused as why:
        pytest.skip(str(why))


@pytest.mark.parametrize("kind", CLOSE)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rank", ["none", "head", "channel"])
def test_additive_recurrences_match_their_definition(rank: str, packed: bool, kind: torch.dtype) -> None:
    if rank == "head":
        skip_where_refused()
    shape = {"head": (ROWS, LENGTH, KEY_HEADS), "channel": (ROWS, LENGTH, KEY_HEADS, FEATURES)}.get(rank)
    decay = None if shape is None else torch.nn.functional.logsigmoid(of(*shape) + 2)
    segment = documents() if packed else None
    query, key = of(ROWS, LENGTH, HEADS, FEATURES).softmax(-1), of(ROWS, LENGTH, KEY_HEADS, FEATURES).softmax(-1)
    value, state = of(ROWS, LENGTH, KEY_HEADS, WIDTH), of(ROWS, KEY_HEADS, FEATURES, WIDTH)

    def run(form: Any) -> Run:
        def ran(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, s: Tensor) -> Sequence[Tensor]:
            return form(q, k, v, g, None if segment is None else segment.to(q.device), s)

        return ran

    compared(run(additive.naive), run(additive_fla.chunked), (query, key, value), (decay, state), kind)


@pytest.mark.parametrize("kind", CLOSE)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_delta_recurrences_match_their_definition(gated: bool, packed: bool, kind: torch.dtype) -> None:
    skip_where_refused()
    decay = torch.nn.functional.logsigmoid(of(ROWS, LENGTH, KEY_HEADS) + 2) if gated else None
    segment = documents() if packed else None
    query = torch.nn.functional.normalize(of(ROWS, LENGTH, HEADS, FEATURES), dim=-1)
    key = torch.nn.functional.normalize(of(ROWS, LENGTH, KEY_HEADS, FEATURES), dim=-1)
    value, rate = of(ROWS, LENGTH, KEY_HEADS, 64), of(ROWS, LENGTH, KEY_HEADS).sigmoid()

    def run(form: Any) -> Run:
        def ran(q: Tensor, k: Tensor, v: Tensor, r: Tensor, g: Tensor | None, s: Tensor) -> Sequence[Tensor]:
            return form(q, k, v, r, g, None if segment is None else segment.to(q.device), s)

        return ran

    state = of(ROWS, KEY_HEADS, FEATURES, 64)
    compared(run(delta.naive), run(delta_fla.chunked), (query, key, value, rate), (decay, state), kind)


@pytest.mark.parametrize("packed", [False, True])
def test_elementwise_recurrences_match_their_definition(packed: bool) -> None:
    segment, decay = documents() if packed else None, torch.nn.functional.logsigmoid(of(ROWS, LENGTH, 100))

    def run(form: Any) -> Run:
        return lambda x, g, s: form(x, g, None if segment is None else segment.to(x.device), s)

    compared(run(elementwise.naive), run(elementwise_fla.chunked), (of(ROWS, LENGTH, 100), decay), (of(ROWS, 100),), torch.float32)


@pytest.mark.parametrize("kind", CLOSE)
@pytest.mark.parametrize("packed", [False, True])
def test_means_of_latents_match_their_definition(packed: bool, kind: torch.dtype) -> None:
    segment, latents = documents() if packed else None, 32
    maximum, total = of(ROWS, HEADS, latents), 1 + torch.rand(ROWS, HEADS, latents, dtype=torch.float64)

    def definition(value: Tensor, query: Tensor, logits: Tensor, mean: Tensor) -> Sequence[Tensor]:
        sums = cumulate(logits, segment, maximum, total)
        return additive.naive(query, sums.key, value, sums.log_decay, segment, mean)

    def form(value: Tensor, query: Tensor, logits: Tensor, mean: Tensor) -> Sequence[Tensor]:
        device = value.device
        held = (maximum.to(device).float(), total.to(device).float(), mean)
        output, _, _, last = cumulative_fla.means(query, logits, value, None if segment is None else segment.to(device), *held)
        return output, last

    logits, mean = of(ROWS, LENGTH, HEADS, latents), of(ROWS, HEADS, latents, 64)
    query = of(ROWS, LENGTH, HEADS, latents).softmax(-1)
    compared(definition, form, (of(ROWS, LENGTH, KEY_HEADS, 64),), (query, logits, mean), kind)


@pytest.mark.parametrize("kind", CLOSE)
@pytest.mark.parametrize("packed", [False, True])
def test_convolutions_match_their_definition(packed: bool, kind: torch.dtype) -> None:
    segment = documents() if packed else None

    def run(form: Any) -> Run:
        def ran(x: Tensor, weight: Tensor, earlier: Tensor) -> Sequence[Tensor]:
            position = torch.zeros(ROWS, LENGTH, dtype=torch.int64, device=x.device)
            return form(x, weight, Tokens(position, None if segment is None else segment.to(x.device)), earlier)

        return ran

    narrow = (of(ROWS, LENGTH, KEY_HEADS, 64), of(HEADS, 64, 4), of(ROWS, 3, KEY_HEADS, 64))
    compared(run(filter_inputs), run(filter_by_kernel), narrow, (), kind)


@pytest.mark.parametrize("kind", CLOSE)
@pytest.mark.parametrize("packed", [False, True])
def test_attention_over_a_window_matches_its_definition(packed: bool, kind: torch.dtype) -> None:
    size, entries = 64, LENGTH + 64
    present = torch.ones(ROWS, entries, dtype=torch.bool)
    present[0, :40] = False
    segment = torch.cat((torch.zeros(ROWS, size, dtype=torch.int64), documents()), dim=1) if packed else None
    place = torch.arange(entries)
    visible = present[:, None] & (place[size:, None] >= place) & (place[size:, None] - place < size)
    if segment is not None:
        visible = visible & (segment[:, size:, None] == segment[:, None])

    def definition(query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        return (dense(query, key, value, visible).output,)

    def form(query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        device = query.device
        documents = None if segment is None else segment.to(device)
        return (attend_in_window(query, key, value, present.to(device), documents, size).output,)

    narrow = (of(ROWS, LENGTH, HEADS, 64), of(ROWS, entries, KEY_HEADS, 64), of(ROWS, entries, KEY_HEADS, 64))
    compared(definition, form, narrow, (), kind)


@pytest.mark.parametrize("kind", CLOSE)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("fading", [False, True])
def test_attention_over_all_pairs_matches_its_definition(fading: bool, packed: bool, kind: torch.dtype) -> None:
    """Pairs of an earlier call come first, and some places have none."""
    held, entries = 64, LENGTH + 64
    present, place = torch.ones(ROWS, entries, dtype=torch.bool), torch.arange(entries)
    present[0, 20:40] = False
    segment = torch.cat((torch.zeros(ROWS, held, dtype=torch.int64), documents()), dim=1) if packed else None
    visible = present[:, None] & (place[held:, None] >= place)
    if segment is not None:
        visible = visible & (segment[:, held:, None] == segment[:, None])

    def definition(query: Tensor, key: Tensor, value: Tensor, since: Tensor | None) -> Sequence[Tensor]:
        faded = None if since is None else (since[:, held:], since)
        return (dense(query, key, value, visible, faded=faded).output,)

    def form(query: Tensor, key: Tensor, value: Tensor, since: Tensor | None) -> Sequence[Tensor]:
        device = query.device
        documents_of = None if segment is None else segment.to(device)
        return (attend_causally(query, key, value, present.to(device), documents_of, None, since).output,)

    narrow = (of(ROWS, LENGTH, HEADS, 64), of(ROWS, entries, KEY_HEADS, 64), of(ROWS, entries, KEY_HEADS, 64))
    since = torch.nn.functional.logsigmoid(of(ROWS, entries, HEADS) + 2).cumsum(1) if fading else None
    compared(definition, form, narrow, (since,), kind)
