"""For every mixer, splits change nothing, documents and padding are separate, and the backward form mirrors the forward form."""

from __future__ import annotations

import itertools

import pytest
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from blocks.flow import Tokens
from blocks.mixers import MIXERS, ConvolutionMixer, MixerConfig
from blocks.mixers.base import Mixer, reversal
from blocks.mixers.rglru import RGLRU
from tests.blocks.support import GROUPED, close, counted, documents, drawn, empty, mixed, random

ONE_WAY = [ConvolutionMixer(), ConvolutionMixer(kernel=1), ConvolutionMixer(kernel=5), RGLRU(), RGLRU(blocks=3)]
BOTH_WAYS = [part.model_copy(update={"both_ways": True}) for part in ONE_WAY]
FORMS = ["reference", "torch"]


def named(part: object) -> str:
    return ",".join(str(value) for value in dict(part).values()) if isinstance(part, Mixer) else str(part)


def from_empty(part: Mixer, parameters: dict[str, Tensor], hidden: Tensor, tokens: Tokens, form: str = "torch") -> Tensor:
    """Run the mixer from the empty state."""
    return mixed(part, form, parameters, hidden, tokens, empty(part, GROUPED, hidden.shape[0], hidden.dtype))[0]


def ragged(real: list[int], length: int) -> Tokens:
    """Return one document per row, with padding at the end."""
    return Tokens(torch.arange(length).expand(len(real), -1), None, torch.arange(length) < torch.tensor(real)[:, None])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cuts", [[1] * 9, [4, 5], [2, 1, 6]], ids=str)
@pytest.mark.parametrize("part", ONE_WAY, ids=named)
def test_any_split_equals_one_call(part: Mixer, cuts: list[int], form: str) -> None:
    parameters, hidden, tokens = drawn(part, GROUPED), random(2, 9, 6), documents([2, 3, 4], [9])
    whole, last = mixed(part, form, parameters, hidden, tokens, empty(part, GROUPED, 2))
    state, at, pieces = empty(part, GROUPED, 2), 0, []
    assert tokens.segment is not None
    for length in cuts:
        piece = slice(at, at + length)
        before = tokens.segment[:, at - 1, None] if at else 0
        own = Tokens(tokens.position[:, piece], tokens.segment[:, piece] - before)
        output, state = mixed(part, form, parameters, hidden[:, piece], own, state)
        pieces.append(output)
        at += length
    close(torch.cat(pieces, dim=1), whole)
    assert state.keys() == last.keys() == part.state(GROUPED).keys()
    for name, slot in part.state(GROUPED).items():
        close(state[name], last[name])
        assert state[name].shape == (2, *slot.shape)


@pytest.mark.parametrize("part", ONE_WAY + BOTH_WAYS, ids=named)
def test_the_fast_form_matches_the_definition(part: Mixer) -> None:
    """Outputs, the state, and the gradients of parameters, hidden states and the initial state are equal."""
    parameters, hidden = drawn(part, GROUPED), random(2, 20, 6)
    tokens = Tokens(
        torch.zeros(2, 20, dtype=torch.int64), documents([9, 4, 7], [20]).segment, torch.arange(20) < torch.tensor([[20], [17]])
    )
    start = {name: random(*slot.shape) for name, slot in empty(part, GROUPED, 2).items()}
    answers = []
    for form in FORMS:
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}
        earlier = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
        own = hidden.clone().requires_grad_()
        output, state = mixed(part, form, leaves, own, tokens, earlier)
        total = output[tokens.valid].square().sum() + sum(tensor.square().sum() for tensor in state.values())
        inputs = [own, *leaves.values(), *(tensor for tensor in earlier.values() if tensor.numel())]
        answers.append([output, *state.values(), *torch.autograd.grad(total, inputs)])
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted, 1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("part", ONE_WAY + BOTH_WAYS, ids=named)
def test_documents_are_independent(part: Mixer, form: str) -> None:
    lengths = [1, 4, 2, 5]
    parameters, hidden = drawn(part, GROUPED), random(1, sum(lengths), 6)
    packed = from_empty(part, parameters, hidden, documents(lengths), form)
    for own, output in zip(hidden.split(lengths, dim=1), packed.split(lengths, dim=1), strict=True):
        close(output, from_empty(part, parameters, own, counted(1, own.shape[1]), form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("part", ONE_WAY + BOTH_WAYS, ids=named)
def test_padding_changes_nothing(part: Mixer, form: str) -> None:
    """Rows with 5, 3 and 0 real tokens ignore the random padding at their end."""
    real = [5, 3, 0]
    parameters, hidden = drawn(part, GROUPED), random(3, 5, 6)
    output, state = mixed(part, form, parameters, hidden, ragged(real, 5), empty(part, GROUPED, 3))
    assert output.isfinite().all()
    for row, count in enumerate(real):
        alone, last = hidden[row : row + 1, :count], empty(part, GROUPED, 1)
        if count:
            wanted, last = mixed(part, form, parameters, alone, counted(1, count), last)
            close(output[row : row + 1, :count], wanted)
        for name, tensor in last.items():
            close(state[name][row : row + 1], tensor)


@pytest.mark.parametrize("part", ONE_WAY + BOTH_WAYS, ids=named)
def test_padding_after_several_documents_changes_nothing(part: Mixer) -> None:
    """Padding has the segment of the last document, which still ends before it."""
    parameters, hidden = drawn(part, GROUPED), random(1, 9, 6)
    tokens = documents([3, 6])
    padded = Tokens(tokens.position, tokens.segment, torch.arange(9)[None] < 7)
    output = from_empty(part, parameters, hidden, padded)
    close(output[:, :3], from_empty(part, parameters, hidden[:, :3], counted(1, 3)))
    close(output[:, 3:7], from_empty(part, parameters, hidden[:, 3:7], counted(1, 4)))


@pytest.mark.parametrize("part", ONE_WAY, ids=named)
def test_a_document_that_starts_at_the_first_token_does_not_see_the_state(part: Mixer) -> None:
    parameters, hidden = drawn(part, GROUPED), random(2, 4, 6)
    state = {name: random(*tensor.shape) for name, tensor in empty(part, GROUPED, 2).items()}
    anew = Tokens(torch.arange(4).expand(2, -1), torch.ones(2, 4, dtype=torch.int64))
    got, left = mixed(part, "torch", parameters, hidden, anew, state)
    wanted, wanted_left = mixed(part, "torch", parameters, hidden, counted(2, 4), empty(part, GROUPED, 2))
    close(got, wanted)
    for name, tensor in left.items():
        close(tensor, wanted_left[name])


@pytest.mark.parametrize("part", BOTH_WAYS, ids=named)
def test_both_directions_equal_a_forward_and_a_reversed_pass(part: Mixer) -> None:
    once = part.model_copy(update={"both_ways": False})
    parameters, hidden, tokens = drawn(part, GROUPED), random(2, 7, 6), counted(2, 7)
    back = {name: parameters[f"backward_{name}"] for name in once.parameters(GROUPED)}
    assert part.state(GROUPED) == {}
    assert len(parameters) == 2 * len(back)
    ahead = from_empty(once, back, hidden.flip(1), tokens).flip(1)
    output, state = mixed(part, "torch", parameters, hidden, tokens, {})
    close(output, from_empty(once, parameters, hidden, tokens) + ahead)
    assert state == {}


def test_reversal_flips_each_document_in_place() -> None:
    segment = torch.tensor([[0, 0, 0, 1, 1, 2], [1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0]])
    valid = torch.tensor([6, 4, 0])[:, None] > torch.arange(6)
    position = torch.zeros_like(segment)
    assert reversal(Tokens(position)).tolist() == [[5, 4, 3, 2, 1, 0]] * 3
    assert reversal(Tokens(position, segment)).tolist() == [[2, 1, 0, 4, 3, 5], [2, 1, 0, 5, 4, 3], [5, 4, 3, 2, 1, 0]]
    assert reversal(Tokens(position, segment, valid)).tolist() == [[2, 1, 0, 4, 3, 5], [2, 1, 0, 3, 5, 4], [5, 4, 3, 2, 1, 0]]
    twice = reversal(Tokens(position, segment, valid))
    assert torch.equal(twice.gather(1, twice), torch.arange(6).expand(3, -1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("part", ONE_WAY + BOTH_WAYS, ids=named)
def test_bfloat16_is_close_to_float64(part: Mixer, form: str) -> None:
    parameters, hidden = drawn(part, GROUPED, torch.bfloat16), random(2, 200, 6, dtype=torch.bfloat16)
    got = from_empty(part, parameters, hidden, counted(2, 200), form)
    assert got.dtype == torch.bfloat16
    exact = {name: tensor.double() for name, tensor in parameters.items()}
    wanted = from_empty(part, exact, hidden.double(), counted(2, 200), "reference")
    assert (got.double() - wanted).abs().max() < 0.03 * wanted.abs().max()


@pytest.mark.parametrize("part", ONE_WAY, ids=named)
def test_the_state_has_the_declared_slots(part: Mixer) -> None:
    state = empty(part, GROUPED, 1, torch.bfloat16)
    _, last = mixed(
        part, "torch", drawn(part, GROUPED, torch.bfloat16), random(1, 3, 6, dtype=torch.bfloat16), counted(1, 3), state
    )
    assert {name: tensor.dtype for name, tensor in last.items()} == {name: tensor.dtype for name, tensor in state.items()}


def test_mixers_are_parsed_by_their_kind() -> None:
    class Layer(BaseModel):
        mix_input: MixerConfig

    assert list(MIXERS.values()) == [ConvolutionMixer, RGLRU]
    assert Layer.model_validate({"mix_input": "conv"}).mix_input == ConvolutionMixer()
    assert Layer.model_validate({"mix_input": {"kind": "rglru", "blocks": 2}}).mix_input == RGLRU(blocks=2)
    for wrong in ({"kind": "conv", "blocks": 2}, {"kind": "conv", "kernel": 0}, {"kind": "rglru", "blocks": 0}, "fft"):
        with pytest.raises(ValidationError):
            Layer.model_validate({"mix_input": wrong})


def test_both_directions_count_twice_the_operations_and_a_sum() -> None:
    for once, both in zip(ONE_WAY, BOTH_WAYS, strict=True):
        assert both.flops(GROUPED, 100) == 2 * once.flops(GROUPED, 100) + 6


@pytest.mark.parametrize("both_ways", [False, True])
def test_a_changed_token_changes_only_tokens_that_see_it(both_ways: bool) -> None:
    """A changed token changes the later tokens of its own document, and with both directions also the earlier ones."""
    tokens = documents([2, 6])
    for part in (ConvolutionMixer(kernel=3, both_ways=both_ways), RGLRU(both_ways=both_ways)):
        parameters, hidden = drawn(part, GROUPED), random(1, 8, 6)
        changed = hidden.clone()
        changed[:, 4] += 1
        differs = (
            (from_empty(part, parameters, hidden, tokens) != from_empty(part, parameters, changed, tokens)).any(-1)[0].tolist()
        )
        reach = range(4, 7) if isinstance(part, ConvolutionMixer) else range(4, 8)
        before = range(2, 4) if both_ways else range(0)
        assert differs == [t in itertools.chain(before, reach) for t in range(8)]
