"""Training in several processes, as torchrun starts them; only this module handles them.

- Parameters are sharded layer by layer (FSDP: Zhao et al. 2023, arXiv:2304.11277; torch's ``fully_shard``), and each process
  computes a share of a batch's rows.
- Losses are sums, divided by a count over all rows: gradients are summed over the processes, not averaged.
- All processes see the same folders, and only the first writes there.
- In one process there is no group, and every function returns its argument.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard

from composer.data.packing import Batch
from composer.errors import TrainingError, first_line
from composer.system.devices import processes_started

Result = TypeVar("Result")
COMPUTE = "compute_with_whole_parameters"
"""The method that ``shard`` adds to a module, for ``within``."""


def count() -> int:
    """Return the number of processes that train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process, from 0."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def is_first() -> bool:
    """Whether this process has rank 0. Only that process writes files and messages."""
    return rank() == 0


@contextmanager
def process_group() -> Iterator[None]:
    """Join the processes that torchrun has started in a process group, for the block.

    Its backend is gloo, for numbers in memory; GPUs communicate by NCCL. An existing group is used as it is.
    """
    if processes_started() == 1 or distributed.is_initialized():
        yield
        return
    try:
        distributed.init_process_group("gloo")
    except ValueError as error:  # a variable that torchrun sets is missing
        raise TrainingError(
            f"WORLD_SIZE is {processes_started()}, but the processes cannot be joined: {first_line(error)}. Start them by torchrun"
        ) from error
    try:
        with warnings.catch_warnings():
            # A layer's new state is a view, and nothing writes into it.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            yield
    finally:
        _mesh.cache_clear()
        distributed.destroy_process_group()


def take_gpu(device: str) -> None:
    """Assign a GPU to each process, if they compute on GPUs. Raises TrainingError."""
    if count() == 1 or device == "cpu":
        return
    if device != "cuda":
        raise TrainingError(f"--device {device} is one GPU, and {count()} processes need one each: set --device cuda")
    here, gpus = int(os.environ.get("LOCAL_RANK", rank())), torch.cuda.device_count()
    if here >= gpus:
        raise TrainingError(f"Each process needs its own GPU, and this machine has {gpus}: torchrun --nproc-per-node {gpus}")
    torch.cuda.set_device(here)


def loading_device(device: str) -> str:
    """Return the device to load a model on: the CPU where ``shard`` will move it to ``device``, a layer at a time."""
    return device if count() == 1 else "cpu"


def shard(model: nn.Module, pieces: Iterable[nn.Module], device: str) -> None:
    """Shard all parameters over the processes, in place. Raises TrainingError.

    pieces: modules whose parameters are gathered together, such as layers, inner ones first; all others are gathered with the
    model. They are gathered only while the piece computes, forward and backward: call the model, or ``within`` a piece.
    """
    if count() == 1:
        return
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise TrainingError(f"Training in several processes needs torch 2.13 or later, and this is {torch.__version__}.")
    for module in (*pieces, model):
        piece = fully_shard(module, mesh=_mesh(torch.device(device).type), reshard_after_forward=True)
        piece.set_gradient_divide_factor(1.0)
        piece.set_force_sum_reduction_for_comms(True)  # with gloo, only this leaves gradients undivided
        piece.set_reduce_scatter_unused_params(True)  # a parameter may be needed by the rows of some processes alone
        # torch gathers parameters for methods that are registered by name, so the module must have one.
        setattr(module, COMPUTE, MethodType(_call, module))
        register_fsdp_forward_method(module, COMPUTE)
    unsharded = [name for name, parameter in model.named_parameters() if not isinstance(parameter, DTensor)]
    if unsharded:
        raise AssertionError(f"not shared out: {', '.join(unsharded)}")


def within(module: nn.Module, function: Callable[..., Result], *arguments: Any) -> Result:
    """Return ``function(module, *given)``, with the module's parameters gathered. Gradients flow only through the returned
    value."""
    compute: Callable[..., Result] | None = getattr(module, COMPUTE, None)
    return function(module, *arguments) if compute is None else compute(function, *arguments)


def _call(module: nn.Module, function: Callable[..., Result], *arguments: Any) -> Result:
    return function(module, *arguments)


@lru_cache(maxsize=2)
def _mesh(device_type: str) -> DeviceMesh:
    """Return a mesh of one dimension, of all processes on this type of device."""
    group = distributed.group.WORLD if device_type == "cpu" else distributed.new_group(backend="nccl")
    assert isinstance(group, distributed.ProcessGroup), "this process is one of all"
    return DeviceMesh.from_group(group, device_type)


def shares(batch: Batch, parts: int, total: float) -> Iterator[tuple[Batch, float]]:
    """Yield this process's rows of a batch in ``parts``: for each part its rows, and the divisor of their losses. There are fewer
    parts if some process would have no row in one of them. In a batch with fewer rows than processes, a process without a row
    computes another's row, as all processes must join the communication. Its divisor is infinity, so that neither losses nor
    gradients count.
    """
    if count() > 1:
        parts = min(parts, math.ceil(len(batch) / count()))
    for part in batch.split(parts):
        if rank() < len(part):
            yield part.split(min(count(), len(part)))[rank()], total
        else:
            yield part.split(len(part))[0], math.inf


def add_over_processes(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return each number summed over the processes, to the same bits in all of them."""
    if count() == 1 or not numbers:
        return dict(numbers)
    values = torch.tensor(list(numbers.values()), dtype=torch.float64)
    every = [torch.empty_like(values) for _ in range(count())]
    distributed.all_gather(every, values)
    return {
        name: sum(values_of_name) for name, *values_of_name in zip(numbers, *(tensor.tolist() for tensor in every), strict=True)
    }


def norm(tensors: Sequence[Tensor]) -> float:
    """Return the Euclidean norm of all tensors as one vector, over all processes."""
    norm = float(nn.utils.get_total_norm([tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]))
    return norm if count() == 1 else math.sqrt(add_over_processes({"square": norm * norm})["square"])


def broadcast_from_first(number: float) -> float:
    """Return the first process's number, in all of them."""
    if count() == 1:
        return number
    tensor = torch.tensor([number], dtype=torch.float64)
    distributed.broadcast(tensor, src=0)
    return tensor.item()


def by_first(act: Callable[[], Result]) -> Result:
    """Calls ``act`` in the first process once all have reached this call, and returns its result in all; if it raises, all do."""
    if count() == 1:
        return act()
    add_over_processes({"here": 1.0})
    outcome: list[Any] = [None]
    if is_first():
        try:
            outcome = [(act(), None)]
        except Exception as error:  # of any class, as the other processes wait for this one
            outcome = [(None, error)]
    distributed.broadcast_object_list(outcome, src=0)
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def by_all(act: Callable[[], Result]) -> list[Result]:
    """Calls ``act`` in every process, and returns the results of all, by rank; where one raises, all do."""
    if count() == 1:
        return [act()]
    try:
        outcome = (act(), None)
    except Exception as error:  # of any class, as the other processes wait for this one
        outcome = (None, error)
    outcomes: list[Any] = [None] * count()
    distributed.all_gather_object(outcomes, outcome)
    for _, error in outcomes:
        if error is not None:
            raise error
    return [result for result, _ in outcomes]


def own_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """Return the rows of a tensor that this process holds, and the index of the first; all rows where it is not sharded."""
    if not isinstance(tensor, DTensor):
        return tensor, 0
    assert list(tensor.placements) == [Shard(0)], "as fully_shard has it"
    return tensor.to_local(), min(len(tensor), rank() * math.ceil(len(tensor) / count()))


def gather_shards(tensors: Mapping[str, Tensor], *, for_first: bool = False) -> dict[str, Tensor]:
    """Return the tensors gathered from all processes, on the CPU. for_first: the other processes get none."""
    if count() == 1:
        return dict(tensors)
    gathered = {}
    for name, tensor in tensors.items():
        detached = tensor.detach()
        full = detached.full_tensor() if isinstance(detached, DTensor) else detached
        if is_first() or not for_first:
            gathered[name] = full.cpu()
    return gathered


def meet(seconds: float) -> bool:
    """Wait for all other processes, at most ``seconds``. Return whether they arrived."""
    try:
        distributed.monitored_barrier(timeout=timedelta(seconds=seconds))
    except RuntimeError:
        return False
    return True
