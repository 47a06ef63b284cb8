"""``compose select`` on a teacher of eight layers, compared with every fourth layer and with random layers, at equal state.

The experiment ``select`` compares choices of layers before fine-tuning. ``select-trained`` trains and scores a student of each
choice.
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
from composer.runs.identity import data_identity
from composer.selection.choice import best, keeping
from composer.selection.report import Selection
from composer.spec.loading import load_spec
from composer.spec.writing import to_yaml
from composer.system.files import write_whole
from composer.system.versions import versions_of
from evidence.experiments import EARLIER, OUT, RECIPE, SCORING, SEEDS, SKILLS, Experiment
from evidence.kept import RUNS, Run, hash_files, keep_run, path_of, read_run
from evidence.running import Listener, run_missing

NAME, TRAINED = "select", "select-trained"
SOURCE = "evidence/teachers/eight-layers"
BEFORE, BEATEN, STATE = "KL before", "pairs beaten", "KiB at 2,048"
"""Columns of ``select``: KL(teacher ‖ student) in nats per token before fine-tuning; the share of all choices of as many layers
that are worse; and the size of the state."""
SCORES = ("restored", "swapped", "error")
CHANCE = ("chance-1", "chance-2")


@dataclass(frozen=True)
class Setting:
    """The settings of the experiment.

    - keep: the number of layers that keep the teacher's attention.
    - rows: the number of held-out rows that choices are scored on.
    """

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
    def regular_layers(self) -> tuple[int, ...]:
        """Every k-th layer: the last one of each k."""
        interval = self.layers // self.keep
        return tuple(range(interval - 1, self.layers, interval))

    @property
    def regular_name(self) -> str:
        """The name of the choice of ``regular_layers``."""
        return f"every-{self.layers // self.keep}"

    @property
    def choice_names(self) -> tuple[str, ...]:
        """The names of the choices that are trained. ``none`` keeps no layer."""
        return (*SCORES, self.regular_name, *CHANCE, "none")

    @property
    def command(self) -> str:
        data = " ".join(f"--data {option}" for option in self.data)
        recipe = " ".join(f"--set '{option}'" for option in self.recipe if option.startswith("recipe.transfer"))
        return (
            f"compose select {self.spec} --from {self.source} {data} --share {self.share:g} --keep {self.keep} --rows {self.rows} "
            f"{recipe} --seed SEED -o {OUT}/{NAME}/seed-SEED"
        )


SETTING = Setting()


def compute_identity(setting: Setting, seed: int) -> str:
    """Return the identity of a selection. It does not depend on the training that follows."""
    spec = load_spec(setting.spec).model_dump(mode="json", exclude_unset=True, exclude={"name", "paper", "recipe"})
    inputs = {
        "spec": spec,
        "seed": seed,
        "source": hash_files(Path(setting.source)),
        "data": [data_identity(reference) for reference in setting.data],
    }
    recipe = [override for override in setting.recipe if override != EARLIER]
    inputs |= {"share": setting.share, "rows": setting.rows, "keep": setting.keep, "recipe": recipe}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def run_all(
    work: Path, workers: StartWorkers, tell: Listener, device: str = "cpu", runs_folder: Path = RUNS, setting: Setting = SETTING
) -> list[str]:
    """Do every run that is not kept, and return messages about failures. All choices are made first, then trained seed by seed.

    Raises ComposerError.
    """
    for seed in setting.seeds:
        if read_choices(setting, seed, runs_folder) is None:
            tell(f"{NAME}: seed {seed}")
            _choose(setting, seed, work, tell, device, runs_folder)
    failures: list[str] = []
    for seed in setting.seeds:
        failures += run_missing(build_experiment(setting, seed, work, runs_folder), work, workers, tell, device, runs_folder)
    return failures


def read_choices(setting: Setting, seed: int, runs_folder: Path = RUNS) -> dict[str, tuple[int, ...]] | None:
    """Return the layers of each choice with this seed, by name, or None if not all choices are kept."""
    runs = {name: read_run(path_of(NAME, name, seed, runs_folder)) for name in setting.choice_names}
    identity = compute_identity(setting, seed)
    choices = {name: tuple(run.values["keep"]) for name, run in runs.items() if run is not None and run.identity == identity}
    return choices if len(choices) == len(runs) else None


def build_experiment(setting: Setting, seed: int, work: Path, runs_folder: Path = RUNS) -> Experiment:
    """Write the specs of one seed's choices, and return their ablation. Raises ComposerError if not all choices are kept."""
    layers = read_choices(setting, seed, runs_folder)
    if layers is None:
        raise ComposerError(f"{NAME}: no layers are chosen with seed {seed}: python -m evidence --only {NAME}")
    folder = work / TRAINED / f"specs-{seed}"
    for name, kept_layers in layers.items():
        write_whole(folder / f"{name}.yaml", to_yaml(_build_document(setting, kept_layers) | {"name": name}))
    request = replace(
        SCORING,
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


def _build_document(setting: Setting, layers: Sequence[int]) -> dict[str, Any]:
    return keeping(load_spec(setting.spec).model_dump(mode="json", exclude_unset=True), layers, setting.layers)


def _choose(setting: Setting, seed: int, work: Path, tell: Listener, device: str, runs_folder: Path) -> None:
    """Score the layers of a student and every choice of as many layers, and keep the choices that will be trained."""
    out = work / NAME / f"seed-{seed}"
    selection = composer.select(
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
    assert isinstance(selection, Selection), "layers are selected, not heads"
    layers = [score.layer for score in selection.scores]
    if len(layers) != setting.layers:
        raise ComposerError(f"{setting.source} has {len(layers)} layers, not {setting.layers}.")
    divergences = _score_every_choice(setting, seed, out / "student", device, layers)
    for name, kept_layers in _choose_layers(setting, seed, selection).items():
        _keep_choice(
            setting,
            name,
            seed,
            kept_layers,
            selection.divergence if not kept_layers else divergences[kept_layers],
            divergences,
            runs_folder,
        )


def _choose_layers(setting: Setting, seed: int, selection: Selection) -> dict[str, tuple[int, ...]]:
    """Return the layers of each choice, by name. Random choices follow from the seed, and differ from each other."""
    pairs = list(combinations(range(setting.layers), setting.keep))
    by_score = {score: best(selection.scores, score, setting.keep) for score in SCORES}
    random_pairs = random.Random(seed).sample(pairs, len(CHANCE))
    return {**by_score, setting.regular_name: setting.regular_layers, **dict(zip(CHANCE, random_pairs, strict=True)), "none": ()}


def _score_every_choice(
    setting: Setting, seed: int, student: Path, device: str, layers: Sequence[int]
) -> dict[tuple[int, ...], float]:
    """Return KL(teacher ‖ student) in nats per token of every choice of as many layers, on the selection's held-out rows."""
    from composer.selection.layers import divergence_with
    from composer.training.rows import rows_of, some
    from composer.training.run import TrainingOptions, load_student
    from composer.training.student import read_student
    from composer.training.teacher import open_teacher

    options = TrainingOptions(data=setting.data, share=setting.share, teacher=setting.source, seed=seed, device=device)
    student_info = read_student(student, ())
    _, held_out = rows_of(student_info, options)
    assert held_out is not None, "a share is held out"
    rows = some(held_out, setting.rows)
    model = load_student(student_info, options).eval()
    teacher = open_teacher(student_info.record, options.teacher).load(device, options.backend)
    return {
        kept_layers: divergence_with(model, teacher, rows, kept_layers)[0] for kept_layers in combinations(layers, setting.keep)
    }


def _keep_choice(
    setting: Setting,
    name: str,
    seed: int,
    layers: tuple[int, ...],
    divergence: float,
    divergences: Mapping[tuple[int, ...], float],
    runs_folder: Path,
) -> None:
    spec = load_spec(_build_document(setting, layers))
    figures = {BEFORE: divergence, STATE: explain(spec, setting.source, sequence=2048).state_bytes / 1024}
    if layers:
        figures[BEATEN] = statistics.fmean(candidate > divergence for candidate in divergences.values())
    values = {"keep": list(layers), "mean of all": statistics.fmean(divergences.values()), "best of all": min(divergences.values())}
    run = Run(
        experiment=NAME,
        variant=name,
        seed=seed,
        identity=compute_identity(setting, seed),
        values=values,
        figures=figures,
        teacher_perplexity=None,
        seconds=0.0,
        versions=versions_of(PACKAGES),
    )
    keep_run(run, runs_folder)
