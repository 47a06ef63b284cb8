"""Verification finds every detectable change, and reports what cannot be checked."""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from composer.building import folder as build_module
from composer.errors import BuildError
from composer.weights.plan import FRESH_FILE
from composer.weights.record import RECORD, read_record
from composer.weights.verify import VerifyReport, verify
from converters.shard import read_shard
from converters.source import INDEX
from tests.checkpoints import edit_config, edit_header, edit_tensors
from tests.composer.hosts.families import small
from tests.composer.weights.students import LAWCAT, SOFTMAX, build, loaded

LINKED = "source-1-of-1.safetensors"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the tiny model as too large to be hashed by default."""
    monkeypatch.setattr(build_module, "HASHED_ANYWAY", 0)


def built(source: Path, out: Path, **options: object) -> Path:
    build(source, out, LAWCAT, **options)
    assert verify(out).ok
    return out


def flip(file: Path, keep_time: bool = False, at: int | None = None) -> None:
    """Change one bit of a tensor's value in place. ``keep_time``: restore the time stamp, as after a disk error."""
    stat = file.stat()
    place = read_shard(file).header_bytes + 5 if at is None else at
    with file.open("r+b") as stream:
        stream.seek(place)
        byte = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([byte ^ 1]))
    if keep_time:
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def outcome(report: VerifyReport, what: str, subject: str) -> str:
    [outcome] = [check.outcome for check in report.checks if (check.what, check.subject) == (what, subject)]
    return outcome


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": "bfloat16"}], ids=["linked", "copied", "rewritten"])
def test_unchanged_builds_pass_with_all_files_checked(source: Path, tmp_path: Path, options: dict):
    report = verify(built(source, tmp_path / "out", **options))
    assert report.ok
    assert not report.unchecked
    assert {check.what for check in report.checks} == {"spec", "config", "coverage", "contents", "finite"}


@pytest.mark.parametrize(("key", "dtype"), [("torch_dtype", None), ("dtype", "bfloat16"), ("torch_dtype", "bfloat16")])
def test_hosts_with_another_dtype_or_the_older_dtype_key_pass(tmp_path: Path, key: str, dtype: str | None):
    """Most published models have such configs. The dtype is compared under both keys."""
    small("qwen3").save_pretrained(tmp_path / "source")
    edit_config(tmp_path / "source", **{"dtype": None, key: "float32"})
    out = built(tmp_path / "source", tmp_path / "out", dtype=dtype)
    edit_config(out, dtype="float16")
    assert [check.detail for check in verify(out).failed] == ["differs from the record: dtype"]


@pytest.mark.parametrize("file", [FRESH_FILE, LINKED])
@pytest.mark.parametrize("at", [None, -1], ids=["first tensor", "last byte"])
@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": "float16"}], ids=["linked", "copied", "rewritten"])
def test_flipped_bits_are_detected_without_a_time_stamp(source: Path, tmp_path: Path, file: str, at: int, options: dict):
    out = built(source, tmp_path / "out", **options)
    flip(out / file, keep_time=True, at=None if at is None else (out / file).stat().st_size + at)
    report = verify(out)
    assert [check.subject for check in report.failed] == [file]
    assert outcome(report, "contents", file) == "failed"


@pytest.mark.parametrize(("lowest", "dtype", "how"), [(-torch.inf, None, "linked"), (-1e9, "float16", "rewritten")])
def test_masks_stored_beside_weights_are_ignored(tmp_path: Path, lowest: float, dtype: str | None, how: str):
    """Older versions of transformers stored masks of GPT-NeoX. They are not weights, but the file's bytes are still checked."""
    small("gpt_neox").save_pretrained(tmp_path / "source")
    layers = [f"gpt_neox.layers.{layer}.attention" for layer in range(2)]
    masks = {f"{layer}.bias": torch.ones(1, 1, 5, 5, dtype=torch.uint8).tril() for layer in layers}
    others = {f"{layer}.masked_bias": torch.tensor(lowest) for layer in layers}
    edit_tensors(tmp_path / "source" / "model.safetensors", lambda tensors: tensors.update(masks | others))
    assert read_shard(tmp_path / "source" / "model.safetensors").masks == masks.keys()
    out = built(tmp_path / "source", tmp_path / "out", dtype=dtype)
    assert read_record(out).files[LINKED].how == how  # pyright: ignore[reportOptionalMemberAccess]
    loaded(out)
    flip(out / LINKED, keep_time=True, at=(out / LINKED).stat().st_size - 1)
    assert [check.subject for check in verify(out).failed] == [LINKED]


@pytest.mark.usefixtures("large")
class TestUnhashed:
    """Checks of linked files that were not hashed in the build."""

    def test_unchanged_links_are_unchecked(self, source: Path, tmp_path: Path):
        report = verify(built(source, tmp_path / "out"))
        assert report.ok
        assert [check.subject for check in report.unchecked] == [LINKED]
        assert "shows no later change" in report.unchecked[0].detail

    def test_changed_links_are_detected_by_their_time_stamp(self, source: Path, tmp_path: Path):
        out = built(source, tmp_path / "out")
        flip(out / LINKED)
        assert [check.subject for check in verify(out).failed] == [LINKED]

    def test_changes_of_the_linked_source_are_detected(self, source: Path, tmp_path: Path):
        out = built(source, tmp_path / "out")
        flip(source / "model.safetensors")
        assert "written to since the build" in verify(out).failed[0].detail

    def test_copies_are_hashed(self, source: Path, tmp_path: Path):
        out = built(source, tmp_path / "out", copy=True)
        assert not verify(out).unchecked
        flip(out / LINKED, keep_time=True)
        assert [check.subject for check in verify(out).failed] == [LINKED]

    def test_copied_folders_are_checked_by_their_headers(self, source: Path, tmp_path: Path):
        out = tmp_path / "moved"
        shutil.copytree(built(source, tmp_path / "out"), out)
        report = verify(out)
        assert report.ok
        assert "no longer the file that was linked" in report.unchecked[0].detail
        edit_header(out / LINKED, lambda header: header["__metadata__"].update(more="1"))
        assert [check.subject for check in verify(out).failed] == [LINKED]

    def test_contents_can_be_hashed_on_demand(self, source: Path, tmp_path: Path):
        out = built(source, tmp_path / "out", hash_contents=True)
        assert not verify(out).unchecked
        flip(out / LINKED, keep_time=True)
        assert outcome(verify(out), "contents", LINKED) == "failed"

    def test_a_students_student_inherits_the_hashes(self, source: Path, tmp_path: Path):
        built(source, tmp_path / "first", hash_contents=True)
        build(tmp_path / "first", tmp_path / "second", SOFTMAX)
        report = verify(tmp_path / "second")
        assert report.ok
        assert not report.unchecked
        flip(tmp_path / "second" / LINKED, keep_time=True)
        assert outcome(verify(tmp_path / "second"), "contents", LINKED) == "failed"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_named(source: Path, tmp_path: Path, value: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("composer.building.folder.HASHED_ANYWAY", 0)  # so that the build does not read the linked file
    name = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(source / "model.safetensors", lambda t: t.update({name: t[name].index_fill(0, torch.tensor([7]), value)}))
    build(source, tmp_path / "out", LAWCAT)
    [failed] = verify(tmp_path / "out").failed
    assert failed.what == "finite"
    assert name in failed.detail


def test_a_missing_and_a_truncated_file_are_named(source: Path, tmp_path: Path):
    out = built(source, tmp_path / "out")
    content = (out / FRESH_FILE).read_bytes()
    (out / FRESH_FILE).write_bytes(content[:-1])
    assert any("truncated" in check.detail for check in verify(out).failed if check.subject == FRESH_FILE)
    (out / FRESH_FILE).unlink()
    assert any("missing" in check.detail for check in verify(out).failed if check.subject == FRESH_FILE)


def test_a_tensor_too_few_or_too_many_fails_coverage(source: Path, tmp_path: Path):
    out = built(source, tmp_path / "out")
    gone = next(name for name in read_shard(out / FRESH_FILE).tensors if "layers.1" in name)

    def exchange(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.composed.head.other"] = tensors.pop(gone)

    edit_tensors(out / FRESH_FILE, exchange)
    index = json.loads((out / INDEX).read_text())
    index["weight_map"].pop(gone)
    (out / INDEX).write_text(json.dumps(index))
    [coverage] = [check for check in verify(out).failed if check.what == "coverage"]
    assert f"{gone} " in coverage.detail
    assert "composed.head.other" in coverage.detail


def test_overwritten_weights_fail(source: Path, tmp_path: Path):
    out = built(source, tmp_path / "out")
    shutil.copy(source / "model.safetensors", out / "model.safetensors")
    assert any(check.what == "coverage" for check in verify(out).failed)


@pytest.mark.parametrize("change", [{"rms_norm_eps": 0.1}, {"spec_hash": "0"}, {"num_attention_heads": 8}, {"spec": {}}])
def test_changed_configs_fail(source: Path, tmp_path: Path, change: dict):
    out = built(source, tmp_path / "out")
    edit_config(out, **change)
    failed = {check.what: check.detail for check in verify(out).failed}
    assert "config" in failed


def test_config_keys_added_by_transformers_pass(source: Path, tmp_path: Path):
    out = built(source, tmp_path / "out")
    edit_config(out, transformers_version="5.0.0", use_cache=True)
    assert verify(out).ok


def test_specs_with_another_hash_fail(source: Path, tmp_path: Path):
    out = built(source, tmp_path / "out")
    record = json.loads((out / RECORD).read_text())
    for document, problem in (("resolved", "the stored document hashes to"), ("spec", "the stored spec has the hash")):
        changed = copy.deepcopy(record)
        heads = changed[document]["heads"] if document == "resolved" else changed[document]
        heads["head"]["feature_map"] = {"kind": "elu"}
        (out / RECORD).write_text(json.dumps(changed))
        (failed,) = [check for check in verify(out).failed if check.what == "spec"]
        assert problem in failed.detail


def test_without_a_record_there_is_nothing_to_check(source: Path, tmp_path: Path):
    with pytest.raises(BuildError, match="not written by `compose build`"):
        verify(source)
    with pytest.raises(BuildError, match="not a folder"):
        verify(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["{", "{}", '{"format": 2}'])
def test_a_damaged_record_is_an_error(source: Path, tmp_path: Path, content: str):
    out = built(source, tmp_path / "out")
    (out / RECORD).write_text(content)
    with pytest.raises(BuildError, match="is damaged, or of another version"):
        verify(out)


def test_progress_reaches_the_size_of_every_file(source: Path, tmp_path: Path):
    out = built(source, tmp_path / "out")
    last: dict[str, tuple[int, int]] = {}
    verify(out, progress=lambda name, done, total: last.update({name: (done, total)}))
    assert set(last) == {LINKED, FRESH_FILE}
    assert all(done == total for done, total in last.values())


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b", "x" * 5000, "../../secret", "/etc/passwd", "a//b"])
def test_records_may_name_only_files_of_their_folder(source: Path, tmp_path: Path, name: str):
    out = built(source, tmp_path / "out")
    record = json.loads((out / RECORD).read_text())
    record["files"][name] = next(iter(record["files"].values()))
    (out / RECORD).write_text(json.dumps(record))
    for act in (lambda: verify(out), lambda: build(source, out, force=True)):
        with pytest.raises(BuildError, match=r"damaged.*no file of a folder can be called") as caught:
            act()
        assert len(str(caught.value)) < 1000


def test_deeply_nested_or_linked_records_are_refused(source: Path, tmp_path: Path):
    out = built(source, tmp_path / "out")
    (out / RECORD).rename(tmp_path / RECORD)
    (out / RECORD).symlink_to(tmp_path / RECORD)
    with pytest.raises(BuildError, match="leads out of its folder"):
        verify(out)
    (out / RECORD).unlink()
    (out / RECORD).write_text('{"spec":' + "[" * 500_000 + "]" * 500_000 + "}")
    with pytest.raises(BuildError, match="damaged"):
        verify(out)
