"""The results of each run, in a small file that is committed, so that a run is never repeated."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from blocks.part import Closed
from composer.ablation.plan import PACKAGES, Variant
from composer.evaluation.arguments import read_tasks
from composer.evaluation.options import EvaluationOptions
from composer.evaluation.subjects import task_facts
from composer.files import sha256, write_whole
from composer.runs.identity import data_identity
from composer.versions import versions_of
from converters.bounded import MOST_CONFIG, read_bytes
from evidence.experiments import Experiment

KEPT = Path(__file__).parent / "runs"


class Run(Closed):
    """One variant with one seed. identity: a hash of its inputs and settings. values: of its row of the sweep, by path. figures: by
    the title of the column. teacher_perplexity: on the held-out rows, where there are any."""

    experiment: str
    variant: str
    seed: int
    identity: str
    values: dict[str, Any]
    figures: dict[str, float]
    teacher_perplexity: float | None
    seconds: float
    versions: dict[str, str]


def identity(experiment: Experiment, variant: Variant, seed: int, variants: dict[str, Variant]) -> str:
    """The hash of a run's inputs and settings, without the version of the code: a run by another version counts, and names it.

    variants: of the experiment whose model this one builds from, by name.
    """
    request = experiment.request
    decides: dict[str, Any] = {"spec": _meaning(variant), "seed": seed, "data": [data_identity(said) for said in request.data]}
    decides |= {"share": request.share, "lengths": list(request.lengths), "samples": request.samples}
    asked = read_tasks(request.tasks, EvaluationOptions(samples=request.samples)) if request.tasks else ()
    decides["tasks"] = [task_facts(one).model_dump(mode="json", include={"label", "options", "files"}) for one in asked]
    # A source that a command makes is identified by the command, as its weights do not ship with the kept runs.
    source = contents(Path(request.source or request.tokenizer or "")) if experiment.made is None else {"made": experiment.made}
    decides["source"] = source
    if experiment.trained is not None:
        other, taught = experiment.trained
        decides["trained"] = identity(other, variants[taught], seed, {})
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def path_of(experiment: str, variant: str, seed: int, folder: Path = KEPT) -> Path:
    return folder / experiment / f"{variant}.seed-{seed}.json"


def read(path: Path) -> Run | None:
    """A kept run; None where there is none."""
    return Run.model_validate_json(read_bytes(path, MOST_CONFIG)) if path.is_file() else None


def keep(run: Run, folder: Path = KEPT) -> None:
    """Write a run to its file. Raises OSError."""
    write_whole(path_of(run.experiment, run.variant, run.seed, folder), run.model_dump_json(indent=1) + "\n")


def keep_figures(
    place: tuple[str, str, int],
    own: str,
    figures: dict[str, float],
    seconds: float,
    folder: Path,
    values: dict[str, Any] | None = None,
) -> None:
    """Keep a run that is no row of an ablation. place: experiment, variant and seed. Raises OSError."""
    experiment, variant, seed = place
    run = Run(
        experiment=experiment,
        variant=variant,
        seed=seed,
        identity=own,
        values=values or {},
        figures=figures,
        teacher_perplexity=None,
        seconds=round(seconds, 1),
        versions=versions_of(PACKAGES),
    )
    keep(run, folder)


def is_kept(place: tuple[str, str, int], own: str, folder: Path) -> bool:
    """Whether a run of this identity is kept."""
    run = read(path_of(*place, folder))
    return run is not None and run.identity == own


def all_runs(folder: Path = KEPT) -> list[Run]:
    """Every run that is kept."""
    return [run for path in sorted(folder.glob("*/*.json")) if (run := read(path)) is not None]


def _meaning(variant: Variant) -> dict[str, Any]:
    """The variant's spec without defaults, so that defaults of later versions do not change its identity."""
    said = variant.spec.model_dump(mode="json", exclude_unset=True, exclude={"name", "paper"})
    if said.get("recipe"):
        said["recipe"].pop("data", None)
    return said


@lru_cache
def contents(folder: Path) -> dict[str, str]:
    """The hashes of a model's weights, config and tokenizer."""
    names = {path.name for pattern in ("config.json", "tokenizer*.json", "*.safetensors") for path in folder.glob(pattern)}
    return {name: sha256(folder / name) for name in sorted(names)}
