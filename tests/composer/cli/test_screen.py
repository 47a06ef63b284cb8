"""What a terminal cannot show ends no command, and what takes long is said at once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.composer.programs import composed

ROOT = Path(__file__).parents[3]
TEACHER = ROOT / "examples" / "teacher"


def started(*arguments: object, **variables: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "composer", *map(str, arguments)]
    surroundings = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"} | variables
    return subprocess.Popen(command, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_encoding_lacks(encoding: str) -> None:
    ended, stdout, stderr = composed(ROOT, "explain", "lolcats", "--from", TEACHER, encoding=encoding)
    assert ended == 0, stderr
    assert b"lolcats" in stdout
    ended, stdout, stderr = composed(ROOT, "parts", "hedgehog", "--json", encoding=encoding)
    assert ended == 0, stderr
    assert "φ" in json.dumps(json.loads(stdout), ensure_ascii=False), "JSON loses nothing"


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for one in held:
            one.close()


def test_a_server_that_never_answers(silent: str, tmp_path: Path) -> None:
    """A word at once, a limit, and how to set it."""
    asking = started(
        *("build", "lolcats", "--from", "owner/name", "--dry-run"),
        HF_ENDPOINT=silent,
        HF_HOME=str(tmp_path),
        HF_HUB_ETAG_TIMEOUT="3",
    )
    assert asking.stderr is not None
    word = asking.stderr.readline().decode()
    assert asking.poll() is None
    assert "Asking the Hub for 'owner/name'" in word
    assert "3 s for each answer (HF_HUB_ETAG_TIMEOUT)" in word
    began = time.monotonic()
    stdout, stderr = asking.communicate(timeout=60)
    assert time.monotonic() - began < 30
    assert (asking.returncode, stdout) == (2, b"")
    assert b"the Hub has not answered within 3 s. Wait longer (HF_HUB_ETAG_TIMEOUT=SECONDS)" in stderr
