"""How a student differs from a class of transformers: every condition that fails, the reason, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from composer.exporting.targets.target import OWN_TRUNK, LayerType, NativeTarget, StudentModel
from composer.graph.composition import HeadSpec
from composer.reporting.words import layers_in_words
from composer.spec.explained import FailedCondition
from composer.spec.resolve import Resolved
from composer.weights.config import config_dict
from converters.model_types import host_of
from converters.trunk import Sizes

START_ONLY = frozenset({"name", "bias", "slowest", "fastest"})
"""Fields of parts that name a part or set the values of its parameters at the start. Formulas do not depend on them; whether there
is a bias is a part of the formula."""
OTHER_SOURCE = "Choose another source."


@dataclass(frozen=True)
class ClosestFit:
    """A student beside a class. types: the type of each layer. differences: all of them; none if the class computes the student.

    strange_layers: the number of layers whose memories are those of no type.
    """

    target: NativeTarget
    types: tuple[LayerType, ...]
    differences: tuple[FailedCondition, ...]
    strange_layers: int

    @property
    def distance(self) -> tuple[int, int]:
        """How far the class is from the student."""
        return self.strange_layers, len(self.differences)


def student_of_spec(resolved: Resolved, trunk: Sizes) -> StudentModel:
    """Return what classes are compared with, of a spec on a trunk."""
    config = config_dict(trunk, resolved, trunk.dtype)
    return StudentModel(resolved, host_of(config["model_type"]), config)


def fit(target: NativeTarget, student: StudentModel) -> ClosestFit:
    """Compare a student with a class."""
    kinds = [_type_of(target, student, layer) for layer in range(student.size.layers)]
    types = tuple(kind for kind, _ in kinds)
    differences = (*_hosts(target, student), *_heads(student, types), *_sameness(student, types), *_layers(target, student, types))
    return ClosestFit(target, types, differences, sum(not is_like for _, is_like in kinds))


def _type_of(target: NativeTarget, student: StudentModel, layer: int) -> tuple[LayerType, bool]:
    """Return the type of layer whose memories a layer's first heads have, otherwise the first type, and whether it has them."""
    groups = student.resolved.layers[layer]
    memories = [type(memory) for memory in student.heads[groups[0].head].memory] if groups else []
    kinds = [[type(memory) for memory in kind.shape().memory] for kind in target.layers]
    return next(
        ((kind, True) for kind, kind_memories in zip(target.layers, kinds, strict=True) if kind_memories == memories),
        (target.layers[0], False),
    )


def _hosts(target: NativeTarget, student: StudentModel) -> Iterator[FailedCondition]:
    """Yield what no override changes: the blocks around the heads."""
    if target.hosts and student.host not in target.hosts:
        yield FailedCondition(
            problem=f"the blocks around the heads are those of {student.host}; expected those of {' or '.join(target.hosts)}",
            reason="the class has these blocks",
            remedy=OTHER_SOURCE,
        )
        return
    if student.resolved.direction != "causal":
        yield FailedCondition(
            problem="`direction` is bidirectional; expected causal",
            reason="the class is causal",
            remedy="Set `direction` to causal.",
        )
    for name, value in target.fixed.items():
        if (configured := student.config.get(name, value)) != value:
            yield FailedCondition(
                problem=f"{name} is {_in_words(configured)}; expected {_in_words(value)}",
                reason="the class computes this alone",
                remedy="Change the spec's trunk." if name in OWN_TRUNK else OTHER_SOURCE,
            )
    if target.sees_all and student.has_windows:
        yield FailedCondition(
            problem="the source has windows in its layers; expected none",
            reason="the class's softmax layers see all tokens",
            remedy=OTHER_SOURCE,
        )
    size = student.size
    if target.is_square and size.heads * size.head_dim != size.hidden_size:
        yield FailedCondition(
            problem=f"{size.heads} heads of {size.head_dim} numbers beside a hidden state of {size.hidden_size}",
            reason="the class divides the hidden state evenly among its heads",
            remedy=OTHER_SOURCE,
        )


def _layers(target: NativeTarget, student: StudentModel, types: Sequence[LayerType]) -> Iterator[FailedCondition]:
    groups = student.resolved.layers
    if several := [layer for layer, layer_groups in enumerate(groups) if len(layer_groups) != 1]:
        yield FailedCondition(
            problem=f"{layers_in_words(several)}: {len(groups[several[0]])} groups of heads; expected 1",
            reason="layers of the class have one kind of head",
            remedy="Give each of these layers one head.",
        )
    elif target.arrangement is not None:
        for reason, wanted in target.arrangement([kind.name for kind in types]):
            places = [f"{layers_in_words(_numbers(wanted, name))} {name}" for name in dict.fromkeys(wanted)]
            yield FailedCondition(
                problem="the order of layers is not the class's", reason=reason, remedy=f"Make {' and '.join(places)}."
            )


def _numbers(types: Sequence[str], name: str) -> list[int]:
    return [layer for layer, kind in enumerate(types) if kind == name]


def _heads(student: StudentModel, types: Sequence[LayerType]) -> Iterator[FailedCondition]:
    """Yield every difference between heads and those of the class, once for all layers that have it."""
    layers: dict[tuple[str, str], list[int]] = {}
    remedies: dict[tuple[str, str], dict[str, None]] = {}
    for layer, groups in enumerate(student.resolved.layers):
        kind, values = types[layer], student.values(layer)
        for group in groups:
            head = student.heads[group.head]
            expected = HeadSpec.model_validate(kind.document(head, values))
            for path, problem in _field_differences(head, expected):
                if path in kind.any_value:
                    continue
                key = problem, _reason(kind, path)
                layers.setdefault(key, []).append(layer)
                remedies.setdefault(key, {})[_remedy(group.head, path, expected)] = None
    for (problem, reason), layers_of_problem in layers.items():
        yield FailedCondition(
            problem=f"{layers_in_words(sorted(set(layers_of_problem)))}: {problem}",
            reason=reason,
            remedy=" ".join(remedies[problem, reason]),
        )


def _remedy(head: str, path: str, expected: Any) -> str:
    """Return the sentence with which a head gets the expected value of a field. expected: the head with this value."""
    if head == "source":
        return "Give these layers a head of the spec in place of `source`."
    value, field = _value_at(expected, path), f"`{'head' if head == 'head' else f'heads.{head}'}.{path}`"
    return f"Leave {field} out." if value is None else f"Set {field} to {_in_words(value)}."


def _value_at(head: Any, path: str) -> Any:
    """Return the value of a field; None if a part on the way lacks it."""
    for step in path.split("."):
        head = head[int(step)] if step.isdigit() else getattr(head, step, None)
    return head


def _reason(kind: LayerType, path: str) -> str:
    """Return the reason of a condition, by the longest path that has one."""
    paths = [path.rsplit(".", cut)[0] for cut in range(path.count(".") + 1)]
    return next((kind.reasons[prefix] for prefix in paths if prefix in kind.reasons), kind.formula)


def _sameness(student: StudentModel, types: Sequence[LayerType]) -> Iterator[FailedCondition]:
    """Yield the fields that may have any value, and have several in layers of one type."""
    for path in sorted({path for kind in types for path in kind.one_value}):
        values: dict[Any, dict[str, None]] = {}
        for layer, groups in enumerate(student.resolved.layers):
            for group in groups if path in types[layer].one_value else ():
                if (value := _value_at(student.heads[group.head], path)) is not None:
                    values.setdefault(value, {})[group.head] = None
        if len(values) > 1:
            (_, heads), *others = values.items()
            wanted = student.heads[next(iter(heads))]
            yield FailedCondition(
                problem=f"`{path}` is {' and '.join(map(_in_words, values))}; expected the same in all layers",
                reason="the class has one number for all layers",
                remedy=" ".join(_remedy(head, path, wanted) for _, heads in others for head in heads),
            )


def _field_differences(actual: Any, expected: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each field in which two heads differ, and the difference in words."""
    if isinstance(actual, BaseModel) and type(actual) is type(expected):
        for name in type(actual).model_fields:
            value, other = getattr(actual, name), getattr(expected, name)
            if (
                name not in START_ONLY
                or isinstance(value, bool) != isinstance(other, bool)
                or (isinstance(value, bool) and value != other)
            ):
                yield from _field_differences(value, other, f"{path}.{name}".lstrip("."))
    elif isinstance(actual, tuple) and isinstance(expected, tuple) and len(actual) == len(expected):
        for index, (item, other) in enumerate(zip(actual, expected, strict=True)):
            yield from _field_differences(item, other, f"{path}.{index}")
    elif actual != expected or isinstance(actual, bool) != isinstance(expected, bool):
        yield path, f"`{path}` is {_in_words(actual)}; expected {_in_words(expected)}"


def _in_words(value: Any) -> str:
    if isinstance(value, BaseModel):
        return str(getattr(value, "kind", type(value).__name__))
    if isinstance(value, tuple):
        return "[" + ", ".join(_in_words(item) for item in value) + "]"
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
