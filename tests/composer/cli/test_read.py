"""`compose read` reads a text once, and `compose generate --state` continues as if the model had just read it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

import composer
from composer.model import generation, state_file
from composer.model.cache import ComposedCache, new_cache
from composer.reporting.words import size
from composer.system import devices
from tests.composer.cli.conftest import WORDS, Compose

TEXT = "once upon a time there was a cat and it slept " * 20
PROMPT = "there was a cat"


@pytest.fixture
def folder(compose: Compose, student: Path) -> Path:
    """A copy of the student whose tokenizer adds a BOS token, and a text."""
    shutil.copytree(student, "mine")
    tokenizer = Tokenizer.from_file("mine/tokenizer.json")
    tokenizer.post_processor = TemplateProcessing(single=f"{WORDS[1]} $A", special_tokens=[(WORDS[1], 1)])
    tokenizer.save("mine/tokenizer.json")
    Path("book.txt").write_text(TEXT)
    return Path("mine")


def ids_of(folder: Path, text: str, *, start: bool) -> torch.Tensor:
    return AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", add_special_tokens=start)["input_ids"]


@torch.no_grad()
def greedy(folder: Path, *pieces: torch.Tensor, count: int) -> list[int]:
    """Return the model's greedy tokens after the pieces of a text."""
    model, written = composer.load(folder), []
    cache = new_cache(model.config)
    (*earlier, last) = pieces
    for piece in earlier:
        model(piece, past_key_values=cache)
    for _ in range(count):
        written.append(int(model(last, past_key_values=cache).logits[0, -1].argmax()))
        last = torch.tensor([written[-1:]])
    return written


def answered(compose: Compose, *arguments: object) -> dict[str, Any]:
    result = compose("generate", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_prompt_continues_the_text(compose: Compose, folder: Path) -> None:
    result = compose("read", folder, "--text", "book.txt", "-o", "book.state")
    assert result.exit_code == 0, result.output
    book, prompt = ids_of(folder, TEXT, start=True), ids_of(folder, PROMPT, start=False)
    assert book[0, 0] == 1
    assert book.shape[1] == 221
    costs = composer.explain("lolcats", folder, sequence=221).state_bytes
    assert result.stdout.startswith("Read 221 tokens. State: book.state\n")
    assert f"  {size(costs)}, " in result.stdout
    answer = answered(compose, folder, "--state", "book.state", "--prompt", PROMPT, "--max-new-tokens", 8)
    written = greedy(folder, book, prompt, count=8)
    assert answer["new_text"] == AutoTokenizer.from_pretrained(folder).decode(written, skip_special_tokens=True)
    assert (answer["state_tokens"], answer["prompt_tokens"], answer["new_tokens"]) == (221, 4, 8)


@pytest.mark.parametrize(
    ("variable", "small", "load", "expected"),
    [(None, 10**7, 0.0, 1), (None, 0, 0.4, 2), (None, 0, 2.8, 1), ("OMP_NUM_THREADS", 10**7, 2.0, 2)],
)
def test_small_models_and_busy_machines_read_on_one_thread(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, small: int, load: float, expected: int
) -> None:
    """A number of threads that the user has set is kept."""
    monkeypatch.setattr(devices, "SMALL", small)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    seen: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "2")
    monkeypatch.setattr(generation, "read_in_pieces", lambda *_: seen.append(torch.get_num_threads()))
    monkeypatch.setattr(state_file, "save_cache", lambda path, *_: path.touch())
    monkeypatch.setattr(ComposedCache, "bytes", lambda _: 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        composer.read(folder, "book.txt", "state")
        assert (seen, torch.get_num_threads()) == ([expected], 2)
    finally:
        torch.set_num_threads(before)


def test_read_and_generate_in_python_report_the_state(folder: Path) -> None:
    progress: list[tuple[int, int]] = []
    report = composer.read(folder, "book.txt", "book.state", progress=lambda done, length: progress.append((done, length)))
    assert progress == [(221, 221)]
    assert (report.tokens, report.growing_layers) == (221, ())
    assert report.state_bytes == composer.explain("lolcats", folder, sequence=221).state_bytes
    assert report.file_bytes == Path("book.state").stat().st_size > report.state_bytes
    answer = composer.generate(folder, PROMPT, max_new_tokens=4, state="book.state")
    assert answer.state_tokens == 221
    assert "4 + 4 tokens after 221 of the state" in repr(answer)
    again = composer.generate(folder, PROMPT, max_new_tokens=4, temperature=2.0, seed=3, state=Path("book.state"))
    assert again.state_tokens == 221


def test_a_state_includes_the_generated_text(compose: Compose, folder: Path) -> None:
    """The state includes the last generated token, so two calls equal one text."""
    assert compose("read", folder, "--text", "book.txt", "-o", "book.state").exit_code == 0
    first = answered(
        compose, folder, "--state", "book.state", "--prompt", PROMPT, "--max-new-tokens", 5, "--state-out", "later.state"
    )
    second = answered(compose, folder, "--state", "later.state", "--prompt", "and it", "--max-new-tokens", 5)
    assert (first["state_tokens"], second["state_tokens"]) == (221, 221 + 4 + 5)
    book, prompt = ids_of(folder, TEXT, start=True), ids_of(folder, PROMPT, start=False)
    written = torch.tensor([greedy(folder, book, prompt, count=5)])
    wanted = greedy(folder, book, prompt, *written.split(1, dim=1), ids_of(folder, "and it", start=False), count=5)
    assert second["new_text"] == AutoTokenizer.from_pretrained(folder).decode(wanted, skip_special_tokens=True)


def test_a_state_of_a_prompt_ends_before_eos(compose: Compose, folder: Path) -> None:
    """Without --state a text begins. A final EOS token is not part of the text that a further prompt continues."""
    start = ids_of(folder, PROMPT, start=True)
    end = greedy(folder, start, count=3)[2]
    written = greedy(folder, start, count=3)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [63, end]}))
    first_end = written.index(end) + 1
    answer = answered(compose, folder, "--prompt", PROMPT, "--max-new-tokens", 9, "--state-out", "a.state")
    assert answer["new_tokens"] == first_end
    second = answered(compose, folder, "--state", "a.state", "--prompt", "and", "--max-new-tokens", 1)
    assert second["state_tokens"] == 5 + first_end - 1


def test_growing_states_are_reported_and_continue(compose: Compose, teacher: Path) -> None:
    Path("book.txt").write_text(TEXT)
    assert compose("build", "softmax", "--from", teacher, "-o", "full").exit_code == 0
    result = compose("read", "full", "--text", "book.txt", "-o", "full.state")
    assert "the state grows with the text in layers 0 to 1\n" in result.stdout
    answer = answered(compose, "full", "--state", "full.state", "--prompt", PROMPT, "--max-new-tokens", 4)
    whole = answered(compose, "full", "--prompt", TEXT + PROMPT, "--max-new-tokens", 4)
    assert answer["new_text"] == whole["new_text"]


def refused(compose: Compose, *arguments: object) -> str:
    result = compose(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return " ".join(result.stderr.split())


def test_states_of_other_models_are_refused(compose: Compose, folder: Path, teacher: Path) -> None:
    """Other heads, weights or tokenizers are rejected. An added chat template is not another model."""
    assert compose("read", folder, "--text", "book.txt", "-o", "book.state").exit_code == 0
    contents = Path("book.state").read_bytes()
    continued = ("--state", "book.state", "--prompt", PROMPT, "--max-new-tokens", 1)
    assert compose("build", "lola", "--from", teacher, "-o", "other").exit_code == 0
    message = refused(compose, "generate", "other", *continued)
    assert "book.state is the state of another model. What differs: the spec (hash " in message
    assert "Read the text again: `compose read MODEL --text FILE -o STATE`." in message
    trained = folder / "fresh.safetensors"
    weights = load_file(trained)
    next(iter(weights.values())).add_(0.01)
    kept = trained.read_bytes()
    save_file(weights, trained, metadata={"format": "pt"})
    assert "What differs: the weights (fresh.safetensors)." in refused(compose, "generate", folder, *continued)
    trained.write_bytes(kept)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert compose("generate", folder, *continued).exit_code == 0
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"slept"', '"swept"'))
    assert "What differs: the tokenizer (tokenizer.json)." in refused(compose, "generate", folder, *continued)
    assert Path("book.state").read_bytes() == contents


def test_invalid_arguments_are_refused(compose: Compose, folder: Path, teacher: Path) -> None:
    Path("empty.txt").write_text("")
    Path("here.state").write_text("x")
    Path("states").mkdir()
    prompt = ("--prompt", PROMPT)
    for arguments, message in (
        (("read", teacher, "--text", "book.txt", "-o", "a"), "is not a composed model, so it has no state to keep."),
        (("generate", teacher, *prompt, "--state-out", "a"), "is not a composed model, so it has no state to keep."),
        (("read", folder, "--text", "none.txt", "-o", "a"), "none.txt cannot be read as text: No such file or directory"),
        (
            ("read", folder, "--text", "book.txt", "-o", "here.state"),
            "here.state exists; name another file, or replace it with --force",
        ),
        (("read", folder, "--text", "book.txt", "-o", "states"), "states is a folder; name a file, such as states/book.state"),
        (("generate", folder, *prompt, "--state-out", "here.state"), "here.state exists; name another file"),
        (("generate", folder, *prompt, "--state", "none.state"), "none.state cannot be read: No such file or directory"),
        (("generate", folder, *prompt, "--state", "here.state"), "does not begin with a safetensors header"),
        (("generate", folder, *prompt, "--state", "here.state", "--chat"), "leave out --chat, or the state"),
        (("generate", folder, *prompt, "--force"), "add --state-out, or leave out --force"),
    ):
        assert message in refused(compose, *arguments)
    assert not Path("a").exists()
    assert compose("read", folder, "--text", "book.txt", "-o", "here.state", "--force").exit_code == 0
    assert "the prompt has no tokens" in refused(compose, "generate", folder, "--state", "here.state", "--prompt", "")


def test_a_text_without_tokens_is_refused(compose: Compose, student: Path) -> None:
    Path("empty.txt").write_text("")
    assert "empty.txt has no tokens" in refused(compose, "read", student, "--text", "empty.txt", "-o", "a")


def test_texts_beyond_the_learned_positions_are_refused(compose: Compose, teacher: Path) -> None:
    """Text and continuation together may not exceed the learned positions. With --state-out the last token is read, too."""
    trunk = "{width: 32, layers: 1, heads: 4, vocabulary: 64, embedding: learned, length: 16}"
    Path("short.yaml").write_text(f"compose: 1\nname: short\nextends: lawcat\ntrunk: {trunk}\n")
    assert compose("build", "short.yaml", "--fresh", "-o", "short", "--tokenizer", teacher).exit_code == 0
    Path("long.txt").write_text("once upon " * 9)
    Path("fits.txt").write_text("once upon " * 6)
    message = refused(compose, "read", "short", "--text", "long.txt", "-o", "a.state")
    assert message == "short has learned 16 positions, too few for 18 tokens: read a text of at most 16."
    assert compose("read", "short", "--text", "fits.txt", "-o", "a.state").exit_code == 0
    continued = ("generate", "short", "--state", "a.state", "--prompt", "a cat", "--max-new-tokens", 3)
    assert compose(*continued).exit_code == 0
    assert (
        "too few for 17 tokens, 2 of the prompt and 3 to write after 12 of the state: the largest possible sum is 16."
        in refused(compose, *continued, "--state-out", "b.state")
    )
