"""Two steps have the same name only if they do the same: settings that decide the result count, names and papers do not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer.ablation import plan as plan_module
from composer.ablation.options import Request
from composer.ablation.plan import read_variants
from composer.errors import AblationError, BuildError, SpecError, TrainingError
from tests.checkpoints import edit_config, edit_tensors
from tests.composer.ablation.variants import RECIPE, SECOND_STAGES, TINY, TRUNK, chains_of, names, write_spec
from tests.composer.training.runs import SPEC, make_teacher

ALL = {"build", "transfer", "compare", "finetune", "evaluate"}
TRAINED = ALL - {"build"}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {kind for kind in before if before[kind] != after[kind]}


def keys_of_single_spec(spec: str, request: Request, folder: Path, *overrides: str) -> dict[str, str]:
    """Return the keys of a single spec's steps with the first seed."""
    return names(next(iter(chains_of([spec], request, folder, *overrides).values())))


def test_variants_that_differ_in_the_second_stage_share_the_first(ablation_request: Request, tmp_path: Path) -> None:
    chains = chains_of([write_spec(tmp_path / "s.yaml", vary=SECOND_STAGES)], ablation_request, tmp_path)
    assert [step.kind for step in chains["tiny-slow", 0].steps] == ["build", "transfer", "compare", "finetune", "evaluate"]
    assert changed(names(chains["tiny-slow", 0]), names(chains["tiny-fast", 0])) == {"finetune", "evaluate"}


RECIPES: dict[str, tuple[list[str], set[str]]] = {
    "first stage": (["recipe.transfer.lr=2e-2"], TRAINED),
    "where it is compared": (["recipe.transfer.at=model"], TRAINED),
    "second stage": (["recipe.finetune.steps=3"], {"finetune", "evaluate"}),
    "how its losses are averaged": (["recipe.finetune.average=rows"], {"compare", "finetune", "evaluate"}),
    "rows": (["recipe.rows=padded"], TRAINED),
    "length of rows": (["recipe.sequence=12"], TRAINED),
    "heads": (["head.memory.0.size=3"], ALL),
    "name": (["name=other"], set()),
    "paper": (["paper=arXiv:1706.03762"], set()),
    "data in words": (["recipe.data=Alpaca"], set()),
    "a default said": (["recipe.finetune.batch=2", "recipe.finetune.weight_decay=0.0"], set()),
}


@pytest.mark.parametrize("name", RECIPES)
def test_changed_specs_change_the_step(ablation_request: Request, tmp_path: Path, name: str) -> None:
    overrides, expected = RECIPES[name]
    spec = write_spec(tmp_path / "s.yaml")
    assert (
        changed(
            keys_of_single_spec(spec, ablation_request, tmp_path), keys_of_single_spec(spec, ablation_request, tmp_path, *overrides)
        )
        == expected
    )


REQUESTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "seed": ({"seeds": (3,)}, ALL),
    "share": ({"share": 0.25}, TRAINED),
    "device": ({"device": "cuda"}, TRAINED),
    "another device of the kind": ({"device": "cpu:0"}, {"evaluate"}),
    "precision": ({"bfloat16": True}, TRAINED),
    "a slice of the data": ({"data": ("DATA,limit=20",)}, TRAINED),
    "held-out data": ({"held_out": ("DATA",)}, TRAINED),
    "samples": ({"samples": 5}, {"evaluate"}),
    "lengths": ({"lengths": (12, 16)}, {"evaluate"}),
    "options of a task": ({"tasks": ("mqar,pairs=3",)}, {"evaluate"}),
    "order of lengths": ({"lengths": (12,)}, set()),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_changed_requests_change_the_step(ablation_request: Request, texts: Path, tmp_path: Path, name: str) -> None:
    changes, expected = REQUESTS[name]
    for key in ("data", "held_out"):
        if key in changes:
            changes = changes | {key: tuple(value.replace("DATA", str(texts)) for value in changes[key])}
    spec = write_spec(tmp_path / "s.yaml")
    assert (
        changed(
            keys_of_single_spec(spec, ablation_request, tmp_path),
            keys_of_single_spec(spec, replace(ablation_request, **changes), tmp_path),
        )
        == expected
    )


def _weights(teacher: Path) -> None:
    edit_tensors(teacher / "model.safetensors", lambda tensors: tensors["model.norm.weight"].add_(1))


FILES: dict[str, tuple[Callable[[Path, Path], object], set[str]]] = {
    "weights": (lambda teacher, _: _weights(teacher), ALL),
    "config": (lambda teacher, _: edit_config(teacher, rms_norm_eps=1e-4), ALL),
    "tokenizer": (lambda teacher, _: (teacher / "tokenizer_config.json").write_text('{"unk_token": "cat"}'), ALL),
    "data": (lambda _, folder: (folder / "data.jsonl").write_text('{"text": "once upon a time"}\n' * 9), TRAINED),
    "text of a task": (lambda _, folder: (folder / "text.txt").write_text("it slept and ran home " * 30), {"evaluate"}),
    "text that a task names": (lambda _, folder: (folder / "own.txt").write_text("a dog ran " * 30), {"evaluate"}),
}


@pytest.mark.parametrize("name", FILES)
def test_changed_files_change_the_step(teacher: Path, texts: Path, tmp_path: Path, name: str) -> None:
    """Files are compared by their contents."""
    own = shutil.copytree(teacher, tmp_path / "teacher")
    shutil.copy(texts, tmp_path / "data.jsonl")
    for text in ("text.txt", "own.txt"):
        (tmp_path / text).write_text("once upon a time there was a cat " * 20)
    request = Request(
        source=str(own),
        data=(str(tmp_path / "data.jsonl"),),
        tasks=("perplexity", f"perplexity,text={tmp_path / 'own.txt'}"),
        lengths=(8,),
        text=tmp_path / "text.txt",
    )
    spec = write_spec(tmp_path / "s.yaml")
    before = keys_of_single_spec(spec, request, tmp_path)
    change, expected = FILES[name]
    change(own, tmp_path)
    assert changed(before, keys_of_single_spec(spec, request, tmp_path)) == expected


def test_changed_versions_change_the_step(ablation_request: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of different torch versions are not mixed."""
    spec = write_spec(tmp_path / "s.yaml")
    before = keys_of_single_spec(spec, ablation_request, tmp_path)
    monkeypatch.setattr(plan_module, "versions_of", lambda packages: dict.fromkeys(packages, "2"))
    assert changed(before, keys_of_single_spec(spec, ablation_request, tmp_path)) == ALL


def test_another_teacher_changes_the_step(ablation_request: Request, tmp_path: Path) -> None:
    spec, other = write_spec(tmp_path / "s.yaml"), make_teacher(tmp_path / "other", seed=1)
    assert (
        changed(
            keys_of_single_spec(spec, ablation_request, tmp_path),
            keys_of_single_spec(spec, replace(ablation_request, teacher=str(other)), tmp_path),
        )
        == TRAINED
    )
    assert (
        changed(
            keys_of_single_spec(spec, ablation_request, tmp_path),
            keys_of_single_spec(spec, replace(ablation_request, teacher=ablation_request.source), tmp_path),
        )
        == set()
    )


def test_omitted_stages_are_not_steps(ablation_request: Request, tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "s.yaml")
    assert set(keys_of_single_spec(spec, replace(ablation_request, data=()), tmp_path)) == {"build", "evaluate"}
    assert set(keys_of_single_spec(spec, replace(ablation_request, tasks=()), tmp_path)) == ALL - {"evaluate"}
    assert set(keys_of_single_spec(spec, replace(ablation_request, share=0.0), tmp_path)) == ALL - {"compare"}
    assert set(keys_of_single_spec(spec, ablation_request, tmp_path, "recipe.transfer=null")) == ALL - {"transfer"}
    assert set(keys_of_single_spec(spec, ablation_request, tmp_path, "recipe.finetune=null")) == ALL - {"finetune"}


def test_a_sweep_may_remove_a_stage(ablation_request: Request, tmp_path: Path) -> None:
    """`null` removes the first stage. The variant that keeps it shares its steps with a spec that states the same stage."""
    vary = {"grid": {"recipe.transfer": [None, {"lr": 0.05}]}}
    chains = chains_of([write_spec(tmp_path / "s.yaml", vary=vary)], ablation_request, tmp_path)
    assert [chain.variant.values for chain in chains.values()] == [{"recipe.transfer": None}, {"recipe.transfer": {"lr": 0.05}}]
    without, with_it = map(names, chains.values())
    assert "transfer" not in without
    assert without["build"] == with_it["build"]
    assert with_it == keys_of_single_spec(
        write_spec(tmp_path / "alone.yaml"), ablation_request, tmp_path, "recipe.transfer.lr=0.05"
    )


def test_without_a_source_the_steps_are_build_and_train(texts: Path, teacher: Path, tmp_path: Path) -> None:
    request = Request(source=None, data=(str(texts),), tokenizer=str(teacher))
    spec = write_spec(tmp_path / "s.yaml", trunk=TRUNK, recipe={"sequence": 16, "train": {"lr": 1e-2, "steps": 2}})
    before = keys_of_single_spec(spec, request, tmp_path)
    assert set(before) == {"build", "train"}
    assert changed(before, keys_of_single_spec(spec, request, tmp_path, "recipe.train.lr=1")) == {"train"}
    assert changed(before, keys_of_single_spec(spec, request, tmp_path, "trunk.layers=2")) == {"build", "train"}


def test_specs_and_variants_of_sweeps_are_selected_by_name(tmp_path: Path) -> None:
    sweep, single = write_spec(tmp_path / "s.yaml", vary=SECOND_STAGES), write_spec(tmp_path / "t.yaml", name="alone")
    assert [variant.name for variant in read_variants([f"{sweep}:fast", single])] == ["tiny-fast", "alone"]
    assert [variant.values for variant in read_variants([sweep])] == [{"recipe.finetune.lr": 1e-2}, {"recipe.finetune.lr": 2e-2}]
    with pytest.raises(AblationError, match='Two variants are called "tiny-fast"'):
        read_variants([sweep, f"{sweep}:fast"])


def test_specs_completed_by_settings_are_valid(tmp_path: Path) -> None:
    trunk = {key: value for key, value in TRUNK.items() if key != "vocabulary"}
    specs = [
        write_spec(tmp_path / "s.yaml", trunk=trunk, vary=SECOND_STAGES),
        write_spec(tmp_path / "t.yaml", name="x", trunk=trunk),
    ]
    variants = read_variants(specs, ["trunk.vocabulary=100"])
    assert [(variant.name, variant.spec.trunk and variant.spec.trunk.vocabulary) for variant in variants] == [
        ("tiny-slow", 100), ("tiny-fast", 100), ("x", 100),
    ]  # fmt: skip
    for spec in specs:
        with pytest.raises(SpecError, match=r"trunk\.vocabulary: missing"):
            read_variants([spec])


def test_variants_without_training_are_valid(ablation_request: Request, tmp_path: Path) -> None:
    """Heads without fresh parameters need no recipe, nor do heads whose parameters the source has trained."""
    softmax = {"compose": 1, "name": "softmax", "head": {"position": "rope", "memory": ["full"]}}
    assert set(keys_of_single_spec(write_spec(tmp_path / "s.yaml", softmax), ablation_request, tmp_path)) == {
        "build",
        "compare",
        "evaluate",
    }
    assert set(keys_of_single_spec(write_spec(tmp_path / "t.yaml", SPEC), ablation_request, tmp_path, "recipe={}")) == {
        "build",
        "compare",
        "evaluate",
    }
    words = write_spec(tmp_path / "w.yaml", {**SPEC, "recipe": {"data": "web text"}})
    for override in ("recipe.data=null", "recipe.transfer=null"):
        assert set(keys_of_single_spec(words, ablation_request, tmp_path, override)) == {"build", "compare", "evaluate"}


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "no recipe": ({"recipe": None}, {}, AblationError, '"tiny" has no recipe, and 6 of its parameters are untrained'),
    "a recipe in words": (
        {"recipe": {"data": "web text"}},
        {},
        AblationError,
        '"tiny" has a recipe without a stage, and 6 of its parameters are untrained',
    ),
    "a recipe of rows alone": (
        {"recipe": {"sequence": 16}},
        {},
        AblationError,
        "build it from a model with trained ones; or pass --set recipe.transfer=null to use it untrained.",
    ),
    "of another origin": (
        {"recipe": {"train": {"lr": 1e-2, "steps": 2}}},
        {},
        AblationError,
        'The recipe of "tiny" has only `train`, for a model from nothing (--fresh). Set a stage: --set recipe.transfer.lr=',
    ),
    "of a source": (
        {"trunk": TRUNK},
        {"source": None, "tokenizer": "TEACHER"},
        AblationError,
        "has only `transfer` and `finetune`, for a model that has a teacher (--from)",
    ),
    "nothing held out": (
        {"recipe": {**RECIPE, "transfer": {**RECIPE["transfer"], "patience": 1}}},
        {"share": 0.0},
        TrainingError,
        "recipe.transfer has patience, which needs held-out rows",
    ),
    "a trunk": ({"trunk": TRUNK}, {}, SpecError, "trunk"),
    "no trunk": ({}, {"source": None, "tokenizer": "TEACHER"}, SpecError, "trunk"),
    "a tokenizer": ({}, {"tokenizer": "TEACHER"}, BuildError, "has its own tokenizer"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_ablations_are_refused(ablation_request: Request, teacher: Path, tmp_path: Path, name: str) -> None:
    specs, changes, kind, message = MISTAKES[name]
    if changes.get("tokenizer"):
        changes = changes | {"tokenizer": str(teacher)}
    with pytest.raises(kind) as raised:
        chains_of([write_spec(tmp_path / "s.yaml", TINY | specs)], replace(ablation_request, **changes), tmp_path)
    assert message in str(raised.value)
    assert not (tmp_path / "steps").exists()
