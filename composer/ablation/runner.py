"""All steps of an ablation, kind by kind, in one process, in several, or on a cluster."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from composer.ablation.plan import ORDER, Chain, Step, distinct
from composer.ablation.steps import FAILURE, Figures, found, run_step

Workers = Callable[[Sequence[Step], Path], Iterator[tuple[Step, Figures]]]
"""Runs steps that do not depend on each other, and tells of each as it ends."""
Told = Callable[[Step, Figures, int, int], None]
"""A step that has ended, what it found, and how many of all steps are done."""


def run_chains(chains: Sequence[Chain], folder: Path, workers: Workers, tell: Told | None = None) -> dict[str, Figures]:
    """What every step found, by its name. A step behind one that failed is not run, and fails for that reason."""
    results: dict[str, Figures] = {}
    total = len({step.name for chain in chains for step in chain.steps})
    for kind in ORDER:
        steps = distinct(chains, kind)
        ready: list[Step] = []
        for step in steps:
            before = results[step.after.name] if step.after else {}
            if FAILURE in before:
                results[step.name] = {FAILURE: before[FAILURE]}
            elif (done := found(step, folder)) is not None:
                results[step.name] = done
            else:
                ready.append(step)
        for step, figures in workers(ready, folder):
            results[step.name] = figures
            if tell is not None:
                tell(step, figures, len(results), total)
    return results


def one_process(steps: Sequence[Step], folder: Path) -> Iterator[tuple[Step, Figures]]:
    """One after the other."""
    for step in steps:
        yield step, run_step(step, folder)


def processes(count: int) -> Workers:
    """So many at a time on this machine, each with one thread."""

    def run(steps: Sequence[Step], folder: Path) -> Iterator[tuple[Step, Figures]]:
        if not steps:
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(count, len(steps)), context, initializer=_one_thread) as pool:
            waiting = {pool.submit(run_step, step, folder): step for step in steps}
            try:
                for future in as_completed(waiting):
                    yield waiting[future], future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    return run


def _one_thread() -> None:
    """Several processes with several threads each would wait for one another."""
    import torch

    torch.set_num_threads(1)
