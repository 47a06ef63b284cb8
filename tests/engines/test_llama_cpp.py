"""llama.cpp runs GGUF files with the student's logits, tokens and text. ``make engines-test`` builds llama-cpp-python in a separate
environment.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: make engines-test")

import torch
from llama_cpp import Llama
from tokenizers import Tokenizer
from transformers import AutoTokenizer

import composer
from composer.errors import ExportError
from composer.exporting.gguf.types import TYPES
from composer.exporting.gguf.writing import gguf_of, write_gguf
from composer.exporting.native import native_of
from tests.composer.exporting.gguf.tokenizers import WORDS, bytes_tokenizer, characters_tokenizer, write_tokenizer
from tests.composer.exporting.models import randomised

TEACHER = Path(__file__).parents[2] / "examples" / "teacher"
CLOSE = 1e-5
"""The largest difference of logits in float32, as a share of the largest one. Narrower types have the bounds of the export."""
PROMPT, TEXT = 32, 64
"""Tokens before the generated ones, and generated tokens."""
OVERRIDES = {
    "mistral": ["head.memory.0.size=16"],
    "ministral": ["head.memory.0.size=16"],
    "granitemoehybrid": ["head.output.bias=false"],
}
TARGETS = ["source", "mistral", "ministral", "qwen3_5", "granitemoehybrid"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped teacher with a tokenizer that GGUF files can hold."""
    folder = tmp_path_factory.mktemp("source") / "teacher"
    shutil.copytree(TEACHER, folder)
    return write_tokenizer(bytes_tokenizer(507), folder)


def opened(file: Path) -> Llama:
    """Return a model with caches in float32."""
    return Llama(str(file), n_ctx=256, n_batch=256, n_threads=1, logits_all=True, type_k=0, type_v=0, verbose=False)


@pytest.mark.parametrize("target", TARGETS)
def test_it_has_the_student_s_logits_and_text(target: str, teacher: Path, tmp_path: Path) -> None:
    spec = composer.new(tmp_path / "spec", target=target, source=teacher)
    student: Any = randomised(composer.build(spec, teacher, overrides=OVERRIDES.get(target, [])))
    written = gguf_of(native_of(student, target), student, teacher, {})
    write_gguf(written, tmp_path / "model.gguf", "f32")
    own = opened(tmp_path / "model.gguf")
    tokens = torch.randint(3, student.config.vocab_size, (1, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = student(tokens).logits[0]
    own.eval(tokens[0].tolist())
    actual = torch.from_numpy(own.scores[: tokens.shape[1]].copy())
    torch.testing.assert_close(actual, expected, rtol=0, atol=CLOSE * float(expected.abs().max()))
    settings = {"max_new_tokens": TEXT, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    text = student.generate(tokens[:, :PROMPT], **settings)[0, PROMPT:].tolist()
    assert greedy(own, tokens[0, :PROMPT].tolist()) == text
    for kind in ("f16", "q8_0", "q4_0"):
        write_gguf(written, tmp_path / f"{kind}.gguf", kind)
        narrow = opened(tmp_path / f"{kind}.gguf")
        narrow.eval(tokens[0].tolist())
        difference = torch.from_numpy(narrow.scores[: tokens.shape[1]].copy()) - expected
        assert float(difference.abs().max()) <= TYPES[kind] * float(expected.abs().max())


def greedy(model: Llama, prompt: list[int]) -> list[int]:
    """Return the greedy text after a prompt that is read in two pieces."""
    text: list[int] = []
    model.reset()
    model.eval(prompt[:17])
    model.eval(prompt[17:])
    for _ in range(TEXT):
        text.append(int(model.scores[model.n_tokens - 1].argmax()))
        model.eval(text[-1:])
    return text


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_a_trained_student_writes_the_text_of_generate(kind: str, teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(f"{WORDS[0]} " * 40, encoding="utf-8")
    spec = composer.new(tmp_path / "spec", target="qwen3_5", source=teacher)
    composer.build_folder(spec, teacher, tmp_path / "built")
    steps = [
        f"recipe.{stage}.{item}" for stage in ("transfer", "finetune") for item in ("tokens=null", "steps=4", "batch=2", "lr=1e-2")
    ]
    composer.distill(tmp_path / "built", str(tmp_path / "texts.txt"), out=tmp_path / "trained",
                     overrides=["recipe.sequence=32", *steps], progress=False)  # fmt: skip
    report = composer.export(tmp_path / "trained", tmp_path / "out", gguf=True, quantize=kind)
    assert report.difference is not None
    if kind == "f32":
        assert report.difference < CLOSE
        (check,) = (check for check in composer.verify(tmp_path / "out").checks if check.what == "logits")
        assert check.outcome == "passed"
    expected = composer.generate(tmp_path / "trained", WORDS[0], max_new_tokens=TEXT)
    own = opened(tmp_path / "out" / report.file)
    actual = own.create_completion(WORDS[0], max_tokens=TEXT, temperature=0)["choices"][0]["text"]
    assert actual == expected.new_text.replace("\ufffd", ""), "llama-cpp-python leaves out bytes that are no character"


@pytest.mark.parametrize("own", [bytes_tokenizer(400), characters_tokenizer()], ids=["bytes", "characters"])
def test_it_makes_the_student_s_tokens_of_texts(own: Tokenizer, teacher: Path, tmp_path: Path) -> None:
    student = composer.build("softmax", teacher)
    folder = write_tokenizer(own, tmp_path / "tokenizer")
    write_gguf(gguf_of(native_of(student), student, folder, {}), tmp_path / "model.gguf", "q8_0")
    model, tokenizer = opened(tmp_path / "model.gguf"), AutoTokenizer.from_pretrained(folder)
    for text in (*WORDS, "the  little\n\nlist", "Ärger 日本 🙂", " lit<eos>the"):
        assert model.tokenize(text.encode(), add_bos=True, special=True) == tokenizer(text).input_ids


def test_no_folder_appears_for_a_file_that_differs(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composer.build_folder("softmax", teacher, tmp_path / "student")
    monkeypatch.setattr("composer.exporting.targets.softmax.ROTATED", {})
    with pytest.raises(ExportError, match="was run by llama.cpp, and its logits differ from the model's by"):
        composer.export(tmp_path / "student", tmp_path / "out", gguf=True)
    assert not (tmp_path / "out").exists()
