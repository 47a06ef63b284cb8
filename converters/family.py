"""A family of checkpoints: a table of names, the names that are passed over, and a function that reads its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from converters.names import NameTable, fits
from converters.trunk import Sizes

Config = Mapping[str, object]
"""``config.json`` as it is."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family, identified by its ``model_type``.

    names: the family's patterns to canonical ones, with ``{i}`` for the layer (see ``converters.names``). passed_over: patterns of
    tensors without information, each with the reason; loaders ignore them as well, so a file with one need not be rewritten.
    read_config: ``(config, notes)`` to a ``Trunk``, or to the ``Sizes`` of a host; it appends a note for each key that is not used.
    """

    model_type: str
    title: str
    names: Mapping[str, str]
    passed_over: Mapping[str, str]
    read_config: Callable[[Config, list[str]], Sizes]

    @cached_property
    def table(self) -> NameTable:
        return NameTable(self.names)

    def reason_to_pass_over(self, name: str) -> str | None:
        """Return why a tensor of this name is passed over; None where it is not."""
        return next((reason for pattern, reason in self.passed_over.items() if fits(pattern, name)), None)
