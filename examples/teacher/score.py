"""Scores of a teacher on texts that it was not trained on, beside the scores of guessing."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import torch
from text import HARDER, SHORTEST, SHORTEST_PASSKEY, STATEMENT, STATEMENTS, VALUES, needles, passkey, recall, statements, story
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from composer.tasks.needles import Needles
from composer.tasks.stories import PEOPLE, SLOTS

# Sample `index` of seed `seed` is drawn from Random(seed * SEED_STRIDE + index). Training takes the indices from 0
# on and stays below FIRST_PROBE; the short probes on the way take those from there on, and the final scores those
# from FIRST_HELD_OUT on.
SEED_STRIDE = 10_000_000
FIRST_PROBE = 8_000_000
FIRST_HELD_OUT = 9_000_000


def sample_rng(seed: int, index: int) -> random.Random:
    """Return the random numbers of one sample; see SEED_STRIDE for the ranges of indices."""
    if not 0 <= index < SEED_STRIDE:
        raise ValueError(f"sample index {index} is outside 0..{SEED_STRIDE - 1}")
    return random.Random(seed * SEED_STRIDE + index)


def texts_from(seed: int, first: int, samples: int, tokens: int, pairs: int, harder: bool = False) -> dict[str, list[str]]:
    """Return `samples` texts of each kind, each text with its own sample index, from `first` on. harder: of the harder tasks, too.

    Recall has `tokens` tokens, and those with needles too if that is room enough; a story is as long as it is.
    """
    makers: dict[str, Callable[[random.Random], str]] = {
        "passkey": lambda rng: passkey(rng, max(tokens, SHORTEST_PASSKEY)),
        "recall": lambda rng: recall(rng, tokens, pairs),
        "story": story,
    }
    if harder:
        makers["statements"] = lambda rng: statements(rng, tokens, STATEMENTS[-1:])[0]
    for name, task in HARDER.items() if harder else ():
        makers[name] = partial(needle_text, task=task, tokens=max(tokens, SHORTEST[name]))
    return {
        kind: [make(sample_rng(seed, first + place * samples + index)) for index in range(samples)]
        for place, (kind, make) in enumerate(makers.items())
    }


def needle_text(rng: random.Random, task: Needles, tokens: int) -> str:
    """Return a text with needles that training never hides."""
    return needles(rng, task, tokens, "evaluation")[0]


@torch.no_grad()
def compute_logits(model: nn.Module, token_ids: Tensor) -> Tensor:
    """Return the logits [samples, tokens, vocabulary] for token ids [samples, tokens], a few samples at a time."""
    return torch.cat([model(input_ids=part).logits for part in token_ids.split(20)])


def passkey_accuracy(model: nn.Module, tokenizer: PreTrainedTokenizerFast, texts: list[str], digits: int = 5) -> dict[str, float]:
    """Return the share of answers, and of their digits, that greedy decoding writes. All texts have the same length and
    end with the answer, which has so many digits.

    The true key is fed in, which decides the same keys as feeding back what was written: up to the first wrong
    digit both see the same tokens.
    """
    token_ids = torch.tensor(tokenizer(texts).input_ids)
    right = compute_logits(model, token_ids)[:, -digits - 1 : -1].argmax(-1) == token_ids[:, -digits:]
    return {"exact_match": right.all(1).double().mean().item(), "digit_accuracy": right.double().mean().item()}


def recall_accuracy(model: nn.Module, tokenizer: PreTrainedTokenizerFast, texts: list[str], pairs: int) -> dict[str, float]:
    """Return the share of right values: over all queries, and over the first query of each key, the answer standing in its pair.

    The largest logit of the whole vocabulary has to be the value's.
    """
    token_ids = torch.tensor(tokenizer(texts).input_ids)
    # <bos> stands at 0, so keys stand at odd positions and values at the even ones after them.
    right = compute_logits(model, token_ids)[:, 1:-1:2].argmax(-1) == token_ids[:, 2::2]
    queries = right[:, pairs:].double()
    return {"value_accuracy": queries.mean().item(), "first_query_accuracy": queries[:, :pairs].mean().item()}


def statements_accuracy(model: nn.Module, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> dict[str, float]:
    """Return the share of keys that greedy decoding writes where their statement is repeated; all texts have the same length."""
    token_ids = torch.tensor(tokenizer(texts).input_ids)
    right = compute_logits(model, token_ids)[:, :-1].argmax(-1) == token_ids[:, 1:]
    right = right.unflatten(1, (-1, STATEMENT))[..., -6:-1].all(-1)  # the five digits before the full stop
    different = [len({statement.rstrip(".") for statement in text.split(". ")}) for text in texts]
    again = torch.arange(right.shape[1]) >= torch.tensor(different)[:, None]
    return {"exact_match": right[again].double().mean().item()}


@torch.no_grad()
def story_loss(model: nn.Module, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> dict[str, float]:
    """Return the mean loss in nats per token (the <eos> after a story counts, <bos> does not), and what guessing costs."""
    total = 0.0
    counts: Counter[int] = Counter()
    for text in texts:
        token_ids = torch.tensor([*tokenizer(text).input_ids, tokenizer.eos_token_id])
        logits = model(input_ids=token_ids[None, :-1]).logits[0]
        total += functional.cross_entropy(logits, token_ids[1:], reduction="sum").item()
        counts.update(token_ids[1:].tolist())
    tokens = counts.total()
    by_frequency = -sum(count * math.log(count / tokens) for count in counts.values()) / tokens
    nats = total / tokens
    return {"nats_per_token": nats, "perplexity": math.exp(nats), "tokens": tokens, "guessing_by_word_frequency": by_frequency}


@torch.no_grad()
def later_mentions(model: nn.Module, tokenizer: PreTrainedTokenizerFast, texts: list[str], words: Iterable[str]) -> float:
    """Return the share of the words of a story, out of `words` and mentioned in it before, that are the model's first choice."""
    vocabulary = tokenizer.get_vocab()
    entries = {vocabulary[f"▁{word}"] for word in words}
    right: list[bool] = []
    for text in texts:
        token_ids = tokenizer(text).input_ids
        predicted = model(input_ids=torch.tensor([token_ids])).logits[0].argmax(-1).tolist()
        right += [
            predicted[place - 1] == token
            for place, token in enumerate(token_ids)
            if token in entries and token in token_ids[:place]
        ]
    return sum(right) / len(right)


def score(
    model: nn.Module, tokenizer: PreTrainedTokenizerFast, texts: dict[str, list[str]], pairs: int
) -> dict[str, dict[str, float]]:
    """Return all scores on the texts of `texts_from`, with the number of samples and what random guessing gives."""
    was_training = model.training
    model.eval()
    stories = texts["story"]
    repeats = {
        "later_names_right": later_mentions(model, tokenizer, stories, PEOPLE),
        "later_objects_right": later_mentions(model, tokenizer, stories, SLOTS["object"]),
    }
    scores = {
        "passkey": passkey_accuracy(model, tokenizer, texts["passkey"]) | {"guessing_exact_match": 1e-5},
        "recall": recall_accuracy(model, tokenizer, texts["recall"], pairs)
        | {"guessing_any_value": 1 / len(VALUES), "guessing_a_value_of_the_text": 1 / pairs},
        "story": story_loss(model, tokenizer, stories) | {"guessing_any_token": math.log(len(tokenizer))} | repeats,
    }
    if "statements" in texts:
        scores["statements"] = statements_accuracy(model, tokenizer, texts["statements"])
    for name, task in HARDER.items():
        if name in texts:
            digits = sum(letter.isdigit() for letter in texts[name][0].rpartition(" is ")[2])
            scores[name] = passkey_accuracy(model, tokenizer, texts[name], digits) | {"guessing_exact_match": task.chance}
    model.train(was_training)
    return {kind: {"samples": len(texts[kind])} | values for kind, values in scores.items()}
