"""Does the runs that are not kept yet, and keeps each as soon as it has ended."""

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
from composer.training.finetune import merge_adapters
from composer.versions import versions_of
from evidence.experiments import Experiment
from evidence.kept import KEPT, Run, identity, keep, path_of, read

Listener = Callable[[str], None]


def run_missing(
    experiment: Experiment, work: Path, workers: StartWorkers, tell: Listener, device: str = "cpu", kept: Path = KEPT
) -> list[str]:
    """Do an experiment's missing runs, and return the failures in words. Runs are ordered by seed, so that a stop leaves whole
    tables of fewer seeds."""
    missing = missing_runs(experiment, kept)
    tell(f"{experiment.name}: {len(missing)} runs to do")
    if missing and experiment.made is not None:
        make(Path(experiment.request.source or ""), experiment.made, tell)
    failures: list[str] = []
    for request, wanted in _requests(experiment, missing, work, workers, tell, device):
        steps = work / experiment.name / STEPS
        names = {name for name, _ in wanted}
        variants = [variant for variant in read_variants(experiment.specs, experiment.overrides) if variant.name in names]
        chains = [chain for chain in plan(variants, request, steps) if (chain.variant.name, chain.seed) in wanted]
        chains.sort(key=lambda chain: chain.seed)
        failures += _run(experiment, chains, request, steps, workers, tell, wanted, kept)
    return failures


def make(folder: Path, command: str, tell: Listener) -> None:
    """Makes a teacher that does not ship with the project. Does nothing where ``config.json``, the command's last file, exists.
    Raises ComposerError if the command fails."""
    if (folder / "config.json").is_file():
        return
    tell(f"{folder}: {command}")
    program, *words = shlex.split(command)
    if subprocess.run([sys.executable if program == "python" else program, *words], check=False).returncode:
        raise ComposerError(f"{folder} is not there, and could not be made: {command}")


def missing_runs(experiment: Experiment, kept: Path = KEPT) -> dict[tuple[str, int], str]:
    """The identities of runs that are not kept, or kept with another identity; by variant and seed."""
    variants = read_variants(experiment.specs, experiment.overrides)
    wanted: dict[tuple[str, int], str] = {}
    before = taught(experiment)
    for variant in variants:
        for seed in experiment.request.seeds:
            own, kept_one = identity(experiment, variant, seed, before), read(path_of(experiment.name, variant.name, seed, kept))
            if kept_one is None or kept_one.identity != own:
                wanted[variant.name, seed] = own
    return wanted


def _requests(
    experiment: Experiment, missing: dict[tuple[str, int], str], work: Path, workers: StartWorkers, tell: Listener, device: str
) -> Iterator[tuple[Request, dict[tuple[str, int], str]]]:
    """The requests for the missing runs: one, or one a seed if each seed has its own source."""
    if not missing:
        return
    request = replace(experiment.request, device=device)
    if experiment.trained is None:
        yield request, missing
        return
    for seed in dict.fromkeys(seed for _, seed in missing):
        source = _trained(experiment, seed, work, workers, tell, device)
        yield replace(request, source=str(source), seeds=(seed,)), {key: own for key, own in missing.items() if key[1] == seed}


def _trained(experiment: Experiment, seed: int, work: Path, workers: StartWorkers, tell: Listener, device: str) -> Path:
    """The model to build from, trained if it is not there, with its adapters folded in."""
    assert experiment.trained is not None
    other, variant = experiment.trained
    source = work / experiment.name / f"trained-{seed}"
    if source.is_dir():
        return source
    merge_adapters(taught_model(other, variant, seed, work, workers, tell, device), source)
    return source


def taught_model(
    experiment: Experiment, variant: str, seed: int, work: Path, workers: StartWorkers, tell: Listener, device: str = "cpu"
) -> Path:
    """The folder of an experiment's model, which is trained if it is not there. Raises ComposerError."""
    request, steps = replace(experiment.request, seeds=(seed,), device=device), work / experiment.name / STEPS
    (chain,) = plan([variants_of(experiment)[variant]], request, steps)
    tell(f"{experiment.name}: the model of {variant}, seed {seed}")
    results = run([chain], request, steps, workers)
    for step in chain.steps:
        if why := results[step.name].get(FAILURE):
            raise ComposerError(f"{experiment.name}: {variant}, seed {seed}: {why}")
    return model_of(chain.steps[-1], steps)


def taught(experiment: Experiment) -> dict[str, Variant]:
    """The variants of the experiment whose models this one builds from, by name; none where it builds from the teacher."""
    return {} if experiment.trained is None else variants_of(experiment.trained[0])


def variants_of(experiment: Experiment) -> dict[str, Variant]:
    """The variants of an experiment, by name."""
    return {variant.name: variant for variant in read_variants(experiment.specs, experiment.overrides)}


def _run(
    experiment: Experiment,
    chains: Sequence[Chain],
    request: Request,
    steps: Path,
    workers: StartWorkers,
    tell: Listener,
    wanted: dict[tuple[str, int], str],
    kept: Path,
) -> list[str]:
    left = list(chains)

    def ended(step: AblationStep | None, figures: Figures, done: int, total: int) -> None:
        if step is not None:
            how = "failed" if FAILURE in figures else f"{figures['seconds']:.0f} s"
            tell(f"{experiment.name} {done}/{total}  {step.kind}  {step.variant.name}  seed {step.seed}  {how}")
        for chain in list(left):
            results = {one.name: what for one in chain.steps if (what := read_finished(one, steps)) is not None}
            if len(results) == len(chain.steps):
                _keep(experiment, chain, results, wanted[chain.variant.name, chain.seed], kept)
                left.remove(chain)

    results = run(chains, request, steps, workers, ended)
    return [
        f"{experiment.name}: {chain.variant.name}, seed {chain.seed}: {why}"
        for chain in left
        for why in dict.fromkeys(results[step.name].get(FAILURE) for step in chain.steps)
        if why
    ]


def _keep(experiment: Experiment, chain: Chain, results: dict[str, Figures], own: str, kept: Path) -> None:
    one = Run(
        experiment=experiment.name,
        variant=chain.variant.name,
        seed=chain.seed,
        identity=own,
        values=chain.variant.values,
        figures={column.title: value for column, value in figures_of(chain, results).items()},
        teacher_perplexity=teacher_perplexity(results),
        seconds=round(sum(figures["seconds"] for figures in results.values()), 1),
        versions=versions_of(PACKAGES),
    )
    keep(one, kept)
