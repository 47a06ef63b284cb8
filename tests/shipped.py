"""The shipped specs as the tests go through them."""

from __future__ import annotations

from composer.spec.loading import load_spec, load_specs
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.spec.shipped import shipped_specs
from tests.covers import covering_specs, some

SHIPPED = sorted(name for shipped in shipped_specs() for name in load_specs(shipped))
"""By name; of sweeps, every variant."""
COVERING = covering_specs(SHIPPED, pairs=True)
"""Few of them, which together have each pair of parts of a head."""
FEW = some(SHIPPED, COVERING)
"""All of them. Those that are not among the few are marked ``full``."""


def on(name: str, size: Dimensions) -> Resolved:
    """Return a shipped spec on these dimensions, without its trunk."""
    return resolve(load_spec(name, ["trunk=null"]), size)
