"""Runs an ablation: variants are read, planned, run and reported in one folder, where a later call continues."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from composer.ablation.check import check_inputs, check_request
from composer.ablation.figures import Figures
from composer.ablation.models import costs_of, name_models
from composer.ablation.options import Request
from composer.ablation.pictures import draw_all
from composer.ablation.plan import Chain, plan, read_variants
from composer.ablation.report import AblationReport, make_report
from composer.ablation.runner import OnStep, StartWorkers, one_process, run_chains
from composer.ablation.steps import MARK
from composer.ablation.table import markdown
from composer.ablation.teacher import teacher_scores
from composer.api import SpecLike
from composer.errors import AblationError, Stopped
from composer.files import write_whole
from composer.locks import exclusive_lock, inside, warn_if_unguarded
from composer.spec.inherit import shown
from composer.spec.overrides import Overrides
from composer.weights.record import versions
from converters.bounded import reason

STEPS, REPORT, TABLE = "steps", "report.json", "table.md"


def ablate(
    specs: Sequence[SpecLike],
    request: Request,
    out: Path,
    *,
    overrides: Overrides = (),
    workers: StartWorkers = one_process,
    tell: OnStep | None = None,
) -> AblationReport:
    """Builds, trains and scores each variant with each seed. Writes ``report.json``, ``table.md`` and pictures to ``out``, and each
    variant's model to ``out/variants``.

    The figures of each step stay in ``out/steps``, under a hash of all that decides them: a call that was stopped continues, and
    one with another variant, seed or task runs what is new. Raises ComposerError before the first step; a step that fails later
    says why in the report.
    """
    out = out.expanduser()
    steps = out / STEPS
    check_request(request)
    if not (steps / MARK).is_file() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AblationError(f"{out} holds something else than an ablation. Move it away, or choose another --out.")
    chains = plan(read_variants(specs, overrides), request, steps)
    results = run(chains, request, steps, workers, tell)
    scores, failure = teacher_scores(request, steps)
    with _going_on(out), exclusive_lock(inside(out), None):  # so that report, table and plot are of one call, the last to end
        models, costs = name_models(chains, results, request, out), costs_of([chain.variant for chain in chains], request)
        report = make_report(chains, results, request, versions(), models, costs)
        report = report.model_copy(update={"teacher": scores, "teacher_failure": failure})
        write_whole(out / REPORT, report.model_dump_json(indent=2) + "\n")
        write_whole(out / TABLE, markdown(report))
        draw_all(report, out)
    return report


def run(
    chains: Sequence[Chain], request: Request, steps: Path, workers: StartWorkers = one_process, tell: OnStep | None = None
) -> dict[str, Figures]:
    """The figures of every step of planned chains, by its name; the folder ``steps`` is made. Raises ComposerError."""
    check_inputs(chains, request, steps)
    with _going_on(steps), workers() as started:
        steps.mkdir(parents=True, exist_ok=True)
        (steps / MARK).touch()
        warn_if_unguarded(steps)
        return run_chains(chains, steps, started, tell)


@contextmanager
def _going_on(folder: Path) -> Iterator[None]:
    """Raises AblationError where a file cannot be read or written. It names the file, or ``folder`` where the system does not. What
    is interrupted says how it goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, Stopped) else signal.SIGINT
        raise Stopped(f"Interrupted. What is done stays in {shown(folder)}: say the same again to go on.", number) from error
    except OSError as error:
        raise AblationError(
            f"{error.filename or folder} cannot be read or written: {reason(error)}. What is done stays; say the same again."
        ) from error
