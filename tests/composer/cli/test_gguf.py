"""Every command that reads a source reads a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.composer.cli.conftest import Compose
from tests.gguf_files import gguf_model, write_gguf

TEXTS = [{"text": "the cat and the cat and the cat " * 8} for _ in range(12)]
FEW = ("--set", "recipe.sequence=16", "--set", "recipe.transfer.steps=2", "--set", "recipe.transfer.batch=2")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", gguf_model("llama"))


def write_texts(folder: Path) -> None:
    (folder / "data.jsonl").write_text("".join(json.dumps(text) + "\n" for text in TEXTS))
    (folder / "texts.txt").write_text(TEXTS[0]["text"])


@pytest.mark.parametrize(
    "command",
    [
        "explain lolcats --from FILE",
        "check lolcats lola --from FILE",
        "show lolcats --from FILE --code",
        "diff lolcats lola --from FILE",
        "draw lolcats --from FILE -o picture.svg",
        "build lolcats --from FILE -o student --dry-run",
        "build lolcats --from FILE -o student --dtype float16 --copy --hash",
        "generate FILE --prompt the --max-new-tokens 2",
        "generate FILE --prompt the --chat --max-new-tokens 2",
        "eval FILE --tasks perplexity --text texts.txt --lengths 16 --dtype float32 -o scores",
        "bench FILE --prefill 8 --decode 8 --steps 1 --repeats 1",
        "sample FILE -o texts.jsonl --texts 1 --length 4",
        "logits FILE --data data.jsonl -o logits --sequence 16",
        "select lolcats --from FILE --data data.jsonl --keep 1 -o selected FEW",
    ],
)
def test_commands_read_gguf_files(tmp_path: Path, compose: Compose, file: Path, command: str) -> None:
    write_texts(tmp_path)
    arguments = [part for word in command.split() for part in (FEW if word == "FEW" else [word])]
    result = compose(*(file if word == "FILE" else word for word in arguments))
    assert result.exit_code == 0, result.output


def test_a_student_is_distilled_inspected_and_verified(tmp_path: Path, compose: Compose, file: Path) -> None:
    write_texts(tmp_path)
    for command in (
        ["build", "lolcats", "--from", file, "-o", "student"],
        ["distill", "student", "--data", "data.jsonl", "--stage", "transfer", *FEW, "-o", "learned"],
        ["inspect", "learned", "--teacher", file, "--text", "texts.txt", "--length", "16", "-o", "looked"],
        ["verify", "learned"],
    ):
        result = compose(*command)
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", ["explain", "check", "show", "draw", "build --from FILE"])
def test_gguf_files_are_refused_as_specs(compose: Compose, file: Path, command: str) -> None:
    first, *more = command.split()
    result = compose(first, file, *(file if word == "FILE" else word for word in more))
    assert result.exit_code == 2, result.output
    assert "names a GGUF file, which is a source and no spec: name a spec, and the file with --from" in " ".join(
        result.output.split()
    )
