"""A form that was measured to be slower than its head without it is skipped, and the reason names the device and the figure."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from blocks.legend import Shape
from blocks.operation import Form, Setting
from composer.graph import measured
from composer.graph.lowering import AUTO, FIRST, list_forms
from composer.graph.measured import MeasuredForm, find_measured, read_table
from tests.composer.graph.heads import graph_of
from tests.composer.graph.test_lowering import GPU, LINEAR, LOLCATS

ROW = MeasuredForm(form="chunk_simple_gla", device="GPU A", head_dim=64, tokens=8192, one_token=False, gradients=False, speed=0.5)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> list[MeasuredForm]:
    rows: list[MeasuredForm] = []
    monkeypatch.setattr(measured, "read_table", lambda: rows)
    return rows


def explain_state(backend: str = AUTO, setting: Setting = GPU) -> tuple[str, str]:
    (state,) = (part for part in list_forms(graph_of(LINEAR), backend, setting) if part.part == "state")
    return state.backend, state.why_this_form


def test_a_slow_form_is_skipped(table: list[MeasuredForm]) -> None:
    assert explain_state() == ("fla", FIRST)
    table.append(ROW)
    speed = "measured on GPU A at 8,192 tokens: 0.50 times the speed of the head without it"
    assert explain_state() == ("torch", f"chunk_simple_gla: {speed}")
    assert explain_state("fla") == ("fla", FIRST)  # a chosen backend is used
    assert explain_state(setting=GPU._replace(gradients=True)) == ("fla", FIRST)
    assert explain_state(setting=Setting())[0] == "torch"


def test_measured_forms_report_their_speed(table: list[MeasuredForm]) -> None:
    table.append(ROW.model_copy(update={"speed": 1.75}))
    assert explain_state() == ("fla", "measured on GPU A at 8,192 tokens: 1.75 times the speed of the head without it")


def test_parts_run_separately_if_their_pattern_is_slow(table: list[MeasuredForm]) -> None:
    forms = {part.part: part.form for part in list_forms(graph_of(LOLCATS), AUTO, GPU)}
    table.append(ROW.model_copy(update={"form": forms["state"]}))
    parts = {part.part: part for part in list_forms(graph_of(LOLCATS), AUTO, GPU)}
    assert parts["window"].form != forms["window"]
    assert parts["state"].backend == "fla"
    assert "0.50 times the speed" in parts["state"].why_this_form


def test_the_nearest_measured_size_of_this_gpu_is_used(table: list[MeasuredForm], monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(hidden_size=64, heads=4, key_heads=2, head_dim=96)
    form, setting = Form("fla", ROW.form, run=lambda: None), GPU._replace(shape=shape)
    table += [ROW.model_copy(update={"device": device, "head_dim": dim}) for device in ("A", "B") for dim in (64, 128, 256)]
    assert find_measured(form, setting) in table
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "B")
    for dim, nearest in ((48, 64), (120, 128), (512, 256)):
        row = find_measured(form, GPU._replace(shape=replace(shape, head_dim=dim)))
        assert row is not None
        assert (row.device, row.head_dim) == ("B", nearest)
    assert find_measured(form, setting._replace(one_token=True)) is None
    assert find_measured(replace(form, description="another"), setting) is None


def test_the_table_is_read() -> None:
    assert all(row.speed > 0 and row.form for row in read_table())
    with pytest.raises(ValidationError):
        MeasuredForm(**ROW.model_dump(), backend="fla")  # pyright: ignore[reportCallIssue]
