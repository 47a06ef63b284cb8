"""Both softmaxes of one product equal Hedgehog's definition, gradients included, and the kernels compile for other GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blocks.feature_maps.hedgehog import Hedgehog
from blocks.fused import hedgehog
from blocks.kernels import Kernel, Refused
from blocks.legend import Shape
from blocks.operation import Setting
from tests.blocks.fused.builds import build
from tests.blocks.fused.heads import ALIKE, CLOSE, GROUPED, assert_close, assert_defined
from tests.blocks.support import drawn
from tests.compiling import built
from tests.laws.cases import build_head as built_head
from tests.laws.cases import complete, inputs, run

SAYS = "a product and its softmaxes"
FEW = {"head_dim": 6}
CASES: list[tuple[dict[str, Any], int]] = [
    ({}, 2),
    ({"dim": 5, "bias": True}, 1),
    ({"skip": True, "per": "key_head", "floor": 0.15}, 1),
    ({"two_sided": False, "share": "qk"}, 2),
]


@pytest.mark.parametrize(("options", "incoming"), CASES, ids=["plain", "bias, shared keys", "skip, floor", "one side"])
def test_features_and_gradients_match_the_definition(options: dict[str, Any], incoming: int) -> None:
    shape = Shape(hidden_size=6, heads=2, key_heads=incoming, **FEW)
    part = Hedgehog(**options).with_dim(shape)
    drawn_parameters, x = drawn(part, shape), torch.randn(1, 70, incoming, 6, dtype=torch.float64)
    answers = []
    for kind in (torch.float64, torch.float32):
        parameters = {name: parameter.to(kind, copy=True).requires_grad_() for name, parameter in drawn_parameters.items()}
        inputs = x.to(kind, copy=True).requires_grad_()
        if kind is torch.float64:
            features = part.map_key(parameters, inputs)
        else:
            side = "" if part.share == "qk" else "key_"
            sides = 2 if part.two_sided else 1
            further = {"skip": part.skip, "sides": sides, "floor": part.floor}
            features = hedgehog.shares(inputs, parameters[f"{side}weight"], parameters.get(f"{side}bias"), **further)
        weight = torch.randn(features.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        (features * weight.to(kind)).sum().backward()
        used = [parameter for name, parameter in parameters.items() if not name.startswith("query_")]
        answers.append([features.detach(), inputs.grad, *(parameter.grad for parameter in used)])
    for actual, expected in zip(answers[1], answers[0], strict=True):
        assert expected is not None
        assert actual is not None
        assert_close(actual, expected)
    assert CLOSE <= 1e-5


@pytest.mark.parametrize(
    ("memory", "shape"),
    [([{"kind": "state"}], GROUPED), ([{"kind": "delta"}], ALIKE)],
    ids=["as they are", "of length 1"],
)
def test_heads_use_the_kernel(memory: list[Any], shape: Shape) -> None:
    head = {"position": "rope", "feature_map": {"kind": "hedgehog", "dim": 6}, "memory": memory}
    assert_defined(head, shape, 9, parts={f"{memory[0]['kind']}_features": SAYS})


def test_refused_keys_are_mapped_by_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the kernel refuses the keys, they are mapped by the definition although the features of the queries are already
    computed.
    """
    head = {"feature_map": "hedgehog", "memory": [{"kind": "window", "size": 4}, {"kind": "state"}]}
    module, data, call, seen = (
        built_head(complete(head), GROUPED).float(),
        inputs(GROUPED, 1, 9).to(torch.float32),
        Kernel.__call__,
        [],
    )

    def second_is_refused(kernel: Kernel, *drawn_parameters: Any, **options: Any) -> Any:
        seen.append(kernel.name)
        if seen.count("shares") == 2 and kernel.name == "shares":
            raise Refused("of a test")
        return call(kernel, *drawn_parameters, **options)

    with torch.no_grad():
        expected, _ = run(module, data, backend="torch")
        monkeypatch.setattr(Kernel, "__call__", second_is_refused)
        with pytest.warns(RuntimeWarning, match="of a test"):
            actual, _ = run(module, data, backend="triton")
    assert seen == ["shares", "shares", "attend_jointly"]
    assert_close(actual, expected)


def test_settings_that_do_not_fit_have_a_reason() -> None:
    shape = Shape(hidden_size=6, heads=2, key_heads=2, head_dim=6)
    on_gpu = Setting(device="cuda", shape=shape)
    (form, defined) = Hedgehog().operation(shape).forms
    assert form.obstacle(on_gpu) is None
    assert "no product" in str(Hedgehog(linear=False).operation(shape).forms[0].obstacle(on_gpu))
    assert "256 columns" in str(Hedgehog(dim=300).operation(shape).forms[0].obstacle(on_gpu))
    assert defined.obstacle(on_gpu) is None


def test_the_kernels_compile_without_a_gpu() -> None:
    constants = {"H": 32, "N": 8, "OWN": 32, "D": 64, "C": 64, "BLOCK": 64, "DB": 64, "CB": 64, "SKIP": False, "SIDES": 2}
    constants |= {"PRECISION": "tf32", "bias": None}
    of_model = {"x": "*bf16", "weight": "*bf16", "rows": "i32", "floor": "fp32"}
    builds = [build(hedgehog.__name__, name, getattr(hedgehog, name), torch.bfloat16, constants, 4) for name in ("forth", "back")]
    for kernels in builds:
        kernels.signature.update(of_model)  # pyright: ignore[reportAttributeAccessIssue]
    for kernels in built(builds):
        assert kernels.stack == 0, kernels
        assert kernels.shared <= 99 * 1024, kernels
