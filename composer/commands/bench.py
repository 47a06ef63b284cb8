"""``bench``: models are timed side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from composer.arguments import DtypeLike, Reference, named_dtype, path_of, several
from composer.benching.options import REPEATS, STEPS, BenchOptions, BenchProgress, read_workloads
from composer.benching.specs import built
from composer.errors import BenchError, in_words
from composer.graph.lowering import AUTO
from composer.numbers import Numbers, numbers_of
from composer.progress import BarUpdate, progress_callback, silent_transformers
from composer.weights.opened import open_models

if TYPE_CHECKING:
    from composer.benching.report import BenchReport


@in_words
def bench(
    models: Reference | Sequence[Reference] | Mapping[str, Reference],
    *,
    prefill: Numbers = (),
    decode: Numbers = (),
    batch: Numbers = 1,
    repeats: int = REPEATS,
    steps: int = STEPS,
    memory: bool = False,
    device: str = "cpu",
    threads: int = 1,
    dtype: DtypeLike | None = None,
    backend: str = AUTO,
    graph: bool = True,
    seed: int = 0,
    out: Reference | None = None,
    force: bool = False,
    progress: bool | Callable[[BenchProgress], None] = False,
) -> BenchReport:
    """Times the prefill and the decode of models, which take turns; the first is the one that the others are compared with.

    - models: folders, or models of the Hub; a spec is built for the bench, on the first model that is named beside it. A mapping
      gives them labels of one's own.
    - prefill: tokens of prompts. decode: positions that a token is decoded at. batch: rows. Each one number, several, or such as
      ``"1k,64k"``, where 1k is 1,024.
    - repeats: timed passes over each prompt. steps: timed tokens at each position.
    - memory: on a CPU, measure peak memory, too, each model in a process of its own. threads: of the CPU.
    - dtype: of all weights; ``None`` leaves them as they are stored. seed: of the tokens, which are random.
    - graph: on a GPU, built models decode by a step that is recorded once, as a CUDA graph, and replayed.
    - out: a folder for the report, tables and plots; ``None`` writes nothing. force: replace the bench that is there.
    - progress: ``True`` shows a bar; or what is to be called as each cell begins.

    Times are seconds, sizes bytes. Raises ComposerError; a cell that fails later says why in the report.

        composer.bench(["teacher", "lawcat-mine"], prefill=256, decode="512,4k")
    """
    dtype = named_dtype(dtype, BenchError)
    lengths, positions, rows = (
        numbers_of(said, option, BenchError) for said, option in ((prefill, "--prefill"), (decode, "--decode"), (batch, "--batch"))
    )
    labels = list(models) if isinstance(models, Mapping) else None
    named = several(list(models.values()) if isinstance(models, Mapping) else models)
    with progress_callback(progress, bar_of, "text", "bar", "count", "elapsed") as watch:
        options = BenchOptions(
            batches=rows,
            repeats=repeats,
            steps=steps,
            seed=seed,
            threads=threads,
            device=device,
            dtype=dtype,
            backend=backend,
            graph=graph,
            memory=memory,
            out=path_of(out),
            force=force,
            watch=watch,
        )
        read_workloads(lengths, positions, options)  # report mistakes before imports that take seconds
        with built(named, seed) as (folders, said):
            timed = folders if labels is None else dict(zip(labels, folders, strict=True))
            open_models(timed, BenchError, options.dtype)
            with silent_transformers("error"):
                from composer.benching.runner import bench as run

                return run(timed, lengths, positions, options, built=said)


def bar_of(progress: BenchProgress) -> BarUpdate:
    """The progress of a bench, as a bar shows it."""
    return BarUpdate("cells", progress.done, progress.total, progress.what)
