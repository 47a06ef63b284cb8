"""The receiver score of key heads after HydraHead (arXiv:2606.20097): the share of an answer that each key head brings to it.

A *twin* of a sample has another answer in its text, in as many tokens. The output of one key head comes from the twin, that of all
other heads from the sample. Attention then moves nothing between tokens that has changed, so the model is computed only at the
tokens that predict the answer, for many key heads in one call.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from composer.errors import SelectionError
from composer.model.modeling import ComposedForCausalLM
from composer.selection.gates import Gates
from composer.tasks.base import Sample, make_sample
from composer.tasks.writer import Writer

DISCOUNT = 0.9
"""The weight of a token of the answer, relative to that of the token before it."""
AT_ONCE = 64
"""Key heads in a call of the model."""
DRAWS = 200
"""The most draws of another answer for a twin."""


@dataclass(frozen=True)
class Twins:
    """A sample and its twin, 1 T each. Both end in the sample's answer. right, wrong: the tokens of both answers, N."""

    ids: Tensor
    twin: Tensor
    right: Tensor
    wrong: Tensor

    @property
    def predicting(self) -> slice:
        """The tokens that predict the answer."""
        return slice(-1 - len(self.right), -1)


def make_twins(sample: Sample, draw: Callable[[random.Random], Sample], rng: random.Random, writer: Writer) -> Twins | None:
    """Return a sample with a twin, or None if its answer does not follow a prompt. draw: returns another sample of the task.

    Raises SelectionError if no other answer has as many tokens.
    """
    if sample.prompt is None or not sample.answers:
        return None
    reply = " ".join(sample.answers)
    for _ in range(DRAWS):
        answers = draw(rng).answers or ()
        others = dict(zip(sample.answers, answers, strict=False))
        if len(answers) != len(sample.answers) or any(old == new for old, new in others.items()):
            continue
        twin = make_sample(writer, _replace(sample.prompt, others), reply)
        wrong = make_sample(writer, sample.prompt, " ".join(answers))
        first = sample.answer.index(True)
        is_aligned = twin.answer == sample.answer == wrong.answer and twin.ids[first:] == sample.ids[first:]
        if is_aligned and twin.ids != sample.ids:
            ids = (torch.tensor([text.ids]) for text in (sample, twin))
            return Twins(*ids, *(torch.tensor(text.ids[first:]) for text in (sample, wrong)))
    raise SelectionError(
        f'A sample with the answer "{reply}" has no twin: in {DRAWS} draws no other answer has as many tokens in its text. Choose '
        "other --tasks, or another score."
    )


def _replace(text: str, others: Mapping[str, str]) -> str:
    """Return a text with other words in place of some."""
    pattern = "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in others)
    return re.sub(pattern, lambda match: others[match[0]], text)


@torch.no_grad()
def receiver_scores(model: ComposedForCausalLM, gates: Gates, twins: Twins) -> list[float] | None:
    """Return, for each key head, the share of the difference between both answers' logits that is lost with its output from the
    twin, from 0 to 1. None if the source prefers the right answer no more in the sample than in the twin."""
    places = twins.predicting

    def preference(hidden: Tensor) -> Tensor:
        """Return the mean of right - wrong logits over the answer, for hidden states B N C of the tokens that predict it."""
        logits = model.logits_of(hidden).float()
        right, wrong = (
            logits.gather(2, answer.to(logits.device).expand(len(logits), -1)[..., None])[..., 0]
            for answer in (twins.right, twins.wrong)
        )
        weights = DISCOUNT ** torch.arange(len(twins.right), device=logits.device)
        return ((right - wrong) * weights).sum(1) / weights.sum()

    def run(ids: Tensor) -> tuple[float, dict[int, Tensor]]:
        hidden, heads = gates.record(lambda: model.base(input_ids=ids.to(model.device), use_cache=False).last_hidden_state)
        return float(preference(hidden[:, places])), {layer: output[:, places] for layer, output in heads.items()}

    (clean, heads), (corrupted, other_heads) = run(twins.ids), run(twins.twin)
    if clean <= corrupted:
        return None
    position = torch.arange(twins.ids.shape[1], device=model.device)[places]
    ids, differences = twins.ids.to(model.device)[:, places], list[float]()
    for start in range(0, len(gates.heads), AT_ONCE):
        heads_at_once = gates.heads[start : start + AT_ONCE]
        outputs = {index: output.expand(len(heads_at_once), -1, -1, -1) for index, output in heads.items()}
        outputs |= {layer: outputs[layer].clone() for layer in {layer for layer, _ in heads_at_once}}
        for row, (layer, number) in enumerate(heads_at_once):
            size = outputs[layer].shape[2] // gates.key_heads[layer]
            group = slice(number * size, (number + 1) * size)
            outputs[layer][row, :, group] = other_heads[layer][0, :, group]
        with gates.replaying(outputs):
            inputs = {"input_ids": ids.expand(len(heads_at_once), -1), "position_ids": position.expand(len(heads_at_once), -1)}
            differences += preference(model.base(**inputs, use_cache=False).last_hidden_state).tolist()
    return [min(1.0, max(0.0, (clean - value) / (clean - corrupted))) for value in differences]
