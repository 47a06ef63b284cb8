"""The whole ablation: variants are read, planned, run and reported in one folder, which a later call goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from composer.ablation.plan import Request, plan, read_variants
from composer.ablation.report import AblationReport, make_report
from composer.ablation.runner import Told, Workers, one_process, run_chains
from composer.ablation.table import draw, markdown
from composer.errors import AblationError
from composer.weights.record import versions
from composer.weights.sources import open_model

STEPS, REPORT, TABLE, PLOT = "steps", "report.json", "table.md", "plot.png"


def ablate(
    specs: Sequence[str],
    request: Request,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    workers: Workers = one_process,
    tell: Told | None = None,
) -> AblationReport:
    """Builds, trains and scores each variant with each seed, and writes ``report.json``, ``table.md`` and ``plot.png`` to ``out``.

    What a step found stays in ``out/steps``, under a hash of all that decides it: a call that was stopped goes on, one with another
    variant, seed or task does what is new. Raises ComposerError before anything is done; what fails later stands in the report.
    """
    if not (request.data or request.tasks):
        raise AblationError("Nothing is done with the variants: say --data to train them on, --tasks to score them on, or both.")
    if request.tasks and not request.lengths:
        raise AblationError("Nothing says how long the tasks' samples are: say --lengths, in tokens.")
    source = None if request.source is None else open_model(request.source)
    chains = plan(read_variants(specs, overrides), request, source)
    if out.exists() and not (out / STEPS).is_dir() and (not out.is_dir() or any(out.iterdir())):
        raise AblationError(f"{out} holds something else than an ablation. Move it away, or choose another --out.")
    try:
        (out / STEPS).mkdir(parents=True, exist_ok=True)
        results = run_chains(chains, out / STEPS, workers, tell)
        report = make_report(chains, results, request, versions())
        (out / REPORT).write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (out / TABLE).write_text(markdown(report), encoding="utf-8")
        draw(report, out / PLOT)
    except OSError as error:
        raise AblationError(
            f"{out} cannot be written to: {error.strerror or error}. What is done stays; say the same again."
        ) from error
    return report
