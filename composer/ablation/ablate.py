"""The whole ablation: variants are read, planned, run and reported in one folder, which a later call goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from composer.ablation.check import check_inputs, check_request
from composer.ablation.plan import Chain, Request, plan, read_variants
from composer.ablation.report import AblationReport, make_report
from composer.ablation.runner import OnStep, Start, one_process, run_chains
from composer.ablation.steps import MARK, Figures
from composer.ablation.table import draw, markdown
from composer.errors import AblationError
from composer.files import write_whole
from composer.locks import alone, inside, say_if_unguarded
from composer.weights.record import versions

STEPS, REPORT, TABLE, PLOT = "steps", "report.json", "table.md", "plot.png"


def ablate(
    specs: Sequence[str],
    request: Request,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    workers: Start = one_process,
    tell: OnStep | None = None,
) -> AblationReport:
    """Builds, trains and scores each variant with each seed, and writes ``report.json``, ``table.md`` and ``plot.png`` to ``out``.

    What a step found stays in ``out/steps``, under a hash of all that decides it: a call that was stopped goes on, one with another
    variant, seed or task does what is new. Raises ComposerError before anything is done; what fails later stands in the report.
    """
    out = out.expanduser()
    steps = out / STEPS
    check_request(request)
    if not (steps / MARK).is_file() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AblationError(f"{out} holds something else than an ablation. Move it away, or choose another --out.")
    chains = plan(read_variants(specs, overrides), request, steps)
    results = run(chains, request, steps, workers, tell)
    report = make_report(chains, results, request, versions())
    try:
        with alone(inside(out), None):  # report, table and plot of one call, whichever ends last
            write_whole(out / REPORT, report.model_dump_json(indent=2) + "\n")
            write_whole(out / TABLE, markdown(report))
            draw(report, out / PLOT)
    except OSError as error:
        raise AblationError(
            f"{error.filename or out} cannot be read or written: {error.strerror or error}. What is done stays; say the same again."
        ) from error
    return report


def run(
    chains: Sequence[Chain], request: Request, steps: Path, workers: Start = one_process, tell: OnStep | None = None
) -> dict[str, Figures]:
    """What every step of planned chains found, by its name; in the folder ``steps``, which it makes. Raises ComposerError."""
    check_inputs(chains, request, steps)
    try:
        with workers() as started:
            steps.mkdir(parents=True, exist_ok=True)
            (steps / MARK).touch()
            say_if_unguarded(steps)
            return run_chains(chains, steps, started, tell)
    except OSError as error:
        raise AblationError(
            f"{error.filename or steps} cannot be read or written: {error.strerror or error}. What is done stays; say the same "
            "again."
        ) from error
