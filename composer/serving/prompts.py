"""The served model's prompts: conversations in its chat template, texts and token ids, within the model's bounds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from composer.data.chat import end_tokens, ends_of, render
from composer.errors import DataError
from composer.serving.engine import MOST_ROWS
from composer.serving.requests import ChatRequest, CompletionRequest, RequestError, TextRequest
from converters.bounded import shorten

TOO_LONG = "context_length_exceeded"
LEAST_BODY, MOST_BODY = 2**20, 8 * 2**20
BYTES_PER_TOKEN = 64
"""Bytes of a request for each token of the context, at least ``LEAST_BODY`` and at most ``MOST_BODY``."""


class PromptReader:
    """What requests can use of the model. name: in requests. context: the largest number of tokens of a prompt and its text."""

    def __init__(self, name: str, model: Any, tokenizer: Any, context: int) -> None:
        self.name, self.tokenizer, self.context = name, tokenizer, context
        self.most_bytes = min(max(LEAST_BODY, BYTES_PER_TOKEN * context), MOST_BODY)
        self.vocabulary: int = model.get_input_embeddings().weight.shape[0]
        self.longest_token = max(map(len, tokenizer.get_vocab()), default=1)
        """Characters of a token at most, or bytes: no text has fewer tokens than its length divided by this."""
        self.ends = frozenset(end_tokens(model) or [tokenizer.eos_token_id]) - {None}
        self.answer_ends = frozenset(ends_of(model, tokenizer))
        self.document = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "composer"}
        anchor = tokenizer("a", add_special_tokens=False)["input_ids"]
        self.anchor = anchor[-1:]

    def check_name(self, name: str) -> None:
        """Raise RequestError for the name of another model."""
        if name != self.name:
            message = f"The model {shorten(name)} is not served here; expected {self.name}."
            raise RequestError(404, message, code="model_not_found", param="model")

    def conversation(self, request: ChatRequest) -> list[list[int]]:
        """Return the tokens of a conversation, up to where the model answers. Raises RequestError."""
        if not self.tokenizer.chat_template:
            raise RequestError(400, "This model has no chat template, so it reads no conversations: use /v1/completions.")
        messages = [message.for_template() for message in request.messages]
        try:
            text = render(self.tokenizer, messages, generation_prompt=True).text
        except DataError as error:
            raise RequestError(400, f"messages: {error}.", param="messages") from None
        return [self._checked(self._tokens(text, "messages", special=False), "messages")]

    def prompts(self, request: CompletionRequest) -> list[list[int]]:
        """Return the tokens of each prompt. Raises RequestError."""
        return [
            self._checked(self._tokens(prompt, "prompt", special=True) if isinstance(prompt, str) else prompt, "prompt")
            for prompt in request.prompt
        ]

    def token_limit(self, request: TextRequest, prompts: Sequence[Sequence[int]], default: int) -> int:
        """Return the largest number of new tokens of each text. default: where the request sets none. Raises RequestError."""
        if len(prompts) * request.n > MOST_ROWS:
            raise RequestError(
                400, f"n: {len(prompts)} prompts × {request.n} texts are too many; expected at most {MOST_ROWS}.", param="n"
            )
        unknown = [token for token in request.logit_bias if token >= self.vocabulary]
        if unknown:
            raise RequestError(
                400, f"logit_bias: {unknown[0]} is no token; this model has {self.vocabulary:,}.", param="logit_bias"
            )
        longest = max(map(len, prompts))
        limit = request.most_tokens
        if longest + (1 if limit is None else limit) > self.context:
            purpose = "" if limit is None else f", and {limit:,} were requested"
            raise RequestError(
                400,
                f"The prompt has {longest:,} tokens{purpose}; expected at most {self.context:,} together with the new ones.",
                code=TOO_LONG,
                param="max_tokens" if longest < self.context else None,
            )
        return min(default, self.context - longest) if limit is None else limit

    def text_of(self, token: int) -> str:
        """Return the text of a token inside a text, with its space."""
        return self.tokenizer.decode([*self.anchor, token])[len(self.tokenizer.decode(self.anchor)) :]

    def _tokens(self, text: str, field: str, *, special: bool) -> list[int]:
        if len(text) > self.context * self.longest_token:
            message = f"The prompt has {len(text):,} characters, more than {self.context:,} tokens can have."
            raise RequestError(400, message, code=TOO_LONG, param=field)
        return self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]

    def _checked(self, tokens: list[int], field: str) -> list[int]:
        if not tokens:
            raise RequestError(400, f"{field}: there are no tokens; expected at least one.", param=field)
        if not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
            wrong = next(token for token in tokens if not 0 <= token < self.vocabulary)
            raise RequestError(400, f"{field}: {wrong} is no token; this model has {self.vocabulary:,}.", param=field)
        return tokens
