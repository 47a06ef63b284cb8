"""Kernels that need a GPU, of packages that may not be there: what is missing of them, and what they refuse.

Nothing here imports such a package before a kernel is called, so a spec is lowered and explained without them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

from blocks.legend import Tensor, torch
from blocks.operation import Setting

EXTRA = "pip install 'attention-composer[gpu]'"
DTYPES = ("float32", "bfloat16", "float16")
STEEPEST = -25.0
"""What is left of a state after a steeper decay, a part in 10¹¹, is far below the rounding of what enters. Kernels add decays up
over a chunk: sums of -inf would be no numbers, and a steeper decay would round those of all tokens behind it."""


class Refused(Exception):
    """A kernel cannot compute what it is given. Nothing has been changed."""


@dataclass(frozen=True)
class Package:
    """Where kernels come from. versions: the range that the forms are written for, as ``pyproject.toml`` has it."""

    name: str
    versions: str

    def missing(self) -> str | None:
        """Why no kernel of it can be had here, with what to do; None where it is there."""
        return _missing(self)


@cache
def _missing(package: Package) -> str | None:
    from packaging.specifiers import SpecifierSet

    try:
        version = metadata.version(package.name)
    except metadata.PackageNotFoundError:
        return f"{package.name} is not installed: {EXTRA}"
    if SpecifierSet(package.versions).contains(version, prereleases=True):
        return None
    return f"{package.name} {version} is installed, and {package.versions} is needed: {EXTRA}"


FLASH_LINEAR_ATTENTION = Package("flash-linear-attention", ">=0.6,<0.7")
TRITON_PACKAGE = Package("triton", ">=3.6")
_failed: dict[Kernel, str] = {}
"""Kernels that could not be imported, and why: they are not tried again."""


@dataclass(frozen=True)
class Kernel:
    """A function of a module that is imported when it is first called."""

    module: str
    name: str
    package: Package

    def missing(self) -> str | None:
        """The ``missing`` of a form that calls it."""
        return self.package.missing() or _failed.get(self)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """What the function answers. Raises Refused where it is not there, or will not or cannot compute this."""
        function = self._function()
        try:
            with _device_of(*inputs, *options.values()):
                return function(*inputs, **options)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise  # not for want of a kernel
        except Exception as error:
            raise Refused(f"{self.name} refused ({_in_a_line(error)})") from error

    def _function(self) -> Callable[..., Any]:
        missing = self.missing()
        if missing is None:
            try:
                prepare()
                return getattr(importlib.import_module(self.module), self.name)
            except Exception as error:  # whatever a package that is broken, or another than expected, may raise
                missing = _failed[self] = f"{self.module} has no {self.name} that could be imported ({_in_a_line(error)})"
                raise Refused(missing) from error
        raise Refused(missing)


@cache
def prepare() -> None:
    """Let Triton multiply float32 as PyTorch is told to: TF32 would round it to 10 bits. TRITON_F32_DEFAULT overrides."""
    from triton import knobs

    if torch.get_float32_matmul_precision() == "highest" and knobs.language.fp32_default is None:
        knobs.language.fp32_default = "ieee"


def _device_of(*inputs: Any) -> AbstractContextManager[Any]:
    """Within, the GPU of the first tensor on one is the current one: Triton launches there, wherever tensors are."""
    tensor = next((candidate for candidate in inputs if isinstance(candidate, torch.Tensor) and candidate.is_cuda), None)
    return nullcontext() if tensor is None else torch.cuda.device(tensor.device)


def needs_gpu(setting: Setting) -> str | None:
    """The ``fits`` of a form that runs on Triton: on a GPU, or in Triton's interpreter."""
    if setting.device != "cuda" and not (setting.device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"):
        return "Triton runs on a GPU (or, for tests, in its interpreter: TRITON_INTERPRET=1)"
    return None if setting.dtype in DTYPES else f"Triton's kernels do not take {setting.dtype}"


def gently(log_decay: Tensor) -> Tensor:
    """A decay of float32 that is nowhere steeper than ``STEEPEST``, as kernels take it."""
    return log_decay.float().clamp(min=STEEPEST)


def _in_a_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
