"""The teacher with YaRN, which scales longer texts' positions into the range of training. Nothing is trained.

``python -m evidence.stretched -o FOLDER --factor 8`` copies the shipped teacher and adds YaRN to the config.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from evidence.experiments import SCORING, TEACHER, Experiment

FACTORS = (2, 4, 8)
"""Factors by which the teacher's length is extended."""
WEIGHTS = ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def stretch(
    out: Annotated[Path, typer.Option("-o", help="Folder of the copy. An existing one is replaced.")],
    factor: Annotated[int, typer.Option(min=1, help="How many times the length that it was trained on.")],
    source: Annotated[Path, typer.Option(help="The model to copy.")] = Path(TEACHER),
) -> None:
    """Copy a Llama and add YaRN to its config (Peng et al. 2023, arXiv:2309.00071), with all of transformers' defaults."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    length = config["max_position_embeddings"]
    config["max_position_embeddings"] = factor * length
    config["rope_parameters"] |= {"rope_type": "yarn", "factor": float(factor), "original_max_position_embeddings": length}
    out.mkdir(parents=True, exist_ok=True)
    for name in WEIGHTS:
        shutil.copyfile(source / name, out / name)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def build_experiment(factor: int) -> Experiment:
    """Return the experiment that scores the teacher with this factor."""
    folder = f"build-output/teachers/yarn-{factor}"
    request = replace(SCORING, source=folder, seeds=(0,))
    make_command = f"python -m evidence.stretched -o {folder} --factor {factor}"
    return Experiment(f"teacher-yarn-{factor}", ("softmax",), request, make_command=make_command)


EXPERIMENTS = {experiment.name: experiment for experiment in map(build_experiment, FACTORS)}

if __name__ == "__main__":
    typer.run(stretch)
