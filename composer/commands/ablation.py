"""``ablate``: every variant of a sweep is built, trained and scored."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from composer.api import SpecLike, specs_of
from composer.arguments import Reference, several
from composer.data.loading import SHARE, check_references
from composer.devices import check_device
from composer.errors import AblationError, in_words
from composer.evaluation.options import SHORTEST
from composer.numbers import MOST_SEED, Numbers, check_count, numbers_of
from composer.progress import BarUpdate, progress_callback, silent_transformers
from composer.spec.overrides import Overrides

if TYPE_CHECKING:
    from composer.ablation.figures import Figures
    from composer.ablation.plan import AblationStep
    from composer.ablation.report import AblationReport
    from composer.ablation.runner import OnStep, StartWorkers


@in_words
def ablate(
    specs: SpecLike | Sequence[SpecLike],
    source: Reference | None = None,
    *,
    out: Reference,
    fresh: bool = False,
    tokenizer: Reference | None = None,
    data: str | Sequence[str] = (),
    held_out: str | Sequence[str] = (),
    share: float = SHARE,
    teacher: Reference | None = None,
    tasks: str | Sequence[str] = (),
    lengths: Numbers = (),
    samples: int = 100,
    seeds: Numbers = 0,
    text: Reference | None = None,
    haystack: Reference | None = None,
    babi: Reference | None = None,
    overrides: Overrides = (),
    device: str = "cpu",
    bfloat16: bool = False,
    jobs: int | None = 1,
    ray: str | None = None,
    progress: bool | OnStep = False,
) -> AblationReport:
    """Builds, trains and scores every variant of sweeps, with each seed; the same call continues what was stopped.

    - specs: sweeps, for all of their variants; single specs, too. One, or several.
    - source: the model to build from; or, with ``fresh``, none, where ``tokenizer`` names a model whose tokenizer to take.
    - out: the folder of the ablation, with ``report.json``, ``table.md`` and ``plot.png``.
    - data, held_out, share, teacher: to train on, as ``distil`` has them. tasks, lengths, samples, text, haystack, babi: to score
      on, as ``evaluate`` has them.
    - seeds: one, several, or such as ``"0,1,2"``.
    - jobs: steps at a time; 1 runs them in this process, ``None`` one for each core, or one on a GPU. Processes import the program
      that starts them, so a script that asks for several needs ``if __name__ == "__main__":``.
    - ray: the address of a Ray cluster to run on instead.
    - progress: ``True`` shows a bar; or what is to be called as each step ends.

    Raises ComposerError before the first step; a step that fails later says why in the report.

        composer.ablate("sweep.yaml", "teacher", out="ablation", tasks="mqar,pairs=4", lengths=128)
    """
    if (source is None) != fresh:
        both = " One of the two, not both." if fresh else ""
        raise AblationError(f"Say what to build from: --from SOURCE, or --fresh for specs with a trunk of their own.{both}")
    if ray is not None and jobs != 1:
        raise AblationError("--jobs is for this machine; Ray has a count of its own: leave one of them out.")
    if jobs is not None:
        check_count("--jobs", jobs, AblationError)
    check_count("--samples", samples, AblationError)
    check_references((*several(data), *several(held_out)))
    named: Mapping[str, Reference | None] = {"text": text, "haystack": haystack, "babi": babi}
    with silent_transformers("error"):
        from composer.ablation.ablate import ablate as run
        from composer.ablation.plan import Request

        request = Request(
            source=None if source is None else str(source),
            data=several(data),
            held_out=several(held_out),
            share=share,
            teacher=None if teacher is None else str(teacher),
            tasks=several(tasks),
            lengths=tuple(dict.fromkeys(numbers_of(lengths, "--lengths", AblationError, least=SHORTEST))),
            samples=samples,
            seeds=tuple(dict.fromkeys(numbers_of(seeds, "--seeds", AblationError, least=0, most=MOST_SEED, thousands=False))),
            tokenizer=None if tokenizer is None else str(tokenizer),
            files={name: Path(path) for name, path in named.items() if path is not None},
            device=device,
            autocast=bfloat16,
        )
        workers = _workers(jobs, ray, device)
        with progress_callback(progress, bar_of, "bar", "count", "elapsed", "text") as tell:
            return run(specs_of(specs), request, Path(out), overrides=overrides, workers=workers, tell=tell)


def _workers(jobs: int | None, ray: str | None, device: str) -> StartWorkers:
    """Raises AblationError where there is no Ray, and ComposerError where this machine has no such device."""
    from composer.ablation import runner

    if ray is not None:
        from composer.ablation.cluster import ray_workers

        return ray_workers(ray, gpus=0 if device == "cpu" else 1)
    check_device(device)
    count = jobs or ((os.cpu_count() or 1) if device == "cpu" else 1)
    return runner.one_process if count == 1 else runner.processes(count)


def bar_of(step: AblationStep | None, figures: Figures, done: int, total: int) -> BarUpdate:
    """The progress of an ablation, as a bar shows it."""
    return BarUpdate("steps", done, total, None if step is None else outcome_in_words(step, figures))


def outcome_in_words(step: AblationStep, figures: Figures) -> str:
    """Which step has ended, and how."""
    how = "failed" if "failure" in figures else f"{figures['seconds']:.0f} s"
    return f"{step.kind}  {step.variant.name}  seed {step.seed}  {how}"
