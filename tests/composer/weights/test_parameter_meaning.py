"""A student of another student keeps parameters of the same meaning, in a folder and in memory, and reports what it drops."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import composer
from blocks.catalogue import CATALOGUE
from composer.errors import BuildError
from composer.weights.plan import Plan
from tests.checkpoints import edit_config, llama
from tests.composer.weights.students import LAWCAT, LOLCATS, SOFTMAX, build, plan_for

WINDOW = {"kind": "window", "size": 4, "weight": "learned"}
GATED = {"kind": "state", "gate": {"kind": "channel", "rank": 4}}
MAPS = {"feature_map.query_weight", "feature_map.key_weight"}
LATTE = {"memory": [{"kind": "latents", "size": 8}]}


def spec(**head: Any) -> dict[str, Any]:
    return {"compose": 1, "name": "x", "head": head}


def lolcats(**changes: Any) -> dict[str, Any]:
    return spec(**{**LOLCATS["head"], **changes})


def lawcat(**changes: Any) -> dict[str, Any]:
    return spec(**{**LAWCAT["head"], **changes})


def of_heads(names: Any) -> set[str]:
    """Remove layer and head from the names."""
    return {name.partition(".composed.head.")[2] for name in names if ".composed." in name}


KEPT = {
    "LoLA": (lolcats(), lolcats(memory=[WINDOW | {"shape": "terraced"}, {"kind": "sparse", "weight": "same"}, "state"])),
    "a larger window": (lolcats(), lolcats(memory=[WINDOW | {"size": 32}, "state"])),
    "as the published code scales": (lolcats(), lolcats(read={"kind": "shared", "scale": "row_max"})),
    "other ways to say it": (lolcats(), lolcats(position={"kind": "rope", "theta": 10000.0}, read="shared")),
    "another start": (lawcat(), lawcat(memory=[{"kind": "state", "gate": {"kind": "channel", "rank": 4, "bias": 3.0}}])),
    "a window above a gated state": (lawcat(), lawcat(memory=[{"kind": "window", "size": 4}, GATED])),
    "a gate of one decay a head, and then another map": (
        spec(feature_map="hedgehog", memory=[{"kind": "state", "gate": "head"}]),
        spec(feature_map="elu", memory=[{"kind": "state", "gate": "head"}]),
    ),
    "frequencies that have been learned": (
        spec(**LATTE, value_position="vapor"),
        spec(**LATTE, value_position={"kind": "vapor", "theta": 100.0}),
    ),
    "a window beside latents": (
        spec(**LATTE),
        spec(memory=[{"kind": "window"}, *LATTE["memory"]], flow="parallel", read="mixture"),
    ),
}
"""Source and target: all that both have is kept."""

WORKSHOP = {"kind": "exp", "skip": True, "two_sided": False}
DROPPED = {
    "a matrix beside a skip": (
        spec(feature_map=WORKSHOP, memory=["state"]),
        spec(feature_map="hedgehog", memory=["state"]),
        MAPS,
        "it was made for `exp, dim: 8, skip: true, two_sided: false`, and here is `hedgehog, dim: 8`",
    ),
    "one side of features": (
        spec(feature_map={"kind": "exp", "linear": True}, memory=["state"]),
        spec(feature_map={"kind": "exp", "linear": True, "two_sided": False}, memory=["state"]),
        MAPS,
        "two_sided: false",
    ),
    "maps of keys that are no longer turned": (
        lolcats(),
        lolcats(position="none", memory=[WINDOW | {"position": "rope"}, "state"]),
        MAPS,
        "its `hedgehog, dim: 4` saw states after `rope, theta: 10000.0`, and sees states as they are here",
    ),
    "maps of convolved keys": (
        lawcat(),
        lawcat(conv=None),
        {"feature_map.weight"},
        "saw states after `causal`, and sees states as",
    ),
    "a share, no longer a factor": (
        lolcats(),
        lolcats(read="mixture"),
        {"window.weight"},
        "it was beside `shared`, and is beside `mixture` here",
    ),
    "a window in which keys are not turned": (
        lolcats(),
        lolcats(memory=[WINDOW | {"position": "none"}, "state"]),
        {"window.weight"},
        "and here is `window, position: none, weight: learned`",
    ),
    "decays of other features": (
        lawcat(),
        lawcat(feature_map={"kind": "elu", "two_sided": True}),
        {"state_gate.bias", "state_gate.up", "state_gate.down"},
        "it was beside `hedgehog, dim: 8, share: qk`, and is beside `elu, two_sided: true` here",
    ),
    "a gate of another pace": (
        lawcat(),
        lawcat(memory=[{"kind": "state", "gate": {"kind": "channel", "rank": 4, "temperature": 8.0}}]),
        {"state_gate.bias", "state_gate.up", "state_gate.down"},
        "it was made for `channel, rank: 4`, and here is `channel, rank: 4, temperature: 8.0`",
    ),
    "latents that see something else": (
        spec(**LATTE),
        spec(**LATTE, mix_input="rglru"),
        {"latents.query", "latents.key"},
        "saw states as they are, and sees states after `rglru` here",
    ),
    "a matrix of a gate that is a norm alone now": (
        spec(**LATTE, output="gated_norm"),
        spec(**LATTE, output="norm"),
        {"output_norm.weight"},
        "it was made for `gated_norm`, and here is `norm`",
    ),
    "a norm of another epsilon": (
        spec(**LATTE, output="norm"),
        spec(**LATTE, output={"kind": "norm", "epsilon": 1e-3}),
        {"output_norm.weight"},
        "it was made for `norm`, and here is `norm, epsilon: 0.001`",
    ),
    "a norm of queries and keys of another epsilon": (
        spec(memory=["full"], qk_norm="rms"),
        spec(memory=["full"], qk_norm={"kind": "rms", "epsilon": 1e-3}),
        {"qk_norm.query", "qk_norm.key"},
        "it was made for `rms`, and here is `rms, epsilon: 0.001`",
    ),
}
"""Source and target, what is dropped although name and shape would fit, and why."""


def student(tmp_path: Path, document: dict[str, Any]) -> Path:
    """A student with fresh parameters away from their start."""
    build(llama(tmp_path / "source"), tmp_path / "student", document)
    model = composer.load(tmp_path / "student")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".composed." in name:
                parameter.add_(1.0)
    model.save_pretrained(tmp_path / "trained")
    return tmp_path / "trained"


def in_memory(folder: Path, document: dict[str, Any], plan: Plan) -> list[str]:
    """Return the warnings of a build in memory. It keeps the same tensors as the plan of a folder, bit by bit."""
    model = composer.load(folder)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        made = composer.build(document, model).state_dict()
    own = {name for name in made if ".composed." in name}
    kept = {name for name in own if name in model.state_dict() and torch.equal(made[name], model.state_dict()[name])}
    assert kept == own & plan.inherited.keys()
    return [str(warning.message) for warning in warned if "not kept" in str(warning.message)]


@pytest.mark.parametrize("case", KEPT)
def test_parameters_with_the_same_meaning_are_kept(case: str, tmp_path: Path) -> None:
    source, target = KEPT[case]
    folder = student(tmp_path, source)
    plan = plan_for(folder, target)
    shapes = [{name: entry.shape for name, entry in plan_for(tmp_path / "source", spec).fresh.items()} for spec in (source, target)]
    both = {name for name, shape in shapes[0].items() if shapes[1].get(name) == shape}
    assert both
    assert plan.inherited.keys() >= both
    assert {entry.reason for entry in plan.dropped.values()} <= {"this spec has no such parameter"}
    assert in_memory(folder, target, plan) == [] or plan.dropped


@pytest.mark.parametrize("case", DROPPED)
def test_parameters_with_another_meaning_are_dropped_and_reported(case: str, tmp_path: Path) -> None:
    source, target, names, reason = DROPPED[case]
    folder = student(tmp_path, source)
    plan = plan_for(folder, target)
    reasons = {name: entry.reason for name, entry in plan.dropped.items() if name in plan.parameters}
    assert of_heads(reasons) == names
    assert all(reason in stated_reason for stated_reason in reasons.values())
    assert reasons.keys() <= plan.fresh.keys()
    (warning,) = in_memory(folder, target, plan)
    assert reason in warning
    build(folder, tmp_path / "out", target)
    made, before = load_file(tmp_path / "out" / "fresh.safetensors"), composer.load(folder).state_dict()
    assert all(not torch.equal(made[name], before[name]) for name in reasons)


def test_heads_moved_within_their_layer_are_fresh(tmp_path: Path) -> None:
    """A group's parameters have one row for each of its query heads."""
    near, far = LOLCATS["head"], spec(feature_map="hedgehog", memory=["state"])["head"]
    groups = [{"near": near, "far": far}, [{"head": "near", "heads": 2}, {"head": "far", "heads": 2}]]
    document = {"compose": 1, "name": "x", "heads": groups[0], "layers": [{"at": "all", "use": groups[1]}]}
    rotated = {**document, "layers": [{"at": 0, "use": groups[1]}, {"at": 1, "use": groups[1][::-1]}]}
    build(llama(tmp_path / "source"), tmp_path / "student", document)
    plan = plan_for(tmp_path / "student", rotated)
    assert {name.split(".")[2] for name in plan.fresh} == {"1"}
    assert "it was made for heads 0 to 1 of the layer, and these are heads 2 to 3" in {
        entry.reason for entry in plan.dropped.values()
    }


def test_softmax_drops_all_parameters_and_reports_this(tmp_path: Path) -> None:
    folder = student(tmp_path, LOLCATS)
    with pytest.warns(UserWarning, match=r"6 such as model\.layers\.0\..*window\.weight: this spec has no such parameter"):
        composer.build(SOFTMAX, composer.load(folder))
    with pytest.warns(UserWarning, match="not kept") as warned:
        composer.build(SOFTMAX, folder)
    assert [warning.filename for warning in warned if "not kept" in str(warning.message)] == [__file__]  # at this call, not inside


def test_heads_missing_in_the_config_are_dropped(tmp_path: Path) -> None:
    folder = student(tmp_path, LOLCATS)
    edit_config(folder, spec=..., spec_hash=...)
    assert {entry.reason for entry in plan_for(folder, LOLCATS).dropped.values()} == {
        "the source's config.json does not describe it"
    }


@pytest.mark.parametrize(("change", "message"), [({"heads": 7}, "has an invalid spec of its heads"), ({"name": "y"}, None)])
def test_configs_with_heads_of_another_meaning_are_refused(tmp_path: Path, change: dict[str, Any], message: str | None) -> None:
    folder = student(tmp_path, LOLCATS)
    stored_spec = json.loads((folder / "config.json").read_text())["spec"]
    edit_config(folder, spec={**stored_spec, **change})
    if message is None:
        assert not plan_for(folder, LOLCATS).dropped
    else:
        with pytest.raises(BuildError, match=message):
            plan_for(folder, LOLCATS)
    stored_spec["heads"]["head"]["feature_map"]["skip"] = True
    edit_config(folder, spec=stored_spec)
    with pytest.raises(BuildError, match="one of them was changed"):
        plan_for(folder, LOLCATS)


def test_incidental_fields_are_fields() -> None:
    for kinds in CATALOGUE.values():
        for part in kinds.values():
            assert part.incidental <= part.model_fields.keys(), part
