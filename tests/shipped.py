"""The shipped specs as the tests go through them."""

from __future__ import annotations

from composer.spec.loading import load_spec, load_specs
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.spec.shipped import shipped_specs

SHIPPED = sorted(name for shipped in shipped_specs() for name in load_specs(shipped))
"""By name; of sweeps, every variant."""


def on(name: str, size: Dimensions) -> Resolved:
    """Return a shipped spec on these dimensions, without its trunk."""
    return resolve(load_spec(name, ["trunk=null"]), size)
