"""Training in several processes, as torchrun starts them: all that knows of them is here.

Parameters are shared out layer by layer (FSDP: Zhao et al. 2023, arXiv:2304.11277; torch's second form of it, ``fully_shard``), and
each process takes a share of the rows. Losses are sums divided by what is counted over all rows, so gradients are added up, not
averaged. All processes see the same folders, and the first writes there. In one process there is no group, and every function gives
back what it is given.
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
from composer.errors import TrainingError

Answer = TypeVar("Answer")
AnyBatch = TypeVar("AnyBatch", bound=Batch)
COMPUTE = "compute_with_whole_parameters"
"""The method that ``shard`` gives a module, for ``within``."""


def count() -> int:
    """How many processes train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return rank() == 0


@contextmanager
def together() -> Iterator[None]:
    """Inside, the processes that torchrun has started are a group: of gloo, for numbers in memory; GPUs talk among themselves.

    A group that is there already is taken as it is. Each process draws random numbers of its own, as dropout does.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or distributed.is_initialized():
        yield
        return
    distributed.init_process_group("gloo")
    if not is_first():
        torch.manual_seed(torch.initial_seed() + rank())
    try:
        with warnings.catch_warnings():
            # What a layer hands on as its state is a view, and nobody writes into it.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            yield
    finally:
        _mesh.cache_clear()
        distributed.destroy_process_group()


def take_gpu(device: str) -> None:
    """Each process takes a GPU of its own, where they compute on GPUs. Raises TrainingError."""
    if count() == 1 or device == "cpu":
        return
    if device != "cuda":
        raise TrainingError(f"--device {device} is one GPU, and {count()} processes need one each: say --device cuda")
    here, gpus = int(os.environ.get("LOCAL_RANK", rank())), torch.cuda.device_count()
    if here >= gpus:
        raise TrainingError(f"Each process needs a GPU of its own, and this machine has {gpus}: torchrun --nproc-per-node {gpus}")
    torch.cuda.set_device(here)


def loaded_on(device: str) -> str:
    """Where a model is to be loaded: on the CPU where ``shard`` takes it to the device, a layer at a time."""
    return device if count() == 1 else "cpu"


def shard(model: nn.Module, pieces: Iterable[nn.Module], device: str) -> None:
    """Share out all parameters over the processes, in place; what goes through the model, or ``within`` a piece, sees them whole.

    pieces: modules that compute by themselves, such as layers, those inside of others first; the rest goes with the model. A
    piece's parameters are whole while it computes, forth and back, and nowhere else. Raises TrainingError.
    """
    if count() == 1:
        return
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise TrainingError(f"Training in several processes needs torch 2.13 or later, and this is {torch.__version__}.")
    for module in (*pieces, model):
        piece = fully_shard(module, mesh=_mesh(torch.device(device).type), reshard_after_forward=True)
        piece.set_gradient_divide_factor(1.0)
        piece.set_force_sum_reduction_for_comms(True)  # gloo knows no other way to leave them undivided
        piece.set_reduce_scatter_unused_params(True)  # which parameters some rows need, others may not
        setattr(module, COMPUTE, MethodType(_call, module))
        register_fsdp_forward_method(module, COMPUTE)
    left = [name for name, parameter in model.named_parameters() if not isinstance(parameter, DTensor)]
    if left:
        raise AssertionError(f"not shared out: {', '.join(left)}")


def within(module: nn.Module, function: Callable[..., Answer], *given: Any) -> Answer:
    """``function(module, *given)``, with the module's parameters whole. Only what it returns leads gradients back."""
    compute: Callable[..., Answer] | None = getattr(module, COMPUTE, None)
    return function(module, *given) if compute is None else compute(function, *given)


def _call(module: nn.Module, function: Callable[..., Answer], *given: Any) -> Answer:
    return function(module, *given)


@lru_cache(maxsize=2)
def _mesh(kind: str) -> DeviceMesh:
    """All processes in a row, on this kind of device."""
    group = distributed.group.WORLD if kind == "cpu" else distributed.new_group(backend="nccl")
    assert isinstance(group, distributed.ProcessGroup), "this process is one of all"
    return DeviceMesh.from_group(group, kind)


def shares(batch: AnyBatch, parts: int, total: float) -> Iterator[tuple[AnyBatch, float]]:
    """This process's rows of a batch that is taken in ``parts``, each with what its losses are divided by.

    No part is so small that it leaves processes without a row, as long as the batch has enough. Where it has not, a process without
    a row takes one of another's all the same, since all have to compute together, and its losses are divided by infinity:
    neither they nor their gradients count.
    """
    if count() > 1:
        parts = min(parts, math.ceil(len(batch) / count()))
    for part in batch.split(parts):
        if count() == 1:
            yield part, total
        elif rank() < len(part):
            yield part.split(min(count(), len(part)))[rank()], total
        else:
            yield part.split(len(part))[0], math.inf


def added(numbers: Mapping[str, float]) -> dict[str, float]:
    """Each number summed over the processes, to the same bits in all of them."""
    if count() == 1 or not numbers:
        return dict(numbers)
    own = torch.tensor(list(numbers.values()), dtype=torch.float64)
    every = [torch.empty_like(own) for _ in range(count())]
    distributed.all_gather(every, own)
    return {name: sum(of) for name, *of in zip(numbers, *(each.tolist() for each in every), strict=True)}


def norm(tensors: Sequence[Tensor]) -> float:
    """The length of all tensors as one vector, with the shares that other processes have of them."""
    own = float(nn.utils.get_total_norm([tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]))
    return own if count() == 1 else math.sqrt(added({"square": own * own})["square"])


def said_by_first(number: float) -> float:
    """The first process's number, in all of them."""
    if count() == 1:
        return number
    told = torch.tensor([number], dtype=torch.float64)
    distributed.broadcast(told, src=0)
    return told.item()


def by_first(act: Callable[[], Answer]) -> Answer:
    """What the first process gets from ``act`` once all have come here, in all of them; where it fails, all fail with it."""
    if count() == 1:
        return act()
    added({"here": 1.0})
    said: list[Any] = [None]
    if is_first():
        try:
            said = [(act(), None)]
        except Exception as error:  # whatever it is, the others must not wait for ever
            said = [(None, error)]
    distributed.broadcast_object_list(said, src=0)
    answer, error = said[0]
    if error is not None:
        raise error
    return answer


def by_all(act: Callable[[], Answer]) -> list[Answer]:
    """What each process gets from ``act``, in all of them, by rank; where it fails in one, all fail with it."""
    if count() == 1:
        return [act()]
    try:
        own = (act(), None)
    except Exception as error:  # whatever it is, the others must not wait for ever
        own = (None, error)
    said: list[Any] = [None] * count()
    distributed.all_gather_object(said, own)
    for _, error in said:
        if error is not None:
            raise error
    return [answer for answer, _ in said]


def held(tensor: Tensor) -> tuple[Tensor, int]:
    """The rows of a tensor that this process has, and the number of the first: all of one that is not shared out."""
    if not isinstance(tensor, DTensor):
        return tensor, 0
    assert list(tensor.placements) == [Shard(0)], "as fully_shard has it"
    return tensor.to_local(), min(len(tensor), rank() * math.ceil(len(tensor) / count()))


def whole(tensors: Mapping[str, Tensor], *, for_first: bool = False) -> dict[str, Tensor]:
    """The tensors with the shares of all processes, on the CPU; nothing but in the first process where they are for it alone."""
    if count() == 1:
        return dict(tensors)
    found = {}
    for name, tensor in tensors.items():
        detached = tensor.detach()
        full = detached.full_tensor() if isinstance(detached, DTensor) else detached
        if is_first() or not for_first:
            found[name] = full.cpu()
    return found


def meet(seconds: float) -> bool:
    """Wait for all others, but not longer than this; whether they have come."""
    try:
        distributed.monitored_barrier(timeout=timedelta(seconds=seconds))
    except RuntimeError:
        return False
    return True
