"""The engine: one thread that owns the model, and generates for all requests.

Requests wait in a queue of bounded length. The engine admits them in order as rows become free. Rows that it admits together, and
whose prompts have similar lengths, are a group with a cache of its own: their prompts are read as one left-padded batch, and each
decoding step is one call of the model. All groups advance in turn, by one step each, so none waits for another to end. Groups join
where their states can be in one batch, and a row leaves its group as soon as its text ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from composer.serving.batch import DecodingGroup
from composer.serving.requests import RequestError, TextRequest
from composer.serving.sampling import TokenDrawer, TokenLogprobs, logprobs_of
from composer.system.devices import ran_out_of_memory

CONTEXT = 8
"""Tokens before a text that decide how its first token is written, such as with a space."""
MOST_PENDING = 16
"""Tokens that may wait for the rest of a character. A character has at most 4 bytes; bytes that are no text would wait forever."""
REPLACEMENT = "\ufffd"
"""The character that decoders write for bytes that are no text, or not yet."""


class PieceDecoder:
    """Decodes tokens one after another, without special tokens.

    context: the tokens before the text, which are not in it. special: the tokenizer's ``special_tokens``.
    """

    def __init__(self, tokenizer: Any, special: frozenset[int], context: Sequence[int] = ()) -> None:
        self.tokenizer, self.special = tokenizer, special
        self.ids = [token for token in context[-CONTEXT:] if token not in special]
        self.decoded = len(self.ids)

    def add(self, token: int) -> str:
        """Return the text that this token completes, which may be empty."""
        if token in self.special:
            return ""
        self.ids.append(token)
        piece = self._undecoded()
        if not piece or (piece.endswith(REPLACEMENT) and len(self.ids) - self.decoded < MOST_PENDING):
            return ""
        del self.ids[: self.decoded]
        self.decoded = len(self.ids)
        return piece

    def end(self) -> str:
        """Return the rest of the text."""
        return self._undecoded()

    def _undecoded(self) -> str:
        before, text = (self.tokenizer.decode(ids) if ids else "" for ids in (self.ids[: self.decoded], self.ids))
        return text[len(before) :]


def special_tokens(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that are no text, such as the one that ends a turn."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))


class StopFinder:
    """Finds the first of some texts that end an answer. Text that may be the beginning of such a text is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.pending = ""
        self.has_stopped = False

    def add(self, piece: str) -> str:
        """Return the text that is certain not to belong to a stop. After a stop, ``has_stopped`` is True."""
        text, self.pending = self.pending + piece, ""
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if places:
            self.has_stopped = True
            return text[: min(places)]
        count = max((self._count_begun(text, stop) for stop in self.stops), default=0)
        self.pending = text[len(text) - count :]
        return text[: len(text) - count]

    def end(self) -> str:
        """Return the text that is held back."""
        text, self.pending = self.pending, ""
        return text

    @staticmethod
    def _count_begun(text: str, stop: str) -> int:
        """Return the length of the longest end of a text that is a beginning of a stop."""
        return next((count for count in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:count])), 0)


LOG = logging.getLogger("composer.serving")
MOST_ROWS = 32
"""Texts that are generated at a time."""
MOST_RESERVED = 65_536
"""Tokens of all these texts together, prompts and new ones, for which memory may be needed. A single request may have more."""
MOST_WAITING = 64
"""Requests in the queue."""
LONGEST_WAIT = 120.0
"""Seconds in the queue."""
BUSY = "The server is busy: try again later."


@dataclass(frozen=True)
class WrittenPiece:
    """A piece of a text. index: of the text in its request. finish: why the text ends here; None while it goes on."""

    index: int
    text: str
    tokens: int
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: str | None = None


@dataclass(frozen=True, eq=False)
class Job:
    """A request for the engine.

    prompts: tokens, each for ``request.n`` texts. max_new_tokens: the largest number of new tokens of a text. ends: tokens that end
    a text. continues: whether the texts continue their prompts, so that their first token is written as it is after them. deliver:
    called in the engine's thread with every piece, and with the error that ends the request. is_abandoned: set when the client has
    left.
    """

    request: TextRequest
    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    ends: frozenset[int]
    continues: bool
    deliver: Callable[[WrittenPiece | RequestError], None]
    is_abandoned: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.monotonic)

    @property
    def rows(self) -> int:
        return len(self.prompts) * self.request.n

    @property
    def reserved(self) -> int:
        """The largest number of tokens of all texts."""
        return self.request.n * sum(len(prompt) + self.max_new_tokens for prompt in self.prompts)


class TextRow:
    """One text that is being generated."""

    def __init__(self, job: Job, index: int, tokenizer: Any, special: frozenset[int]) -> None:
        self.job, self.index = job, index
        self.prompt = job.prompts[index // job.request.n]
        self.drawer = TokenDrawer(job.request, self.prompt, index)
        self.decoder = PieceDecoder(tokenizer, special, self.prompt if job.continues else ())
        self.stops = StopFinder(job.request.stop)
        self.logprobs: list[TokenLogprobs] = []
        self.undelivered = self.count = 0

    def advance(self, logits: Tensor) -> int | None:
        """Draw a token and deliver the text that it completes. Return the token, or None if the text has ended."""
        token = self.drawer.draw(logits)
        self.count += 1
        self.undelivered += 1
        if (logprob_count := self.job.request.most_logprobs) is not None:
            self.logprobs.append(logprobs_of(logits, token, logprob_count))
        ended = token in self.job.ends
        text = "" if ended else self.stops.add(self.decoder.add(token))
        finish = "stop" if ended or self.stops.has_stopped else "length" if self.count == self.job.max_new_tokens else None
        if finish is not None and not self.stops.has_stopped:
            text += self.stops.add(self.decoder.end())
            finish = "stop" if self.stops.has_stopped else finish
            text += self.stops.end()
        if text or finish is not None:
            self.job.deliver(WrittenPiece(self.index, text, self.undelivered, tuple(self.logprobs), finish))
            self.logprobs, self.undelivered = [], 0
        return token if finish is None else None


class Engine:
    """Generates for the jobs that are submitted, in a thread of its own."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer, self.special = model, tokenizer, special_tokens(tokenizer)
        self.changed = threading.Condition()
        self.waiting: list[Job] = []
        self.groups: list[DecodingGroup] = []
        self.is_closing = False
        self.thread = threading.Thread(target=self._run, name="composer-engine", daemon=True)
        self.thread.start()

    def submit(self, job: Job) -> None:
        """Put a job into the queue. Raises RequestError if the queue is full."""
        with self.changed:
            if self.is_closing or len(self.waiting) >= MOST_WAITING:
                raise RequestError(503, BUSY)
            self.waiting.append(job)
            self.changed.notify()

    def close(self, patience: float) -> None:
        """End the thread after the step that it computes. patience: seconds to wait for it."""
        with self.changed:
            self.is_closing = True
            self.changed.notify()
        self.thread.join(patience)

    @torch.no_grad()
    def _run(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.set_device(self.model.device)
        admitted: list[Job] = []
        try:
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self.is_closing or self.waiting or self.groups)
                    if self.is_closing:
                        return
                    admitted = self._admit()
                self._begin(admitted)
                self._advance()
        finally:
            self._refuse_all(admitted)

    def _refuse_all(self, admitted: Sequence[Job]) -> None:
        """End all jobs, and refuse further ones. admitted: those that began last, and may be in no group yet."""
        with self.changed:
            self.is_closing = True
            running = [row.job for group in self.groups for row in group.rows]
            for job in {*self.waiting, *running, *admitted}:
                job.is_abandoned.set()
                job.deliver(RequestError(503, "The server has ended."))
            self.waiting.clear()
            self.groups.clear()

    def _admit(self) -> list[Job]:
        """Remove the jobs from the queue that may begin. None overtakes another, so a large one does not wait forever."""
        running = {id(row.job): row.job for group in self.groups for row in group.rows}
        rows = sum(len(group.rows) for group in self.groups)
        reserved = sum(job.reserved for job in running.values())
        admitted: list[Job] = []
        late = time.monotonic() - LONGEST_WAIT
        for job in [job for job in self.waiting if job.is_abandoned.is_set() or job.began < late]:
            self.waiting.remove(job)
            job.deliver(RequestError(503, BUSY))
        for job in list(self.waiting):
            if rows == 0 or (rows + job.rows <= MOST_ROWS and reserved + job.reserved <= MOST_RESERVED):
                self.waiting.remove(job)
                admitted.append(job)
                rows, reserved = rows + job.rows, reserved + job.reserved
            else:
                break
        return admitted

    def _begin(self, jobs: Sequence[Job]) -> None:
        """Add groups of the jobs' rows. In each, no prompt is twice as long as another, so little of a batch is padding."""
        by_length: dict[int, list[TextRow]] = {}
        for job in jobs:
            for index in range(job.rows):
                row = TextRow(job, index, self.tokenizer, self.special)
                by_length.setdefault(len(row.prompt).bit_length(), []).append(row)
        for rows in by_length.values():
            try:
                self.groups.append(DecodingGroup(self.model, rows))
            except Exception as error:  # a fault in one group must not end the others
                self._fail(rows, error)

    def _advance(self) -> None:
        """Advance every group that decodes by one token, and one group that reads its prompts by one piece."""
        reading = [group for group in self.groups if group.is_reading]
        for group in [group for group in self.groups if not group.is_reading] + reading[:1]:
            if self.is_closing:
                return
            others = [other for other in self.groups if group.is_reading and other is not group]
            try:
                group.advance()
                is_joined = any(other.absorb(group) for other in others)
            except Exception as error:  # a fault in one group must not end the others
                self._fail(group.rows, error)
                group.rows, is_joined = [], False
            if is_joined or not group.rows:
                self.groups.remove(group)
        if reading and reading[0] in self.groups:  # the next piece is another group's
            self.groups.remove(reading[0])
            self.groups.append(reading[0])

    def _fail(self, rows: Sequence[TextRow], error: Exception) -> None:
        if ran_out_of_memory(error):
            refusal = RequestError(503, "The server has run out of memory: use a shorter prompt, or try again later.")
        else:
            LOG.error("generation failed", exc_info=error)
            refusal = RequestError(500, "The model failed on this request. The server's log has the reason.")
        for job in {id(row.job): row.job for row in rows}.values():
            job.is_abandoned.set()  # its rows in other groups end, too
            job.deliver(refusal)
