"""A step of decode calls few functions of this package: what is known when a head is compiled is a constant of its function."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

import composer
from benchmarks.decode import ROOT, Decoding, count_frames


@torch.no_grad()
def test_a_step_of_lolcats_has_at_most_260_frames() -> None:
    student = composer.build("lolcats", AutoModelForCausalLM.from_pretrained(ROOT / "examples/teacher"))
    assert student.config.num_hidden_layers == 2
    assert 100 < count_frames(Decoding(student, 80)).total() <= 260
