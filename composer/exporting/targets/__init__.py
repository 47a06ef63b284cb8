"""The classes of transformers that can compute a student, in the order in which ``compose export --native`` tries them."""

from __future__ import annotations

from collections.abc import Mapping

from composer.errors import BuildError
from composer.exporting.targets import granitemoehybrid, qwen3_5, softmax
from composer.exporting.targets.fit import fit, student_of_spec
from composer.exporting.targets.target import NativeTarget
from composer.spec.explained import TargetFit
from composer.spec.resolve import Resolved
from converters.trunk import Sizes

TARGETS: Mapping[str, NativeTarget] = {
    target.name: target
    for target in (
        softmax.SOURCE_CLASS,
        softmax.MISTRAL,
        softmax.MINISTRAL,
        softmax.QWEN2,
        softmax.QWEN3,
        qwen3_5.TARGET,
        qwen3_5.QWEN3_NEXT,
        granitemoehybrid.TARGET,
    )
}
"""By the names that users choose them by."""


def target_named(name: str) -> NativeTarget:
    """Return the class of this name. Raises BuildError if there is none."""
    if name not in TARGETS:
        raise BuildError(f"{name} is no class that students are written as; expected one of {', '.join(TARGETS)}")
    return TARGETS[name]


def compare_with_targets(resolved: Resolved, trunk: Sizes) -> tuple[TargetFit, ...]:
    """Compare a spec with every class, before anything is built. trunk: of the source, or of the spec."""
    comparisons = (fit(target, student_of_spec(resolved, trunk)) for target in TARGETS.values())
    return tuple(
        TargetFit(
            name=comparison.target.name,
            architecture=comparison.target.architecture,
            spec=comparison.target.spec,
            conditions=comparison.differences,
            identities=tuple(dict.fromkeys(text for kind in comparison.target.layers for text in kind.identities.values())),
        )
        for comparison in comparisons
    )
