"""The interface through which lm-eval runs a model: transformers' one, which also counts the requests that lm-eval cuts.

Importing this module needs lm-eval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_eval.models import huggingface

from composer.data.chat_templates import TemplateError, render
from composer.evaluation.report import CutRequests
from composer.system.notices import warn_user

HFLM: Any = huggingface.HFLM
"""Without its type: decorators of lm-eval hide its parameters."""


class HarnessModel(HFLM):
    """lm-eval's ``hf`` model for a composed model. Prompts and answers longer than ``max_length`` lose their first tokens.

    max_length: None is lm-eval's default, the number of positions in the model's config.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_length: int | None, batch_size: int) -> None:
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            trust_remote_code=False,
            backend="causal",
            batch_size=batch_size,
            max_length=max_length,
        )
        self._requests: dict[str, int] = {}
        self._cut: dict[str, list[int]] = {}
        self._scored: list[str] | None = None
        """The tasks of the requests that are being scored, in order."""
        self._prompts: dict[str, list[str]] = {}
        """The tasks of the prompts that are being continued."""

    @property
    def cut(self) -> tuple[CutRequests, ...]:
        """The tasks of which requests were cut."""
        return tuple(
            CutRequests(
                task=task, requests=self._requests[task], cut=len(lengths), longest=max(lengths), max_length=self.max_length
            )
            for task, lengths in self._cut.items()
        )

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self._scored = self._count(requests)
        return super().loglikelihood(list(requests), disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(self, requests: Any, *arguments: Any, **options: Any) -> Any:
        # Rolling windows use this method, too. They are never longer than max_length + 1, of which the last token is not read.
        tasks, self._scored = self._scored, None
        for task, (_, prompt, answer) in zip(tasks or (), requests, strict=False):
            self._check(task, len(prompt) + len(answer), self.max_length + 1)
        return super()._loglikelihood_tokens(requests, *arguments, **options)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        self._prompts = {}
        for task, request in zip(self._count(requests), requests, strict=True):
            self._prompts.setdefault(request.args[0], []).append(task)
        return super().generate_until(list(requests), disable_tqdm=disable_tqdm)

    def tok_batch_encode(
        self, strings: Sequence[str], padding_side: str = "left", left_truncate_len: int | None = None, truncation: bool = False
    ) -> Any:
        ids, mask = super().tok_batch_encode(list(strings), padding_side, None, truncation)
        if left_truncate_len is None:
            return ids, mask
        for prompt, tokens in zip(strings, mask.sum(1).tolist(), strict=True):
            self._check(self._prompts[prompt].pop(), tokens, left_truncate_len)
        return ids[:, -left_truncate_len:], mask[:, -left_truncate_len:]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        try:
            return self._render(chat_history, add_generation_prompt)
        except TemplateError as error:
            without_system = [message for message in chat_history if message["role"] != "system"]
            if len(without_system) == len(chat_history):
                raise
            warn_user(f"The chat template refuses a system message ({error}). It is left out, as lm-eval does.")
            return self._render(without_system, add_generation_prompt)

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        """Render the tokenizer's chat template. It runs within limits of time and memory."""
        return render(
            self.tokenizer,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def _count(self, requests: Sequence[Any]) -> list[str]:
        """Count the requests of each task, and return their tasks in order."""
        tasks = [str(request.task_name) for request in requests]
        for task in tasks:
            self._requests[task] = self._requests.get(task, 0) + 1
        return tasks

    def _check(self, task: str, tokens: int, limit: int) -> None:
        if tokens > limit:
            self._cut.setdefault(task, []).append(tokens)
