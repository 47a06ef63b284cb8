"""The teacher with YaRN: positions that it was not trained on are squeezed into those that it was. Nothing is trained.

``python -m evidence.stretched -o FOLDER --factor 8`` makes a copy of the shipped teacher whose config says so.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from evidence.experiments import SCORED, TEACHER, Experiment

FACTORS = (2, 4, 8)
"""Factors by which the teacher's length is extended."""
WEIGHTS = ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def stretch(
    out: Annotated[Path, typer.Option("-o", help="Folder of the copy. An existing one is replaced.")],
    factor: Annotated[int, typer.Option(min=1, help="How many times the length that it was trained on.")],
    source: Annotated[Path, typer.Option(help="The model to copy.")] = Path(TEACHER),
) -> None:
    """A copy of a Llama with YaRN in its config (Peng et al. 2023, arXiv:2309.00071), with all of transformers' defaults."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    length = config["max_position_embeddings"]
    config["max_position_embeddings"] = factor * length
    config["rope_parameters"] |= {"rope_type": "yarn", "factor": float(factor), "original_max_position_embeddings": length}
    out.mkdir(parents=True, exist_ok=True)
    for name in WEIGHTS:
        shutil.copyfile(source / name, out / name)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def experiment(factor: int) -> Experiment:
    folder = f"build-output/teachers/yarn-{factor}"
    request = replace(SCORED, source=folder, seeds=(0,))
    made = f"python -m evidence.stretched -o {folder} --factor {factor}"
    return Experiment(f"teacher-yarn-{factor}", ("softmax",), request, made=made)


EXPERIMENTS = {one.name: one for one in map(experiment, FACTORS)}

if __name__ == "__main__":
    typer.run(stretch)
