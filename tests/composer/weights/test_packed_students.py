"""A student that transformers saved quantised is opened as any other, with its record."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import composer
from composer.weights.record import read_record
from composer.weights.sources import local_folder
from composer.weights.verify import verify
from tests.checkpoints import llama, logits
from tests.composer.cli.conftest import Compose, compose, student, teacher
from tests.packed import fp8

__all__ = ["compose", "student", "teacher"]

IDS = torch.arange(11)[None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSER_CACHE", str(tmp_path / "cache"))


def test_every_command_opens_a_quantised_student(compose: Compose, student: Path, tmp_path: Path) -> None:
    composer.load(student).save_pretrained(tmp_path / "saved")  # one file, as fp8 expects it
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(student / name, tmp_path / "saved" / name)
    plain = fp8(tmp_path / "saved")
    model, wanted = composer.load(tmp_path / "saved"), load_file(plain / "model.safetensors")
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items())
    Path("text.txt").write_text("once upon a time there was a cat and it slept\n" * 20)
    for arguments in (
        ("generate", "saved", "--prompt", "once upon", "--max-new-tokens", "2"),
        ("eval", "saved", "--tasks", "perplexity", "--text", "text.txt", "--lengths", "16", "--samples", "1"),
        ("build", "lola", "--from", "saved", "-o", "built"),
    ):
        result = compose(*arguments)
        assert result.exit_code == 0, (arguments, result.output)
    before, after = read_record(student), read_record(Path("built"))
    assert before is not None
    assert after is not None
    assert after.source is not None
    assert after.source.spec_hash == before.spec_hash


@pytest.mark.parametrize("bits", [4, 8])
def test_students_saved_by_bitsandbytes_keep_their_record(tmp_path: Path, bits: int) -> None:
    pytest.importorskip("bitsandbytes")
    student = tmp_path / "student"
    composer.build_folder("lolcats", llama(tmp_path / "source", hidden_size=64, intermediate_size=128), student)
    settings = BitsAndBytesConfig(load_in_8bit=bits == 8, load_in_4bit=bits == 4, bnb_4bit_compute_dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(student, quantization_config=settings)
    model.save_pretrained(tmp_path / "saved")
    before, record = read_record(student), read_record(tmp_path / "saved")
    assert before is not None
    assert record is not None
    assert (record.spec_hash, record.source, record.saved[-1].changed) == (before.spec_hash, before.source, None)
    unpacked = composer.load(tmp_path / "saved")
    torch.testing.assert_close(logits(unpacked, IDS), logits(model, IDS), rtol=0, atol=0.02)
    opened = local_folder(tmp_path / "saved")
    assert verify(opened).ok
    record = read_record(opened)
    assert record is not None
    assert len(record.saved) == 2
