"""Characters that a terminal cannot show stop no command, and slow steps are announced."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from composer.errors import ComposerError
from composer.reporting import progress, terminal
from composer.reporting.tables import Table, View
from composer.system.notices import inform, warn_user
from tests.composer.cli.conftest import Compose
from tests.composer.programs import composed

ROOT = Path(__file__).parents[3]
TEACHER = ROOT / "examples" / "teacher"


def started(*arguments: object, **variables: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "composer", *map(str, arguments)]
    surroundings = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"} | variables
    return subprocess.Popen(command, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_missing_from_the_encoding_raise_no_error(encoding: str) -> None:
    ended, stdout, stderr = composed(ROOT, "explain", "lolcats", "--from", TEACHER, encoding=encoding)
    assert ended == 0, stderr
    assert b"lolcats" in stdout
    ended, stdout, stderr = composed(ROOT, "parts", "hedgehog", "--json", encoding=encoding)
    assert ended == 0, stderr
    assert "φ" in json.dumps(json.loads(stdout), ensure_ascii=False), "JSON loses nothing"


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
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
        for stream in held:
            stream.close()


def test_a_silent_server_ends_the_command_after_the_timeout(silent: str, tmp_path: Path) -> None:
    """A message appears at once, the wait is limited, and the message tells how to set the limit."""
    asking = started(
        *("build", "lolcats", "--from", "owner/name", "--dry-run"),
        HF_ENDPOINT=silent,
        HF_HOME=str(tmp_path),
        HF_HUB_ETAG_TIMEOUT="3",
    )
    assert asking.stderr is not None
    word = asking.stderr.readline().decode()
    assert asking.poll() is None
    assert "Requesting 'owner/name' from the Hub" in word
    assert "3 s for each answer (HF_HUB_ETAG_TIMEOUT)" in word
    began = time.monotonic()
    stdout, stderr = asking.communicate()
    assert time.monotonic() - began < 30
    assert (asking.returncode, stdout) == (2, b"")
    assert b"the Hub has not answered within 3 s. Wait longer (HF_HUB_ETAG_TIMEOUT=SECONDS)" in stderr


NASTY = "\x1b[31m\x9b1m\u202e\r\u200b"
SHOWN = r"\x1b[31m\x9b1m\u202e\r\u200b"


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Set whether stdout is a terminal."""
    return lambda is_terminal: monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)


def test_messages_tables_and_notices_are_escaped(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of other libraries are escaped, too, also in redirected output, since a log is read on a terminal later."""
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    with terminal.notices_shown():
        terminal.say(NASTY)
        terminal.heading(NASTY)
        terminal.print_table([(NASTY, NASTY)], headers=(NASTY, "b"))
        terminal.print_view(View(NASTY, (Table("", ("a",), ((NASTY,),)),), (NASTY,), NASTY))
        terminal.print_mistake(ComposerError(NASTY), as_json=False)
        warn_user(NASTY)
        inform(NASTY)
        logging.getLogger("of.another.library").warning("%s", NASTY)
        warnings.showwarning(RuntimeWarning(NASTY), RuntimeWarning, "a.py", 1)
    stdout, stderr = capsys.readouterr()
    assert stdout.count(SHOWN) == 9
    assert stderr.count(SHOWN) == 3
    assert [*caplog.messages, *shown] == [SHOWN, SHOWN]
    for character in NASTY:
        assert character not in (stdout + stderr) or character in "[31m"


def test_a_warning_that_no_gpu_is_there_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """fla warns at its import on every machine without a GPU."""
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    with terminal.notices_shown():
        for message in (f"{terminal.NO_GPU}, roll back to CPU.", "another warning"):
            warnings.showwarning(UserWarning(message), UserWarning, "hardware.py", 1)
    assert shown == ["another warning"]


def test_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.heading("[bold]a[/bold] :smile:")
    terminal.print_table([("[link=http://b]b[/link]",)])
    assert capsys.readouterr().out == "[bold]a[/bold] :smile:\n  [link=http://b]b[/link]\n"


@pytest.mark.parametrize(("is_terminal", "expected"), [(True, SHOWN), (False, NASTY)])
def test_documents_are_escaped_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], on_terminal: Callable[[bool], None], is_terminal: bool, expected: str
) -> None:
    on_terminal(is_terminal)
    terminal.print_document(NASTY)
    assert capsys.readouterr().out == f"{expected}\n"


def test_json_is_escaped_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_json({"a": f"{NASTY}\ud800"})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": f"{NASTY}\ud800"}
    assert not set(text) & set("\x1b\x9b\u202e\r\u200b\ud800")


@pytest.mark.parametrize("arguments", [["\x1b[31m"], ["--\x1b[31m"], ["show", "--\x1b[31m"], ["show", "lolcats", "\x1b[31m"]])
def test_refused_arguments_are_escaped(compose: Compose, arguments: list[str]) -> None:
    result = compose(*arguments)
    assert result.exit_code == 2
    assert r"\x1b[31m" in result.stderr
    assert "\x1b" not in result.output


def test_bars_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    monkeypatch.setattr(sys, "stderr", drawn)
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "200"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    with progress.bars("name", "text") as show:
        show(progress.BarUpdate(NASTY, 1, 2, f"[b]{NASTY}"))
    assert drawn.getvalue().count(SHOWN) >= 2
    assert f"[b]{SHOWN}" in drawn.getvalue()


def test_output_passes_through_one_module() -> None:
    """All output passes through one module, which escapes it."""
    calls = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "composer").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write")
    }
    assert calls == {
        "composer/reporting/terminal.py",
        "composer/cli/entry.py",  # before any import
        "composer/benching/memory.py",  # to its parent process
        "composer/exporting/gguf/worker.py",  # the same
    }
