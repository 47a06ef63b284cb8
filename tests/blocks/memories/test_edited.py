"""States with separate gates for erasing and writing, RWKV-7's and Gated DeltaNet-2's, equal the loop, and reject unsupported
options.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.legend import Shape
from blocks.memories.gdn2 import Gdn2
from blocks.memories.rwkv7 import Rwkv7
from composer.errors import GraphError
from composer.model.implicit_attention import implicit_attention
from tests.blocks.support import close, owner, started
from tests.laws.cases import SMALL, Inputs, build_head, complete, inputs, pieces, run

SHAPE = SMALL.shape(4)
MEMORIES: dict[str, dict[str, Any]] = {
    "rwkv7": {"kind": "rwkv7", "gate": {"kind": "bounded_channel", "rank": 3}, "edit_rank": 5, "length": "raw"},
    "rwkv7, shared": {
        "kind": "rwkv7",
        "gate": {"kind": "bounded_channel", "per": "key_head"},
        "edit_rank": "full",
        "length": "raw",
    },
    "rwkv7, by head": {"kind": "rwkv7", "gate": "softplus", "length": "raw"},
    "gdn2": {"kind": "gdn2", "largest": 2, "scale": "root"},
    "gdn2, shared": {"kind": "gdn2", "gate": {"kind": "channel", "per": "key_head"}, "edit_rank": 3},
    "gdn2, without decay": {"kind": "gdn2", "gate": "none"},
}


def head_of(memory: dict[str, Any]) -> dict[str, Any]:
    return {"position": "none", "feature_map": "identity", "memory": [memory]}


def sigmoid(states: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-states))


def gate_of(named: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    """Compute x W₁ W₂ + b from a gate's parameters."""
    weight = named[f"{name}_weight"] if f"{name}_weight" in named else named[f"{name}_up"] @ named[f"{name}_down"]
    return weight @ hidden + named[f"{name}_bias"]


def by_hand(memory: dict[str, Any], data: Inputs, head: torch.nn.Module) -> Tensor:
    """Compute each state head token by token. The decays come from the gate's own part, which has its own tests."""
    part = complete(head_of(memory)).memory[0]
    assert isinstance(part, Rwkv7 | Gdn2)
    named = dict(head.named_parameters())
    heads = part.gate.key_heads(SHAPE, SHAPE.key_heads)
    width, dim = SHAPE.head_dim, SHAPE.head_dim
    shape = Shape(hidden_size=24, heads=4, key_heads=2, head_dim=dim, features=width, state_heads=heads)
    gate = {name.partition(".")[2]: tensor for name, tensor in named.items() if name.startswith(f"{part.kind}_gate.")}
    own = {name.partition(".")[2]: tensor for name, tensor in named.items() if name.startswith(f"{part.kind}.")}
    decays = part.gate.log_decay(gate, data.hidden, shape)
    output = torch.zeros_like(data.query)
    for row in range(data.query.shape[0]):
        for state_head in range(heads):
            held, columns = torch.zeros(width, dim, dtype=torch.float64), slice(state_head * width, (state_head + 1) * width)
            for t in range(data.query.shape[1]):
                hidden, source = data.hidden[row, t], owner(state_head, heads, 2)
                key, value = data.key[row, t, source], data.value[row, t, source]
                left = torch.eye(width, dtype=torch.float64)
                if decays is not None:
                    left = left * decays[row, t, state_head].exp()
                if isinstance(part, Rwkv7):
                    rate = sigmoid(gate_of(own, "rate", hidden)[columns])
                    sought = own["removed"][state_head] * key
                    sought = sought / sought.norm()
                    written = key * (1 + (rate - 1) * own["replaced"][state_head])
                    held = (left - torch.outer(rate * sought, sought)) @ held + torch.outer(written, value)
                else:
                    key = key / key.norm()
                    erase = part.largest * sigmoid(gate_of(own, "erase", hidden)[columns])
                    write = sigmoid(gate_of(own, "write", hidden)[columns])
                    kept = (torch.eye(width, dtype=torch.float64) - torch.outer(key, erase * key)) @ left
                    held = kept @ held + torch.outer(key, write * value)
                for query_head in (query for query in range(4) if owner(query, 4, heads) == state_head):
                    query = data.query[row, t, query_head]
                    if isinstance(part, Gdn2):
                        query = query / query.norm() / (width**0.5 if part.scale == "root" else 1)
                    output[row, t, query_head] = query @ held
    return output


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("name", MEMORIES)
def test_outputs_equal_the_recurrence_in_any_split(name: str, backend: str) -> None:
    head, data = build_head(complete(head_of(MEMORIES[name])), SHAPE), inputs(SHAPE, 2, 13)
    whole, _ = run(head, data, backend=backend)
    close(whole, by_hand(MEMORIES[name], data, head))
    outputs, state = [], None
    for piece in pieces(13, (1, 2, 9, 10)):
        output, state = run(head, data.cut(piece), state, backend)
        outputs.append(output)
    close(torch.cat(outputs, dim=1), whole)


@pytest.mark.parametrize("name", ["rwkv7", "gdn2"])
def test_gradients_equal_those_of_the_recurrence(name: str) -> None:
    head, data = build_head(complete(head_of(MEMORIES[name])), SHAPE).requires_grad_(), inputs(SHAPE, 1, 5)
    answers = []
    for compute in (lambda: run(head, data)[0], lambda: by_hand(MEMORIES[name], data, head)):
        answers.append(torch.autograd.grad(compute().square().sum(), list(head.parameters())))
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted, 1e-8)


def test_equal_constant_gates_are_the_rate_of_the_delta_rule() -> None:
    """If W₁ W₂ is 0, each gate is its bias, and σ(b) is the delta rule's rate for all features and coordinates."""
    data, outputs = inputs(SHAPE, 2, 20), []
    for memory in ({"kind": "gdn2", "gate": "softplus", "bias": 0.7}, {"kind": "delta", "gate": "softplus"}):
        head = build_head(complete(head_of(memory)), SHAPE, noise=0.0)
        with torch.no_grad():
            for name, parameter in head.named_parameters():
                if name.split(".")[-1] in {"erase_weight", "write_weight"} or name == "delta_rate.weight":
                    parameter.zero_()
                if name == "delta_rate.bias":
                    parameter.fill_(0.7)
        with torch.no_grad():
            gate = head.get_parameter(f"{memory['kind']}_gate.rate")
            gate.copy_(torch.linspace(0.0, 1.0, len(gate)))
            head.get_parameter(f"{memory['kind']}_gate.bias").fill_(-2.0)
            head.get_parameter(f"{memory['kind']}_gate.weight").fill_(0.1)
        outputs.append(run(head, data)[0])
    close(*outputs)


def test_inspect_reports_a_large_error_for_gates_by_coordinate() -> None:
    """`inspect` reports an error of the implied weights: small for RWKV-7, large for Gated DeltaNet-2, whose output they do not
    give.
    """
    data, errors = inputs(SHAPE, 1, 20), {}
    for kind in ("rwkv7", "gdn2"):
        head = build_head(complete(head_of(MEMORIES[kind])), SHAPE)
        errors[kind] = implicit_attention(head, data.of_head(), (5, 19), "torch").error()
    assert errors["rwkv7"] < 1e-9
    assert errors["gdn2"] > 1e-2


@pytest.mark.parametrize("kind", ["rwkv7", "gdn2"])
def test_edited_memories_below_a_memory_that_evicts_are_refused(kind: str) -> None:
    window = {"kind": "window", "size": 5}
    head = head_of({"kind": kind})
    with pytest.raises(GraphError, match="its gates belong to the token"):
        complete(head | {"memory": [window, {"kind": kind}], "read": "sum"})
    assert complete(head | {"memory": [window, {"kind": kind}], "read": "sum", "flow": "parallel"})


def test_raw_features_without_a_bound_are_refused() -> None:
    head = head_of({"kind": "rwkv7", "length": "raw"}) | {"feature_map": "exp"}
    with pytest.raises(GraphError, match="set `length: unit`"):
        complete(head)
    assert complete(head | {"memory": [{"kind": "rwkv7"}]})


@pytest.mark.parametrize("part", [Rwkv7(), Gdn2()], ids=lambda part: part.kind)
def test_state_bytes_and_operation_count_equal_a_count_by_hand(part: Rwkv7 | Gdn2) -> None:
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=2)
    (slot,) = part.state(shape).values()
    assert slot.bytes(2) == 2 * 5 * 3 * 4
    assert started(part, shape).keys() == part.parameters(shape).keys()
    # Of 2 states of 5 × 3 numbers: products of a row and a state, the decay, and the reads of 4 query heads; then the gates.
    gates = 2 * 16 * (6 + 2 * 5) if isinstance(part, Rwkv7) else 2 * 6 * 2 * (5 + 3)
    products = 3 if isinstance(part, Rwkv7) else 2
    assert part.flops(shape, 9) == part.flops(shape, 10_000) == 2 * (products * 30 + 15) + 4 * 30 + gates
    assert (
        part.prefill_flops(shape, 64) == part.prefill_flops(shape, 10_000) > part.prefill_flops(shape, 10) > part.flops(shape, 10)
    )
