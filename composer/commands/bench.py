"""``bench``: models are timed side by side."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from composer.benching.options import BenchOptions, BenchProgress, TimingOptions, read_workloads
from composer.building.build import BuildOptions, run_build
from composer.errors import BenchError, translate_errors
from composer.options.classes import argument, convert_options, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import PROGRESS, PartsOption, to_models, to_numbers
from composer.reporting.progress import BarUpdate, progress_callback, silent_transformers
from composer.reporting.terminal import at_once, print_result, say, watch_progress
from composer.spec.built_models import is_spec_on_hub
from composer.spec.inherit import short_path
from composer.spec.loading import load_spec, names_a_spec
from composer.weights.opened import open_models

if TYPE_CHECKING:
    from composer.benching.options import BenchProgress
    from composer.benching.report import BenchReport


@options_class
class BenchCommandOptions(TimingOptions, PartsOption):
    """Time the prefill and the decode of models, side by side.

    All models are loaded, and alternate at each length and batch: latency, tokens per second, bytes of state, peak memory. Times of
    different hours are not comparable, so a bench is a single run: an interrupted bench keeps nothing, and starts again. Times are
    seconds, sizes bytes. If a cell fails, the report has the reason.
    """

    example: ClassVar[str] = 'composer.bench(["teacher", "lawcat-mine"], prefill=256, decode="512,4k")'
    models: tuple[str, ...] | dict[str, str] = argument(
        "Built or distilled folders, or what a model can be built from: folders of sources and models of the Hub (OWNER/NAME, "
        "OWNER/NAME@REVISION). A spec is built for the bench, with random heads, on the first model beside it. The others are "
        "compared with the first. In Python, a mapping sets their labels.",
        converter=to_models,
        metavar="MODEL",
    )
    prefill: tuple[int, ...] = option(
        "Tokens of prompts: 1k,4k,64k, where 1k is 1,024.", default=(), converter=to_numbers(), metavar="N,…"
    )
    decode: tuple[int, ...] = option(
        "Positions at which a token is decoded: 512,4k,128k.", default=(), converter=to_numbers(), metavar="N,…"
    )
    progress: bool | Callable[[BenchProgress], None] = option(PROGRESS, default=False, is_checked=False, is_hidden=True)


@translate_errors
def run_bench(options: BenchCommandOptions) -> BenchReport:
    read_workloads(options.prefill, options.decode, options)  # report mistakes before imports that need seconds
    models = options.models
    folders, labels = (tuple(models.values()), list(models)) if isinstance(models, dict) else (models, None)
    with (
        progress_callback(options.progress, bar_of, "text", "bar", "count", "elapsed") as watch,
        build_for_timing(folders, options.seed) as (opened, descriptions),
    ):
        timed = opened if labels is None else dict(zip(labels, opened, strict=True))
        open_models(timed, BenchError, options.dtype)
        with silent_transformers("error"):
            from composer.benching.runner import bench as run

            timing = convert_options(options, BenchOptions, watch=watch)
            return run(timed, options.prefill, options.decode, timing, built=descriptions)


bench = function_of(BenchCommandOptions, run_bench)


def bar_of(progress: BenchProgress) -> BarUpdate:
    """Return the progress of a bench, as a bar shows it."""
    return BarUpdate("cells", progress.done, progress.total, progress.activity)


@contextmanager
def build_for_timing(named: Sequence[str], seed: int) -> Iterator[tuple[tuple[str, ...], Mapping[str, str]]]:
    """The folders and models to time, and a description of each built folder, by its path. Specs are built on the first model among
    ``named`` or, where there is none, on their own trunk, in a temporary folder that is removed after the block.

    Raises BenchError for a spec without a model or trunk to build it on, and SpecError, SourceError and BuildError.
    """
    specs = [name for name in named if names_a_spec(name) or is_spec_on_hub(name)]
    if not specs:
        yield tuple(named), {}
        return
    source = next((name for name in named if name not in specs), None)
    with tempfile.TemporaryDirectory(prefix="compose-bench-") as folder:
        paths, descriptions = [], {}
        for number, name in enumerate(named):
            if name not in specs:
                paths.append(name)
                continue
            spec = load_spec(name)
            if source is None and spec.trunk is None:
                raise BenchError(
                    f"{name} is a spec, and models are timed. Name one beside it, for it to be built on (`compose bench SOURCE "
                    f"{shlex.quote(name)} …`), or build it: `compose build {shlex.quote(name)} --from SOURCE`"
                )
            out = Path(folder) / str(number) / spec.name
            fresh = spec.trunk is not None
            run_build(BuildOptions(spec, None if fresh else source, out, fresh=fresh, seed=seed))
            paths.append(str(out))
            descriptions[str(out)] = f"the spec {name}" if fresh else f"the spec {name} on {source}"
        yield tuple(paths), descriptions


@command(BenchCommandOptions, "quiet", "as_json")
def bench_command(options: BenchCommandOptions, screen: Screen) -> None:
    at_once("Reading the models", quiet=screen.hides_progress)
    with watching(quiet=screen.hides_progress) as watch:
        report = run_bench(replace(options, progress=watch or False))
    below = "" if options.out is None else f"Report, table and plots: {short_path(options.out)}"
    print_result(report, as_json=screen.as_json, below=below)


def watching(*, quiet: bool) -> AbstractContextManager[Callable[[BenchProgress], None] | None]:
    """Report the progress of a bench: a bar on a terminal, otherwise a line at the start of each cell."""
    return watch_progress(
        "text",
        "bar",
        "count",
        "elapsed",
        bar=bar_of,
        line=lambda progress: say(f"{progress.done}/{progress.total}  {progress.activity}", err=True),
        quiet=quiet,
    )
