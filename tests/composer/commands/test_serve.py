"""``serve`` opens what the other commands open, reports mistakes before it answers, and ends at once, also while requests run."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from composer.commands import serve as module
from composer.commands.serve import Server
from composer.errors import ComposerError
from tests.checkpoints import llama

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
PATIENCE = 60


def complete(address: str, model: str, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"model": model, "prompt": [5, 6], "temperature": 0, "max_tokens": 4, **fields}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{address}/v1/completions", body), timeout=PATIENCE) as answer:
        return json.load(answer)


def close_within_a_second(server: Server) -> None:
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 1.5
    assert not server.thread.is_alive()
    server.wait()  # returns at once


def test_a_model_of_transformers_is_served_with_its_own_settings() -> None:
    server = composer.serve(TEACHER, port=0, dtype="bfloat16", context=64)
    try:
        assert (server.model, server.engine.model.dtype) == ("teacher", torch.bfloat16)
        assert complete(server.address, "teacher")["usage"]["completion_tokens"] == 4
        with pytest.raises(urllib.error.HTTPError, match="400"):
            complete(server.address, "teacher", max_tokens=63)
    finally:
        close_within_a_second(server)
    assert repr(server) == f"Server(address='{server.address}', model='teacher')"


def test_a_model_reads_beyond_its_positions_where_context_says_so(tmp_path: Path) -> None:
    composer.build_folder("lawcat", TEACHER, tmp_path / "lawcat")
    server = composer.serve(tmp_path / "lawcat", port=0, context="1k")
    try:
        assert complete(server.address, "lawcat", prompt=[5] * 1000)["usage"]["prompt_tokens"] == 1000
    finally:
        close_within_a_second(server)


def test_the_server_stops_during_a_request() -> None:
    server = composer.serve(TEACHER, port=0)
    failures: list[Exception] = []

    def ask() -> None:
        try:
            complete(server.address, "teacher", max_tokens=254, logit_bias={"2": -100})
        except OSError as error:
            failures.append(error)

    server.engine.model.register_forward_pre_hook(lambda *_: time.sleep(0.05))
    asking = threading.Thread(target=ask)
    asking.start()
    deadline = time.monotonic() + PATIENCE
    while not server.engine.groups:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    close_within_a_second(server)
    asking.join(PATIENCE)
    assert len(failures) == 1


def test_mistakes_are_reported_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_writer", None)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ComposerError, match="Choose another `port`"):
        composer.serve(TEACHER, port=taken.getsockname()[1])
    with pytest.raises(ComposerError, match="Cannot listen on nowhere.invalid:0"):
        composer.serve(TEACHER, port=0, host="nowhere.invalid")
    with pytest.raises(ComposerError, match="context: expected a whole number of at least 2"):
        composer.serve(TEACHER, port=0, context=1)
    monkeypatch.setattr(module, "version_of", lambda _: None)
    with pytest.raises(ComposerError, match="uvicorn, which is not installed: pip install"):
        composer.serve(TEACHER, port=0)


def test_models_that_generate_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ComposerError, match="has no tokenizer"):
        composer.serve(llama(tmp_path / "bare"), port=0)
    composer.build_folder("latte-bidirectional", TEACHER, tmp_path / "both")
    with pytest.raises(ComposerError, match="bidirectional"):
        composer.serve(tmp_path / "both", port=0)
