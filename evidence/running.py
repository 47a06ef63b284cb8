"""Do an experiment's missing runs. Each run is written to its file when it ends."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from composer.ablation.ablate import STEPS, run
from composer.ablation.options import Request
from composer.ablation.plan import PACKAGES, AblationStep, Chain, Variant, plan, read_variants
from composer.ablation.report import figures_of, teacher_perplexity
from composer.ablation.runner import StartWorkers
from composer.ablation.steps import FAILURE, Figures, model_of, read_finished
from composer.errors import ComposerError
from composer.system.versions import versions_of
from composer.training.finetune import merge_adapters
from evidence.experiments import Experiment
from evidence.kept import RUNS, Run, compute_identity, keep_run, path_of, read_run

Listener = Callable[[str], None]


def run_missing(
    experiment: Experiment, work: Path, workers: StartWorkers, tell: Listener, device: str = "cpu", runs_folder: Path = RUNS
) -> list[str]:
    """Do an experiment's missing runs, and return messages about the failed ones.

    Runs are ordered by seed, so that a stopped experiment has complete tables of fewer seeds.
    """
    missing = find_missing_runs(experiment, runs_folder)
    tell(f"{experiment.name}: {len(missing)} runs to do")
    if missing and experiment.make_command is not None:
        make_teacher(Path(experiment.request.source or ""), experiment.make_command, tell)
    failures: list[str] = []
    for request, identities in _build_requests(experiment, missing, work, workers, tell, device):
        steps = work / experiment.name / STEPS
        names = {name for name, _ in identities}
        variants = [variant for variant in read_variants(experiment.specs, experiment.overrides) if variant.name in names]
        chains = [chain for chain in plan(variants, request, steps) if (chain.variant.name, chain.seed) in identities]
        chains.sort(key=lambda chain: chain.seed)
        failures += _run_chains(experiment, chains, request, steps, workers, tell, identities, runs_folder)
    return failures


def make_teacher(folder: Path, command: str, tell: Listener) -> None:
    """Run the command that makes a teacher, unless ``config.json`` exists, the last file that it writes.

    Raises ComposerError if the command fails.
    """
    if (folder / "config.json").is_file():
        return
    tell(f"{folder}: {command}")
    program, *arguments = shlex.split(command)
    if subprocess.run([sys.executable if program == "python" else program, *arguments], check=False).returncode:
        raise ComposerError(f"{folder} is not there, and could not be made: {command}")


def find_missing_runs(experiment: Experiment, runs_folder: Path = RUNS) -> dict[tuple[str, int], str]:
    """Return the identities of the runs that are not kept with their present identity, by variant and seed."""
    variants = read_variants(experiment.specs, experiment.overrides)
    missing: dict[tuple[str, int], str] = {}
    base_variants = read_base_variants(experiment)
    for variant in variants:
        for seed in experiment.request.seeds:
            identity = compute_identity(experiment, variant, seed, base_variants)
            kept_run = read_run(path_of(experiment.name, variant.name, seed, runs_folder))
            if kept_run is None or kept_run.identity != identity:
                missing[variant.name, seed] = identity
    return missing


def _build_requests(
    experiment: Experiment, missing: dict[tuple[str, int], str], work: Path, workers: StartWorkers, tell: Listener, device: str
) -> Iterator[tuple[Request, dict[tuple[str, int], str]]]:
    """Yield requests and the identities of their runs: one request, or one for each seed if seeds have different sources."""
    if not missing:
        return
    request = replace(experiment.request, device=device)
    if experiment.base is None:
        yield request, missing
        return
    for seed in dict.fromkeys(seed for _, seed in missing):
        source = _build_source(experiment, seed, work, workers, tell, device)
        yield (
            replace(request, source=str(source), seeds=(seed,)),
            {key: identity for key, identity in missing.items() if key[1] == seed},
        )


def _build_source(experiment: Experiment, seed: int, work: Path, workers: StartWorkers, tell: Listener, device: str) -> Path:
    """Return the folder of the base model with merged adapters. The model is trained first if it is missing."""
    assert experiment.base is not None
    base, variant = experiment.base
    source = work / experiment.name / f"trained-{seed}"
    if source.is_dir():
        return source
    merge_adapters(train_model(base, variant, seed, work, workers, tell, device), source)
    return source


def train_model(
    experiment: Experiment, variant: str, seed: int, work: Path, workers: StartWorkers, tell: Listener, device: str = "cpu"
) -> Path:
    """Train an experiment's model, unless its steps have finished before, and return its folder. Raises ComposerError."""
    request, steps = replace(experiment.request, seeds=(seed,), device=device), work / experiment.name / STEPS
    (chain,) = plan([variants_of(experiment)[variant]], request, steps)
    tell(f"{experiment.name}: the model of {variant}, seed {seed}")
    results = run([chain], request, steps, workers)
    for step in chain.steps:
        if failure := results[step.name].get(FAILURE):
            raise ComposerError(f"{experiment.name}: {variant}, seed {seed}: {failure}")
    return model_of(chain.steps[-1], steps)


def read_base_variants(experiment: Experiment) -> dict[str, Variant]:
    """Return the variants of the base experiment, by name; none if the experiment has no base."""
    return {} if experiment.base is None else variants_of(experiment.base[0])


def variants_of(experiment: Experiment) -> dict[str, Variant]:
    """Return the variants of an experiment, by name."""
    return {variant.name: variant for variant in read_variants(experiment.specs, experiment.overrides)}


def _run_chains(
    experiment: Experiment,
    chains: Sequence[Chain],
    request: Request,
    steps: Path,
    workers: StartWorkers,
    tell: Listener,
    identities: dict[tuple[str, int], str],
    runs_folder: Path,
) -> list[str]:
    """Run chains, keep each run when its last step ends, and return messages about failures."""
    unfinished = list(chains)

    def keep_finished(step: AblationStep | None, figures: Figures, done: int, total: int) -> None:
        if step is not None:
            outcome = "failed" if FAILURE in figures else f"{figures['seconds']:.0f} s"
            tell(f"{experiment.name} {done}/{total}  {step.kind}  {step.variant.name}  seed {step.seed}  {outcome}")
        for chain in list(unfinished):
            results = {
                chain_step.name: finished
                for chain_step in chain.steps
                if (finished := read_finished(chain_step, steps)) is not None
            }
            if len(results) == len(chain.steps):
                _keep_run(experiment, chain, results, identities[chain.variant.name, chain.seed], runs_folder)
                unfinished.remove(chain)

    results = run(chains, request, steps, workers, keep_finished)
    return [
        f"{experiment.name}: {chain.variant.name}, seed {chain.seed}: {failure}"
        for chain in unfinished
        for failure in dict.fromkeys(results[step.name].get(FAILURE) for step in chain.steps)
        if failure
    ]


def _keep_run(experiment: Experiment, chain: Chain, results: dict[str, Figures], identity: str, runs_folder: Path) -> None:
    kept_run = Run(
        experiment=experiment.name,
        variant=chain.variant.name,
        seed=chain.seed,
        identity=identity,
        values=chain.variant.values,
        figures={column.title: value for column, value in figures_of(chain, results).items()},
        teacher_perplexity=teacher_perplexity(results),
        seconds=round(sum(figures["seconds"] for figures in results.values()), 1),
        versions=versions_of(PACKAGES),
    )
    keep_run(kept_run, runs_folder)
