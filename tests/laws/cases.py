"""The subjects of the laws: a head for every part in the catalogue, and every head of every shipped spec."""

from __future__ import annotations

import functools

from blocks.catalogue import CATALOGUE
from composer.graph.composition import HeadSpec
from composer.laws.cases import (
    FIELDS,
    SHAPES,
    SMALL,
    Inputs,
    around,
    build_head,
    coarse,
    complete,
    heads_of,
    inputs,
    once,
    pieces,
    run,
    steady,
)
from composer.spec.loading import load_spec, load_specs
from composer.spec.resolve import Resolved, resolve
from composer.spec.shipped import shipped_specs
from tests.covers import cover, pairs_of_parts

__all__ = [
    "FIELDS",
    "SHAPES",
    "SMALL",
    "Inputs",
    "around",
    "build_head",
    "coarse",
    "complete",
    "covering",
    "every_head",
    "every_head_of_specs",
    "every_part",
    "every_spec",
    "field_of",
    "inputs",
    "once",
    "pieces",
    "run",
    "steady",
]


@functools.cache
def every_part() -> dict[str, HeadSpec]:
    """Return one head a part of the catalogue, and one for each bounded memory above a state."""
    return heads_of(part for role in CATALOGUE.values() for part in role.values())


@functools.cache
def every_spec() -> dict[str, Resolved]:
    """Return every shipped spec on small dimensions with windows that overflow, and every variant of sweeps. Specs with an
    earlier spec's meaning, such as the base of every ablation, are left out.
    """
    resolved: dict[str, Resolved] = {}
    seen: set[str] = set()
    for name, spec in (variant for shipped in shipped_specs() for variant in load_specs(shipped).items()):
        heads = {"head": spec.head} | {f"heads.{key}": head for key, head in spec.heads.items()}
        small = [
            f"{where}.memory.{index}.size={5 if memory.bounded else 12}"
            for where, head in heads.items()
            for index, memory in enumerate(head.memory if head else ())
            if hasattr(memory, "size")
        ]
        case = resolve(load_spec(name, small + (["trunk=null"] if spec.trunk else [])), SMALL)
        spec_hash = case.hash
        if spec_hash not in seen:
            seen.add(spec_hash)
            resolved[name.replace(":", ": ")] = case
    return resolved


def field_of(role: str) -> str:
    """Return the field of a head or a memory that has the parts of a role."""
    name = role.replace(" ", "_")
    return FIELDS.get(name, name)


def every_head(direction: str = "causal") -> dict[str, HeadSpec]:
    """Return all heads of this direction by name, for the messages of failed tests."""
    return (dict(every_part()) if direction == "causal" else {}) | every_head_of_specs(direction)


def every_head_of_specs(direction: str = "causal") -> dict[str, HeadSpec]:
    """Return the heads of the shipped specs with this direction, by the file and the head's name."""
    return {
        f"{name}.yaml: {head}": spec
        for name, resolved in every_spec().items()
        if resolved.direction == direction
        for head, spec in resolved.heads.items()
    }


@functools.cache
def covering() -> frozenset[str]:
    """Return the names of the heads of all parts, and of few causal heads of specs that together have all other pairs of parts."""
    parts, specs = ({name: pairs_of_parts(head) for name, head in heads.items()} for heads in (every_part(), every_head_of_specs()))
    missing = set().union(*specs.values()) - set().union(*parts.values())
    return frozenset((*parts, *cover(specs, missing)))
