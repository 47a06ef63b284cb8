"""The result of each run, in a small committed file, so that no run is repeated."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from blocks.part import Closed
from composer.ablation.plan import PACKAGES, Variant
from composer.evaluation.arguments import read_tasks
from composer.evaluation.lengths import task_facts
from composer.evaluation.options import EvaluationOptions
from composer.runs.identity import data_identity
from composer.system.files import sha256, write_whole
from composer.system.versions import versions_of
from converters.bounded import MOST_CONFIG, read_bytes
from evidence.experiments import EARLIER, Experiment

RUNS = Path(__file__).parent / "runs"


class Run(Closed):
    """The result of one variant with one seed.

    - identity: a hash of the run's inputs and settings.
    - values: the sweep's values for this variant, by path in the spec.
    - figures: by column title.
    - teacher_perplexity: the teacher's perplexity on the held-out rows; None without held-out rows.
    """

    experiment: str
    variant: str
    seed: int
    identity: str
    values: dict[str, Any]
    figures: dict[str, float]
    teacher_perplexity: float | None
    seconds: float
    versions: dict[str, str]


def compute_identity(experiment: Experiment, variant: Variant, seed: int, variants: dict[str, Variant]) -> str:
    """Return the hash of a run's inputs and settings, without the versions of the code. A run records these versions.

    variants: the variants of the base experiment, by name.
    """
    request = experiment.request
    inputs: dict[str, Any] = {
        "spec": _dump_spec(variant),
        "seed": seed,
        "data": [data_identity(reference) for reference in request.data],
    }
    inputs |= {"share": request.share, "lengths": list(request.lengths), "samples": request.samples}
    tasks = read_tasks(request.tasks, EvaluationOptions(samples=request.samples)) if request.tasks else ()
    inputs["tasks"] = [task_facts(task).model_dump(mode="json", include={"label", "options", "files"}) for task in tasks]
    # A source without shipped weights is identified by the command that makes it.
    source = (
        hash_files(Path(request.source or request.tokenizer or ""))
        if experiment.make_command is None
        else {"made": experiment.make_command}
    )
    inputs["source"] = source
    if experiment.base is not None:
        base_experiment, base_variant = experiment.base
        inputs["trained"] = compute_identity(base_experiment, variants[base_variant], seed, {})
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def path_of(experiment: str, variant: str, seed: int, runs_folder: Path = RUNS) -> Path:
    """Return the file of a run."""
    return runs_folder / experiment / f"{variant}.seed-{seed}.json"


def read_run(path: Path) -> Run | None:
    """Return the run in a file, or None if there is no such file."""
    return Run.model_validate_json(read_bytes(path, MOST_CONFIG)) if path.is_file() else None


def keep_run(run: Run, runs_folder: Path = RUNS) -> None:
    """Write a run to its file. Raises OSError."""
    write_whole(path_of(run.experiment, run.variant, run.seed, runs_folder), run.model_dump_json(indent=1) + "\n")


def keep_figures(
    run_key: tuple[str, str, int],
    identity: str,
    figures: dict[str, float],
    seconds: float,
    runs_folder: Path,
    values: dict[str, Any] | None = None,
) -> None:
    """Write a run that is not part of an ablation. run_key: its experiment, variant and seed. Raises OSError."""
    experiment, variant, seed = run_key
    run = Run(
        experiment=experiment,
        variant=variant,
        seed=seed,
        identity=identity,
        values=values or {},
        figures=figures,
        teacher_perplexity=None,
        seconds=round(seconds, 1),
        versions=versions_of(PACKAGES),
    )
    keep_run(run, runs_folder)


def is_kept(run_key: tuple[str, str, int], identity: str, runs_folder: Path) -> bool:
    """True if a run with this key and identity is kept."""
    run = read_run(path_of(*run_key, runs_folder))
    return run is not None and run.identity == identity


def read_runs(runs_folder: Path = RUNS) -> list[Run]:
    """Return all kept runs."""
    return [run for path in sorted(runs_folder.glob("*/*.json")) if (run := read_run(path)) is not None]


def _dump_spec(variant: Variant) -> dict[str, Any]:
    """Return the variant's spec without defaults, so that a changed default does not change its identity."""
    document = variant.spec.model_dump(mode="json", exclude_unset=True, exclude={"name", "paper"})
    if document.get("recipe"):
        document["recipe"].pop("data", None)
        transfer = document["recipe"].get("transfer") or {}
        if EARLIER.endswith(f"={transfer.get('start')}"):
            del transfer["start"]
    return document


@lru_cache
def hash_files(folder: Path) -> dict[str, str]:
    """Return the hashes of a model's weights, config and tokenizer files, by file name."""
    names = {path.name for pattern in ("config.json", "tokenizer*.json", "*.safetensors") for path in folder.glob(pattern)}
    return {name: sha256(folder / name) for name in sorted(names)}
