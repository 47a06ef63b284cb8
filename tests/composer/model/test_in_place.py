"""A decode step overwrites the state of its own cache only: copies, beams and autograd graphs keep theirs."""

from __future__ import annotations

import copy

import pytest
import torch

from composer.model.cache import ComposedCache
from composer.model.modeling import ComposedForCausalLM
from tests.composer.model.models import FEW, student, tokens

SPECS = {
    "a window above a state": ("lolcats",),
    "exponential features": ("lolcats-workshop",),
    "a cache below a sliding window": ("lola", "head.memory.0.shape=sliding"),
    "a cache below a terraced window": ("lola",),
    "a state that forgets": ("gla",),
    "a normalised state that forgets, and taps": ("lawcat",),
    "a corrected state": ("gated-delta",),
    "latents": ("latte", "head.memory.0.size=12"),
    "latents, a window, and a mixer": ("latte-macchiato", "head.memory.1.size=12"),
    "everything": ("softmax",),
}
SIZES = {"lolcats": [0], "lolcats-workshop": [0], "lola": [0, 1], "latte-macchiato": [0]}
LENGTH = 9


@pytest.fixture(params=SPECS.values(), ids=list(SPECS), scope="module")
def model(request: pytest.FixtureRequest):
    spec, *overrides = request.param
    return student(spec, *[f"head.memory.{index}.size=5" for index in SIZES.get(spec, [])], *overrides)


def small(spec: str) -> ComposedForCausalLM:
    """Return a student of the usual source with short memories."""
    return student(spec, "trunk=null", *[f"head.memory.{index}.size=5" for index in SIZES.get(spec, [])])


def read_states(cache: ComposedCache) -> dict[str, torch.Tensor]:
    return {f"{layer}.{name}": tensor for layer in range(len(cache.layers)) for name, tensor in cache.state(layer).tensors.items()}


@torch.no_grad()
def test_steps_do_not_change_a_copy_of_the_cache(model) -> None:
    """The copy continues as the first cache did, across the eviction of a chunk."""
    ids = tokens(2, LENGTH + 4)
    cache = model(ids[:, :LENGTH], use_cache=True).past_key_values
    kept = copy.deepcopy(cache)
    before = {name: tensor.clone() for name, tensor in read_states(kept).items()}
    steps = [model(ids[:, [column]], past_key_values=cache).logits for column in range(LENGTH, LENGTH + 4)]
    assert all(torch.equal(tensor, before[name]) for name, tensor in read_states(kept).items())
    for column, wanted in enumerate(steps, LENGTH):
        assert torch.equal(model(ids[:, [column]], past_key_values=kept).logits, wanted)
    torch.testing.assert_close(torch.cat(steps, dim=1), model(ids).logits[:, LENGTH:], rtol=1e-9, atol=1e-9)


def test_steps_with_gradients_overwrite_no_state(model) -> None:
    """The autograd graph holds the earlier state, so each step leaves it unchanged and equals the step without gradients."""
    ids = tokens(2, LENGTH + 3)
    with torch.no_grad():
        cache = model(ids[:, :LENGTH], use_cache=True).past_key_values
    other = copy.deepcopy(cache)
    for column in range(LENGTH, LENGTH + 3):
        states = read_states(cache)
        before = {name: tensor.clone() for name, tensor in states.items()}
        gradients = model(ids[:, [column]], past_key_values=cache).logits
        assert all(torch.equal(tensor, before[name]) for name, tensor in states.items())
        with torch.no_grad():
            torch.testing.assert_close(gradients, model(ids[:, [column]], past_key_values=other).logits, rtol=1e-9, atol=1e-9)
    gradients.sum().backward()


def test_steps_without_gradients_do_not_change_the_gradients_of_a_prefill(model) -> None:
    """This holds also after a prompt of one token, whose states are the tensors of the autograd graph."""

    def gradients(logits: torch.Tensor) -> list[torch.Tensor]:
        gradients = torch.autograd.grad(logits.square().mean(), list(model.parameters()), allow_unused=True)
        return [gradient for gradient in gradients if gradient is not None]

    for length in (1, LENGTH):
        ids = tokens(2, length + 3)
        wanted = gradients(model(ids[:, :length], use_cache=False).logits)
        answer = model(ids[:, :length], use_cache=True)
        with torch.no_grad():
            for column in range(length, length + 3):
                model(ids[:, [column]], past_key_values=answer.past_key_values)
        for slope, other in zip(gradients(answer.logits), wanted, strict=True):
            torch.testing.assert_close(slope, other, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_beams_have_separate_states(model) -> None:
    """Two beams of one row continue independently."""
    ids = tokens(2, LENGTH + 2)
    cache = model(ids[:, :LENGTH], use_cache=True).past_key_values
    cache.reorder_cache(torch.tensor([1, 1]))
    rows = torch.stack((ids[1], torch.cat((ids[1, :LENGTH], ids[0, LENGTH:]))))
    steps = [model(rows[:, [column]], past_key_values=cache).logits for column in (LENGTH, LENGTH + 1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(rows).logits[:, LENGTH:], rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize(
    ("spec", "names"), [("lolcats", ["window.key", "state.state"]), ("gated-delta", ["delta.state"]), ("latte", ["latents.state"])]
)
def test_steps_overwrite_their_states_in_place(spec: str, names: list[str]) -> None:
    model = student(spec, *(["head.memory.0.size=12"] if spec == "latte" else []))
    ids = tokens(2, LENGTH + 2)
    cache = model(ids[:, :LENGTH], use_cache=True).past_key_values
    model(ids[:, [LENGTH]], past_key_values=cache)
    before = read_states(cache)
    model(ids[:, [LENGTH + 1]], past_key_values=cache)
    assert all(read_states(cache)[f"0.head.{name}"].data_ptr() == before[f"0.head.{name}"].data_ptr() for name in names)


@pytest.mark.parametrize("spec", FEW)
def test_steps_may_alternate_between_inference_mode_and_no_grad(spec: str) -> None:
    """Outside inference mode, PyTorch refuses to overwrite tensors that were created in it."""
    model, ids = student(spec), tokens(2, LENGTH + 4)
    with torch.inference_mode():
        cache = model(ids[:, :LENGTH], use_cache=True).past_key_values
    steps = []
    for column, mode in enumerate((torch.no_grad, torch.no_grad, torch.inference_mode, torch.no_grad), LENGTH):
        with mode():
            steps.append(model(ids[:, [column]], past_key_values=cache).logits)
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(steps, dim=1), model(ids).logits[:, LENGTH:], rtol=1e-9, atol=1e-9)
