"""Keys and values per query head equal their formula, with the expected effect on the parts around them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blocks.unshared import Copies
from composer.errors import GraphError
from tests.blocks.support import ALIKE, GROUPED, ONE_KEY, close, computed, counted, drawn, random, started
from tests.laws.cases import SMALL, build_head, complete, inputs, run


def unshared(part: Copies, parameters: dict[str, Tensor], shape=GROUPED, **states: Tensor) -> tuple[Tensor, Tensor]:
    outputs, state = computed(part, "reference", shape, parameters, counted(*states["hidden"].shape[:2]), {}, **states)
    assert not state
    return outputs


@pytest.mark.parametrize("shape", [GROUPED, ALIKE, ONE_KEY])
@pytest.mark.parametrize("named", [["k"], ["v"], ["v", "k"]])
def test_unshared_keys_differ_by_query_head(named: list[str], shape) -> None:
    """k_h = k_g(h) + x Δ_h. Tensors that are not named stay shared. The gradient of every difference follows from the formula."""
    part = Copies.model_validate({"inputs": named})
    hidden, key, value = random(2, 5, 6), random(2, 5, shape.key_heads, 4), random(2, 5, shape.key_heads, 4)
    parameters = {name: parameter.requires_grad_() for name, parameter in drawn(part, shape).items()}
    assert set(parameters) == {{"k": "key", "v": "value"}[name] for name in named}
    actual = unshared(part, parameters, shape, hidden=hidden, key=key, value=value)
    for name, shared, parameter in zip(("key", "value"), (key, value), actual, strict=True):
        assert parameter.shape == (2, 5, shape.heads, 4)
        for head in range(shape.heads):
            wanted = shared[1, 3, head // (shape.heads // shape.key_heads)]
            if name in parameters:
                wanted = wanted + parameters[name][head] @ hidden[1, 3]
            close(parameter[1, 3, head], wanted)
    sum(copies.sin().sum() for copies in actual).backward()  # pyright: ignore
    for name, parameter in parameters.items():
        outer = torch.einsum("bthd,btc->hdc", actual[0 if name == "key" else 1].cos(), hidden)
        close(parameter.grad, outer)


def test_unshared_inputs_start_as_the_shared_inputs() -> None:
    part, states = Copies(), {"hidden": random(1, 3, 6), "key": random(1, 3, 2, 4), "value": random(1, 3, 2, 4)}
    result = unshared(part, started(part, GROUPED), **states)
    for copy, shared in zip(result, (states["key"], states["value"]), strict=True):
        assert torch.equal(copy, shared.repeat_interleave(2, dim=2))


@pytest.mark.parametrize(
    "head",
    [
        {"position": "rope", "memory": ["full"]},
        {"position": "rope", "feature_map": "hedgehog", "memory": [{"kind": "window", "size": 3, "weight": "learned"}, "state"]},
        {"position": "none", "conv": "causal", "feature_map": "elu", "memory": [{"kind": "state", "gate": "from_key"}]},
        {"position": "none", "feature_map": "elu", "qk_norm": "l2", "conv": {"inputs": ["k", "v"]}, "memory": ["delta"]},
        {"position": "none", "value_position": "vapor", "feature_map": "elu", "memory": ["state"]},
    ],
)
def test_the_unshared_head_starts_as_the_shared_head(head: dict) -> None:
    """The head starts as the same function although later parts now have weights per query head."""
    data, shape = inputs(SMALL.shape(4), 2, 11), SMALL.shape(4)
    torch.manual_seed(0)
    plain, own = build_head(complete(head), shape), build_head(complete(head | {"unshare": "copies"}), shape)
    theirs = dict(plain.named_parameters())
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            if name.startswith("unshare."):
                parameter.zero_()
            else:
                repeats = parameter.shape[0] // theirs[name].shape[0]
                parameter.copy_(theirs[name].repeat_interleave(repeats, dim=0))
    close(run(own, data)[0], run(plain, data)[0])


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"feature_map": None, "memory": [{"kind": "latents", "size": 8}]}, "latents have no keys; set `inputs:"),
        (
            {"mix_input": {"kind": "conv", "feeds": "qk"}, "feature_map": "elu", "memory": ["state"]},
            "keys per query head are projected from the hidden states",
        ),
    ],
)
def test_copies_without_effect_are_refused(head: dict, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        complete(head | {"unshare": "copies"})
    complete(head | {"unshare": {"kind": "copies", "inputs": ["v"]}})


def test_duplicate_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="names an input twice"):
        Copies(inputs=("k", "k"))
