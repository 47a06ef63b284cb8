"""A served model answers over HTTP with the text of ``generate``, whole or streamed, also for several clients at once."""

from __future__ import annotations

import json
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from transformers.utils import import_utils

import composer
from composer.commands.serve import Server
from composer.errors import ComposerError

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
PROMPTS = ("the girl went to", "one two", "a very old house stood by the sea , and")
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoLCATs model whose tokenizer has a chat template."""
    out = tmp_path_factory.mktemp("served") / "lolcats"
    composer.build_folder("lolcats", TEACHER, out)
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    served = composer.serve(folder, port=0, dtype="float32")
    yield served
    served.close()


def post(server: Server, path: str, **body: Any) -> str:
    """Return the response to a request as text."""
    data = json.dumps({"model": server.model, "temperature": 0, "max_tokens": 6, **body}).encode()
    request = urllib.request.Request(f"{server.address}/v1/{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def written(folder: Path, prompt: str, *, chat: bool = False) -> str:
    return composer.generate(folder, prompt, max_new_tokens=6, chat=chat).new_text


def test_it_writes_what_generate_writes_for_several_callers(server: Server, folder: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda prompt: json.loads(post(server, "completions", prompt=prompt)), PROMPTS))
    texts = [answer["choices"][0]["text"].strip() for answer in answers]
    assert texts == [written(folder, prompt).strip() for prompt in PROMPTS]
    assert len(set(texts)) > 1


def test_pieces_are_the_whole(server: Server) -> None:
    lines = post(server, "completions", prompt=PROMPTS[0], stream=True).splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    pieces = [event["choices"][0].get("text") or "" for event in events if event.get("choices")]
    whole = json.loads(post(server, "completions", prompt=PROMPTS[0]))["choices"][0]["text"]
    assert "".join(pieces).strip() == whole.strip() != ""


def test_it_holds_a_conversation(server: Server, folder: Path) -> None:
    answer = json.loads(post(server, "chat/completions", messages=[{"role": "user", "content": PROMPTS[0]}]))
    assert answer["choices"][0]["message"]["content"].strip() == written(folder, PROMPTS[0], chat=True).strip()


def test_the_model_has_the_folders_name(server: Server) -> None:
    assert server.model == "lolcats"
    with urllib.request.urlopen(f"{server.address}/v1/models", timeout=60) as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["lolcats"]
    assert json.loads(post(server, "completions", prompt="one"))["model"] == "lolcats"


def test_another_model_is_not_served(server: Server) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(server, "completions", prompt="one", model="another")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("processor_config.json", {"processor_class": "LlavaProcessor", "image_token": "x"}),
        ("processor_config.json", {"processor_class": "CLIPProcessor", "image_processor": 3}),
        ("tokenizer.json", {}),
    ],
)
def test_a_processor_that_does_not_fit_is_a_mistake(folder: Path, tmp_path: Path, file: str, content: dict[str, Any]) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    (copied / file).unlink(missing_ok=True)
    (copied / file).write_text(json.dumps(content))
    with pytest.raises(ComposerError, match="copied has a tokenizer or processor that transformers cannot read; copy"):
        composer.serve(copied, port=0)


def test_mistakes_are_told_before_anything_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ComposerError, match="Choose another `port`"):
        composer.serve(folder, port=taken.getsockname()[1])
    with pytest.raises(ComposerError, match="Rename it"):
        composer.serve(folder.rename(folder.with_name("a@b")), port=0)
    folder.with_name("a@b").rename(folder)
    monkeypatch.setattr(import_utils, "is_serve_available", lambda: False)
    with pytest.raises(ComposerError, match=r"pip install '\.\[serve\]'"):
        composer.serve(folder, port=0)
