"""Each condition that a student fails has a remedy, and a spec that fits is refused after any other change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import composer
from composer.exporting.targets import TARGETS
from composer.exporting.targets.fit import fit, student_of_spec
from composer.spec.explained import FailedCondition
from composer.spec.loading import load_spec, resolve_spec
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from converters.trunk import Sizes

TEACHER = Path(__file__).parents[4] / "examples" / "teacher"
TRUNK = describe_model(TEACHER).trunk
SMALL_WINDOW = "heads.a={memory: [{kind: window, size: 8, evict: drop}]}"
AWAY = [
    ("source", ["head.qk_norm=rms"], "Leave `head.qk_norm` out."),
    ("mistral", ["head.memory.0.position=none"], "Set `head.memory.0.position` to rope."),
    ("mistral", [SMALL_WINDOW, "layers=[{at: -1, use: a}]"], "Set `heads.a.memory.0.size` to 1024."),
    (
        "ministral",
        ["heads.a={memory: [full]}", "layers=[{at: all, use: a}]"],
        "Make layer 0 sliding_attention and layer 1 full",
    ),
    ("qwen3_5", ["head.output.epsilon=1e-3"], "Set `head.output.epsilon` to 1e-06."),
    ("qwen3_5", ["head.memory.0.rate.bias=0.5"], "Set `head.memory.0.rate.bias` to false."),
    ("qwen3_5", ["head.memory.0.rate.largest=2"], "Set `head.memory.0.rate.largest` to 1."),
    ("qwen3_5", ["head.memory.0.scale=none"], "Set `head.memory.0.scale` to root."),
    ("qwen3_5", ["head.conv.activation=none"], "Set `head.conv.activation` to silu."),
    ("qwen3_5", ["head.output.rank=8"], "Set `head.output.rank` to full."),
    ("qwen3_5", ["heads.kept.qk_norm=null"], "Set `heads.kept.qk_norm` to rms."),
    ("qwen3_5", ["heads.kept.output=gate"], "Set `heads.kept.output.bias` to false."),
    (
        "qwen3_5",
        ["layers=[{at: 0, use: kept}, {at: -1, use: source}]"],
        "in place of `source`.",
    ),
    ("qwen3_5", ["layers=[{at: 0, use: [{head: head, heads: 2}, {head: kept, heads: 2}]}]"], "Give each of these layers one head."),
    ("qwen3_next", ["layers=[{at: 0, use: kept}]"], "Make layer 0 linear_attention and layer 1 full_attention."),
    ("granitemoehybrid", ["head.output.over=heads"], "Set `head.output.over` to head."),
    ("granitemoehybrid", ["head.memory.0.skip=false"], "Set `head.memory.0.skip` to true."),
    ("granitemoehybrid", ["layers=[]"], "Make layer 0 linear_attention and layer 1 full_attention."),
]
"""Changes of the spec that fits a class, and the remedy of a condition that fails then."""


def conditions(target: str, spec: str, overrides: Sequence[str] = (), trunk: Sizes = TRUNK) -> list[FailedCondition]:
    resolved = resolve_spec(load_spec(spec, overrides), dimensions(trunk))
    return list(fit(TARGETS[target], student_of_spec(resolved, trunk)).differences)


@pytest.mark.parametrize("target", TARGETS)
def test_every_condition_of_a_spec_has_a_reason_and_a_remedy(target: str) -> None:
    """Only the specs of a class, and those with the same heads, fit it."""
    for spec in ("lolcats", "mixed-heads", "mamba3", "gdn-hybrid", "latte-bidirectional"):
        assert all(condition.reason and condition.remedy.endswith(".") for condition in conditions(target, spec))
        assert conditions(target, spec)


@pytest.mark.parametrize(("target", "changes", "remedy"), AWAY)
def test_the_remedy_of_a_change_is_stated(target: str, changes: list[str], remedy: str, tmp_path: Path) -> None:
    spec = str(composer.new(tmp_path / "mine", target=target, source=TEACHER))
    assert conditions(target, spec) == []
    failed = conditions(target, spec, changes)
    assert remedy in " ".join(condition.remedy for condition in failed)
    assert all(str(condition) == f"{condition.problem} ({condition.reason}). {condition.remedy}" for condition in failed)


@pytest.mark.parametrize("target", ["qwen3_5", "granitemoehybrid", "ministral"])
@pytest.mark.parametrize("layers", [2, 4, 5, 30])
def test_new_specs_fit_sources_of_any_depth(target: str, layers: int, tmp_path: Path) -> None:
    config = json.loads((TEACHER / "config.json").read_text(encoding="utf-8")) | {"num_hidden_layers": layers, "rms_norm_eps": 1e-4}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = str(composer.new(tmp_path / "mine", target=target, source=tmp_path))
    assert conditions(target, spec, trunk=describe_model(tmp_path).trunk) == []


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
