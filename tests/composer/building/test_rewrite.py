"""Changed weights are written, unchanged files are linked, and nothing is written after an error."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from composer.building import rewrite
from composer.building.rewrite import Adapter, Trained, write_trained
from composer.errors import BuildError
from composer.weights.load import load_model
from composer.weights.record import RECORD, HeldOut, Record, TrainedStage, read_record
from composer.weights.verify import verify
from tests.checkpoints import fingerprint, llama, logits
from tests.composer.hosts.families import small
from tests.composer.weights.students import LOLCATS, build, loaded, weights

FRESH = "model.layers.1.self_attn.composed.head.window.weight"
UP = "model.layers.0.mlp.up_proj.weight"
EMBEDDING = "model.embed_tokens.weight"
STAGE = TrainedStage(
    stage="transfer",
    recipe={"lr": 0.1},
    data={},
    held_out=HeldOut(references=(), share=0.05, rows=None),
    bfloat16=False,
    teacher=None,
    seed=0,
    steps=1,
    tokens=2,
    seconds=0.1,
    before={},
    after={},
)


def of(*names: str, folder: Path, **options: Any) -> Trained:
    """Return parameters of a folder, each increased by 1."""
    own = weights(folder)
    return Trained(
        {name: own[name].float() + 1 for name in names}, **{"adapter": None, "stages": (STAGE,), "documents": {}, **options}
    )


@pytest.fixture
def student(source: Path, tmp_path: Path) -> Path:
    build(source, tmp_path / "student", LOLCATS)
    return tmp_path / "student"


def written(student: Path, out: Path, trained: Trained, **options: Any) -> Record:
    """Write the weights, and check that the student is unchanged and the output verifies."""
    before = fingerprint(student)
    record = write_trained(student, out, trained, **options)
    assert fingerprint(student) == before
    assert verify(out).ok
    assert read_record(out) == record
    return record


def expected(student: Path, trained: Trained) -> Mapping[str, torch.Tensor]:
    return weights(student) | {name: tensor.to(weights(student)[name].dtype) for name, tensor in trained.changed.items()}


def test_a_file_without_changes_is_linked(student: Path, tmp_path: Path) -> None:
    out, changed = tmp_path / "out", of(FRESH, folder=student)
    record = written(student, out, changed)
    assert {name: stored.how for name, stored in record.files.items()} == {
        "source-1-of-1.safetensors": "linked",
        "fresh.safetensors": "rewritten",
    }
    assert (out / "source-1-of-1.safetensors").samefile(student / "source-1-of-1.safetensors")
    assert not (out / "fresh.safetensors").samefile(student / "fresh.safetensors")
    actual, wanted = weights(out), expected(student, changed)
    assert actual.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in actual.items())
    assert (logits(loaded(out)) - logits(loaded(student))).abs().max() > 1e-4


def test_only_the_shards_that_changed_are_written(sharded: Path, tmp_path: Path) -> None:
    build(sharded, tmp_path / "student", LOLCATS)
    student, before = tmp_path / "student", fingerprint(sharded)
    changed = of(UP, folder=student)
    record = written(student, tmp_path / "out", changed)
    place = json.loads((student / "model.safetensors.index.json").read_text())["weight_map"][UP]
    assert len(record.files) > 3
    assert {name for name, stored in record.files.items() if stored.how == "rewritten"} == {place}
    actual, wanted = weights(tmp_path / "out"), expected(student, changed)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in actual.items())
    assert fingerprint(sharded) == before


def test_the_record_lists_parameters_that_are_still_untrained(student: Path, tmp_path: Path) -> None:
    before = read_record(student)
    assert before is not None
    assert FRESH in before.untrained
    record = written(student, tmp_path / "out", of(FRESH, folder=student))
    assert set(before.untrained) - set(record.untrained) == {FRESH}
    assert record.training == (STAGE,)
    again = written(tmp_path / "out", tmp_path / "again", of(UP, folder=student))
    assert again.training == (STAGE, STAGE)
    assert again.untrained == record.untrained
    assert again.plan == before.plan


def test_values_are_cast_to_the_stored_dtype(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "student", LOLCATS, dtype="bfloat16")
    changed = of(UP, FRESH, folder=tmp_path / "student")
    written(tmp_path / "student", tmp_path / "out", changed)
    stored = weights(tmp_path / "out")
    assert stored[UP].dtype == torch.bfloat16
    assert torch.equal(stored[UP], changed.changed[UP].bfloat16())


def test_values_too_large_for_the_stored_dtype_are_refused(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "student", LOLCATS, dtype="float16")
    large = Trained({UP: torch.full_like(weights(tmp_path / "student")[UP].float(), 1e5)}, None, (), {})
    with pytest.raises(BuildError, match=rf"{UP} holds values up to 1e\+05, too large for float16"):
        write_trained(tmp_path / "student", tmp_path / "out", large)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("sharded", [False, True])
def test_stored_copies_of_tied_embeddings_are_removed_if_they_differ(tmp_path: Path, sharded: bool) -> None:
    """transformers would load it as a separate matrix."""
    source = llama(tmp_path / "source", tie_word_embeddings=True)
    tensors = {name: tensor.clone() for name, tensor in load_file(source / "model.safetensors").items()}
    copy = {"lm_head.weight": tensors[EMBEDDING].clone()}
    (source / "model.safetensors").unlink()
    if sharded:
        other = {"model.norm.weight": tensors.pop("model.norm.weight")}
        files = {"a.safetensors": tensors, "b.safetensors": copy | other}
        index = {name: file for file, held in files.items() for name in held}
        (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    else:
        files = {"model.safetensors": tensors | copy}
    for file, held in files.items():
        save_file(held, source / file, {"format": "pt"})
    build(source, tmp_path / "student", LOLCATS)
    student, changed = tmp_path / "student", of(EMBEDDING, folder=tmp_path / "student")
    assert "lm_head.weight" in weights(student)
    written(student, tmp_path / "untouched", of(FRESH, folder=student))
    assert "lm_head.weight" in weights(tmp_path / "untouched"), "a file is not written anew for its sake alone"
    written(student, tmp_path / "out", changed)
    assert "lm_head.weight" not in weights(tmp_path / "out")
    model: Any = loaded(tmp_path / "out")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, changed.changed[EMBEDDING])


def bare(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}


def with_a_copy(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return tensors | {"lm_head.weight": tensors[EMBEDDING].clone()}


@pytest.mark.parametrize(
    ("family", "tied", "stored"), [("gpt2", True, bare), ("qwen3", True, with_a_copy), ("mixtral", False, dict)]
)
def test_hosts_with_other_names_in_their_files_are_rewritten(
    tmp_path: Path, family: str, tied: bool, stored: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    """The cases are a model saved without its head, such as the first GPT-2, a stored tied matrix, and separate matrices of
    experts.
    """
    source = tmp_path / "source"
    small(family, tie_word_embeddings=tied).save_pretrained(source)
    save_file(stored(load_file(source / "model.safetensors")), source / "model.safetensors", {"format": "pt"})
    build(source, tmp_path / "student", LOLCATS)
    model: Any = load_model(tmp_path / "student", "float32", "cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    written(tmp_path / "student", tmp_path / "out", Trained(dict(model.named_parameters()), None, (STAGE,), {}, model))
    loaded: Any = load_model(tmp_path / "out", "float32", "cpu")
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert (loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight) == tied


def test_adapters_and_documents_are_written_and_replaced(student: Path, tmp_path: Path) -> None:
    tensors = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(2, 32)}
    (tmp_path / "notes").write_text("a log")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    trained = of(FRESH, folder=student, adapter=Adapter(config, tensors), documents={"log.jsonl": tmp_path / "notes"})
    record = written(student, tmp_path / "out", trained)
    assert record.files["adapter/adapter_model.safetensors"].how == "written"
    assert json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text()) == config
    assert json.loads((tmp_path / "out" / "config.json").read_text())["adapter"] == "adapter"
    assert (tmp_path / "out" / "training" / "log.jsonl").read_text() == "a log"
    write_trained(student, tmp_path / "out", of(FRESH, folder=student), force=True)
    assert not (tmp_path / "out" / "adapter").exists(), "what is replaced is replaced as a whole"
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(BuildError, match=r"holds what no build wrote \(mine\.txt\)"):
        write_trained(student, tmp_path / "out", of(FRESH, folder=student), force=True)


def nan_like(folder: Path, name: str) -> torch.Tensor:
    return torch.full_like(weights(folder)[name], torch.nan)


def test_invalid_rewrites_are_refused(student: Path, source: Path, tmp_path: Path) -> None:
    out, fine = tmp_path / "out", of(FRESH, folder=student)
    broken = Adapter({}, {"lora_A": torch.tensor([[0.0, torch.inf]])})
    for model, trained, message in (
        (student, Trained({"model.no.such": torch.ones(2)}, None, (), {}), r"has no parameter model\.no\.such"),
        (student, Trained({FRESH: nan_like(student, FRESH)}, None, (), {}), rf"{FRESH} holds values that are not finite"),
        (student, Trained({}, broken, (), {}), "lora_A holds values that are not finite"),
        (student, Trained({FRESH: torch.ones(3)}, None, (), {}), "differs from the plan"),
        (source, fine, f"has no {RECORD}"),
        (student, Trained(fine.changed, None, (), {"log": tmp_path / "missing"}), "Nothing was written"),
    ):
        before = fingerprint(tmp_path)
        with pytest.raises(BuildError, match=message):
            write_trained(model, out, trained)
        assert fingerprint(tmp_path) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "student"]
    for place in (student, student / "inside", tmp_path):
        with pytest.raises(BuildError, match="Choose another folder"):
            write_trained(student, place, fine, force=True)


def test_full_disks_leave_no_files(student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rewrite, "write_shard", full)
    with pytest.raises(BuildError, match="No space left for"):
        write_trained(student, tmp_path / "out", of(FRESH, folder=student))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "student"]
