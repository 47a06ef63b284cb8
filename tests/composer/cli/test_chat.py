"""`compose chat` reads lines and streams answers on a terminal and in a pipe, and ends without a traceback."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.commands.chat import Chat
from tests.composer.cli.conftest import Compose

TEMPLATE = "{% for m in messages %}{{ m.content }} it {% endfor %}"


@pytest.fixture
def chatty(student: Path) -> Path:
    """The student with a chat template."""
    shutil.copytree(student, "chatty")
    Path("chatty/chat_template.jinja").write_text(TEMPLATE)
    return Path("chatty")


def test_every_line_of_a_pipe_is_answered(compose: Compose, chatty: Path) -> None:
    result = compose("chat", chatty, "--max-new-tokens", 4, stdin="once upon\n\na time\n/reset\nonce upon\n/exit\nnever read\n")
    assert (result.exit_code, result.stderr) == (0, "")
    talk = composer.chat(chatty, max_new_tokens=4)
    first, second = (talk.say(line) for line in ("once upon", "a time"))
    lines = [answer.text + ("" if answer.complete else " …") for answer in (first, second, first)]
    assert result.stdout == "".join(f"{line}\n" for line in lines)


def test_undecodable_input_is_refused(compose: Compose, chatty: Path) -> None:
    result = compose("chat", chatty, "--max-new-tokens", 4, stdin=b"caf\xe9\n")
    assert result.exit_code == 2
    assert "stdin is no text in the terminal's encoding" in result.stderr
    assert compose("chat", chatty, stdin="").exit_code == 0


def test_a_model_without_a_chat_template_is_refused(compose: Compose, student: Path) -> None:
    result = compose("chat", student, stdin="once\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "has no chat template, so it reads no conversations" in result.stderr


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run the command on a terminal with these typed lines, and return the model's prompts. An exception stands for a key."""

    def run(chatty: Path, *lines: str | type[BaseException]) -> list[str]:
        from composer.commands import chat

        waiting = list(lines)

        def read(_: str) -> str:
            line = waiting.pop(0)
            if isinstance(line, str):
                return line
            raise line

        prompts: list[str] = []
        before = Chat.say

        def say(self: Chat, text: str, on_text: Any = None) -> Any:
            prompts.append(text)
            if text == "stop":
                raise KeyboardInterrupt
            return before(self, text, on_text)

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(Chat, "say", say)
        names = ("system", "temperature", "top_p", "seed", "device", "backend", "graph", "parts")
        left_out = dict.fromkeys(names)
        chat.chat_command.callback(model=str(chatty), max_new_tokens="4", **left_out)
        return prompts

    return run


def test_ctrl_c_stops_an_answer_and_ctrl_d_ends_the_chat(
    typed: Any, compose: Compose, chatty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C stops an answer, not the chat; Ctrl-D ends it."""
    assert typed(chatty, "once upon", " ", "stop", "/reset", "a time", EOFError) == ["once upon", "stop", "a time"]
    assert "/reset begins a new conversation" in capsys.readouterr().err
    assert typed(chatty, "/exit", "never") == []


def test_mistakes_at_a_terminal_do_not_end_it(
    typed: Any, compose: Compose, chatty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (chatty / "chat_template.jinja").write_text(
        TEMPLATE + "{% if messages[-1].content == 'was' %}{{ raise_exception('odd') }}{% endif %}"
    )
    assert typed(chatty, "was", "once", EOFError) == ["was", "once"]
    assert "the chat template refuses these messages: odd" in capsys.readouterr().err


def test_ctrl_c_at_the_prompt_ends(typed: Any, compose: Compose, chatty: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        typed(chatty, KeyboardInterrupt)


def test_generate_with_chat_equals_the_first_answer_of_a_chat(compose: Compose, chatty: Path) -> None:
    result = compose("generate", chatty, "--prompt", "once upon", "--chat", "--system", "a cat", "--max-new-tokens", 4)
    assert (result.exit_code, result.stderr) == (0, "")
    talk = composer.chat(chatty, system="a cat", max_new_tokens=4)
    assert result.stdout == talk.say("once upon").text + "\n"
    result = compose("generate", chatty, "--prompt", "once upon", "--max-new-tokens", 4)
    assert result.stderr.startswith("chatty has a chat template, and the prompt is continued without it. For an answer use --chat")
