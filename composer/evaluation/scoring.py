"""Scores one model on one task at one length, in batches: by what it generates, the likeliest candidate or tokens, or its loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from composer.data.chat import end_tokens
from composer.errors import EvaluationError
from composer.evaluation.arguments import LazySamples, Perplexity
from composer.evaluation.cells import SampleResult, bucket_size
from composer.evaluation.options import BATCH_TOKENS
from composer.model.cache import CACHE, without_what_follows
from composer.system.devices import NoRoom, room
from composer.tasks.base import Sample, Task, make_sample, rng_of
from composer.tasks.writer import Writer, without_embedding

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MORE = 8
"""Tokens that a model may write beyond those of the answer."""
PADDING = 0
"""The token of padding. It may be any, as no token attends to it."""
LOGITS = 2**24
"""Logits that are held at a time."""


class CellFailed(EvaluationError):
    """A cell cannot be scored: memory does not suffice for a single sample, or logits are not finite."""


class SampleScore(NamedTuple):
    """The score of one sample, and the generated text or the nats."""

    score: float
    written: str | None = None
    nats: tuple[float | None, ...] | None = None


def draw_samples(task: Task | Perplexity, writer: Writer, length: int) -> LazySamples:
    """Return the samples of a cell. Raises TaskError, some tasks only as a sample is drawn."""
    if isinstance(task, Perplexity):
        return task.windows(writer, length)
    return LazySamples(
        task.samples, lambda index: task.sample(rng_of(task.seed, "evaluation", index), writer, length, "evaluation")
    )


def score_cell(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task | Perplexity,
    length: int,
    *,
    batch_tokens: int = BATCH_TOKENS,
    scored_indices: Collection[int] = (),
    samples_by_index: Mapping[int, Sample] | None = None,
    tell: Callable[[SampleResult], None] | None = None,
) -> list[SampleResult]:
    """Score the samples of a task at one length, in order. Raises CellFailed and TaskError.

    - model: a causal one, in evaluation mode.
    - batch_tokens: tokens of the samples of a batch.
    - scored_indices: indices of samples that were scored before, which are not returned. Batches are still made of all samples, so
      that a continued evaluation computes the same numbers: scored samples are computed again if their batch has others.
    - samples_by_index: samples that have been made already, by index.
    - tell: called with each result, after its batch.
    """
    writer = Writer(tokenizer)
    samples, ready = draw_samples(task, writer, length), samples_by_index or {}
    size = max(1, batch_tokens // length)
    results: list[SampleResult] = []
    for start in range(0, samples.count, size):
        indices = range(start, min(start + size, samples.count))
        if all(index in scored_indices for index in indices):
            continue
        batch = [ready[index] if index in ready else samples.draw(index) for index in indices]
        check_tokens(batch, model.config.get_text_config().vocab_size, task.name, tokenizer)
        began = time.perf_counter()
        scores = _as_many_as_fit(lambda some: _judge(model, writer, task, length, some), batch)
        seconds = (time.perf_counter() - began) / len(batch)
        for index, sample, score in zip(indices, batch, scores, strict=True):
            if index in scored_indices:
                continue
            judged = SampleResult(
                index=index,
                tokens=len(sample.ids),
                depth=sample.depth,
                answers=sample.answers,
                seconds=round(seconds, 6),
                **score._asdict(),
            )
            results.append(judged)
            if tell is not None:
                tell(judged)
    return results


def check_tokens(samples: Sequence[Sample], vocabulary: int, name: str, tokenizer: Any) -> None:
    """Raise EvaluationError if the model has no embedding for a token."""
    largest = [max(sample.ids) for sample in samples]
    if problem := without_embedding(name, largest, vocabulary, tokenizer):
        raise EvaluationError(f"{problem}.")


def _as_many_as_fit(judge: Callable[[list[Sample]], list[SampleScore]], samples: list[Sample]) -> list[SampleScore]:
    """Scores all samples at once, or in halves where memory does not suffice. Raises CellFailed if it does not for one."""
    try:
        with room():
            return judge(samples)
    except NoRoom as error:
        if len(samples) == 1:
            raise CellFailed("out of memory") from error
    # After the except clause: the error keeps the memory of the failed attempt alive.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = len(samples) // 2
    return [*_as_many_as_fit(judge, samples[:middle]), *_as_many_as_fit(judge, samples[middle:])]


def _judge(model: Any, writer: Writer, task: Task | Perplexity, length: int, samples: list[Sample]) -> list[SampleScore]:
    if task.scored == "written":
        assert isinstance(task, Task)
        prompts = [sample.prompt_ids for sample in samples]
        max_new_tokens = [len(sample.ids) - len(prompt) + MORE for sample, prompt in zip(samples, prompts, strict=True)]
        texts = [writer.decode(ids) for ids in write(model, prompts, max_new_tokens, ends_of(model, writer))]
        return [SampleScore(task.score(sample, text), text) for sample, text in zip(samples, texts, strict=True)]
    if task.scored == "candidates":
        assert isinstance(task, Task)
        chosen = [_choose(model, writer, sample, len(samples)) for sample in samples]
        return [SampleScore(task.score(sample, text), text) for sample, text in zip(samples, chosen, strict=True)]
    if task.scored == "tokens":
        judged = judge_tokens(model, [sample.ids for sample in samples], [sample.answer for sample in samples])
        return [SampleScore(_mean(right.tolist())) for right, _ in judged]
    # BOS, which begins the next text, is not predicted.
    is_predicted = [tuple(token not in writer.begin or token in writer.end for token in sample.ids) for sample in samples]
    judged = judge_tokens(model, [sample.ids for sample in samples], is_predicted)
    size = bucket_size(length)
    return [
        SampleScore(_mean(nats.tolist()), nats=_in_buckets(nats.tolist(), mask, size))
        for (_, nats), mask in zip(judged, is_predicted, strict=True)
    ]


def _choose(model: Any, writer: Writer, sample: Sample, at_once: int) -> str:
    """Return the candidate whose tokens have the highest log probability in sum. at_once: texts in a call of the model."""
    assert sample.prompt is not None
    assert sample.candidates is not None
    texts = [make_sample(writer, sample.prompt, candidate) for candidate in sample.candidates]
    nats: list[float] = []
    for start in range(0, len(texts), at_once):
        part = texts[start : start + at_once]
        judged = judge_tokens(model, [text.ids for text in part], [text.answer for text in part])
        nats += [math.fsum(losses.tolist()) for _, losses in judged]
    return sample.candidates[nats.index(min(nats))]


def ends_of(model: Any, writer: Writer) -> frozenset[int]:
    """Return the tokens that end a generated text: the tokenizer's, and those of the model's generation config."""
    return frozenset([*writer.end, *end_tokens(model)])


@torch.inference_mode()
def write(model: Any, prompts: Sequence[Sequence[int]], max_new_tokens: Sequence[int], ends: Collection[int]) -> list[list[int]]:
    """Return the greedy continuation of each prompt, of at most ``max_new_tokens`` tokens, up to one of ``ends``.

    Sampling and penalties of a generation config are ignored. Prompts are padded on the left.
    """
    width = max(map(len, prompts))
    ids = torch.tensor([[PADDING] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    inputs = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0), "use_cache": True}
    texts: list[list[int]] = [[] for _ in prompts]
    going = set(range(len(prompts)))
    while going:
        output = model(input_ids=ids, **inputs, logits_to_keep=1)
        cache = getattr(output, CACHE, None)
        if cache is None:
            return [_without_cache(model, prompt, count, ends) for prompt, count in zip(prompts, max_new_tokens, strict=True)]
        logits = output.logits[:, -1].float()
        chosen = logits.argmax(-1)
        _check_finite(logits[sorted(going)])
        for row, token in enumerate(chosen.tolist()):
            if row in going and token not in ends:
                texts[row].append(token)
            if token in ends or len(texts[row]) >= max_new_tokens[row]:
                going.discard(row)
        ids, inputs = chosen[:, None], _of_the_next(inputs | {CACHE: cache})
    return texts


def _without_cache(model: Any, prompt: Sequence[int], max_new_tokens: int, ends: Collection[int]) -> list[int]:
    """Return the greedy continuation of one prompt, for a model without a cache: each token needs a call with the whole text."""
    text = list(prompt)
    while len(text) < len(prompt) + max_new_tokens:
        logits = model(input_ids=torch.tensor([text], device=model.device), use_cache=False).logits[0, -1].float()
        _check_finite(logits)
        token = int(logits.argmax())
        if token in ends:
            break
        text.append(token)
    return text[len(prompt) :]


def _of_the_next(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the next step, of one real token per row; if the cache counts tokens, without the arguments that it
    determines."""
    mask, position = inputs["attention_mask"], inputs["position_ids"]
    if mask is not None:
        inputs["attention_mask"] = torch.cat((mask, mask.new_ones(len(mask), 1)), dim=1)
    if position is not None:
        inputs["position_ids"] = position[:, -1:] + 1
    return without_what_follows(inputs)


@torch.inference_mode()
def judge_tokens(model: Any, texts: Sequence[Sequence[int]], is_judged: Sequence[Sequence[bool]]) -> list[tuple[Tensor, Tensor]]:
    """Yield, for each text, two tensors over its ``asked`` tokens: whether each is the most likely one after the tokens before it,
    and its loss in nats. They never include the first token of a text. Only the logits of a limited number of tokens are in memory
    at a time.
    """
    width = max(map(len, texts))
    # Padding after a text changes nothing for a causal model, so no mask is needed.
    ids = torch.tensor([[*text, *[PADDING] * (width - len(text))] for text in texts], device=model.device)
    wanted = torch.tensor([[*row, *[False] * (width - len(row))] for row in is_judged], device=model.device)[:, 1:]
    states, logits_of = before_logits(model, ids)
    hidden, targets = states[:, :-1][wanted], ids[:, 1:][wanted]
    at_once = max(1, LOGITS // model.get_output_embeddings().weight.shape[0])
    right, nats = [], []
    for some, target in zip(hidden.split(at_once), targets.split(at_once), strict=True):
        logits = logits_of(some[None])[0].float()
        _check_finite(logits)
        right.append(logits.argmax(-1) == target)
        nats.append(functional.cross_entropy(logits, target, reduction="none"))
    counts = wanted.sum(1).tolist()
    return list(zip(torch.cat(right).float().cpu().split(counts), torch.cat(nats).double().cpu().split(counts), strict=True))


def _check_finite(logits: Tensor) -> None:
    if not bool(logits.isfinite().all()):
        raise CellFailed("not finite")


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _in_buckets(nats: Sequence[float], is_judged: Sequence[bool], size: int) -> tuple[float | None, ...]:
    """Return the mean loss in each part of a text. nats: of the ``asked`` tokens, without the text's first."""
    counts = list(accumulate((place > 0 and counts_token for place, counts_token in enumerate(is_judged)), initial=0))
    bounds = [*range(0, len(is_judged), size), len(is_judged)]
    parts = [nats[counts[start] : counts[end]] for start, end in pairwise(bounds)]
    return tuple(round(_mean(part), 6) if part else None for part in parts)


def before_logits(model: Any, ids: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the states that logits are made of, ``B T C``, and what makes logits of some of them, ``b t C`` to ``b t V``.

    Only the logits of each row's first token are computed on the way. Raises EvaluationError if the states are not to be found.
    """
    outputs: list[Any] = []
    states: list[Tensor] = []

    def first(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states.append(arguments[0])
        return arguments[0][:, :1], *arguments[1:]

    base, head = model.base_model, model.get_output_embeddings()
    with base.register_forward_hook(lambda *called: outputs.append(called[-1])), head.register_forward_pre_hook(first):
        model(input_ids=ids, use_cache=False)
    if len(outputs) == 1 and hasattr(outputs[0], "last_hidden_state"):
        return outputs[0].last_hidden_state, partial(_behind_base, model, type(outputs[0]))
    if len(states) == 1:
        return states[0], partial(_logits_of_states, model)
    raise EvaluationError(
        f"{type(model).__name__} computes its logits in a custom way, so tasks that are scored by tokens or by loss cannot run on "
        "it."
    )


class Outputs(nn.Module):
    """Replaces the base of a language model, and returns outputs that are already known. Its other attributes are the base's."""

    def __init__(self, base: nn.Module, outputs: Any) -> None:
        super().__init__()
        vars(self)["base"] = base  # and not as a separate module
        self.outputs = outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["base"], name)

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.outputs


def _behind_base(model: Any, kind: type[Any], states: Tensor) -> Tensor:
    """Return the logits of a model that calls its base, from these states of the base."""
    name, base = model.base_model_prefix, model.base_model
    setattr(model, name, Outputs(base, kind(last_hidden_state=states)))
    try:
        return model(input_ids=torch.zeros(states.shape[:2], dtype=torch.long, device=model.device), use_cache=False).logits
    finally:
        setattr(model, name, base)


def _logits_of_states(model: Any, states: Tensor) -> Tensor:
    """Return the logits of any other model: its output embeddings receive these states in place of those of a call with one
    token."""
    with model.get_output_embeddings().register_forward_pre_hook(lambda _, arguments: (states, *arguments[1:])):
        return model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=False).logits
