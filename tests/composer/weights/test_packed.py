"""A GGUF file is a source: its softmax student has the logits, tokenizer and chat template of transformers' unpacked model."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import composer
from composer.errors import BuildError, ComposerError, SourceError
from composer.system.files import sha256
from composer.weights.record import read_record
from composer.weights.sources import CACHE, FOLDER, describe_model, open_model
from tests.checkpoints import logits
from tests.composer.cli.conftest import Compose
from tests.composer.hosts.families import is_before
from tests.gguf_files import SIZES, TEMPLATE, VOCABULARY, gguf_model, write_gguf

IDS = torch.arange(3, 43)[None]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.Q8_0.gguf", gguf_model("llama"))


def by_transformers(file: Path, dtype: str) -> PreTrainedModel:
    """Return the unpacked model. Older versions of transformers have no config for it and always unpack."""
    unpacking = {"quantization_config": transformers.GgufConfig(dequantize=True)} if hasattr(transformers, "GgufConfig") else {}
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=getattr(torch, dtype), **unpacking).eval()


@pytest.mark.parametrize(
    ("family", "kind"), [("llama", "Q8_0"), ("llama", "Q4_0"), ("qwen2", "Q4_1"), ("qwen3", "Q8_0"), ("qwen2", "F32")]
)
def test_a_softmax_student_equals_the_unpacked_model(tmp_path: Path, family: str, kind: str) -> None:
    model = gguf_model(family)
    file = write_gguf(tmp_path / f"{family}.gguf", model, kind)
    composer.build_folder("softmax", file, tmp_path / "student", dtype="float32")
    theirs, ours = by_transformers(file, "float32"), composer.load(tmp_path / "student")
    stored = ours.state_dict()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in theirs.state_dict().items())
    student_logits = logits(ours, IDS)
    assert torch.equal(student_logits, logits(composer.build("softmax", theirs), IDS))
    if family == "llama":  # the project's own decoder rounds otherwise than transformers' Llama
        torch.testing.assert_close(student_logits, logits(theirs, IDS), rtol=0, atol=1e-6)
    else:
        assert torch.equal(student_logits, logits(theirs, IDS))
    if kind == "F32":
        assert torch.equal(student_logits, logits(model, IDS))
    else:
        assert not torch.equal(student_logits, logits(model, IDS)), "quantisation has to show"


def test_a_chat_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "llama.gguf", gguf_model("llama"), metadata={"tokenizer.chat_template": 5}, template=None)
    with pytest.raises(ComposerError, match="chat_template is 5; expected text"):
        composer.build_folder("softmax", file, tmp_path / "student")
    assert not (tmp_path / "student").exists()


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_tokenizer_and_chat_template_come_from_the_file(tmp_path: Path, family: str) -> None:
    file = write_gguf(tmp_path / f"{family}.gguf", gguf_model(family))
    composer.build_folder("softmax", file, tmp_path / "student")
    ours = AutoTokenizer.from_pretrained(tmp_path / "student")
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    assert ours.get_vocab() == theirs.get_vocab()
    assert len(ours) == (len(theirs) if is_before("5.14") else VOCABULARY)  # which added Qwen's own words to any vocabulary
    assert ours.chat_template == theirs.chat_template == TEMPLATE
    text = "the cat and the_Cat é<|end|>"
    assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours.decode(ours(text)["input_ids"]) == theirs.decode(theirs(text)["input_ids"])
    assert (ours.eos_token_id, ours.bos_token_id) == (theirs.eos_token_id, theirs.bos_token_id)


@pytest.mark.parametrize(("dtype_option", "dtype"), [(None, "bfloat16"), ("float16", "float16"), ("float64", "float64")])
def test_weights_are_unpacked_to_a_dtype(tmp_path: Path, file: Path, dtype_option: Any, dtype: str) -> None:
    """Without a dtype it is bfloat16."""
    composer.build_folder("softmax", file, tmp_path / "student", dtype=dtype_option)
    ours, theirs = composer.load(tmp_path / "student"), by_transformers(file, dtype)
    assert ours.dtype == getattr(torch, dtype)
    wanted = theirs.state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in ours.state_dict().items())
    assert composer.verify(tmp_path / "student").ok
    assert describe_model(file).trunk.dtype == "bfloat16"


def test_models_in_memory_equal_models_in_a_folder(file: Path) -> None:
    built = composer.build("softmax", file, dtype="float32")
    assert torch.equal(logits(built, IDS), logits(composer.build("softmax", by_transformers(file, "float32")), IDS))


def test_the_record_names_the_file_and_its_quantisation(tmp_path: Path, file: Path) -> None:
    composer.build_folder("lolcats", file, tmp_path / "student")
    record = read_record(tmp_path / "student")
    assert record is not None
    assert record.source is not None
    assert record.source.unpacked is not None
    assert record.source.unpacked.model_dump() == {
        "path": str(file),
        "quantisation": "GGUF Q8_0, F32",
        "files": {file.name: sha256(file)},
    }
    assert "`tiny.Q8_0.gguf`, unpacked from `GGUF Q8_0, F32`" in (tmp_path / "student" / "README.md").read_text()
    assert all(stored.sha256 is not None for stored in record.files.values())


def test_students_do_not_need_the_file_or_the_cache_later(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    composer.build_folder("lolcats", file, tmp_path / "student")
    student_logits = logits(composer.load(tmp_path / "student"), IDS)
    file.write_bytes(b"GGUF changed")
    assert composer.verify(tmp_path / "student").ok
    file.unlink()
    shutil.rmtree(tmp_path / "cache")
    assert composer.verify(tmp_path / "student").ok
    assert torch.equal(logits(composer.load(tmp_path / "student"), IDS), student_logits)


def test_the_output_is_named_for_the_file(tmp_path: Path, file: Path, compose: Compose) -> None:
    result = compose("build", "lolcats", "--from", file)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "lolcats-tiny.Q8_0" / "config.json").is_file()
    assert "Converting" not in result.output


def write(folder: Path, **options: Any) -> Path:
    return write_gguf(folder / "model.gguf", gguf_model(options.pop("family", "llama"), **options.pop("sizes", {})), **options)


def nan(folder: Path) -> Path:
    model = gguf_model("llama")
    with torch.no_grad():
        model.get_parameter("model.norm.weight")[0] = math.nan
    return write_gguf(folder / "model.gguf", model)


def other_architecture(folder: Path) -> Path:
    file = write(folder)
    file.write_bytes(file.read_bytes().replace(b"llama", b"plamo"))
    return file


def cut(folder: Path) -> Path:
    file = write(folder)
    file.write_bytes(file.read_bytes()[:-4000])
    return file


BIAS = {"blk.0.attn_q.bias": numpy.ones(64, numpy.float32)}
SCALES = {"rope_freqs.weight": numpy.ones(8, numpy.float32)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: write(folder, tokenizer=False), "has no tokenizer"),
        (nan, r"holds NaN or infinity .*model.norm.weight \(1\)"),
        (other_architecture, r"cannot unpack .*\(architecture plamo\).*architecture plamo is not supported"),
        (cut, "is truncated"),
        (lambda folder: write(folder, tensors=BIAS), r"has 98,688 weights, and .* for its metadata has 98,624"),
        (lambda folder: write(folder, tensors=SCALES), r"scales its rotary positions \(rope_freqs.weight\)"),
        (
            lambda folder: write(folder, metadata={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}),
            r"scales its rotary positions \(llama.rope.scaling.type\)",
        ),
        (lambda folder: write(folder, changed={"num_hidden_layers": 9_000}), "9,000 layers, and only 21 tensors"),
        (lambda folder: write(folder, family="qwen2", changed={"num_hidden_layers": 2**32 - 1}), "4,294,967,295 layers, and only"),
        (lambda folder: write(folder, changed={"num_hidden_layers": 1}), "has 98,624 weights, and .* for its metadata has 67,776"),
        (lambda folder: write(folder, changed={"hidden_size": 2**31 - 1}), "hidden.size"),
        (lambda folder: write(folder, changed={"intermediate_size": 2**30}), "intermediate_size"),
        (lambda folder: write(folder, changed={"num_attention_heads": 0}), "transformers cannot unpack|num_attention_heads"),
        (lambda folder: write(folder, family="qwen3", sizes={"head_dim": 16}), "transformers' model for its metadata has"),
    ],
    ids=lambda value: None if callable(value) else value[:24],
)  # fmt: skip
def test_a_file_that_cannot_be_a_source_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, message: str
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    file = make(tmp_path)
    with pytest.raises(ComposerError, match=f"(?s){message}"):
        composer.build_folder("softmax", file, tmp_path / "student")
    assert not (tmp_path / "student").exists()
    left = tmp_path / "cache" / FOLDER
    assert not left.exists() or not list(left.iterdir())


def test_values_too_large_for_the_dtype_are_refused(tmp_path: Path) -> None:
    model = gguf_model("llama")
    with torch.no_grad():
        model.get_parameter("model.norm.weight")[0] = 1e6
    file = write_gguf(tmp_path / "model.gguf", model)
    with pytest.raises(SourceError, match=r"model.norm.weight \(1\).*unpacked to float16"):
        composer.build_folder("softmax", file, tmp_path / "student", dtype="float16")
    composer.build_folder("softmax", file, tmp_path / "student")


@pytest.mark.parametrize("command", [["build", "softmax", "-o", "out"], ["explain", "lolcats"], ["check", "lolcats"]])
def test_mistakes_end_with_code_2(tmp_path: Path, compose: Compose, command: list[str]) -> None:
    (tmp_path / "models").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "models" / name).write_bytes(b"something else")
    for source, message in (
        ("models", "has no config.json, so the family of its weights is unknown. It has GGUF files; name one of them"),
        ("models/a.gguf", "is no GGUF file"),
        ("models/c.gguf", 'there is no file "models/c.gguf"; did you mean'),
        ("nothing.gguf", "hub:OWNER/NAME/FILE.gguf"),
    ):
        result = compose(*command, "--from", source)
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.output.split()), result.output
    assert not (tmp_path / "out").exists()


def test_folders_with_only_a_config_and_gguf_files_are_refused_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(SourceError, match=r"It has GGUF files; name one of them in place of the folder: model\.gguf"):
        open_model(tmp_path)


def test_revisions_of_files_are_refused(file: Path) -> None:
    with pytest.raises(SourceError, match="A revision .* is for models from the Hub"):
        open_model(file, "main")


def test_tokenizers_of_gguf_files_are_refused_with_advice(tmp_path: Path, file: Path) -> None:
    spec = {
        "compose": 1,
        "name": "n",
        "head": {"memory": ["full"]},
        "trunk": {"layers": 1, "heads": 2, "width": 16, "vocabulary": 300},
    }
    with pytest.raises((SourceError, BuildError), match="compose build softmax --from .*gguf -o FOLDER"):
        composer.build_folder(spec, out=tmp_path / "out", fresh=True, tokenizer=file)
