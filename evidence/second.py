"""The main claims on a second teacher, of another family and twice the size, that has learned harder retrieval as well."""

from __future__ import annotations

from dataclasses import replace

from evidence.experiments import RECIPE, SCORED, SKILLS, Experiment

SOURCE = "evidence/teachers/qwen3"
HARDER = ("multikey", "multivalue", "two-needles", "recall,pairs=64")
ASKED = replace(SCORED, source=SOURCE, tasks=(*SCORED.tasks, *HARDER))
LEARNED = tuple(f"{task},samples=1000" for task in ("multikey", "multivalue", "two-needles", "recall,pairs=64"))

SECOND_TEACHER = Experiment("second-teacher", ("softmax", "window"), replace(ASKED, seeds=(0,)))
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
    replace(ASKED, data=(*SKILLS, *LEARNED), share=0.0),
    RECIPE,
)
SECOND_LOLA = Experiment("second-lola", ("evidence/specs/lola.yaml",), ASKED, trained=(SECOND, "lolcats"))
SECOND_HYBRIDS = replace(SECOND, name="second-hybrids", specs=("evidence/specs/kept-softmax.yaml",))
"""Students that keep one layer of softmax, beside those with windows of as many bytes."""
EXPERIMENTS = {one.name: one for one in (SECOND_TEACHER, SECOND, SECOND_LOLA, SECOND_HYBRIDS)}
