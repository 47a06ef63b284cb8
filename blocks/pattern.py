"""Neighbouring operations of a head that one form computes together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from blocks.flow import Pairs
from blocks.kernels import Refused
from blocks.legend import Float, Tensor
from blocks.operation import Call, Form, Kind
from blocks.part import Part


@dataclass(slots=True)
class RunningPart:
    """A part in a running head. ``compute(function, *inputs)`` calls a function of the part with its parameters before the inputs,
    through the module that holds them, so that forward hooks see the call. runs: the forms of a feature map's operation of keys,
    which a form of several operations calls."""

    part: Part
    call: Call
    compute: Callable[..., Any]
    runs: tuple[Callable[..., Any], ...] = ()

    def map(self, pairs: Pairs) -> Float[Tensor, "B E N F"]:
        """Return the features of the keys of pairs, by the first form that does not refuse."""
        *others, last = self.runs
        for run in others:
            try:
                return self.compute(run, entering=pairs)
            except Refused as refusal:
                warnings.warn(f"{refusal}. In its place: as defined", RuntimeWarning, stacklevel=2)
        return self.compute(last, entering=pairs)


NO_MAPS: Mapping[str, RunningPart] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Pattern:
    """Neighbouring operations that one form computes together."""

    nodes: Mapping[str, Callable[[Part], bool]]
    """For each operation, by a name inside the pattern, whether a part can be it; in the order of the flow."""
    edges: tuple[tuple[str, str, Kind], ...]
    """(start, end, kind) between them."""
    forms: Callable[[Mapping[str, Part]], tuple[Form, ...]]
    """Made from the matching parts, by these names. Their ``run`` is called with the running parts and the inputs, both by these
    names, and returns what the operations' own forms would return: outputs and state, in the order of ``nodes``."""
    leader: str = ""
    """The name of the operation whose setting the forms must fit; left out, the first."""
    is_closed: bool = False
    """No other operation reads the outputs of the operations before the last, and the last reads no other partials; so the forms
    need not return these outputs."""
