"""Findings are frozen, complete, and dump as the printed JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

import composer
from composer.inspection.findings import Answered, Findings, Spectrum, Stream, plain
from tests.composer.inspection.conftest import TEACHER


@pytest.fixture(scope="module")
def findings(lola: Path) -> Findings:
    return composer.inspect(lola, teacher=TEACHER, tasks="passkey", length=96, queries=8)


def test_findings_are_frozen_and_closed(findings: Findings) -> None:
    for report in (
        findings,
        findings.heads[0],
        findings.heads[0].spectra["query"],
        findings.heads[0].likeness,
        findings.answered,
        findings.stream,
    ):
        assert isinstance(report, BaseModel)
        for name in type(report).model_fields:
            with pytest.raises(AttributeError, match=f"{name} cannot be changed"):
                setattr(report, name, None)
        with pytest.raises(ValidationError, match="frozen"):
            report.more = 1  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValidationError, match="Extra inputs"):
        Stream.model_validate({"cosine": (1.0,), "error": (0.0,), "more": 1})
    with pytest.raises(ValidationError, match="instance of ndarray"):
        Spectrum.model_validate({"shares": [[1.0]], "effective_rank": np.ones(1)})


def test_findings_are_dumped_completely(findings: Findings) -> None:
    dumped = findings.model_dump()
    assert dumped["heads"][0]["weights"]["sparse"] is findings.heads[0].weights["sparse"]
    written = findings.model_dump(mode="json")
    assert written == plain(findings)
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert set(written) == set(Findings.model_fields)
    assert np.asarray(written["heads"][0]["weights"]["sparse"]).shape == findings.heads[0].weights["sparse"].shape


def test_figures_are_written_to_four_digits_and_none_as_null() -> None:
    assert plain(Answered(right=(True, False), loss=(0.123456, float("nan")))) == {"right": [True, False], "loss": [0.1235, None]}
    assert plain({"of": np.array([1.0, np.inf, -0.0])}) == {"of": [1.0, None, 0]}
