"""``distill``, ``train`` and ``merge``: a built model learns, and appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from blocks.part import Closed
from composer.data.loading import check_references
from composer.devices import room_for
from composer.errors import TrainingError, translate_errors
from composer.notices import inform, warn_user
from composer.options import convert_options, function_of, option, options_class
from composer.progress import BarUpdate, progress_callback, silent_transformers
from composer.shared_options import OUT, PROGRESS, TELL, OfModel, Overriding, Replacing, to_optional_path
from composer.spec.inherit import short_path
from composer.tables import Readable, View
from composer.training.options import LearningOptions, TeachingOptions, TrainingOptions
from composer.training.student import Which, read_student, stage_from_nothing, stages_of
from composer.weights.sources import local_folder, open_model, plain_name
from composer.words import duration
from converters.composed import ADAPTER_CONFIG

if TYPE_CHECKING:
    from composer.training.loop import StepProgress
    from composer.training.run import TrainingReport

Tell = Callable[[str], None]


@options_class
class Watched:
    progress: bool | Callable[[StepProgress], None] = option(PROGRESS, default=False, is_checked=False, is_hidden=True)
    tell: Tell = option(TELL, default=inform, is_checked=False, is_hidden=True)


@options_class
class DistillOptions(Overriding, TeachingOptions, Watched, OfModel):
    """Train a built model to imitate its teacher.

    The recipe of its spec states how: first the heads learn the teacher's attention, then the model learns the text. During the
    run, checkpoints, a log and TensorBoard's files are in OUT.run. --resume continues from there to the same numbers. The result
    appears whole or not at all. Losses are in nats for each token, or what the recipe's loss measures.

    Several processes shard the models, and share the rows of each step: torchrun --nproc-per-node 2 -m composer distill …
    """

    example: ClassVar[str] = 'composer.distill("lawcat-mine", "texts.jsonl", overrides=["recipe.transfer.steps=200"])'
    out: Path | None = option(
        "Output folder. Left out, MODEL-distilled in the current folder.",
        default=None,
        converter=to_optional_path,
        kw_only=False,
        **OUT,
    )
    stage: Which = option("Stages of the recipe to run.", default="all")


@options_class
class TrainOptions(Overriding, LearningOptions, Watched, OfModel):
    """Train a model that was built from nothing.

    Every parameter learns to predict the next token, as the recipe of the spec states. During the run, checkpoints, a log and
    TensorBoard's files are in OUT.run. --resume continues from there to the same numbers.

    Several processes shard the model, and share the rows of each step: torchrun --nproc-per-node 2 -m composer train …
    """

    example: ClassVar[str] = 'composer.train("mine-fresh", "texts.jsonl", overrides=["recipe.train.steps=1000"])'
    out: Path | None = option(
        "Output folder. Left out, MODEL-trained in the current folder.",
        default=None,
        converter=to_optional_path,
        kw_only=False,
        **OUT,
    )


@options_class
class MergeOptions(Replacing, OfModel):
    """Merge a model's adapters into its weights."""

    example: ClassVar[str] = 'composer.merge("lawcat-mine-distilled", "lawcat-whole")'
    out: Path | None = option(
        "Output folder. Left out, MODEL-merged in the current folder.",
        default=None,
        converter=to_optional_path,
        kw_only=False,
        **OUT,
    )


@translate_errors
def run_distill(options: DistillOptions) -> TrainingReport:
    student = read_student(
        local_folder(options.model), options.overrides, lengths=options.lengths
    )  # report mistakes before imports that need seconds
    stages_of(student.record, student.recipe, options.stage)
    check_references((*options.data, *options.held_out))
    with progress_callback(options.progress, bar_of) as watch, silent_transformers():
        from composer.training.distill import distill as run

        target, training = _out(options.model, options.out, "distilled"), _training(options, watch)
        with _room(target, training, streams=True):
            return run(student, target, training, which=options.stage)


@translate_errors
def run_train(options: TrainOptions) -> TrainingReport:
    student = read_student(local_folder(options.model), options.overrides, lengths=options.lengths)
    stage_from_nothing(student)
    check_references((*options.data, *options.held_out))
    with progress_callback(options.progress, bar_of) as watch, silent_transformers():
        from composer.training.distill import train as run

        target, training = _out(options.model, options.out, "trained"), _training(options, watch)
        with _room(target, training, streams=False):
            return run(student, target, training)


class MergeReport(Readable, Closed):
    """A model whose adapters are in its weights. spec_hash: that of the spec, which a merge does not change."""

    out: Path
    spec_hash: str

    def view(self) -> View:
        return View(f"Merged {short_path(self.out)}", notes=(f"spec {self.spec_hash}",))


@translate_errors
def run_merge(options: MergeOptions) -> MergeReport:
    model = local_folder(options.model)
    # Report mistakes before imports that need seconds.
    opened = open_model(options.model if Path(options.model).expanduser().is_dir() else model)
    target = _out(options.model, options.out, "merged")
    with silent_transformers():
        from composer.training.finetune import merge_adapters
        from composer.weights.rewrite import Trained, write_trained

        if opened.unpacked is not None and ADAPTER_CONFIG in opened.unpacked.files:  # merged as they were opened
            record = write_trained(model, target, Trained({}, None, (), {}), force=options.force)
        else:
            record = merge_adapters(model, target, force=options.force)
    return MergeReport(out=target, spec_hash=record.spec_hash)


distill = function_of(DistillOptions, run_distill)
train = function_of(TrainOptions, run_train)
merge = function_of(MergeOptions, run_merge)


def bar_of(step: StepProgress) -> BarUpdate:
    """Return the progress of a stage, as a bar shows it."""
    return BarUpdate(step.stage, step.step, step.steps, figures_of(step))


def figures_of(step: StepProgress) -> str:
    """Return the figures of a step in words."""
    share = f", {step.evaluating:.0%} to evaluate" if step.evaluating >= 0.05 else ""
    speed, left = f"{step.tokens_per_second:,.0f} tokens/s", f"{duration(step.seconds_left)} left"
    return f"{step.step:,}/{step.steps:,}  loss {step.loss:.4g}  {speed}  {left}{share}"


def _training(options: DistillOptions | TrainOptions, watch: Callable[[StepProgress], None] | None) -> TrainingOptions:
    """Return the options of the run. If the caller has no ``tell``, warnings are logged as warnings."""
    return convert_options(options, TrainingOptions, watch=watch, warn=warn_user if options.tell is inform else options.tell)


def _room(out: Path, options: TrainingOptions, *, streams: bool) -> AbstractContextManager[None]:
    what = f"on {options.device} in training"
    return room_for(what, lambda: _less_memory(out, options, streams=streams), TrainingError)


def _less_memory(out: Path, options: TrainingOptions, *, streams: bool) -> str:
    """Return what to do when memory has run out, and how to continue the run. streams: whether layers can be streamed."""
    ways = ["a smaller `batch` or a larger `accumulate` of the stage", "shorter rows (recipe.sequence)"]
    ways += [] if options.gradient_checkpointing else ["--gradient-checkpointing, where the whole model learns"]
    ways += ["--stream, for attention transfer on the cpu"] if streams and not options.stream else []
    folder = Path(f"{out.expanduser()}.run")
    kept = (
        f" The run is kept in {short_path(folder)}. --resume continues it with the same recipe; --force starts again with another."
    )
    return f"To use less memory: {'; '.join(ways)}.{kept if folder.is_dir() else ''}"


def _out(model: Path, out: Path | None, did: str) -> Path:
    return out or Path(f"{plain_name(model)}-{did}")
