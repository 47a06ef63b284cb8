"""Chat templates are rendered in a process of their own, within limits of time, memory and length.

A template is a program of whoever made the tokenizer's folder. The sandbox of jinja2 keeps it from files and from Python's
internals, but neither from a loop without an end nor from ``"a" * 10**10``, and such work happens in one call, where nothing in
this process could stop it. So it happens in a child that the system ends:

- Processor time: ``RLIMIT_CPU``, moved on before each rendering, ends the child after ``SECONDS``. A busy machine does not matter.
- Memory: ``RLIMIT_AS`` refuses more than ``MEMORY`` to the child. macOS does not enforce that limit; the others hold there, too.
- Length: the child does not send more than ``LONGEST`` characters.

The child is started once, with the first template, and serves every later one. It is started as a new program, not forked, as torch
may have threads here, and runs the file ``chat_template_worker.py`` alone. It ends with this process: when its input is closed,
or, in the middle of a template, when its time is over. A process that was forked from this one starts another child.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.errors import ComposerError
from composer.system.subprocesses import environment_of_child
from converters.bounded import is_text, shorten

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SECONDS = 5
"""Processor time of one exchange, compilation included. Most need less than a thousandth of a second."""
MEMORY = 2**30
"""Largest number of bytes for rendering."""
LONGEST = 64 * 2**20
"""Characters of all texts of one exchange."""
_LONGEST_MESSAGE = 500
_WORKER = Path(__file__).with_name("chat_template_worker.py")


class TemplateError(ComposerError):
    """A chat template refused the messages, or exceeded a limit. The message has no control characters."""


@dataclass(frozen=True)
class Rendered:
    """A rendered conversation. answers: where the text inside ``{% generation %}`` begins and ends, in characters."""

    text: str
    answers: tuple[tuple[int, int], ...] = ()


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """Return the text that ``tokenizer.apply_chat_template(messages, tokenize=False, **options)`` returns, within limits.

    options: those of ``apply_chat_template`` that concern the text, such as ``tools``, ``documents``, ``add_generation_prompt`` and
    ``continue_final_message``, and variables for the template. Raises TemplateError.
    """
    return render_starts(tokenizer, messages, [(len(messages), options.pop("add_generation_prompt", False))], **options)[0].text


def render_starts(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], starts: Sequence[tuple[int, bool]], **options: Any
) -> list[Rendered]:
    """Return the texts of some starts of a conversation, in one exchange with the child, which is faster. They share the limits.

    starts: of each, the number of its messages, and whether the text ends with the prompt for the assistant's next turn. With
    ``return_assistant_tokens_mask=True`` the texts have ``answers``. Raises TemplateError.
    """
    try:
        template = tokenizer.get_chat_template(options.pop("chat_template", None), options.get("tools"))
    except ValueError as error:
        raise TemplateError(f"the tokenizer ({shorten(str(tokenizer.name_or_path))}) has no chat template") from error
    if not all(count for count, _ in starts):
        raise TemplateError("a conversation without messages; expected at least one")
    request = {
        "starts": starts,
        # Like apply_chat_template: many templates cannot handle a content of None.
        "messages": [{key: value for key, value in message.items() if value is not None} for message in messages],
        "options": {**tokenizer.special_tokens_map, **options},
    }
    try:
        content = json.dumps(request, default=_placeholder).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateError(f"these messages are not what JSON can hold: {shorten(str(error), _LONGEST_MESSAGE)}") from error
    rendered = [Rendered(text, tuple((start, end) for start, end in spans)) for text, spans in _ask_for_texts(template, content)]
    for text in (entry.text for entry in rendered if not is_text(entry.text)):
        place = next(place for place, character in enumerate(text) if not is_text(character))
        raise TemplateError(f"it writes U+{ord(text[place]):04X} at character {place:,}, half of a surrogate pair")
    return rendered


@dataclass
class _Worker:
    """The child. template: the one that it was sent last."""

    process: subprocess.Popen[bytes]
    template: str | None = None

    def stop(self) -> None:
        """End the child. It may be in the middle of a template."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        with suppress(OSError):  # what it has not read is lost
            self.process.stdin.close()

    def ask(self, template: str, request: bytes) -> dict[str, Any]:
        """Return its reply. Raises OSError or ValueError if it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        program = b"null" if template == self.template else json.dumps(template).encode()
        self.template = template
        self.process.stdin.write(b"%d %d\n%b%b" % (len(program), len(request), program, request))
        self.process.stdin.flush()
        size = int(self.process.stdout.readline())
        return json.loads(self.process.stdout.read(size).decode("utf-8", "surrogatepass"))


class _Client:
    """The child of this process, if it has been started. Only one thread speaks to it at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.worker: _Worker | None = None

    def ask(self, template: str, request: bytes) -> dict[str, Any]:
        """Return the child's reply. Raises TemplateError if the system ended the child."""
        with self.lock:
            self.worker = self.worker or _start()
            try:
                return self.worker.ask(template, request)
            except (OSError, ValueError):
                worker = self._drop_worker()
                raise TemplateError(_end_message(worker.process.returncode)) from None
            except BaseException:  # such as Ctrl-C, after which its reply would be read as that to the next request
                self._drop_worker()
                raise

    def stop(self) -> None:
        """End the child. The next template starts another."""
        with self.lock:
            if self.worker is not None:
                self._drop_worker()

    def _drop_worker(self) -> _Worker:
        worker, self.worker = self.worker, None
        assert worker is not None
        worker.stop()
        return worker


_client = _Client()
atexit.register(_client.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_client.__init__)  # the child of the process that was forked is not its own


def _ask_for_texts(template: str, request: bytes) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return the texts that the child makes of a request, with their spans. Raises TemplateError."""
    reply = _client.ask(template, request)
    if "error" in reply:
        raise TemplateError(shorten(reply["error"], _LONGEST_MESSAGE))
    return reply["texts"]


def _placeholder(value: object) -> str:
    """Return the replacement for a value that JSON cannot hold, such as a date of a Parquet file, as in transformers."""
    return f"<{type(value).__name__}>"


def _start() -> _Worker:
    environment = environment_of_child(OPENBLAS_NUM_THREADS="1")
    command = [sys.executable, str(_WORKER), str(SECONDS), str(MEMORY), str(LONGEST)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return _Worker(process)


def _end_message(code: int) -> str:
    import signal

    if code == -getattr(signal, "SIGXCPU", 24):
        return f"it needs more than {SECONDS} seconds of processor time, as a chat template with an endless loop does"
    return f"the process that renders it ended with the code {code}; a chat template that needs too much memory does that"
