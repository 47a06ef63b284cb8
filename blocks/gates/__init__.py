"""Gates: they compute the decay of a state. A new one is added to the catalogue in one line below."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from blocks.gates.base import Gate
from blocks.gates.bounded_channel import BoundedChannel
from blocks.gates.channel import PerChannel
from blocks.gates.constant import Constant
from blocks.gates.from_key import FromKey
from blocks.gates.head import PerHead
from blocks.gates.none import NoGate
from blocks.gates.slopes import Slopes
from blocks.gates.softplus import Softplus
from blocks.gates.softplus_channel import SoftplusChannel
from blocks.registry import Role

GATES = Role("gate", Gate, NoGate, Constant, Slopes, PerHead, PerChannel, Softplus, SoftplusChannel, BoundedChannel, FromKey)
GateConfig = Annotated[Gate, GATES]


def gates_of(ranks: Collection[str]) -> list[str]:
    """Return the kinds of the gates whose decay has one of these ranks."""
    return [kind for kind, gate in GATES.items() if issubclass(gate, Gate) and gate.rank_of_decay in ranks]
