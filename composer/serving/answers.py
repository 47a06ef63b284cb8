"""The shapes of answers in OpenAI's HTTP interface, whole and as the events of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from composer.serving.engine import WrittenPiece
from composer.serving.prompts import PromptReader
from composer.serving.requests import TextRequest
from composer.serving.sampling import TokenLogprobs


@dataclass
class WrittenText:
    """A text so far. sent: the number of characters of the tokens whose log-probabilities were sent."""

    text: str = ""
    sent: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str | None = None


class Answers:
    """The answer to a request, made of the pieces of its texts."""

    id_prefix: str
    whole_object: str
    event_object: str

    def __init__(self, request: TextRequest, prompts: Sequence[Sequence[int]], served: PromptReader) -> None:
        self.request, self.served = request, served
        self.head = {"id": f"{self.id_prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": served.name}
        self.texts = [WrittenText() for _ in range(len(prompts) * request.n)]
        self.read, self.written = sum(map(len, prompts)), 0

    def add(self, piece: WrittenPiece) -> None:
        """Add a piece to its text."""
        written = self.texts[piece.index]
        written.text += piece.text
        written.logprobs += piece.logprobs
        written.finish = piece.finish
        self.written += piece.tokens

    def body(self) -> dict[str, Any]:
        """Return the answer, with all texts."""
        choices = [
            self._choice(index, self.content(text), self._logprobs(text.logprobs, WrittenText()), text.finish)
            for index, text in enumerate(self.texts)
        ]
        return {**self.head, "object": self.whole_object, "choices": choices, "usage": self._usage()}

    def first_events(self) -> Iterator[dict[str, Any]]:
        """Yield the events before any text."""
        yield from ()

    def event(self, piece: WrittenPiece) -> dict[str, Any]:
        """Return the event for a piece that has been added."""
        logprobs = self._logprobs(piece.logprobs, self.texts[piece.index])
        return self._event(piece.index, self.piece_content(piece), logprobs, piece.finish)

    def usage_event(self) -> dict[str, Any]:
        """Return the last event, with the numbers of tokens."""
        return {**self.head, "object": self.event_object, "choices": [], "usage": self._usage()}

    def content(self, text: WrittenText) -> dict[str, Any]:
        raise NotImplementedError

    def piece_content(self, piece: WrittenPiece) -> dict[str, Any]:
        raise NotImplementedError

    def logprobs_document(self, logprobs: Sequence[TokenLogprobs], text: WrittenText) -> dict[str, Any]:
        """Return the log-probabilities of tokens that follow ``text.sent`` characters, and add their own characters to it."""
        raise NotImplementedError

    def _event(self, index: int, content: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
        usage = {"usage": None} if self.request.stream_options.include_usage else {}
        return {**self.head, "object": self.event_object, "choices": [self._choice(index, content, logprobs, finish)], **usage}

    def _choice(self, index: int, content: dict[str, Any], logprobs: Any, finish: str | None) -> dict[str, Any]:
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, logprobs: Sequence[TokenLogprobs], text: WrittenText) -> dict[str, Any] | None:
        return None if self.request.most_logprobs is None else self.logprobs_document(logprobs, text)

    def _usage(self) -> dict[str, int]:
        return {"prompt_tokens": self.read, "completion_tokens": self.written, "total_tokens": self.read + self.written}


class ChatAnswers(Answers):
    """The answer to ``/v1/chat/completions``."""

    id_prefix, whole_object, event_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def content(self, text: WrittenText) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text.text, "refusal": None}}

    def first_events(self) -> Iterator[dict[str, Any]]:
        for index in range(len(self.texts)):
            yield self._event(index, {"delta": {"role": "assistant", "content": ""}})

    def piece_content(self, piece: WrittenPiece) -> dict[str, Any]:
        return {"delta": {"content": piece.text} if piece.text else {}}

    def logprobs_document(self, logprobs: Sequence[TokenLogprobs], text: WrittenText) -> dict[str, Any]:
        return {
            "content": [
                {
                    **self._token(entry.token, entry.logprob),
                    "top_logprobs": [self._token(token, logprob) for token, logprob in entry.likeliest],
                }
                for entry in logprobs
            ],
            "refusal": None,
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.served.text_of(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


class CompletionAnswers(Answers):
    """The answer to ``/v1/completions``."""

    id_prefix, whole_object, event_object = "cmpl", "text_completion", "text_completion"

    def content(self, text: WrittenText) -> dict[str, Any]:
        return {"text": text.text}

    def piece_content(self, piece: WrittenPiece) -> dict[str, Any]:
        return {"text": piece.text}

    def logprobs_document(self, logprobs: Sequence[TokenLogprobs], text: WrittenText) -> dict[str, Any]:
        tokens = [self.served.text_of(entry.token) for entry in logprobs]
        *offsets, text.sent = accumulate(map(len, tokens), initial=text.sent)
        return {
            "tokens": tokens,
            "token_logprobs": [entry.logprob for entry in logprobs],
            "top_logprobs": [{self.served.text_of(token): logprob for token, logprob in entry.likeliest} for entry in logprobs],
            "text_offset": offsets,
        }
