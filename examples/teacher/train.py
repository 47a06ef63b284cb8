"""Train the teacher, a two-layer Llama, from nothing: python examples/teacher/train.py -o OUT [--seed 0]."""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tokenizers
import torch
import transformers
from score import FIRST_HELD_OUT, FIRST_PROBE, SEED_STRIDE, sample_rng, score, texts_from
from text import SHORTEST_PASSKEY, build_tokenizer, passkey, recall, story
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum: at most `steps` steps of `batch` samples, which are at most `tokens` tokens long.

    `pairs` is the largest number of recall pairs; the three last numbers tell how often each kind of text is drawn.
    """

    steps: int
    batch: int
    tokens: int
    pairs: int
    recall: int
    passkey: int
    story: int


# Recall appears on short texts with few pairs first. A passkey text does not fit the first two stages.
STAGES = (
    Stage(steps=2000, batch=32, tokens=48, pairs=4, recall=7, passkey=0, story=3),
    Stage(steps=1000, batch=32, tokens=64, pairs=8, recall=7, passkey=0, story=3),
    Stage(steps=1500, batch=16, tokens=128, pairs=24, recall=6, passkey=5, story=5),
    Stage(steps=1500, batch=16, tokens=256, pairs=32, recall=6, passkey=5, story=5),
)
# A stage but the last one ends early when its probe has this accuracy in what it trains.
GOOD_ENOUGH = 0.97
KINDS = ("recall", "passkey", "story")
LEARNING_RATE = 3e-3
WARM_UP = 100  # steps
# Loss weights. Texts of the passkey template are nearly all filler, which is soon known by heart.
STORY_WEIGHT, VALUE_WEIGHT, DIGIT_WEIGHT, FILLER_WEIGHT = 0.5, 1.0, 5.0, 0.1
PROBE_SAMPLES, FINAL_SAMPLES = 40, 500
REPORT_EVERY = 100  # steps


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of one special token."""
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int)
    return found


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The untrained model: two layers 128 wide, four heads that share two key-value heads."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=STAGES[-1].tokens,
        tie_word_embeddings=False,
        initializer_range=0.05,
        pad_token_id=token_id(tokenizer, "<pad>"),
        bos_token_id=token_id(tokenizer, "<bos>"),
        eos_token_id=token_id(tokenizer, "<eos>"),
    )
    model = LlamaForCausalLM(config)
    # Large embeddings keep the words apart while the layers learn to compare them. With small ones (0.02), which were
    # tied to the output besides, recall stayed at chance.
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=1.0)
    return model


def sample(rng: random.Random, tokenizer: PreTrainedTokenizerFast, stage: Stage) -> tuple[list[str], list[int], list[float]]:
    """One training sample: its texts, its token ids (at most `stage.tokens` + 1), and the loss weight of each."""
    kind = rng.choices(KINDS, [getattr(stage, kind) for kind in KINDS])[0]
    if kind == "recall":
        pairs = rng.randint(2, stage.pairs)
        text = recall(rng, stage.tokens, pairs)
        ids = tokenizer(text).input_ids
        known = range(2 * pairs + 2, len(ids), 2)  # the values after the pairs; all else is random
        return [text], ids, [VALUE_WEIGHT if place in known else 0.0 for place in range(len(ids))]
    if kind == "passkey":
        text = passkey(rng, rng.randint(SHORTEST_PASSKEY, stage.tokens))
        ids = [*tokenizer(text).input_ids, tokenizer.eos_token_id]
        is_digit = [token.strip("▁").isdigit() for token in tokenizer.convert_ids_to_tokens(ids)]
        weights = [DIGIT_WEIGHT if digit else FILLER_WEIGHT for digit in is_digit]
        first = is_digit.index(True)
        weights[first : first + 5] = [0.0] * 5  # the key cannot be known where it is first told
        return [text], ids, weights
    texts: list[str] = []
    ids = []
    while len(ids) <= stage.tokens:
        texts.append(story(rng))
        ids += [*tokenizer(texts[-1]).input_ids, tokenizer.eos_token_id]
    ids = ids[: stage.tokens + 1]
    return texts, ids, [0.0 if token == tokenizer.bos_token_id else STORY_WEIGHT for token in ids]


def batch_of(samples: list[tuple[list[str], list[int], list[float]]], pad: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, next tokens and the loss weights of those, each [samples, tokens], padded on the right."""
    ids = torch.full((len(samples), tokens + 1), pad)
    weights = torch.zeros(len(samples), tokens + 1)
    for row, (_, sample_ids, sample_weights) in enumerate(samples):
        ids[row, : len(sample_ids)] = torch.tensor(sample_ids)
        weights[row, : len(sample_ids)] = torch.tensor(sample_weights)
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]


def summary(scores: dict[str, dict[str, float]]) -> str:
    """The three scores that matter, in one line."""
    return (
        f"passkey {scores['passkey']['exact_match']:.2%}, recall {scores['recall']['value_accuracy']:.2%}, "
        f"story {scores['story']['nats_per_token']:.3f} nats per token"
    )


def good_enough(stage: Stage, scores: dict[str, dict[str, float]]) -> bool:
    """Whether the probe shows that a stage has taught its recall, and its passkeys if it has any."""
    return scores["recall"]["value_accuracy"] >= GOOD_ENOUGH and (
        not stage.passkey or scores["passkey"]["exact_match"] >= GOOD_ENOUGH
    )


def train(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, stages: tuple[Stage, ...]
) -> tuple[set[int], list[int], float]:
    """Train in place; returns the hashes of all texts seen, the steps of each stage, the last mean training loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    seen: set[int] = set()
    steps_taken: list[int] = []
    next_sample, step, mean = 0, 0, math.nan
    start = time.perf_counter()
    for number, stage in enumerate(stages, 1):
        # A probe is as long as its stage and looks at other samples than the final scores.
        probe = texts_from(seed, FIRST_PROBE, PROBE_SAMPLES, stage.tokens, stage.pairs)
        recent: list[float] = []
        for step in range(1, stage.steps + 1):
            # Warm-up in the first stage, half a cosine down to nothing in the last one.
            rate = min(1.0, step / WARM_UP) if number == 1 else 1.0
            if number == len(stages):
                rate = 0.5 * (1 + math.cos(math.pi * step / stage.steps))
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate
            samples = [sample(sample_rng(seed, next_sample + row), tokenizer, stage) for row in range(stage.batch)]
            next_sample += stage.batch
            seen.update(hash(text) for texts, _, _ in samples for text in texts)
            inputs, targets, weights = batch_of(samples, token_id(tokenizer, "<pad>"), stage.tokens)
            losses = functional.cross_entropy(model(input_ids=inputs).logits.transpose(1, 2), targets, reduction="none")
            loss = (losses * weights).sum() / weights.sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            recent.append(loss.item())
            if step % REPORT_EVERY and step < stage.steps:
                continue
            mean, recent = sum(recent) / len(recent), []
            scores = score(model, tokenizer, probe, stage.pairs)
            place = f"{time.perf_counter() - start:5.0f} s  stage {number}  step {step}"
            print(f"{place}  loss {mean:.4f}  {summary(scores)}", flush=True)
            if number < len(stages) and good_enough(stage, scores):
                break
        steps_taken.append(step)
    return seen, steps_taken, mean


def main() -> None:
    """Train, score on held-out texts, and write the checkpoint with its scores."""
    parser = argparse.ArgumentParser(description="Train the small Llama that the examples start from.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=0, help="a number >= 0 (default: 0)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--steps", type=float, default=1.0, help="scale the steps of every stage (default: 1.0)")
    arguments = parser.parse_args()
    if arguments.seed < 0:
        parser.error("--seed must not be negative: random.Random takes -1 and 1 for the same seed")

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    stages = tuple(replace(stage, steps=max(1, round(stage.steps * arguments.steps))) for stage in STAGES)
    print(f"{model.num_parameters()} parameters, {len(tokenizer)} tokens in the vocabulary", flush=True)

    start = time.perf_counter()
    seen, steps, training_loss = train(model, tokenizer, arguments.seed, stages)
    training_seconds = time.perf_counter() - start
    held_out = texts_from(arguments.seed, FIRST_HELD_OUT, FINAL_SAMPLES, stages[-1].tokens, stages[-1].pairs)
    scores = score(model, tokenizer, held_out, stages[-1].pairs)
    for kind, texts in held_out.items():
        scores[kind]["texts_also_seen_in_training"] = sum(hash(text) in seen for text in texts)
    print(f"held out: {summary(scores)}", flush=True)

    report = {
        "held_out": scores,
        "held_out_tokens": stages[-1].tokens,
        "held_out_recall_pairs": stages[-1].pairs,
        "held_out_seeds": f"seed * {SEED_STRIDE} + {FIRST_HELD_OUT} and up; training stays below",
        "final_training_loss": training_loss,
        "seed": arguments.seed,
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "steps": sum(steps),
        "steps_of_each_stage": steps,
        "tokens": sum(taken * stage.batch * stage.tokens for taken, stage in zip(steps, stages, strict=True)),
        "training_seconds": round(training_seconds, 1),
        "threads": arguments.threads,
        "settings": {
            "stages": [asdict(stage) for stage in stages],
            "good_enough": GOOD_ENOUGH,
            "learning_rate": LEARNING_RATE,
            "warm_up_steps": WARM_UP,
            "weights": {
                "story": STORY_WEIGHT,
                "recall_value": VALUE_WEIGHT,
                "passkey_digit": DIGIT_WEIGHT,
                "passkey_filler": FILLER_WEIGHT,
            },
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
    }
    model.generation_config = GenerationConfig(
        bos_token_id=token_id(tokenizer, "<bos>"),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=token_id(tokenizer, "<pad>"),
    )
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    (arguments.output / "scores.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
