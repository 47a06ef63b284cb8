"""``calibrate``, ``distill``, ``train`` and ``merge``: a built model learns, and appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from blocks.part import Closed
from composer.data.loading import check_references
from composer.errors import ComposerError, TrainingError, translate_errors
from composer.options.classes import convert_options, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import (
    OUT,
    PROGRESS,
    TELL,
    BackendOption,
    BuiltModelArgument,
    DataOptions,
    DeviceOption,
    ForceOption,
    SeedOption,
    SetOption,
    to_optional_path,
    to_optional_text,
)
from composer.reporting.progress import progress_callback, silent_transformers
from composer.reporting.tables import Readable, View
from composer.reporting.terminal import at_once, heading, print_json, print_table, say
from composer.spec.inherit import short_path
from composer.system.devices import processes_started, room_for
from composer.system.notices import inform, warn_user
from composer.training.options import LearningOptions, TeachingOptions, TrainingOptions
from composer.training.screen import report_once, training_bar, training_steps
from composer.training.student import Which, read_student, stage_from_nothing, stages_of, start_of
from composer.weights.sources import local_folder, open_model, plain_name
from converters.composed import ADAPTER_CONFIG

if TYPE_CHECKING:
    from composer.training.loop import StepProgress
    from composer.training.run import TrainingReport

Tell = Callable[[str], None]


@options_class
class ProgressOptions:
    progress: bool | Callable[[StepProgress], None] = option(PROGRESS, default=False, is_checked=False, is_hidden=True)
    tell: Tell = option(TELL, default=inform, is_checked=False, is_hidden=True)


@options_class
class DistillOptions(SetOption, TeachingOptions, ProgressOptions, BuiltModelArgument):
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
class CalibrateOptions(
    SetOption, DataOptions, ForceOption, BackendOption, DeviceOption, SeedOption, ProgressOptions, BuiltModelArgument
):
    """Start a built model near its teacher, without training.

    Fresh parameters are computed from the teacher's attention, where their part supports it. Then the output projection of each
    layer is solved in closed form, in one pass over up to 8,192 tokens. `compose distill` does this by itself. The result appears
    whole or not at all.
    """

    error: ClassVar[type[ComposerError]] = TrainingError
    example: ClassVar[str] = 'composer.calibrate("lolcats-mine", "texts.jsonl", "lolcats-calibrated")'
    out: Path | None = option(
        "Output folder. Left out, MODEL-calibrated in the current folder.",
        default=None,
        converter=to_optional_path,
        kw_only=False,
        **OUT,
    )
    teacher: str | None = option(
        "Model to start from. Left out, the source that MODEL was built from.",
        default=None,
        converter=to_optional_text,
        metavar="SOURCE",
    )


@options_class
class TrainOptions(SetOption, LearningOptions, ProgressOptions, BuiltModelArgument):
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
class MergeOptions(ForceOption, BuiltModelArgument):
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
    with progress_callback(options.progress, training_bar) as watch, silent_transformers():
        from composer.training.distill import distill as run

        target, training = _default_out(options.model, options.out, "distilled"), _training_options(options, watch)
        with _explain_out_of_memory(target, training, streams=True):
            return run(student, target, training, which=options.stage)


@translate_errors
def run_calibrate(options: CalibrateOptions) -> TrainingReport:
    student = read_student(local_folder(options.model), options.overrides, needs_recipe=False)
    start_of(student, force=options.force)
    check_references((*options.data, *options.held_out))
    with progress_callback(options.progress, training_bar) as watch, silent_transformers():
        from composer.training.distill import calibrate as run

        target, training = _default_out(options.model, options.out, "calibrated"), _training_options(options, watch)
        with _explain_out_of_memory(target, training, streams=False):
            return run(student, target, training)


@translate_errors
def run_train(options: TrainOptions) -> TrainingReport:
    student = read_student(local_folder(options.model), options.overrides, lengths=options.lengths)
    stage_from_nothing(student)
    check_references((*options.data, *options.held_out))
    with progress_callback(options.progress, training_bar) as watch, silent_transformers():
        from composer.training.distill import train as run

        target, training = _default_out(options.model, options.out, "trained"), _training_options(options, watch)
        with _explain_out_of_memory(target, training, streams=False):
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
    # Report mistakes before imports that need seconds. A folder is opened by the user's name, which messages repeat.
    opened = open_model(options.model if Path(options.model).expanduser().is_dir() else model)
    target = _default_out(options.model, options.out, "merged")
    with silent_transformers():
        from composer.building.rewrite import Trained, write_trained
        from composer.training.finetune import merge_adapters

        if opened.unpacked is not None and ADAPTER_CONFIG in opened.unpacked.files:  # merged as they were opened
            record = write_trained(model, target, Trained({}, None, (), {}), force=options.force)
        else:
            record = merge_adapters(model, target, force=options.force)
    return MergeReport(out=target, spec_hash=record.spec_hash)


distill = function_of(DistillOptions, run_distill)
calibrate = function_of(CalibrateOptions, run_calibrate)
train = function_of(TrainOptions, run_train)
merge = function_of(MergeOptions, run_merge)


def _training_options(
    options: DistillOptions | CalibrateOptions | TrainOptions, watch: Callable[[StepProgress], None] | None
) -> TrainingOptions:
    """Return the options of the run. If the caller has no ``tell``, warnings are logged as warnings."""
    return convert_options(options, TrainingOptions, watch=watch, warn=warn_user if options.tell is inform else options.tell)


def _explain_out_of_memory(out: Path, options: TrainingOptions, *, streams: bool) -> AbstractContextManager[None]:
    activity = f"on {options.device} in training"
    return room_for(activity, lambda: _less_memory(out, options, streams=streams), TrainingError)


def _less_memory(out: Path, options: TrainingOptions, *, streams: bool) -> str:
    """Return what to do when memory has run out, and how to continue the run. streams: whether layers can be streamed."""
    ways = ["a smaller `batch` or a larger `accumulate` of the stage", "shorter rows (recipe.sequence)"]
    ways += [] if options.gradient_checkpointing else ["--gradient-checkpointing, where the whole model learns"]
    ways += ["--stream, for attention transfer on the cpu"] if streams and not options.stream else []
    folder = Path(f"{out.expanduser()}.run")
    resume_advice = (
        f" The run is kept in {short_path(folder)}. --resume continues it with the same recipe; --force starts again with another."
    )
    return f"To use less memory: {'; '.join(ways)}.{resume_advice if folder.is_dir() else ''}"


def _default_out(model: Path, out: Path | None, did: str) -> Path:
    return out or Path(f"{plain_name(model)}-{did}")


Options = TypeVar("Options", DistillOptions, CalibrateOptions, TrainOptions)


@command(DistillOptions, "quiet", "as_json")
def distill_command(options: DistillOptions, screen: Screen) -> None:
    _run_and_print(options, run_distill, "Distilling", "Distilled", screen)


@command(CalibrateOptions, "quiet", "as_json")
def calibrate_command(options: CalibrateOptions, screen: Screen) -> None:
    _run_and_print(options, run_calibrate, "Calibrating", "Calibrated", screen)


@command(TrainOptions, "quiet", "as_json")
def train_command(options: TrainOptions, screen: Screen) -> None:
    _run_and_print(options, run_train, "Training", "Trained", screen)


@command(MergeOptions, "quiet", "as_json")
def merge_command(options: MergeOptions, screen: Screen) -> None:
    at_once(f"Merging {options.model}", quiet=screen.hides_progress)
    report = run_merge(options)
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
    else:
        heading(f"Merged {short_path(report.out)}")


def _run_and_print(options: Options, run: Callable[[Options], TrainingReport], doing: str, did: str, screen: Screen) -> None:
    """Run stages of training, and print their report. doing, did: what the command does, in words."""
    _announce(f"{doing} {options.model}", screen)
    with report_once(as_json=screen.as_json) as speaks, _steps(screen, speaks=speaks) as watch:
        report = run(replace(options, progress=watch or False))
    if speaks:
        _print_run(report, did, screen)


def _announce(message: str, screen: Screen) -> None:
    if processes_started() == 1:
        at_once(message, quiet=screen.hides_progress)


def _steps(screen: Screen, *, speaks: bool) -> AbstractContextManager[Callable[[StepProgress], None] | None]:
    return training_steps(quiet=screen.quiet, visible=speaks and not screen.as_json)


def _print_run(report: TrainingReport, did: str, screen: Screen) -> None:
    """Print losses before and after, and where the log is."""
    from composer.training.run import losses, remarks

    if screen.as_json:
        print_json(report.model_dump(mode="json"))
        return
    heading(f"{did} {short_path(report.out)}")
    table = losses(report)
    if table.rows:
        print_table(table.rows, headers=table.headers, right=table.figures)
    for remark in remarks(report):
        say(f"  {remark}")
