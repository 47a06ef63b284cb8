"""All feature maps share the choice of u (x, xW or xW + x, plus b), one or two sides, and weights per query or key head. At the
start u = x.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from blocks.feature_maps import FEATURE_MAPS
from blocks.feature_maps.base import FeatureMap
from blocks.feature_maps.relu import Relu
from blocks.legend import Shape
from tests.blocks.support import ALIKE, GROUPED, SHAPE_NAMES, SHAPES, assert_derivatives, close, drawn, owner, random, started

KINDS = sorted(FEATURE_MAPS)


def by_head(part: FeatureMap, parameters: dict[str, Tensor], states: Tensor, side: str, heads: int) -> Tensor:
    """Compute relu(u) ‖ relu(-u) of every token and head, with u = x W + b + x written out."""
    prefix = "" if part.share == "qk" else f"{side}_"
    weight, bias = parameters[f"{prefix}weight"], parameters.get(f"{prefix}bias")
    rows = []
    for batch, token, head in itertools.product(range(states.shape[0]), range(states.shape[1]), range(heads)):
        x, own = states[batch, token, owner(head, heads, states.shape[2])], owner(head, heads, weight.shape[0])
        u = torch.stack([(x * weight[own, :, column]).sum() for column in range(weight.shape[2])])
        if bias is not None:
            u = u + bias[own]
        if part.skip:
            u = u + x
        rows.append(torch.cat([u.clamp(min=0), (-u).clamp(min=0)]) if part.two_sided else u.clamp(min=0))
    return torch.stack(rows).view(*states.shape[:2], heads, -1)


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
@pytest.mark.parametrize("convolved", [False, True], ids=["raw keys", "convolved keys"])
@pytest.mark.parametrize("per", ["query_head", "key_head"])
@pytest.mark.parametrize("share", ["none", "qk"])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": True, "skip": True}, {"dim": 3, "two_sided": True}, {"dim": 6, "bias": True, "two_sided": True}],
    ids=str,
)
def test_each_head_is_multiplied_by_its_matrix(options: dict, share: str, per: str, convolved: bool, shape: Shape) -> None:
    part = Relu.model_validate({"kind": "relu", "linear": True, "share": share, "per": per, **options})
    incoming = shape.heads if convolved else shape.key_heads
    parameters, query, key = drawn(part, shape), random(2, 3, shape.heads, 4), random(2, 3, incoming, 4)
    heads = shape.heads if per == "query_head" else incoming
    query_features, key_features = part.map(parameters, query, key)
    close(query_features, by_head(part, parameters, query, "query", shape.heads))
    close(key_features, by_head(part, parameters, key, "key", heads))
    assert part.key_heads(shape, incoming) == heads
    assert part.features(shape) == key_features.shape[3]


def test_matrices_have_the_shape_of_their_owners() -> None:
    def shapes(**choice: object) -> dict[str, tuple[int, ...]]:
        part = Relu.model_validate({"linear": True, **choice})
        return {name: fresh.shape for name, fresh in part.parameters(GROUPED).items()}

    assert shapes() == {"query_weight": (4, 4, 4), "key_weight": (4, 4, 4)}
    assert shapes(per="key_head", dim=3) == {"query_weight": (4, 4, 3), "key_weight": (2, 4, 3)}
    assert shapes(share="qk", per="key_head") == {"weight": (2, 4, 4)}
    assert shapes(share="qk", bias=True, two_sided=True) == {"weight": (4, 4, 4), "bias": (4, 4)}
    assert shapes(bias=True, dim=2)["key_bias"] == (4, 2)
    assert Relu().parameters(GROUPED) == {}


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"skip": True}, {"skip": True, "bias": True}, {"share": "qk"}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_starts_as_the_identity(kind: str, options: dict) -> None:
    part = FEATURE_MAPS[kind].model_validate({"linear": True, "per": "key_head", **options})
    plain = FEATURE_MAPS[kind].model_validate({"linear": False, "bias": False, "two_sided": part.two_sided})
    query, key = random(2, 3, 4, 4), random(2, 3, 2, 4)
    for got, wanted in zip(part.map(started(part, GROUPED), query, key), plain.map({}, query, key), strict=True):
        close(got, wanted)


@pytest.mark.parametrize("dim", [2, 7])
def test_matrices_of_another_dimension_start_truncated_or_zero_padded(dim: int) -> None:
    part = Relu(linear=True, dim=dim)
    query = random(1, 2, 2, 4).abs()
    wanted = torch.cat((query, torch.zeros(1, 2, 2, 3)), dim=3)[..., :dim]
    close(part.map(started(part, ALIKE), query, query)[0], wanted)


def test_random_matrices_keep_the_size_of_a_unit_input() -> None:
    part = Relu(linear=True, init="random", skip=True)
    weight = started(part, Shape(hidden_size=1, heads=8, key_heads=8, head_dim=64))["query_weight"]
    assert weight.std().item() == pytest.approx(1 / 8, rel=0.02)
    assert abs(weight.mean().item()) < 4e-3


@pytest.mark.parametrize("kind", KINDS)
def test_only_maps_declared_positive_have_no_negative_features(kind: str) -> None:
    part = FEATURE_MAPS[kind]()
    inputs = torch.linspace(-30, 30, 601, dtype=torch.float64).view(1, 1, -1, 1) * random(1, 1, 1, 6)
    assert bool((part.activate(inputs) >= 0).all()) is part.positive


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"linear": True, "two_sided": True}], ids=str)
def test_log_features_equal_the_logarithm_of_the_features(kind: str, options: dict) -> None:
    part = FEATURE_MAPS[kind].model_validate(options)
    if not part.exponential:
        with pytest.raises(NotImplementedError):
            part.log_activate(random(2))
        return
    parameters, query, key = drawn(part, GROUPED), random(2, 3, 4, 4), random(2, 3, 2, 4)
    logarithms = part.map(parameters, query, key, scale="logarithm")
    for logarithm, feature in zip(logarithms, part.map(parameters, query, key), strict=True):
        close(logarithm, feature.log())
        assert feature.min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_inputs_are_mapped_in_float32(kind: str) -> None:
    part = FEATURE_MAPS[kind]()
    parameters, query, key = drawn(part, GROUPED), random(1, 2, 4, 4), random(1, 2, 2, 4)
    half = {name: tensor.bfloat16() for name, tensor in parameters.items()}
    query, key = query.bfloat16(), key.bfloat16()
    exact = {name: tensor.double() for name, tensor in half.items()}
    for got, wanted in zip(part.map(half, query, key), part.map(exact, query.double(), key.double()), strict=True):
        assert got.dtype == torch.float32
        close(got.double(), wanted, 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_match_numerical_gradients(kind: str) -> None:
    part = FEATURE_MAPS[kind].model_validate({"linear": True, "bias": True, "skip": True, "share": "qk", "two_sided": True})
    tensors = [random(1, 2, 2, 4), random(1, 2, 2, 4), *drawn(part, ALIKE).values()]

    def run(query: Tensor, key: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return part.map({"weight": weight, "bias": bias}, query, key)

    assert_derivatives(run, tensors)


def test_options_of_the_matrix_need_a_matrix() -> None:
    for options in ({"dim": 4}, {"bias": True}, {"skip": True}, {"share": "qk"}, {"per": "key_head"}, {"init": "random"}):
        with pytest.raises(ValidationError, match=f"{next(iter(options))} .*set linear: true or leave"):
            Relu.model_validate(options)
        assert Relu.model_validate({"linear": True, **options})
    assert Relu(two_sided=True).features(GROUPED) == 8


def test_with_dim_sets_the_dimension_of_a_map_with_a_matrix() -> None:
    assert Relu(linear=True).with_dim(GROUPED).dim == 4
    assert Relu(linear=True, dim=7).with_dim(GROUPED).dim == 7
    assert Relu().with_dim(GROUPED).dim is None


def test_operation_count_equals_a_count_by_hand() -> None:
    # A matrix of 4 × 3 and 6 features for 4 query heads and as many key heads; 2 key heads where they own the matrices.
    part = Relu(linear=True, dim=3, two_sided=True)
    assert part.flops(GROUPED, 9) == (4 + 4) * (2 * 4 * 3 + 6)
    assert part.model_copy(update={"per": "key_head"}).flops(GROUPED, 9) == (4 + 2) * (2 * 4 * 3 + 6)
    assert Relu().flops(GROUPED, 9) == (4 + 2) * 4
