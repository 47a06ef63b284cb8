"""Every head of ``benchmarks/prefill_decode.py`` runs, and decode is timed at both positions."""

from __future__ import annotations

import pytest
import torch

from benchmarks import prefill_decode
from benchmarks.prefill_decode import decode, prefill, run_layers, time_in_turn


@torch.no_grad()
def test_all_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_decode, "time_in_turn", lambda runs, repeats: time_in_turn(runs, 1))
    monkeypatch.setattr(prefill_decode, "NEAR", 8)
    monkeypatch.setattr(prefill_decode, "FAR", 24)
    measured = {**prefill(32, "cpu"), **run_layers(32, "cpu")}
    assert measured.keys() == {"state", "gated state", "softmax", "lawcat", "lolcats"}
    assert min(measured.values()) > 0
    step = decode("cpu")
    assert min(step.values()) > 0
    assert step["near_bytes"] == step["far_bytes"]
