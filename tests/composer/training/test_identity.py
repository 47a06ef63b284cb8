"""What is said of a run that is gone on with otherwise: the settings that differ, with both values, and nothing that follows."""

from __future__ import annotations

from typing import Any

import pytest

from composer.training.folder import run_differences

THEN: dict[str, Any] = {
    "model": {"config": "a", "spec": "s", "files": "x"},
    "teacher": {"folder": "/t", "config": "b", "spec": None, "files": "x"},
    "recipe": {"sequence": 128, "rows": "packed", "transfer": {"lr": 0.01, "steps": 20, "batch": 8}, "finetune": None},
    "data": "d",
    "held-out data": "h",
    "seed": 0,
    "references": {"--data": ["a.txt"], "--held-out": [], "--share": 0.1, "--held-out-rows": None},
}


def changed(**settings: Any) -> dict[str, Any]:
    return {**THEN, **settings}


RECIPE = THEN["recipe"]
REFERENCES = THEN["references"]
ROWS_ARE_OTHERS = {"data": "e", "held-out data": "i"}
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "lr": ({"recipe": {**RECIPE, "transfer": {**RECIPE["transfer"], "lr": 0.5}}}, ["recipe.transfer.lr: was 0.01, now 0.5"]),
    "steps take more rows": (
        {"recipe": {**RECIPE, "transfer": {**RECIPE["transfer"], "steps": 40}}, "held-out data": "i"},
        ["recipe.transfer.steps: was 20, now 40"],
    ),
    "rows are longer": ({"recipe": {**RECIPE, "sequence": 64}, **ROWS_ARE_OTHERS}, ["recipe.sequence: was 128, now 64"]),
    "a stage more": (
        {"recipe": {**RECIPE, "finetune": {"lr": 0.1, "epochs": None}}},
        ["recipe.finetune: was none, now {lr: 0.1}"],
    ),
    "another split": ({"seed": 3, **ROWS_ARE_OTHERS}, ["seed: was 0, now 3"]),
    "another file": (
        {"references": {**REFERENCES, "--data": ["b.txt", "c"]}, **ROWS_ARE_OTHERS},
        ["--data: was a.txt, now b.txt, c"],
    ),
    "another share": ({"references": {**REFERENCES, "--share": 0.5}, **ROWS_ARE_OTHERS}, ["--share: was 0.1, now 0.5"]),
    "more rows": ({"references": {**REFERENCES, "--held-out-rows": 9}, "held-out data": "i"}, ["--held-out-rows: was none, now 9"]),
    "other texts": (ROWS_ARE_OTHERS, ["data: the texts, or how many of them, are others than then"]),
    "moved": ({"references": {**REFERENCES, "--data": ["b.txt"]}}, []),
    "another spec": (
        {"model": {"config": "z", "spec": "r", "files": "x"}},
        ["model.config: was a, now z", "model.spec: was s, now r"],
    ),
    "other weights": (
        {"teacher": {"folder": "/t", "config": "c", "spec": None, "files": "y"}},
        ["teacher.config: was b, now c", "teacher.files: was x, now y"],
    ),
    "another teacher": (
        {"teacher": {"folder": "/u", "config": "b", "spec": None, "files": "x"}},
        ["teacher.folder: was /t, now /u"],
    ),
    "no teacher": ({"teacher": None}, ["teacher: was {folder: /t, config: b, files: x}, now none"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_differs_and_nothing_else(case: str) -> None:
    settings, expected = CASES[case]
    assert run_differences(THEN, changed(**settings)) == expected
