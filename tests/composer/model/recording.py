"""A CUDA graph simulated on a CPU: operations are recorded with their tensors, and replayed on them. A replay runs these
operations only, without Python or other tensors. A step that needs a number on the host cannot be recorded. Unlike in CUDA,
operations run while they are recorded, so their tensors are restored afterwards.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from blocks import flow, tensors
from blocks.memories import stored_pairs as ring
from composer.model import cuda_graph as product
from composer.model import generation
from composer.model.cuda_graph import Computation

WAITING = {"aten::_local_scalar_dense", "aten::item", "aten::equal", "aten::nonzero", "aten::is_nonzero", "aten::masked_select"}


class Operations(TorchDispatchMode):
    """Record the called operations and their results."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name, kwargs or {}
        if name in WAITING:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        tensors_in = [tensors_in for tensors_in in tree_flatten((args, kwargs))[0] if isinstance(tensors_in, Tensor)]
        for tensor in tensors_in:
            key = tensor.untyped_storage().data_ptr()
            if key not in self.made and key not in self.before:
                whole = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
                self.before[key] = whole, whole.clone()
        result = func(*args, **kwargs)
        outputs = [tensor for tensor in tree_flatten(result)[0] if isinstance(tensor, Tensor)]
        old = {tensor.untyped_storage().data_ptr() for tensor in tensors_in}
        fresh = [tensor for tensor in outputs if tensor.untyped_storage().data_ptr() not in old]
        self.made |= {tensor.untyped_storage().data_ptr() for tensor in fresh}
        self.called.append((func, args, kwargs, fresh))
        return result


def recorded(step: Computation) -> Computation:
    """Replace ``composer.model.cuda_graph.capture`` without a GPU."""
    with Operations() as operations:
        logits = step()
    for whole, before in operations.before.values():
        whole.copy_(before)

    def replay() -> Tensor:
        for func, args, kwargs, fresh in operations.called:
            result = [result for result in tree_flatten(func(*args, **kwargs))[0] if isinstance(result, Tensor)]
            if fresh:
                for old, new in zip(fresh, result, strict=True):
                    old.copy_(new)
        return logits

    return replay


def on_a_cpu(monkeypatch: pytest.MonkeyPatch, *asking: ModuleType) -> None:
    """Record steps as on a GPU, where Python reads no numbers. asking: modules that ask whether they may record."""
    for module in (flow, tensors, ring):
        monkeypatch.setattr(module, "may_read_numbers", lambda numbers: False)
    monkeypatch.setattr(product, "capture", recorded)
    for module in (generation, *asking):
        monkeypatch.setattr(module, "may_record", lambda model: True)
