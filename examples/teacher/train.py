"""Train the teacher, a two-layer Llama, from nothing: python examples/teacher/train.py -o OUT [--seed 0]."""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import tokenizers
import torch
import transformers
from score import FIRST_HELD_OUT, FIRST_PROBE, SEED_STRIDE, sample_rng, score, texts_from
from text import build_tokenizer, echo, passkey, recall, story
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum: `steps` batches of `tokens` tokens a sample, with at most `pairs` recall pairs."""

    steps: int
    tokens: int
    pairs: int


# Recall is learned on short texts first, with the help of the echo. A passkey text has no room below 68 tokens.
STAGES = (Stage(2000, 48, 4), Stage(1200, 64, 8), Stage(1000, 128, 24), Stage(2200, 256, 32))
BATCH = 16
SHORTEST_PASSKEY = 68
KINDS = {"recall": 6, "story": 4, "passkey": 4, "echo": 4}  # how often each kind is drawn
LEARNING_RATE = 3e-3
WARM_UP = 100  # steps
# Loss weights. Texts of the passkey template are nearly all filler, which is soon known by heart.
STORY_WEIGHT, VALUE_WEIGHT, DIGIT_WEIGHT, FILLER_WEIGHT = 0.5, 1.0, 5.0, 0.1
PROBE_SAMPLES, FINAL_SAMPLES = 40, 500
REPORT_EVERY = 100  # steps


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The untrained model: two layers 128 wide, four heads that share two key-value heads."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=STAGES[-1].tokens,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def sample(
    rng: random.Random, tokenizer: PreTrainedTokenizerFast, stage: Stage
) -> tuple[list[str], list[int], list[float]]:
    """One training sample: its texts, its token ids (at most `stage.tokens` + 1), and the loss weight of each."""
    left_out = "passkey" if stage.tokens < SHORTEST_PASSKEY else "echo"
    kinds = [kind for kind in KINDS if kind != left_out]
    kind = rng.choices(kinds, [KINDS[kind] for kind in kinds])[0]
    if kind == "recall":
        pairs = rng.randint(2, stage.pairs)
        text = recall(rng, stage.tokens, pairs)
        ids = tokenizer(text).input_ids
        known = range(2 * pairs + 2, len(ids), 2)  # the values after the pairs; all else is random
        return [text], ids, [VALUE_WEIGHT if place in known else 0.0 for place in range(len(ids))]
    if kind == "echo":
        text = echo(rng, stage.tokens)
        ids = tokenizer(text).input_ids
        return [text], ids, [VALUE_WEIGHT if place % 4 in (3, 0) and place else 0.0 for place in range(len(ids))]
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


def batch_of(
    samples: list[tuple[list[str], list[int], list[float]]], pad: int, tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, next tokens and the loss weights of those, each [samples, tokens], padded on the right."""
    ids = torch.full((len(samples), tokens + 1), pad)
    weights = torch.zeros(len(samples), tokens + 1)
    for row, (_, sample_ids, sample_weights) in enumerate(samples):
        ids[row, : len(sample_ids)] = torch.tensor(sample_ids)
        weights[row, : len(sample_ids)] = torch.tensor(sample_weights)
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]


def rate_at(step: int, steps: int) -> float:
    """The share of the learning rate at a step: a linear warm-up, then half a cosine down to nothing."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / (steps - WARM_UP)))


def summary(scores: dict[str, dict[str, float]]) -> str:
    """The three scores that matter, in one line."""
    return (
        f"passkey {scores['passkey']['exact_match']:.2%}, recall {scores['recall']['value_accuracy']:.2%}, "
        f"story {scores['story']['nats_per_token']:.3f} nats per token"
    )


def train(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, stages: tuple[Stage, ...]
) -> tuple[set[int], float]:
    """Train in place; returns the hashes of all texts that were seen and the last mean training loss."""
    steps = sum(stage.steps for stage in stages)
    # A probe is as long as its stage and looks at other samples than the final scores.
    probes = {
        stage: texts_from(seed, FIRST_PROBE, PROBE_SAMPLES, max(stage.tokens, SHORTEST_PASSKEY), stage.pairs)
        for stage in stages
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
    seen: set[int] = set()
    recent: list[float] = []
    start = time.perf_counter()
    plan = [stage for stage in stages for _ in range(stage.steps)]
    for step, stage in enumerate(plan):
        samples = [sample(sample_rng(seed, step * BATCH + row), tokenizer, stage) for row in range(BATCH)]
        seen.update(hash(text) for texts, _, _ in samples for text in texts)
        inputs, targets, weights = batch_of(samples, tokenizer.pad_token_id, stage.tokens)
        losses = functional.cross_entropy(model(input_ids=inputs).logits.transpose(1, 2), targets, reduction="none")
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        recent.append(loss.item())
        if (step + 1) % REPORT_EVERY == 0 or step + 1 == steps:
            mean = sum(recent) / len(recent)
            recent = []
            line = summary(score(model, tokenizer, probes[stage], stage.pairs))
            seconds = time.perf_counter() - start
            print(
                f"{seconds:5.0f} s  step {step + 1}/{steps}  {stage.tokens} tokens  loss {mean:.4f}  {line}", flush=True
            )
    return seen, mean


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
    stages = tuple(Stage(max(1, round(s.steps * arguments.steps)), s.tokens, s.pairs) for s in STAGES)
    print(f"{model.num_parameters()} parameters, {len(tokenizer)} tokens in the vocabulary", flush=True)

    start = time.perf_counter()
    seen, training_loss = train(model, tokenizer, arguments.seed, stages)
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
        "steps": sum(stage.steps for stage in stages),
        "tokens": sum(stage.steps * stage.tokens * BATCH for stage in stages),
        "training_seconds": round(training_seconds, 1),
        "threads": arguments.threads,
        "settings": {
            "stages": [asdict(stage) for stage in stages],
            "batch": BATCH,
            "kinds": KINDS,
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
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_length=stages[-1].tokens,
    )
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    (arguments.output / "scores.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
