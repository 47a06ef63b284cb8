"""The sizes of states that an inspection reports equal sums over pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from composer.inspection.findings import HeadFindings
from composer.inspection.heads import MOMENTS, head_findings
from tests.laws.cases import SMALL, Inputs, build_head, complete, inputs, run

SHAPE = SMALL.shape(4)
EXPONENTIAL = {"kind": "exp", "linear": False}
STATE = {"kind": "state", "normalise": False}


def looked(head: dict[str, Any], data: Inputs, queries: range, backend: str = "auto") -> HeadFindings:
    made = build_head(complete({"position": "none", **head}), SHAPE)
    inputs = data.of_head()
    return head_findings(0, "head", made, inputs, queries, {}, size=1, backend=backend)


def two_sided(key: Tensor) -> Tensor:
    return torch.cat((key.exp(), (-key).exp()), dim=-1)


def shifted(key: Tensor) -> Tensor:
    return torch.nn.functional.elu(key) + 1


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("feature_map", "features"), [(EXPONENTIAL, two_sided), ("elu", shifted)])
def test_norms_equal_those_of_the_sum_over_pairs(feature_map: Any, features: Any, normalise: bool, backend: str) -> None:
    """Norms do not depend on the divisor of the state, and exclude the sums of masses."""
    data = inputs(SHAPE, 1, 40, scale=3.0)
    head = {"feature_map": feature_map, "memory": [{"kind": "state", "normalise": normalise}]}
    findings = looked(head, data, range(9, 40, 10), backend)
    assert findings.norm_columns == (10, 20, 30, 40)
    for row, end in enumerate(findings.norm_columns):
        matrix = torch.einsum("ekf,ekd->kfd", features(data.key[0, :end]), data.value[0, :end])
        wanted = matrix.flatten(1).norm(dim=1).repeat_interleave(findings.norms["state"].shape[1] // 2)
        np.testing.assert_allclose(findings.norms["state"][row], wanted, rtol=1e-9)


def test_norms_of_out_of_range_features_are_finite() -> None:
    """The square of exp(400) overflows in every float dtype."""
    data = inputs(SHAPE, 1, 12)
    data.key = data.key.clamp(-1, 1) * 400
    findings = looked({"feature_map": EXPONENTIAL, "memory": ["state"]}, data, range(12)).norms["state"]
    assert np.isfinite(findings).all()
    assert (findings[-1] > 1e150).all()


@pytest.mark.parametrize("memory", [{"kind": "delta"}, {"kind": "latents", "size": 8}])
def test_other_matrices_are_returned_unchanged(memory: Any) -> None:
    head = {"memory": [memory]} | ({"feature_map": "elu"} if memory["kind"] == "delta" else {})
    data = inputs(SHAPE, 1, 12)
    _, state = run(build_head(complete({"position": "none", **head}), SHAPE), data)
    findings = looked(head, data, range(12)).norms
    assert list(findings) == [memory["kind"]]
    wanted = state[f"{memory['kind']}.state"][0].flatten(1).norm(dim=1)
    np.testing.assert_allclose(findings[memory["kind"]][-1], wanted, rtol=1e-9)


def test_memories_of_pairs_have_no_matrix() -> None:
    head = {"feature_map": "elu", "memory": [{"kind": "window", "size": 4}, "state"]}
    assert list(looked(head, inputs(SHAPE, 1, 12), range(12)).norms) == ["state"]
    assert looked({"memory": ["full"]}, inputs(SHAPE, 1, 12), range(12)).norms == {}


@pytest.mark.parametrize("count", [1, 2, 11, 12, 13, 23, 24, 25])
def test_the_number_of_inspected_states_is_bounded(count: int) -> None:
    findings = looked({"feature_map": "elu", "memory": [STATE], "read": "sum"}, inputs(SHAPE, 1, 30), range(count))
    assert 1 <= len(findings.norm_columns) <= MOMENTS
    assert findings.norm_columns[-1] == count
    assert len(findings.norm_columns) >= min(count, MOMENTS / 2)
