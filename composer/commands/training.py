"""``distil``, ``train`` and ``merge``: a built model learns, and appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from blocks.part import Closed
from composer.arguments import Reference, check_known, path_of, several
from composer.data.loading import SHARE, check_references
from composer.devices import room_for
from composer.errors import TrainingError, in_words
from composer.graph.lowering import AUTO
from composer.notices import inform, warn_user
from composer.numbers import check_count, check_range, check_seed
from composer.progress import BarUpdate, progress_callback, silent_transformers
from composer.spec.inherit import shown
from composer.spec.overrides import Overrides
from composer.tables import Readable, View
from composer.training.student import Which, read_student, stage_from_nothing, stages_of
from composer.weights.sources import open_model

if TYPE_CHECKING:
    from composer.training.loop import StepProgress
    from composer.training.run import TrainingOptions, TrainingReport

Tell = Callable[[str], None]


@in_words
def distil(
    model: Reference,
    data: str | Sequence[str],
    out: Reference | None = None,
    *,
    held_out: str | Sequence[str] = (),
    share: float = SHARE,
    held_out_rows: int | None = None,
    teacher: Reference | None = None,
    teacher_logits: Reference | None = None,
    stage: Which = "all",
    overrides: Overrides = (),
    seed: int = 0,
    device: str = "cpu",
    backend: str = AUTO,
    bfloat16: bool = False,
    gradient_checkpointing: bool = False,
    stream: bool = False,
    merge: bool = False,
    checkpoint_seconds: float = 60.0,
    resume: bool = False,
    force: bool = False,
    strict: bool = False,
    progress: bool | Callable[[StepProgress], None] = False,
    tell: Tell | None = None,
) -> TrainingReport:
    """Trains a built model to be like its teacher, as its recipe says; the result appears at ``out``, whole or not at all.

    - model: a folder that ``build_folder`` has written.
    - data: references: a file (``texts.jsonl``), ``hub:OWNER/NAME``, or a task such as ``"passkey,samples=2000"``.
    - out: a folder; left out, ``<model>-distilled`` here. Until the end, checkpoints and the log are in ``<out>.run``.
    - held_out: data to evaluate on; else a ``share`` of ``data`` is held out. held_out_rows: of them, evaluated on at most.
    - teacher: a folder or a model of the Hub; left out, the one that the model was built from. teacher_logits: a folder that
      ``write_logits`` has written, in place of a teacher in memory.
    - stage: of the recipe, ``"transfer"``, ``"finetune"`` or ``"all"``.
    - overrides: of the recipe, such as ``"recipe.transfer.steps=200"``.
    - stream: with ``stage="transfer"``, one layer in memory at a time. merge: fold adapters into the weights at the end.
    - checkpoint_seconds: at least so many pass between two checkpoints. resume: continue a run that was stopped.
    - force: replace what stands at ``out``. strict: a run that learns nothing is an error.
    - progress: ``True`` shows a bar; or what is to be called after each step. tell: called with messages; left out, they are
      those of the log ``composer``.

    Losses of the report are nats for each token, or what the recipe's loss measures. Raises ComposerError.

        composer.distil("lawcat-mine", "texts.jsonl", overrides=["recipe.transfer.steps=200"])
    """
    check_known("--stage", stage, get_args(Which))
    _check_numbers(seed, held_out_rows, checkpoint_seconds)
    student = read_student(model, overrides)  # report mistakes before imports that take seconds
    stages_of(student.record, student.recipe, stage)
    check_references((*several(data), *several(held_out)))
    with progress_callback(progress, bar_of) as watch, silent_transformers():
        from composer.training.distill import distill as run

        options = _options(
            data,
            held_out,
            share=share,
            held_out_rows=held_out_rows,
            teacher=None if teacher is None else str(teacher),
            teacher_logits=path_of(teacher_logits),
            seed=seed,
            device=device,
            backend=backend,
            autocast=bfloat16,
            gradient_checkpointing=gradient_checkpointing,
            checkpoint_seconds=checkpoint_seconds,
            resume=resume,
            force=force,
            strict=strict,
            stream=stream,
            merge=merge,
            watch=watch,
            tell=tell or inform,
            warn=tell or warn_user,
        )
        target = _out(model, out, "distilled")
        with room_for(f"on {device} in training", lambda: _less_memory(target, options, streams=True), TrainingError):
            return run(student, target, options, which=stage)


@in_words
def train(
    model: Reference,
    data: str | Sequence[str],
    out: Reference | None = None,
    *,
    held_out: str | Sequence[str] = (),
    share: float = SHARE,
    held_out_rows: int | None = None,
    overrides: Overrides = (),
    seed: int = 0,
    device: str = "cpu",
    backend: str = AUTO,
    bfloat16: bool = False,
    gradient_checkpointing: bool = False,
    checkpoint_seconds: float = 60.0,
    resume: bool = False,
    force: bool = False,
    strict: bool = False,
    progress: bool | Callable[[StepProgress], None] = False,
    tell: Tell | None = None,
) -> TrainingReport:
    """Trains a model that was built from nothing: every parameter learns to predict the next token, as its recipe says.

    out: a folder; left out, ``<model>-trained`` here. All else is as ``distil`` has it. Raises ComposerError.

        composer.train("mine-fresh", "texts.jsonl", overrides=["recipe.train.steps=1000"])
    """
    _check_numbers(seed, held_out_rows, checkpoint_seconds)
    student = read_student(model, overrides)
    stage_from_nothing(student)
    check_references((*several(data), *several(held_out)))
    with progress_callback(progress, bar_of) as watch, silent_transformers():
        from composer.training.scratch import train as run

        options = _options(
            data,
            held_out,
            share=share,
            held_out_rows=held_out_rows,
            seed=seed,
            device=device,
            backend=backend,
            autocast=bfloat16,
            gradient_checkpointing=gradient_checkpointing,
            checkpoint_seconds=checkpoint_seconds,
            resume=resume,
            force=force,
            strict=strict,
            watch=watch,
            tell=tell or inform,
            warn=tell or warn_user,
        )
        target = _out(model, out, "trained")
        with room_for(f"on {device} in training", lambda: _less_memory(target, options, streams=False), TrainingError):
            return run(student, target, options)


class MergeReport(Readable, Closed):
    """A model whose adapters are in its weights. spec_hash: what its heads mean, as before."""

    out: Path
    spec_hash: str

    def view(self) -> View:
        return View(f"Merged {shown(self.out)}", notes=(f"spec {self.spec_hash}",))


@in_words
def merge(model: Reference, out: Reference | None = None, *, force: bool = False) -> MergeReport:
    """Folds a distilled model's adapters into its weights.

    out: a folder; left out, ``<model>-merged`` here. force: replace what stands there. Raises ComposerError, also where the model
    has no adapters.

        composer.merge("lawcat-mine-distilled", "lawcat-whole")
    """
    open_model(model)  # report mistakes before imports that take seconds
    target = _out(model, out, "merged")
    with silent_transformers():
        from composer.training.merge import merge_adapters

        record = merge_adapters(Path(model).expanduser(), target, force=force)
    return MergeReport(out=target, spec_hash=record.spec_hash)


def bar_of(step: StepProgress) -> BarUpdate:
    """The progress of a stage, as a bar shows it."""
    return BarUpdate(step.stage, step.step, step.steps, figures_of(step))


def figures_of(step: StepProgress) -> str:
    """The figures of a step in words."""
    left = f"{step.seconds_left / 60:.0f} min" if step.seconds_left >= 90 else f"{step.seconds_left:.0f} s"
    share = f", {step.evaluating:.0%} to evaluate" if step.evaluating >= 0.05 else ""
    return f"{step.step:,}/{step.steps:,}  loss {step.loss:.4g}  {step.tokens_per_second:,.0f} tokens/s  {left} left{share}"


def _check_numbers(seed: int, held_out_rows: int | None, checkpoint_seconds: float) -> None:
    """Raises TrainingError."""
    check_seed(seed, TrainingError)
    check_range("--checkpoint-seconds", checkpoint_seconds, 0, refusal=TrainingError)
    if held_out_rows is not None:
        check_count("--held-out-rows", held_out_rows, TrainingError)


def _options(data: str | Sequence[str], held_out: str | Sequence[str], **more: Any) -> TrainingOptions:
    from composer.training.run import TrainingOptions

    return TrainingOptions(data=several(data), held_out=several(held_out), **more)


def _less_memory(out: Path, options: TrainingOptions, *, streams: bool) -> str:
    """What to do where memory has run out, and how the run that has ended so goes on. streams: whether layers can be streamed."""
    ways = ["a smaller `batch` or a larger `accumulate` of the stage", "shorter rows (recipe.sequence)"]
    ways += [] if options.gradient_checkpointing else ["--gradient-checkpointing, where the whole model learns"]
    ways += ["--stream, for attention transfer on the cpu"] if streams and not options.stream else []
    folder = Path(f"{out.expanduser()}.run")
    kept = f" What was reached is in {shown(folder)}: the same recipe goes on with --resume, another starts anew with --force."
    return f"What takes less: {'; '.join(ways)}.{kept if folder.is_dir() else ''}"


def _out(model: Reference, out: Reference | None, did: str) -> Path:
    return path_of(out) or Path(f"{Path(model).expanduser().resolve().name}-{did}")
