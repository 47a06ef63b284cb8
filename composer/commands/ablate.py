"""``ablate``: every variant of a sweep is built, trained and scored."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer

from composer.ablation.options import Request
from composer.data.loading import check_references
from composer.errors import AblationError, translate_errors
from composer.options.classes import argument, convert_options, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import OUT, PROGRESS, FreshOption, PartsOption, SetOption, to_path
from composer.reporting.progress import BarUpdate, progress_callback, silent_transformers
from composer.reporting.terminal import at_once, heading, print_result, say, watch_progress
from composer.spec.inherit import short_path
from composer.spec.loading import SpecLike, specs_of
from composer.system.devices import check_device

if TYPE_CHECKING:
    from composer.ablation.plan import AblationStep
    from composer.ablation.report import AblationReport
    from composer.ablation.runner import OnStep, StartWorkers
    from composer.ablation.steps import Figures


@options_class
class OfSweeps(PartsOption):
    specs: SpecLike | Sequence[SpecLike] = argument(
        "Sweeps, for all of their variants, or single specs.", is_checked=False, metavar="SPEC", kind=list[str]
    )


@options_class
class AblateOptions(SetOption, FreshOption, Request, OfSweeps):
    """Build, train and score every variant of a sweep.

    Each step is named by everything that decides its result, and runs once: variants that begin alike share their first steps, and
    the same call again continues an interrupted ablation. If a variant fails, the others still run, the report has the reason, and
    the exit code is 1.
    """

    example: ClassVar[str] = 'composer.ablate("sweep.yaml", "teacher", out="ablation", tasks="mqar,pairs=4", lengths=128)'
    out: Path = option("Folder of the ablation. The same call continues it.", converter=to_path, **OUT)
    jobs: int | None = option(
        "Steps at a time. On the command line, left out: one for each core, or one on a GPU. In Python, None: one for each core, "
        "or one on a GPU; other processes import the main program, so a script needs `if __name__ == '__main__':`.",
        default=1,
        command_default=None,
        minimum=1,
    )
    progress: bool | OnStep = option(PROGRESS, default=False, is_checked=False, is_hidden=True)

    def check(self) -> None:
        if (self.source is None) != self.fresh:
            both = " One of the two, not both." if self.fresh else ""
            raise AblationError(f"Set --from SOURCE to build from a model, or --fresh for specs with their own trunk.{both}")
        if self.source is not None and self.tokenizer is not None:
            raise AblationError("--tokenizer is for models that are built with --fresh: a source has its own tokenizer")


@translate_errors
def run_ablate(options: AblateOptions) -> AblationReport:
    check_references((*options.data, *options.held_out))
    with silent_transformers("error"):
        from composer.ablation.ablate import ablate as run

        lengths, seeds = tuple(dict.fromkeys(options.lengths)), tuple(dict.fromkeys(options.seeds))
        request = convert_options(options, Request, lengths=lengths, seeds=seeds)
        workers = _workers(options.jobs, options.device)
        with progress_callback(options.progress, bar_of, "bar", "count", "elapsed", "text") as tell:
            return run(specs_of(options.specs), request, options.out, overrides=options.overrides, workers=workers, tell=tell)


ablate = function_of(AblateOptions, run_ablate)


def _workers(jobs: int | None, device: str) -> StartWorkers:
    """Raise ComposerError if this machine has no such device."""
    from composer.ablation import runner

    check_device(device)
    count = jobs or ((os.cpu_count() or 1) if device == "cpu" else 1)
    return runner.one_process if count == 1 else runner.processes(count)


def bar_of(step: AblationStep | None, figures: Figures, done: int, total: int) -> BarUpdate:
    """Return the progress of an ablation, as a bar shows it."""
    return BarUpdate("steps", done, total, None if step is None else outcome_in_words(step, figures))


def outcome_in_words(step: AblationStep, figures: Figures) -> str:
    """Which step has ended, and how."""
    outcome = "failed" if "failure" in figures else f"{figures['seconds']:.0f} s"
    return f"{step.kind}  {step.variant.name}  seed {step.seed}  {outcome}"


FAILED = 1
"""Exit code where a variant failed and the others were reported."""


@command(AblateOptions, "quiet", "as_json")
def ablate_command(options: AblateOptions, screen: Screen) -> None:
    at_once("Planning the variants", quiet=screen.hides_progress)
    with watching(quiet=screen.quiet, visible=not screen.as_json) as tell:
        report = run_ablate(replace(options, progress=tell or False))
    if not screen.as_json:
        heading(f"Ablation {short_path(options.out)}")
    print_result(report, as_json=screen.as_json)
    if report.failed:
        raise typer.Exit(FAILED)


def watching(*, quiet: bool, visible: bool = True) -> AbstractContextManager[OnStep | None]:
    """Report the progress of an ablation: a bar on a terminal, otherwise a line at the end of each step."""
    return watch_progress("bar", "count", "elapsed", "text", bar=bar_of, line=_line, quiet=quiet, visible=visible)


def _line(step: AblationStep | None, figures: Figures, done: int, total: int) -> None:
    if step is not None:
        say(f"{done}/{total}  {outcome_in_words(step, figures)}", err=True)
    elif done:
        say(f"{done}/{total}  found done", err=True)
