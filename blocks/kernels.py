"""Kernels of optional packages that need a GPU: which packages are missing, and what the kernels refuse.

No package is imported before one of its kernels is called, so specs are lowered and explained without them.
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

EXTRA = "pip install '.[gpu]' in Composer's checkout"
DTYPES = ("float32", "bfloat16", "float16")
STEEPEST = -25.0
"""The logarithm of the steepest decay that kernels get, e⁻²⁵. What a steeper one would leave of a state, less than 10⁻¹¹, is
far below the rounding of new pairs. Kernels sum decays over a chunk: a sum with -inf is undefined, and a very steep decay would
round those of all tokens after it."""


class Refused(Exception):
    """A kernel cannot compute these inputs. Nothing has been changed."""


@dataclass(frozen=True)
class Package:
    """A package with kernels. versions: the range that the forms are written for, as in ``pyproject.toml``."""

    name: str
    versions: str

    def missing(self) -> str | None:
        """Return why the package cannot be used, with a remedy; None if it can."""
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
"""Kernels that could not be imported, and the reasons. They are not tried again."""


@dataclass(frozen=True)
class Kernel:
    """A function of a module that is imported at the first call."""

    module: str
    name: str
    package: Package

    def missing(self) -> str | None:
        """Return the ``missing`` of a form that calls this kernel."""
        return self.package.missing() or _failed.get(self)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Call the function. Raises Refused if it is missing, or cannot compute these inputs."""
        function = self._function()
        try:
            with _device_of(*inputs, *options.values()):
                return function(*inputs, **options)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise  # an error of the caller, and not of the kernel
        except Exception as error:
            raise Refused(f"{self.name} refused ({_in_a_line(error)})") from error

    def _function(self) -> Callable[..., Any]:
        missing = self.missing()
        if missing is None:
            try:
                prepare()
                return getattr(importlib.import_module(self.module), self.name)
            except Exception as error:  # a broken or unexpected version of a package may raise anything
                missing = _failed[self] = f"{self.module} has no {self.name} that could be imported ({_in_a_line(error)})"
                raise Refused(missing) from error
        raise Refused(missing)


@cache
def prepare() -> None:
    """Make Triton multiply float32 with the precision that PyTorch is set to, instead of TF32 with its 10 bits.
    TRITON_F32_DEFAULT overrides this."""
    from triton import knobs

    if torch.get_float32_matmul_precision() == "highest" and knobs.language.fp32_default is None:
        knobs.language.fp32_default = "ieee"


def _device_of(*inputs: Any) -> AbstractContextManager[Any]:
    """Make the GPU of the first CUDA tensor the current one for the block, because Triton launches kernels on the current
    device."""
    tensor = next((candidate for candidate in inputs if isinstance(candidate, torch.Tensor) and candidate.is_cuda), None)
    return nullcontext() if tensor is None else torch.cuda.device(tensor.device)


def gpu_obstacle(setting: Setting) -> str | None:
    """Return why Triton's kernels cannot run, or None. They need a GPU, or Triton's interpreter."""
    if setting.device != "cuda" and not (setting.device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"):
        return "Triton runs on a GPU (or, for tests, in its interpreter: TRITON_INTERPRET=1)"
    return None if setting.dtype in DTYPES else f"Triton's kernels do not support {setting.dtype}"


def clamp_log_decay(log_decay: Tensor) -> Tensor:
    """Return a decay in float32, limited to ``STEEPEST``, as kernels expect it."""
    return log_decay.float().clamp(min=STEEPEST)


def _in_a_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
