"""``compose select`` on a teacher of eight layers, against every fourth layer and against chance, at equal state.

First layers are chosen, and compared before anything else is trained (``select``); then the spec that keeps them is trained and
scored as any other (``select-trained``).
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import composer
from composer.ablation.plan import PACKAGES
from composer.ablation.runner import StartWorkers
from composer.commands.explain import explain
from composer.errors import ComposerError
from composer.files import write_whole
from composer.runs.identity import data_identity
from composer.selection.choice import best, keeping
from composer.selection.report import Selection
from composer.spec.loading import load_spec
from composer.spec.writing import to_yaml
from composer.versions import versions_of
from evidence.experiments import OUT, RECIPE, SCORED, SEEDS, SKILLS, Experiment
from evidence.kept import KEPT, Run, contents, keep, path_of, read
from evidence.running import Listener, run_missing

NAME, TRAINED = "select", "select-trained"
SOURCE = "evidence/teachers/eight-layers"
BEFORE, BEATEN, STATE = "KL before", "pairs beaten", "KiB at 2,048"
"""Columns of ``select``: KL(teacher ‖ student) in nats a token, before any fine-tuning; of all choices of so many layers, the share
that is worse; and the bytes of the state."""
CHOSEN = ("restored", "swapped", "error")
CHANCE = ("chance-1", "chance-2")


@dataclass(frozen=True)
class Setting:
    """The settings of the experiment. keep: how many of the teacher's layers. rows: held-out rows to score choices on."""

    spec: str = "lawcat"
    layers: int = 8
    keep: int = 2
    source: str = SOURCE
    data: tuple[str, ...] = SKILLS
    share: float = 0.05
    rows: int = 16
    recipe: tuple[str, ...] = RECIPE
    tasks: tuple[str, ...] = ("stories", "passkey", "recall")
    lengths: tuple[int, ...] = (256, 512)
    samples: int = 40
    seeds: tuple[int, ...] = SEEDS

    @property
    def every(self) -> tuple[int, ...]:
        """Every k-th layer, the last one of each k."""
        apart = self.layers // self.keep
        return tuple(range(apart - 1, self.layers, apart))

    @property
    def regular(self) -> str:
        """The name of that choice."""
        return f"every-{self.layers // self.keep}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the choices that are trained; ``none`` keeps no layer."""
        return (*CHOSEN, self.regular, *CHANCE, "none")

    @property
    def command(self) -> str:
        data = " ".join(f"--data {said}" for said in self.data)
        recipe = " ".join(f"--set '{said}'" for said in self.recipe if said.startswith("recipe.transfer"))
        return (
            f"compose select {self.spec} --from {self.source} {data} --share {self.share:g} --keep {self.keep} --rows {self.rows} "
            f"{recipe} --seed SEED -o {OUT}/{NAME}/seed-SEED"
        )


SETTING = Setting()


def identity(setting: Setting, seed: int) -> str:
    """The identity of a selection, which does not depend on the later training."""
    said = load_spec(setting.spec).model_dump(mode="json", exclude_unset=True, exclude={"name", "paper", "recipe"})
    asked = {
        "spec": said,
        "seed": seed,
        "source": contents(Path(setting.source)),
        "data": [data_identity(one) for one in setting.data],
    }
    asked |= {"share": setting.share, "rows": setting.rows, "keep": setting.keep, "recipe": setting.recipe}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def run_all(
    work: Path, workers: StartWorkers, tell: Listener, device: str = "cpu", kept: Path = KEPT, setting: Setting = SETTING
) -> list[str]:
    """Does every run that is not kept, and returns the failures in words: first all choices, then what is trained, seed by seed.
    Raises ComposerError."""
    for seed in setting.seeds:
        if chosen(setting, seed, kept) is None:
            tell(f"{NAME}: seed {seed}")
            _choose(setting, seed, work, tell, device, kept)
    failures: list[str] = []
    for seed in setting.seeds:
        failures += run_missing(trained(setting, seed, work, kept), work, workers, tell, device, kept)
    return failures


def chosen(setting: Setting, seed: int, kept: Path = KEPT) -> dict[str, tuple[int, ...]] | None:
    """The layers of each choice with this seed, by name; None where not all of them are kept."""
    runs = {name: read(path_of(NAME, name, seed, kept)) for name in setting.names}
    own = identity(setting, seed)
    found = {name: tuple(run.values["keep"]) for name, run in runs.items() if run is not None and run.identity == own}
    return found if len(found) == len(runs) else None


def trained(setting: Setting, seed: int, work: Path, kept: Path = KEPT) -> Experiment:
    """The ablation of one seed's choices, whose specs it writes. Raises ComposerError if nothing has been chosen."""
    layers = chosen(setting, seed, kept)
    if layers is None:
        raise ComposerError(f"{NAME}: no layers are chosen with seed {seed}: python -m evidence --only {NAME}")
    folder = work / TRAINED / f"specs-{seed}"
    for name, keep_these in layers.items():
        write_whole(folder / f"{name}.yaml", to_yaml(_document(setting, keep_these) | {"name": name}))
    request = replace(
        SCORED,
        source=setting.source,
        data=setting.data,
        share=0.0,
        tasks=setting.tasks,
        lengths=setting.lengths,
        samples=setting.samples,
        seeds=(seed,),
    )
    specs = tuple(str(folder / f"{name}.yaml") for name in layers)
    return Experiment(TRAINED, specs, request, setting.recipe)


def _document(setting: Setting, layers: Sequence[int]) -> dict[str, Any]:
    return keeping(load_spec(setting.spec).model_dump(mode="json", exclude_unset=True), layers, setting.layers)


def _choose(setting: Setting, seed: int, work: Path, tell: Listener, device: str, kept: Path) -> None:
    """Scores the layers of a student, and every choice of as many layers, and keeps the choices that are trained afterwards."""
    out = work / NAME / f"seed-{seed}"
    found = composer.select(
        setting.spec,
        setting.source,
        setting.data,
        out,
        keep=setting.keep,
        rows=setting.rows,
        share=setting.share,
        overrides=setting.recipe,
        seed=seed,
        device=device,
        force=True,
        tell=tell,
    )
    layers = [one.layer for one in found.scores]
    if len(layers) != setting.layers:
        raise ComposerError(f"{setting.source} has {len(layers)} layers, not {setting.layers}.")
    apart = _every_choice(setting, seed, out / "student", device, layers)
    for name, these in _choices(setting, seed, found).items():
        _keep(setting, name, seed, these, found.divergence if not these else apart[these], apart, kept)


def _choices(setting: Setting, seed: int, found: Selection) -> dict[str, tuple[int, ...]]:
    """The layers of each choice. Random choices follow from the seed, and differ from each other."""
    pairs = list(combinations(range(setting.layers), setting.keep))
    by_score = {by: best(found.scores, by, setting.keep) for by in CHOSEN}
    drawn = random.Random(seed).sample(pairs, len(CHANCE))
    return {**by_score, setting.regular: setting.every, **dict(zip(CHANCE, drawn, strict=True)), "none": ()}


def _every_choice(setting: Setting, seed: int, student: Path, device: str, layers: Sequence[int]) -> dict[tuple[int, ...], float]:
    """KL(teacher ‖ student) of every choice of so many layers, in nats a token, on the rows that the selection scored on."""
    from composer.selection.scores import divergence_with
    from composer.training.rows import rows_of, some
    from composer.training.run import TrainingOptions, load_student
    from composer.training.student import read_student
    from composer.training.teacher import open_teacher

    options = TrainingOptions(data=setting.data, share=setting.share, teacher=setting.source, seed=seed, device=device)
    described = read_student(student, ())
    _, held_out = rows_of(described, options)
    assert held_out is not None, "a share is held out"
    rows = some(held_out, setting.rows)
    model = load_student(described, options).eval()
    taught = open_teacher(described.record, options.teacher).load(device, options.backend)
    return {these: divergence_with(model, taught, rows, these)[0] for these in combinations(layers, setting.keep)}


def _keep(
    setting: Setting,
    name: str,
    seed: int,
    layers: tuple[int, ...],
    apart: float,
    every: Mapping[tuple[int, ...], float],
    kept: Path,
) -> None:
    spec = load_spec(_document(setting, layers))
    figures = {BEFORE: apart, STATE: explain(spec, setting.source, sequence=2048).state_bytes / 1024}
    if layers:
        figures[BEATEN] = statistics.fmean(other > apart for other in every.values())
    values = {"keep": list(layers), "mean of all": statistics.fmean(every.values()), "best of all": min(every.values())}
    run = Run(
        experiment=NAME,
        variant=name,
        seed=seed,
        identity=identity(setting, seed),
        values=values,
        figures=figures,
        teacher_perplexity=None,
        seconds=0.0,
        versions=versions_of(PACKAGES),
    )
    keep(run, kept)
