"""Experiments with a second teacher, which has another architecture, twice the size, and harder retrieval tasks."""

from __future__ import annotations

from dataclasses import replace

from evidence.experiments import RECIPE, SCORING, SKILLS, Experiment

SOURCE = "evidence/teachers/qwen3"
HARDER = ("multikey", "multivalue", "two-needles", "recall,pairs=64")
HARDER_SCORING = replace(SCORING, source=SOURCE, tasks=(*SCORING.tasks, *HARDER))
HARDER_SKILLS = tuple(f"{task},samples=1000" for task in ("multikey", "multivalue", "two-needles", "recall,pairs=64"))

SECOND_TEACHER = Experiment("second-teacher", ("softmax", "window"), replace(HARDER_SCORING, seeds=(0,)))
SECOND = Experiment(
    "second",
    (
        "evidence/specs/lolcats.yaml",
        "evidence/specs/lolcats-without.yaml:no-window",
        "ablations/lawcat-convolution",
        "ablations/lawcat-window:with",
        "specs/lawcat-delta.yaml",
        "evidence/specs/macchiato-66.yaml",
    ),
    replace(HARDER_SCORING, data=(*SKILLS, *HARDER_SKILLS), share=0.0),
    RECIPE,
)
SECOND_LOLA = Experiment("second-lola", ("evidence/specs/lola.yaml",), HARDER_SCORING, base=(SECOND, "lolcats"))
SECOND_HYBRIDS = replace(SECOND, name="second-hybrids", specs=("evidence/specs/kept-softmax.yaml",))
"""Students that keep one layer of softmax attention, and students with windows of equal size in bytes."""
EXPERIMENTS = {experiment.name: experiment for experiment in (SECOND_TEACHER, SECOND, SECOND_LOLA, SECOND_HYBRIDS)}
