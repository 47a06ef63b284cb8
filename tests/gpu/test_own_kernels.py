"""On a GPU this project's compiled kernels equal their definitions: outputs, states and gradients, prefill and decode. `make
gpu` runs these tests without Triton's interpreter. Without a GPU they are skipped.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.feature_maps.hedgehog import SHARES
from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.operation import Setting, State
from composer.graph.lowering import list_forms
from composer.graph.wiring import build_graph
from composer.system.notices import FallsBack
from tests.laws.cases import Inputs, build_head, complete, inputs, pieces, run

pytestmark = pytest.mark.gpu

NARROW = Shape(hidden_size=64, heads=8, key_heads=2, head_dim=64)
WIDE = Shape(hidden_size=64, heads=4, key_heads=4, head_dim=128)
WINDOW = {"kind": "window", "size": 64, "weight": "learned"}
TERRACED = {"kind": "window", "size": 64, "shape": "terraced", "weight": "learned"}
LOLCATS: dict[str, Any] = {"feature_map": "hedgehog", "memory": [WINDOW, {"kind": "state"}]}
LOLA = {**LOLCATS, "memory": [TERRACED, {"kind": "sparse", "size": 64, "weight": "same"}, {"kind": "state"}]}
ROW_MAX = {"kind": "shared", "scale": "row_max"}
LENGTH = 333
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Of the largest number; gradients by five times as much."""
ROUNDED = {torch.float32: 1e-3, torch.bfloat16: 2.0}
"""Where a gradient is a sum over tokens: of LENGTH roundings by 2⁻⁸ three standard deviations are 0.2, a tenth of this."""
GATE = "state_gate."
"""Where the names of a gate's parameters begin. Their gradients pass through that of the decay, a running sum over tokens."""


def moved(data: Inputs, kind: torch.dtype) -> Inputs:
    tokens = data.tokens
    moved_tokens = (
        None if moved_tokens is None else moved_tokens.cuda() for moved_tokens in (tokens.position, tokens.segment, tokens.valid)
    )
    return Inputs(*(tensor.to(kind).cuda() for tensor in data.tensors), Tokens(*moved_tokens))


def answers(
    head: dict[str, Any], shape: Shape, data: Inputs, kind: torch.dtype, bounds: tuple[int, ...], gradients: bool
) -> list[tuple[Tensor, State, dict[str, Tensor]]]:
    """Return the results of the definition in float64 and of the kernels for the same inputs."""
    results = []
    for backend in ("reference", "triton"):
        wide = torch.float64 if backend == "reference" else kind
        module = build_head(complete(head), shape).to(kind).to(wide).cuda().requires_grad_(gradients)
        inputs_on_gpu = moved(data, kind)
        leaves = [tensor.to(wide).requires_grad_(gradients) for tensor in inputs_on_gpu.tensors]
        state, outputs = None, []
        with warnings.catch_warnings(), torch.set_grad_enabled(gradients):
            warnings.simplefilter("error", FallsBack)
            for piece in pieces(data.query.shape[1], bounds):
                output, state = run(module, Inputs(*leaves, inputs_on_gpu.tokens).cut(piece), state, backend)
                outputs.append(output)
        output = torch.cat(outputs, dim=1)
        assert state is not None
        slopes: dict[str, Tensor] = {}
        if gradients:
            weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
            (output * weight.to(wide).cuda()).sum().backward()
            named = [*((f"input {number}", leaf) for number, leaf in enumerate(leaves)), *module.named_parameters()]
            slopes = {name: tensor.grad for name, tensor in named[1:] if tensor.grad is not None}
        results.append((output.detach(), state, slopes))
    return results


def close(actual: Tensor, expected: Tensor, share: float, least: float = 1e-3) -> None:
    """Compare within a share of the largest number, or of ``least``."""
    finite = expected.isfinite()
    scale = expected[finite].abs().max().item() if finite.any() else 1.0
    torch.testing.assert_close(actual.double()[finite], expected.double()[finite], rtol=0, atol=share * max(scale, least))


def packed() -> Inputs:
    data, lengths = inputs(NARROW, 1, LENGTH), [100, 1, 130, 102]
    position = torch.cat([torch.arange(length) for length in lengths])
    return Inputs(*data.tensors, Tokens(position[None], torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]))


def assert_both_agree(head: dict[str, Any], shape: Shape, kind: torch.dtype) -> None:
    """Compare outputs, states and gradients in a split call, and with packed documents if the shape has them."""
    for data, bounds in ((inputs(shape, 2, LENGTH), (150,)), *(((packed(), ()),) if shape is NARROW else ())):
        (expected, held, slopes), (actual, kept, others) = answers(head, shape, data, kind, bounds, True)
        close(actual, expected, CLOSE[kind])
        for name, expected_state in held.items():
            close(kept[name], expected_state, CLOSE[kind])
        assert slopes.keys() == others.keys()
        for name, expected_slope in slopes.items():
            # The gradient of a number a head, and of a gate, sums over all tokens terms of about 1, which may cancel.
            is_sum = expected_slope.dim() == 1 or name.startswith(GATE)
            close(others[name], expected_slope, 5 * CLOSE[kind], ROUNDED[kind] if is_sum else 1e-3)


@pytest.mark.parametrize("kind", CLOSE, ids=str)
@pytest.mark.parametrize(
    ("head", "shape"),
    [
        (LOLCATS, NARROW),
        (LOLCATS, WIDE),
        ({**LOLCATS, "memory": [TERRACED, {"kind": "state"}], "read": ROW_MAX}, NARROW),
        ({**LOLCATS, "memory": [WINDOW, {"kind": "state", "gate": "head"}]}, NARROW),
        ({**LOLCATS, "memory": [WINDOW, {"kind": "state", "gate": "channel"}]}, NARROW),
        ({**LOLCATS, "memory": [TERRACED, {"kind": "state", "gate": "head"}]}, NARROW),
        ({**LOLCATS, "memory": [TERRACED, {"kind": "state", "gate": "channel"}]}, NARROW),
    ],
    ids=[
        "lolcats",
        "128 wide",
        "terraced, row_max",
        "decay",
        "decay by the feature",
        "terraced, decay",
        "terraced, decay by the feature",
    ],
)
def test_the_window_above_a_state_matches_its_definition(head: dict[str, Any], shape: Shape, kind: torch.dtype) -> None:
    assert_both_agree(head, shape, kind)


@pytest.mark.parametrize("kind", CLOSE, ids=str)
@pytest.mark.parametrize("shape", [NARROW, WIDE], ids=["64 wide", "128 wide"])
def test_convolution_and_map_match_their_definition(shape: Shape, kind: torch.dtype) -> None:
    head = {"position": "none", "conv": {"kernel": 4}, "feature_map": "hedgehog", "memory": ["state"]}
    assert {lowered_part.backend for lowered_part in list_forms(build_graph(complete(head), shape), "triton", Setting("cuda"))} >= {
        "triton"
    }
    assert_both_agree(head, shape, kind)


@pytest.mark.parametrize("kind", CLOSE, ids=str)
@pytest.mark.parametrize("shape", [NARROW, WIDE], ids=["64 wide", "128 wide"])
def test_a_window_with_its_mass_matches_its_definition(shape: Shape, kind: torch.dtype) -> None:
    streaming = {"position": "rope", "memory": [{"kind": "first", "size": 4}, {"kind": "window", "size": 64, "evict": "drop"}]}
    beside = [{"kind": "meta", "size": 4}, {**TERRACED, "position": "rope"}, {"kind": "state", "normalise": False, "gate": "head"}]
    for head in (streaming, {"position": "none", "feature_map": "hedgehog", "memory": beside, "flow": "parallel", "read": "sum"}):
        (window,) = [
            lowered_part
            for lowered_part in list_forms(build_graph(complete(head), shape), "triton", Setting("cuda"))
            if lowered_part.part == "window"
        ]
        assert window.backend == "triton"
        assert_both_agree(head, shape, kind)


@pytest.mark.parametrize("kind", CLOSE, ids=str)
@pytest.mark.parametrize("head", [LOLCATS, {**LOLCATS, "memory": [TERRACED, {"kind": "state"}], "read": ROW_MAX}, LOLA])
def test_decode_kernels_match_their_definition(head: dict[str, Any], kind: torch.dtype) -> None:
    if head is LOLA and kind is torch.bfloat16:
        pytest.skip("which pair stays may hang on the rounding of bfloat16")
    data, shape = inputs(NARROW, 2, 200), NARROW
    one_token = list_forms(build_graph(complete(head), shape), "triton", Setting("cuda", str(kind)[6:], one_token=True))
    assert {lowered_part.backend for lowered_part in one_token if lowered_part.kind in {"window", "sparse", "state"}} == {"triton"}
    (expected, held, _), (actual, kept, _) = answers(head, shape, data, kind, tuple(range(180, 200)), False)
    close(actual, expected, CLOSE[kind])
    for name, expected_state in held.items():
        close(kept[name], expected_state, CLOSE[kind])


@pytest.mark.parametrize(
    ("keep", "gate", "features"),
    [
        ("self_recall", "none", "hedgehog"),
        ("relative_recall", "head", "exp"),
        ("squared_error", "channel", "hedgehog"),
        ("random", "channel", "exp"),
    ],
)
def test_lola_keeps_the_same_pairs_as_its_definition(keep: str, gate: str, features: str) -> None:
    window, sparse, state = LOLA["memory"]
    memory = [window, {**sparse, "keep": keep}, {**state, "gate": gate}]
    head = {**LOLA, "feature_map": features, "memory": memory}
    for data, bounds in ((inputs(NARROW, 2, LENGTH), (200,)), (packed(), ())):
        (expected, held, _), (actual, kept, _) = answers(head, NARROW, data, torch.float32, bounds, False)
        assert torch.equal(kept["sparse.position"], held["sparse.position"])
        close(actual, expected, CLOSE[torch.float32])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_kernels_run_on_another_gpu_than_the_current_one() -> None:
    """Triton launches on the current GPU, and most layers of a model on several GPUs are on another."""
    data, answers_of = moved(inputs(NARROW, 1, 100), torch.float32), []
    for device in ("cuda:0", "cuda:1"):
        module = build_head(complete(LOLCATS), NARROW).to(torch.float32).to(device).requires_grad_()
        tokens = Tokens(data.tokens.position.to(device))
        with warnings.catch_warnings():
            warnings.simplefilter("error", FallsBack)
            output, _ = run(module, Inputs(*(tensor.to(device) for tensor in data.tensors), tokens), backend="triton")
        output.square().sum().backward()
        answers_of.append(
            [output.detach().cpu(), *(parameter.grad.cpu() for parameter in module.parameters() if parameter.grad is not None)]
        )
    for actual, other in zip(*answers_of, strict=True):
        close(actual, other, CLOSE[torch.float32])


def test_features_beyond_32_bit_offsets_are_right() -> None:
    """64 heads of 256 features exceed 32-bit offsets from 131,072 tokens on."""
    length, heads, columns, tail = 131_200, 64, 128, 70
    draw = torch.Generator("cuda").manual_seed(3)
    x = torch.randn(1, length, 1, 16, device="cuda", generator=draw).bfloat16()
    weight = torch.randn(heads, 16, columns, device="cuda", generator=draw).bfloat16()
    assert length * heads * 2 * columns > 2**31
    further = {"skip": False, "sides": 2, "floor": 0.0}
    features, expected = (SHARES(part, weight, None, **further) for part in (x, x[:, length - tail :]))
    torch.testing.assert_close(features[:, length - tail :], expected, rtol=1e-4, atol=1e-6)


def test_long_texts_in_bfloat16_are_finite() -> None:
    module = build_head(complete(LOLCATS), NARROW).to(torch.bfloat16).cuda()
    data = moved(inputs(NARROW, 1, 131_072, scale=10.0), torch.bfloat16)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallsBack)
        output, state = run(module, data, backend="triton")
    assert output.isfinite().all()
    assert state["state.state"].isfinite().all()
