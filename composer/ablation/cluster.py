"""The same steps on a Ray cluster, whose machines share the folder of the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from composer.ablation.plan import Step
from composer.ablation.runner import Workers
from composer.ablation.steps import Figures, run_step
from composer.errors import AblationError


def ray_workers(address: str | None, *, gpus: float = 0) -> Workers:
    """One task of Ray for each step. address: of a cluster, ``auto`` for the one that this machine belongs to, or None to start
    one here. gpus: that each step takes. Raises AblationError where Ray is not there."""
    try:
        import ray
    except ImportError as error:
        raise AblationError("Ray is not installed: pip install 'attention-composer[ray]', or leave --ray out.") from error
    try:
        ray.init(address=None if address == "local" else address, ignore_reinit_error=True, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise AblationError(f"There is no Ray cluster at {address}: {error}") from error
    task = ray.remote(num_gpus=gpus)(run_step)

    def run(steps: Sequence[Step], folder: Path) -> Iterator[tuple[Step, Figures]]:
        waiting = {task.remote(step, folder.resolve()): step for step in steps}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting))
            yield waiting.pop(done), ray.get(done)

    return run
