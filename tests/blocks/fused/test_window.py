"""A window whose kernel returns its mass equals its definition, gradients through the mass included, beside any memory that
shares its read. The kernels compile for other GPUs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blocks.flow import Tokens
from blocks.fused import window
from blocks.legend import Shape
from blocks.operation import Form, Setting
from blocks.softmax import triton_forms
from tests.blocks.fused.builds import assert_they_are_built
from tests.blocks.fused.heads import ALIKE, GROUPED, assert_defined
from tests.laws.kernels import LENGTH, packed_tokens, padded_tokens

pytestmark = pytest.mark.long

SAYS = "blocks of queries against their window, with its mass"
SHORT = {"kind": "window", "size": 5}
ABOVE = {"kind": "state", "normalise": False, "gate": "head"}
HEADS: dict[str, dict[str, Any]] = {
    "learned pairs and a numerator beside it": {
        "position": "none", "feature_map": "hedgehog", "flow": "parallel", "read": "sum",
        "memory": [{"kind": "meta", "size": 3}, SHORT | {"position": "rope", "weight": "learned"}, ABOVE],
    },
    "the first pairs above it": {"position": "rope", "memory": [{"kind": "first", "size": 2}, SHORT | {"evict": "drop"}]},
    "chunks beside everything": {
        "position": "rope", "flow": "parallel", "memory": [SHORT | {"shape": "terraced", "weight": "token"}, "full"]
    },
}  # fmt: skip


@pytest.mark.parametrize("shape", [GROUPED, ALIKE], ids=["shared heads", "heads of 12"])
@pytest.mark.parametrize("name", HEADS)
def test_heads_and_gradients_match_the_definition(name: str, shape: Shape) -> None:
    """Heads match in two calls. The second call starts with pairs in the window."""
    assert_defined(HEADS[name], shape, LENGTH, rows=2, parts={"window": SAYS}, bounds=(9,))


@pytest.mark.parametrize("tokens", [packed_tokens(), padded_tokens()], ids=["documents", "padding"])
@pytest.mark.parametrize("name", HEADS)
def test_documents_are_separate_and_padding_is_masked(name: str, tokens: Tokens) -> None:
    assert_defined(HEADS[name], GROUPED, LENGTH, rows=2, tokens=tokens, parts={"window": SAYS}, bounds=(9,))


def test_several_blocks_of_queries_and_pairs_match_the_definition() -> None:
    head = HEADS["the first pairs above it"]
    long = {**head, "memory": [head["memory"][0], {"kind": "window", "size": 70, "evict": "drop"}]}
    assert_defined(long, GROUPED, 150, parts={"window": SAYS})


def test_queries_without_pairs_have_zero_output_and_gradient() -> None:
    query, key, value = (torch.randn(1, 3, 2, 8, generator=torch.Generator().manual_seed(0), requires_grad=True) for _ in range(3))
    position, first = torch.tensor([[0, 1, -1]]), torch.tensor([[0, 1, 2]])
    output, lse = window.with_mass(query, key, value, position, first, 1)
    assert lse[0, 2].isneginf().all()
    assert (output[0, 2] == 0).all()
    (output.sum() + lse[:, :2].sum()).backward()
    for tensor in (query, key, value):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert (tensor.grad[0, 2] == 0).all()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"one_token": True}, "several tokens"),
        ({"needs_maximum": True}, "largest logit"),
        ({"capped": True}, "caps no logits"),
        ({"shape": Shape(hidden_size=12, heads=1, key_heads=1, head_dim=257)}, "at most 256"),
        ({"dtype": "float64"}, "do not support float64"),
    ],
)
def test_obstacle_names_unsupported_dtypes_and_sizes(setting: dict[str, Any], message: str) -> None:
    assert triton_forms.obstacle(Setting()) is None
    reason = triton_forms.obstacle(Setting(**setting))
    assert reason is not None
    assert message in reason


def test_a_kernel_without_mass_is_preferred_if_no_read_needs_the_mass() -> None:
    beside = Form("fla", "another", lambda: None, lambda setting: "gaps" if setting.sifted else None)
    assert triton_forms.obstacle(Setting(), beside) is None
    assert triton_forms.obstacle(Setting(needs_mass=False, sifted=True), beside) is None
    assert triton_forms.obstacle(Setting(needs_mass=False)) is None
    gone = Form("fla", "another", lambda: None, missing=lambda: "it is not installed")
    assert triton_forms.obstacle(Setting(needs_mass=False), gone) is None
    assert triton_forms.obstacle(Setting(needs_mass=False), beside) == "no read needs the mass, and another runs without it"


def test_the_kernels_compile_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """The kernels compile for 32 query heads of 128 that share 8 key heads, as in Llama 3.1 8B."""
    constants = window.constants_of(torch.bfloat16, 32, 8, 128) | {"ROWS": window.ROWS}
    assert_they_are_built(window, ("compute_output", "of_queries", "of_pairs"), constants, capsys)
