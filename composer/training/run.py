"""One run of training, whichever stages it has: what it needs, the folder that it stands in, and the folder that it becomes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from blocks.part import Closed
from composer.data.loading import SHARE, load_rows
from composer.data.packing import Rows
from composer.errors import TrainingError
from composer.model.loading import load_model
from composer.model.modeling import ComposedForCausalLM
from composer.spec.loading import load_spec
from composer.spec.recipe import Recipe, Stage
from composer.training.journal import CURVE, LOG, Journal, draw
from composer.training.loop import Outcome, Setting, Step
from composer.weights.output import check_output
from composer.weights.record import RECORD, Record, TrainedStage, read_record
from composer.weights.sources import open_model
from composer.weights.trained import Adapter, Trained, write_trained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST_ROW = 1024
"""Tokens of a row, where neither the recipe nor the source says less."""
IDENTITY = "run.json"


@dataclass(frozen=True)
class Options:
    """How a run is run; what it computes is in the recipe.

    data, held_out: what ``composer.data`` can read. share: of data that is held out where ``held_out`` names none.
    """

    data: Sequence[str]
    held_out: Sequence[str] = ()
    share: float = SHARE
    teacher: str | None = None
    seed: int = 0
    device: str = "cpu"
    autocast: bool = False
    """Let projections compute in bfloat16."""
    checkpoint_seconds: float = 60.0
    resume: bool = False
    force: bool = False
    stream: bool = False
    """Attention transfer with one layer in memory at a time."""
    merge: bool = False
    """Fold adapters into the weights at the end."""
    watch: Callable[[Step], None] | None = None


class RunReport(Closed):
    """What a run did. teacher_loss: the teacher's own, in nats for each token that is asked for, on the held-out rows."""

    out: Path
    stages: tuple[Outcome, ...]
    teacher_loss: float | None
    data: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What the stages of a run work with. folder: where it stands while it runs."""

    model: Path
    out: Path
    record: Record
    recipe: Recipe
    options: Options
    rows: Rows
    held_out: Rows
    folder: Path

    def setting(self, journal: Journal) -> Setting:
        """What its stages run in."""
        kind = torch.bfloat16 if self.options.autocast else None
        return Setting(self.folder, journal, self.options.seed, self.options.checkpoint_seconds, kind, self.options.watch)

    def finish(
        self,
        outcomes: Sequence[Outcome],
        stages: Mapping[str, Stage],
        changed: Mapping[str, Tensor],
        *,
        adapter: Adapter | None = None,
        teacher: str | None = None,
        teacher_loss: float | None = None,
    ) -> RunReport:
        """Write the result, whole or not at all, and remove the folder of the run. Raises BuildError."""
        draw(self.folder / LOG, self.folder / CURVE)
        data = self.rows.report.model_dump(mode="json") if self.rows.report is not None else {}
        told = tuple(
            TrainedStage(
                recipe=stages[outcome.stage].model_dump(mode="json"),
                data=data,
                teacher=teacher,
                seed=self.options.seed,
                **outcome.model_dump(),
            )
            for outcome in outcomes
        )
        papers = {name: self.folder / name for name in (LOG, CURVE)}
        write_trained(self.model, self.out, Trained(changed, adapter, told, papers), force=self.options.force)
        shutil.rmtree(self.folder, ignore_errors=True)
        return RunReport(out=self.out, stages=tuple(outcomes), teacher_loss=teacher_loss, data=data)


def open_run(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: Options,
    overrides: Sequence[str],
    check: Callable[[Record, Recipe], None],
) -> Run:
    """Read all that a run needs, and only then make its folder, or go back to it.

    check: whether the recipe can be followed on the model; it raises TrainingError. Raises TrainingError, DataError, SpecError and
    BuildError.
    """
    folder, target = Path(model).expanduser(), Path(out).expanduser()
    record = _record(folder)
    recipe = _recipe(record, overrides)
    check(record, recipe)
    check_output(target, open_model(folder), force=options.force)
    run = target.parent / f"{target.name}.run"
    identity = {"model": record.spec_hash, "recipe": recipe.model_dump(mode="json"), "seed": options.seed}
    _check_folder(run, options, identity)
    rows, held_out = _rows(folder, record, recipe, options)
    if not options.resume:
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        (run / IDENTITY).write_text(json.dumps(identity), encoding="utf-8")
    return Run(folder, target, record, recipe, options, rows, held_out, run)


def open_student(run: Run) -> ComposedForCausalLM:
    """The model to train, in float32. Raises TrainingError and SourceError."""
    student = load_model(run.model, "float32", run.options.device)
    assert isinstance(student, ComposedForCausalLM), "the record has been looked at"
    return student


def _record(folder: Path) -> Record:
    record = read_record(folder) if folder.is_dir() else None
    if record is None:
        raise TrainingError(f"{folder} has no {RECORD}: it is not a built model. Make one: compose build SPEC --from SOURCE")
    if record.trunk.get("labels") is not None:
        raise TrainingError(f"{folder} is a classifier; what is trained here is a language model.")
    if json.loads((folder / "config.json").read_text(encoding="utf-8")).get("adapter") is not None:
        raise TrainingError(f"{folder} has adapters beside its weights. Merge them first: compose merge {folder}")
    return record


def _recipe(record: Record, overrides: Sequence[str]) -> Recipe:
    beside = [setting for setting in overrides if not setting.startswith("recipe.")]
    if beside:
        raise TrainingError(
            f"--set {beside[0]}: the heads are built; only the recipe can still be set, such as recipe.transfer.lr=1e-2"
        )
    spec = load_spec(record.spec, overrides)
    if spec.recipe is None:
        raise TrainingError(
            f'"{spec.name}" has no recipe: it needs no training of its own, or its paper says of none. To train it all the same, '
            "say how: --set recipe.transfer.lr=1e-2 --set recipe.transfer.steps=200"
        )
    return spec.recipe


def _check_folder(run: Path, options: Options, identity: dict[str, Any]) -> None:
    if options.resume:
        if not (run / IDENTITY).is_file():
            raise TrainingError(f"There is no run to go on with at {run}. Leave --resume out to begin one.")
        if json.loads((run / IDENTITY).read_text(encoding="utf-8")) != identity:
            raise TrainingError(
                f"The run at {run} has another model, recipe or seed. Say the same as then, or begin anew with --force."
            )
    elif run.exists() and not options.force:
        raise TrainingError(f"A run has stopped at {run}. Go on with --resume, or begin anew with --force.")


def _rows(folder: Path, record: Record, recipe: Recipe, options: Options) -> tuple[Rows, Rows]:
    """The rows to learn from, and those to evaluate on."""
    tokenizer = _tokenizer(folder)
    longest: int = record.trunk["max_positions"]
    own = bool(options.held_out)

    def rows(references: Sequence[str], split: Literal["train", "evaluation"], share: float) -> Rows:
        return load_rows(
            references,
            tokenizer,
            recipe.sequence or min(LONGEST_ROW, longest),
            split=split,
            vocabulary=record.trunk["vocabulary_size"],
            how=recipe.rows,
            longest=longest,
            share=share,
            seed=options.seed,
        )

    held = rows(options.held_out, "evaluation", 0.0) if own else rows(options.data, "evaluation", options.share)
    return rows(options.data, "train", 0.0 if own else options.share), held


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise TrainingError(
            f"{folder} has no tokenizer that transformers can read; copy the source's there, or name one at the build ({error})"
        ) from error
