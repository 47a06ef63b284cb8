"""Overrides that a class's conditions list make any shipped spec fit it, and a spec that fits is refused after any other change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import composer
from composer.exporting.targets import TARGETS
from composer.exporting.targets.fit import fit, student_of_spec
from composer.spec.loading import load_spec, resolve_spec
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from tests.shipped import SHIPPED

TEACHER = Path(__file__).parents[4] / "examples" / "teacher"
OTHER_FAMILIES = {"qwen2", "qwen3"}
"""Classes for sources of their own family, which the teacher is not. No override changes a source."""
TRUNK = describe_model(TEACHER).trunk
MOST_ROUNDS = 4
"""Overrides that add a head can show further differences of that head."""
SMALL_WINDOW = "heads.a={memory: [{kind: window, size: 8, evict: drop}]}"
AWAY = [
    ("source", ["head.qk_norm=rms"], "head.qk_norm=null"),
    ("mistral", ["head.position=none"], "head.memory.0.position=rope"),
    ("mistral", [SMALL_WINDOW, "layers=[{at: -1, use: a}]"], "heads.a.memory.0.size=1024"),
    ("ministral", ["heads.a={memory: [full]}", "layers=[{at: all, use: a}]"], "layers=[{at: 0, use: kept}, {at: 1, use: a}]"),
    ("qwen3_5", ["head.output.epsilon=1e-3"], "head.output.epsilon=1e-06"),
    ("qwen3_5", ["head.memory.0.rate.bias=0.5"], "head.memory.0.rate.bias=false"),
    ("qwen3_5", ["head.memory.0.rate.largest=2"], "head.memory.0.rate.largest=1"),
    ("qwen3_5", ["head.memory.0.scale=none"], "head.memory.0.scale=root"),
    ("qwen3_5", ["head.conv.activation=none"], "head.conv.activation=silu"),
    ("qwen3_5", ["head.output.rank=8"], "head.output.rank=full"),
    ("qwen3_5", ["heads.kept.qk_norm=null"], "heads.kept.qk_norm={kind: rms, epsilon: 1e-06}"),
    ("qwen3_5", ["heads.kept.output=gate"], "heads.kept.output.bias=false"),
    ("qwen3_next", ["layers=[{at: 0, use: kept}]"], "layers=[{at: 1, use: kept}]"),
    ("granitemoehybrid", ["head.output.over=heads"], "head.output.over=head"),
    ("granitemoehybrid", ["head.memory.0.skip=false"], "head.memory.0.skip=true"),
    ("granitemoehybrid", ["layers=[]"], "layers=[{at: 1, use: kept}]"),
]
"""Changes of the spec that fits a class, and an override that the class's conditions list then."""


def differences(target: str, spec: str, overrides: list[str]) -> list[str]:
    """Return the overrides that a class's conditions list for a spec on the teacher."""
    resolved = resolve_spec(load_spec(spec, overrides), dimensions(TRUNK))
    conditions = fit(TARGETS[target], student_of_spec(resolved, TRUNK)).differences
    assert all(difference.reason and difference.overrides for difference in conditions), conditions
    return [override for difference in conditions for override in difference.overrides]


def fits_after(target: str, spec: str, overrides: list[str]) -> list[str]:
    """Follow a class's overrides until a spec fits, and return those of the first round."""
    first = wanted = differences(target, spec, overrides)
    for _ in range(MOST_ROUNDS):
        if not wanted:
            return first
        overrides = [*overrides, *wanted]
        wanted = differences(target, spec, overrides)
    raise AssertionError(f"{spec} never fits {target}: {overrides}")


@pytest.mark.parametrize("spec", [name for name in SHIPPED if "/" not in name or name.startswith("native/")])
def test_the_suggested_overrides_make_any_shipped_spec_fit(spec: str) -> None:
    own = ["trunk=null"] if load_spec(spec).trunk else []
    causal = ["direction=null"] if load_spec(spec).direction != "causal" else []
    for target in TARGETS.keys() - OTHER_FAMILIES:
        fits_after(target, spec, [*own, *causal])


@pytest.mark.parametrize(("target", "changes", "override"), AWAY)
def test_the_override_that_restores_the_class_is_suggested(target: str, changes: list[str], override: str, tmp_path: Path) -> None:
    spec = str(composer.new(tmp_path / "mine", target=target, source=TEACHER))
    assert differences(target, spec, []) == []
    assert override in fits_after(target, spec, changes)


def test_explain_lists_the_conditions_of_all_classes() -> None:
    report = composer.explain("lolcats", TEACHER, native=True)
    beside = {target.name: target for target in report.native}
    assert list(beside) == list(TARGETS)
    assert not composer.explain("lolcats", TEACHER).native
    assert [len(beside[name].conditions) for name in ("source", "mistral")] == [3, 3]
    text = str(report)
    for target in report.native:
        assert all(difference.problem in text for difference in target.conditions)


@pytest.mark.parametrize(
    ("target", "changes", "problem"),
    [
        ("qwen3_5", {"attention_bias": True}, "attention_bias is true; expected false"),
        ("granitemoehybrid", {"head_dim": 64}, "4 heads of 64 numbers beside a hidden state of 128"),
        ("mistral", {"model_type": "mistral", "sliding_window": 32}, "the source has windows in its layers; expected none"),
        ("qwen3_5", {"model_type": "qwen3"}, "are those of qwen3; expected those of llama or mistral"),
    ],
)
def test_unsuitable_sources_are_refused(target: str, changes: dict[str, object], problem: str, tmp_path: Path) -> None:
    config = json.loads((TEACHER / "config.json").read_text(encoding="utf-8")) | changes
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(composer.ComposerError, match=problem):
        composer.new(tmp_path / "mine", target=target, source=tmp_path)
    assert not (tmp_path / "mine.yaml").exists()


def test_a_target_needs_a_source(tmp_path: Path) -> None:
    with pytest.raises(composer.ComposerError, match="belong together"):
        composer.new(tmp_path / "mine", target="qwen3_5")
    with pytest.raises(composer.ComposerError, match="belong together"):
        composer.new(tmp_path / "mine", source=TEACHER)
    with pytest.raises(composer.ComposerError, match="leave one out"):
        composer.new(tmp_path / "mine", target="qwen3_5", source=TEACHER, like="lolcats")
