"""The fused convolution and Hedgehog map equals both parts run separately, gradients included, and compiles for other GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blocks.catalogue import PATTERNS
from blocks.convolution import Convolution
from blocks.feature_maps.convolved import CONVOLVED_MAP
from blocks.feature_maps.hedgehog import Hedgehog
from blocks.flow import Tokens
from blocks.fused import convolved_hedgehog
from blocks.kernels import Kernel, Refused
from blocks.operation import Setting
from composer.graph.lowering import list_forms
from composer.graph.wiring import build_graph
from tests.blocks.fused.builds import build
from tests.blocks.fused.heads import GROUPED, assert_close, assert_defined
from tests.compiling import built
from tests.laws.cases import build_head as built_head
from tests.laws.cases import complete, inputs, run

SAYS = "taps, a product and its softmaxes"
PARTS = {"conv": SAYS, "state_features": SAYS}
LAWCAT: dict[str, Any] = {"position": "none", "conv": {"kernel": 4}, "feature_map": {"kind": "hedgehog"}, "memory": ["state"]}
VARIANTS: dict[str, dict[str, Any]] = {
    "as in LAWCAT": {},
    "one filter, one map": {"conv": {"kernel": 3, "share": "qk"}, "feature_map": {"kind": "hedgehog", "share": "qk"}},
    "of the key heads": {
        "conv": {"per": "key_head"},
        "feature_map": {"kind": "hedgehog", "per": "key_head", "dim": 5, "bias": True},
    },
    "filters of the key heads": {"conv": {"per": "key_head"}},
    "one tap, a skip, one side, a floor": {
        "conv": {"kernel": 1},
        "feature_map": {"kind": "hedgehog", "skip": True, "two_sided": False, "floor": 0.15},
    },
    "features of length 1": {"memory": [{"kind": "delta"}]},
}


def parts_of(head: dict[str, Any]) -> dict[str, str]:
    return {"conv": SAYS, "delta_features": SAYS} if head["memory"] == [{"kind": "delta"}] else PARTS


def packed(length: int) -> Tokens:
    """Return two rows of two documents each. The first row starts with a new document."""
    bounds = torch.tensor([[3], [length - 2]])
    position = torch.arange(length).expand(2, -1)
    later = position >= bounds
    return Tokens(torch.where(later, position - bounds, position), later.long())


@pytest.mark.parametrize("variant", VARIANTS)
def test_heads_match_their_definition(variant: str) -> None:
    """Heads match their definition across the end of a block and from the state of an earlier call."""
    head = LAWCAT | VARIANTS[variant]
    assert_defined(head, GROUPED, 69, parts=parts_of(head), bounds=(2,))


def test_documents_do_not_see_each_other() -> None:
    assert_defined(LAWCAT, GROUPED, 11, parts=PARTS, rows=2, tokens=packed(11))
    assert_defined(LAWCAT, GROUPED, 11, parts=PARTS, rows=2, tokens=packed(11), bounds=(5, 6))


def test_padding_does_not_reach_later_tokens() -> None:
    position = torch.arange(9).expand(2, -1)
    tokens = Tokens(position, valid=position < torch.tensor([[9], [4]]))
    assert_defined(LAWCAT, GROUPED, 9, parts=PARTS, rows=2, tokens=tokens)


def test_one_token_at_a_time_matches_the_definition() -> None:
    assert_defined(LAWCAT, GROUPED, 6, parts=PARTS, bounds=tuple(range(1, 6)), one_token=True)


def forms(head: dict[str, Any]) -> dict[str, str]:
    lowered_parts = list_forms(build_graph(complete(head), GROUPED), "triton", Setting(gradients=True))
    return {lowered_part.part: lowered_part.form for lowered_part in lowered_parts}


def test_rope_between_convolution_and_map_prevents_the_pattern() -> None:
    """So does a window between them."""
    assert not forms(LAWCAT | {"position": "rope"})["conv"].startswith(SAYS)
    assert not forms(LAWCAT | {"memory": [{"kind": "window", "size": 4}, "state"]})["conv"].startswith(SAYS)
    assert forms(LAWCAT)["conv"].startswith(SAYS)


def test_settings_that_do_not_fit_have_a_reason() -> None:
    on_gpu = Setting(device="cuda", shape=GROUPED)

    def reason_of(conv: dict[str, Any], features: dict[str, Any]) -> str:
        (form,) = CONVOLVED_MAP.forms({"conv": Convolution(**conv), "features": Hedgehog(**features)})
        return str(form.obstacle(on_gpu))

    assert CONVOLVED_MAP in PATTERNS
    assert reason_of({}, {}) == "None"
    assert "nothing else" in reason_of({"inputs": ("q", "k", "v")}, {})
    assert "unchanged" in reason_of({"activation": "silu"}, {})
    assert "there are 9" in reason_of({"kernel": 9}, {})
    assert "no product" in reason_of({}, {"linear": False})
    assert "256 columns" in reason_of({}, {"dim": 300})


def test_separate_forms_run_if_the_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    module, data, call = built_head(complete(LAWCAT), GROUPED).float(), inputs(GROUPED, 1, 9).to(torch.float32), Kernel.__call__

    def refused(kernel: Kernel, *arguments: Any, **options: Any) -> Any:
        if kernel.name == "convolved_shares":
            raise Refused("of a test of taps")
        return call(kernel, *arguments, **options)

    with torch.no_grad():
        expected, _ = run(module, data, backend="torch")
        monkeypatch.setattr(Kernel, "__call__", refused)
        with pytest.warns(RuntimeWarning, match="of a test of taps"):
            actual, _ = run(module, data, backend="triton")
    assert_close(actual, expected)


def test_the_kernels_compile_without_a_gpu() -> None:
    """The kernels compile at the sizes of Llama 3.2 1B and 3.1 8B."""
    builds = []
    for dim in (64, 128):
        constants = {"H": 32, "M": 32, "N": 8, "OWN": 32, "FILTERS": 32, "D": dim, "C": dim, "R": 4, "DB": dim}
        constants |= {
            "CB": dim,
            "BLOCK": convolved_hedgehog.BLOCKS[dim > 64],
            "SKIP": False,
            "SIDES": 2,
            "PRECISION": "tf32",
            "bias": None,
            "start": None,
        }
        names = ("forth", "back_through_taps")
        of_model = dict.fromkeys(("x", "earlier", "filters", "weight", "filtered"), "*bf16")
        of_model |= {"T": "i32", "E": "i32", "blocks": "i32", "floor": "fp32"}
        for name in names:
            kernels = build(convolved_hedgehog.__name__, name, getattr(convolved_hedgehog, name), torch.bfloat16, constants, 8)
            kernels.signature.update({key: kind for key, kind in of_model.items() if key in kernels.signature})  # pyright: ignore[reportAttributeAccessIssue]
            builds.append(kernels)
    for kernels in built(builds):
        assert kernels.stack == 0, kernels
        assert kernels.shared <= 99 * 1024, kernels
