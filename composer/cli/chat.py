"""``compose chat``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import typer

from composer.cli.derived import Screen, command
from composer.cli.screen import print_document, print_mistake, say
from composer.commands.chat import ChatOptions, run_chat
from composer.errors import ComposerError

HELP = "Each line is a message. /reset begins a new conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer."


@command(ChatOptions)
def chat(options: ChatOptions, screen: Screen) -> None:
    talk = run_chat(options)
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        say(HELP, err=True)
    for line in _read_typed_lines() if at_terminal else _read_piped_lines():
        if line == "/exit":
            break
        if line == "/reset":
            talk.reset()
        elif line:
            try:
                answer = talk.say(line, lambda text: print_document(text, end=""))
                print_document("" if answer.complete else " …")
            except ComposerError as error:
                if not at_terminal:
                    raise
                print_mistake(error, as_json=False)
            except KeyboardInterrupt:
                print_document("")
                if not at_terminal:
                    raise


def _read_typed_lines() -> Iterator[str]:
    """Lines as they are typed, up to Ctrl-D."""
    import readline  # noqa: F401  # input() then edits lines, and remembers them

    while True:
        try:
            yield _check_line(input("> "))
        except EOFError:
            print_document("")
            return


def _read_piped_lines() -> Iterator[str]:
    """Yield the lines of stdin. Raises ComposerError if they are no text."""
    stream = typer.get_text_stream("stdin")
    while True:
        try:
            line = stream.readline()
        except UnicodeDecodeError as error:
            raise ComposerError(f"stdin is no text in the terminal's encoding ({error.reason}); save it as UTF-8") from error
        if not line:
            return
        yield _check_line(line)


def _check_line(line: str) -> str:
    """Return the line without blank space around it. Raises ComposerError if it is no text."""
    try:
        line.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ComposerError(f"a line is no text in the terminal's encoding ({error.reason}); write it in UTF-8") from error
    return line.strip()
