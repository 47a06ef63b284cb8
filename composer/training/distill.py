"""A built model learns to be as good as its teacher: the stages of its recipe, one after the other, and a folder at the end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
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
from composer.spec.document import Spec
from composer.spec.loading import load_spec
from composer.spec.recipe import Finetune, Recipe, Stage, Transfer
from composer.training.course import Course
from composer.training.finetune import FinetuneCourse, adapter_of, add_adapters, finetune_unit, merged
from composer.training.journal import CURVE, LOG, Journal, draw
from composer.training.loop import Outcome, Setting, Step, run_stage
from composer.training.rules import check_transfer
from composer.training.teacher import open_teacher, reference_of
from composer.training.transfer import TransferCourse
from composer.weights.output import check_output
from composer.weights.record import RECORD, Record, TrainedStage, read_record
from composer.weights.sources import open_model
from composer.weights.trained import Adapter, Trained, write_trained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Which = Literal["transfer", "finetune", "all"]
LONGEST_ROW = 1024
"""Tokens of a row, where neither the recipe nor the source says less."""
RUN = "run.json"


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
    merge: bool = False
    """Fold adapters into the weights at the end."""
    watch: Callable[[Step], None] | None = None


class DistillReport(Closed):
    """What a run did. teacher_loss: the teacher's own, in nats for each token that is asked for, on the held-out rows."""

    out: Path
    stages: tuple[Outcome, ...]
    teacher_loss: float | None
    data: dict[str, Any]


def distill(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: Options,
    *,
    which: Which = "all",
    overrides: Sequence[str] = (),
) -> DistillReport:
    """Trains the model of a folder as its recipe says, and writes what came of it to ``out``.

    Until then the run stands in a folder beside it, ``out`` with ``.run`` behind, from which ``resume`` goes on to the same
    numbers. Raises TrainingError, DataError, SpecError and BuildError.
    """
    folder, target = Path(model).expanduser(), Path(out).expanduser()
    record = _record(folder)
    recipe = _recipe(record, overrides)
    stages = _stages(recipe, which, record)
    check_output(target, open_model(folder), force=options.force)
    run = _run_folder(target, options, {"model": record.spec_hash, "recipe": recipe.model_dump(mode="json"), "seed": options.seed})
    student = _student(folder, options)
    if any(isinstance(stage, Transfer) for stage in stages.values()):
        check_transfer(record.resolved, stages["transfer"])
    tokenizer = _tokenizer(folder)
    rows, held_out = _data(recipe, student, tokenizer, options)
    reference = reference_of(record, options.teacher)
    teacher = open_teacher(reference, record.source, student.config, options.device)
    journal = Journal(run)
    setting = Setting(
        run, journal, options.seed, options.checkpoint_seconds, torch.bfloat16 if options.autocast else None, options.watch
    )
    outcomes, changed = [], {}
    teacher_loss = None
    try:
        for name, stage in stages.items():
            course = _course(stage, student, teacher, options.seed)
            if isinstance(course, FinetuneCourse):
                teacher_loss = course.loss_of(teacher, held_out)
            outcomes.append(run_stage(name, course, stage, rows, held_out, setting))
            changed |= {name: parameter for unit in course.units for name, parameter in unit.parameters.items()}
    finally:
        journal.close()
    draw(run / LOG, run / CURVE)
    adapter = _adapter(stages, student, merge=options.merge)
    trained = Trained(
        changed=_changed(changed, student, merge=options.merge),
        adapter=adapter,
        stages=tuple(_told(outcome, stages[outcome.stage], rows, reference, options.seed) for outcome in outcomes),
        papers={name: run / name for name in (LOG, CURVE)},
    )
    write_trained(folder, target, trained, force=options.force)
    shutil.rmtree(run, ignore_errors=True)
    return DistillReport(out=target, stages=tuple(outcomes), teacher_loss=teacher_loss, data=_report(rows))


def _record(folder: Path) -> Record:
    record = read_record(folder) if folder.is_dir() else None
    if record is None:
        raise TrainingError(f"{folder} has no {RECORD}: it is not a built model. Make one: compose build SPEC --from SOURCE")
    return record


def _recipe(record: Record, overrides: Sequence[str]) -> Recipe:
    beside = [setting for setting in overrides if not setting.startswith("recipe.")]
    if beside:
        raise TrainingError(
            f"--set {beside[0]}: the heads are built; only the recipe can still be set, such as recipe.transfer.lr=1e-2"
        )
    spec: Spec = load_spec(record.spec, overrides)
    if spec.recipe is None:
        raise TrainingError(
            f'"{spec.name}" has no recipe: it needs no training of its own, or its paper says of none. To train it all the same, '
            "say how: --set recipe.transfer.lr=1e-2 --set recipe.transfer.steps=200"
        )
    return spec.recipe


def _stages(recipe: Recipe, which: Which, record: Record) -> dict[str, Stage]:
    """The stages to run, in their order."""
    said = {"transfer": recipe.transfer, "finetune": recipe.finetune}
    wanted = {name: stage for name, stage in said.items() if stage is not None and which in (name, "all")}
    if not wanted:
        missing = "transfer or finetune" if which == "all" else which
        raise TrainingError(
            f'The recipe of "{record.resolved.name}" has no {missing}. Say it: --set recipe.{missing.split()[0]}.lr=… '
        )
    return wanted


def _run_folder(target: Path, options: Options, identity: dict[str, Any]) -> Path:
    """The folder of the run beside its output: a new one, or that of a run to go on with."""
    run = target.parent / f"{target.name}.run"
    if options.resume:
        if not (run / RUN).is_file():
            raise TrainingError(f"There is no run to go on with at {run}. Leave --resume out to begin one.")
        if json.loads((run / RUN).read_text(encoding="utf-8")) != identity:
            raise TrainingError(
                f"The run at {run} has another model, recipe or seed. Say the same as then, or begin anew with --force."
            )
        return run
    if run.exists():
        if not options.force:
            raise TrainingError(f"A run has stopped at {run}. Go on with --resume, or begin anew with --force.")
        shutil.rmtree(run)
    run.mkdir(parents=True)
    (run / RUN).write_text(json.dumps(identity), encoding="utf-8")
    return run


def _student(folder: Path, options: Options) -> ComposedForCausalLM:
    student = load_model(folder, "float32", options.device)
    if not isinstance(student, ComposedForCausalLM):
        raise TrainingError(f"{folder} is a classifier; what is distilled is a language model.")
    if student.config.adapter is not None:
        raise TrainingError(f"{folder} has adapters beside its weights. Merge them first: compose merge {folder}")
    return student


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{folder} has no tokenizer that transformers can read; copy the source's there ({error})") from error


def _data(recipe: Recipe, student: ComposedForCausalLM, tokenizer: PreTrainedTokenizerBase, options: Options) -> tuple[Rows, Rows]:
    """The rows to learn from, and those to evaluate on."""
    longest = student.config.max_position_embeddings
    sequence = recipe.sequence or min(LONGEST_ROW, longest)
    own = bool(options.held_out)

    def rows(references: Sequence[str], split: Literal["train", "evaluation"], share: float) -> Rows:
        return load_rows(
            references,
            tokenizer,
            sequence,
            split=split,
            vocabulary=student.config.vocab_size,
            how=recipe.rows,
            longest=longest,
            share=share,
            seed=options.seed,
        )

    held = rows(options.held_out, "evaluation", 0.0) if own else rows(options.data, "evaluation", options.share)
    return rows(options.data, "train", 0.0 if own else options.share), held


def _course(stage: Stage, student: ComposedForCausalLM, teacher: ComposedForCausalLM, seed: int) -> Course:
    if isinstance(stage, Transfer):
        return TransferCourse(student.eval(), teacher, stage)
    assert isinstance(stage, Finetune)
    if stage.lora is not None:
        add_adapters(student, stage.lora, seed)
    return FinetuneCourse(student, finetune_unit(student, stage), stage, teacher if stage.distill else None)


def _adapter(stages: dict[str, Stage], student: ComposedForCausalLM, *, merge: bool) -> Adapter | None:
    stage = stages.get("finetune")
    if not isinstance(stage, Finetune) or stage.lora is None or merge:
        return None
    return adapter_of(student, stage.lora)


def _changed(parameters: dict[str, Tensor], student: ComposedForCausalLM, *, merge: bool) -> dict[str, Tensor]:
    """What has changed of the model's own parameters, by their names there."""
    own = {name.replace(".base_layer.", "."): tensor for name, tensor in parameters.items() if ".lora_" not in name}
    return own | (merged(student) if merge else {})


def _told(outcome: Outcome, stage: Stage, rows: Rows, teacher: str, seed: int) -> TrainedStage:
    said = outcome.model_dump(exclude={"stage"})
    return TrainedStage(
        stage=outcome.stage, recipe=stage.model_dump(mode="json"), data=_report(rows), teacher=teacher, seed=seed, **said
    )


def _report(rows: Rows) -> dict[str, Any]:
    return rows.report.model_dump(mode="json") if rows.report is not None else {}
