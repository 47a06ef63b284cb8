"""Train a teacher from nothing; the shipped one, a Llama of two layers: python examples/teacher/train.py -o OUT [--seed 0]."""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from model import FAMILIES, HEAD, Sizes, build_model, token_id
from progress import Progress, resume, save, text_hash
from score import FIRST_HELD_OUT, FIRST_PROBE, SEED_STRIDE, sample_rng, score, texts_from
from text import HARDER, SHORTEST, SHORTEST_PASSKEY, build_tokenizer, draw_harder, needles, passkey, recall, statements, story
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum: at most `steps` steps of `batch` samples, which are at most `tokens` tokens long.

    `pairs` is the largest number of recall pairs; the last numbers say how often each kind of text is drawn, `needles` how often
    each of the harder tasks.
    """

    steps: int
    batch: int
    tokens: int
    pairs: int
    recall: int
    passkey: int
    story: int
    needles: int = 0
    statements: int = 0


# Recall appears on short texts with few pairs first. A passkey text does not fit the first two stages.
STAGES = (
    Stage(steps=2000, batch=32, tokens=48, pairs=4, recall=7, passkey=0, story=3),
    Stage(steps=1000, batch=32, tokens=64, pairs=8, recall=7, passkey=0, story=3),
    Stage(steps=1500, batch=16, tokens=128, pairs=24, recall=6, passkey=5, story=5),
    Stage(steps=1500, batch=16, tokens=256, pairs=32, recall=6, passkey=5, story=5),
)
# With --harder, recall goes up to all pairs that there are. That a name decides which key comes next is learned without filler.
HARDER_STAGES = (
    STAGES[0],
    replace(STAGES[1], steps=3000, statements=10),
    replace(STAGES[2], steps=2000, needles=4, statements=4),
    replace(STAGES[3], steps=2000, pairs=64, needles=4, statements=2),
)
# A stage but the last one ends early when its probe has this accuracy in what it trains.
GOOD_ENOUGH = 0.97
KINDS = ("recall", "passkey", "story", "statements", *HARDER)
LEARNING_RATE = 3e-3
WARM_UP = 100  # steps
# Loss weights. Texts of the passkey template are nearly all filler, which is soon known by heart.
STORY_WEIGHT, VALUE_WEIGHT, DIGIT_WEIGHT, FILLER_WEIGHT = 0.5, 1.0, 5.0, 0.1
# Of one of several keys: its name decides the first digit, and the others follow from that.
KEY_WEIGHTS = [25.0, *[DIGIT_WEIGHT] * 4]
PROBE_SAMPLES, FINAL_SAMPLES = 40, 500
REPORT_EVERY = 100  # steps


def sample(rng: random.Random, tokenizer: PreTrainedTokenizerFast, stage: Stage) -> tuple[list[str], list[int], list[float]]:
    """Draw one training sample: its texts, its token ids (at most `stage.tokens` + 1), and the loss weight of each."""
    kind = rng.choices(KINDS, [stage.needles if kind in HARDER else getattr(stage, kind) for kind in KINDS])[0]
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
    if kind == "statements":
        text, names = statements(rng, stage.tokens)
        ids = tokenizer(text).input_ids
        tokens = tokenizer.convert_ids_to_tokens(ids)
        weights = [0.0 if token.strip("▁").isdigit() else FILLER_WEIGHT for token in tokens]
        first_digits = [place for place, token in enumerate(tokens) if token[1:].isdigit()]
        for place in first_digits[names:]:  # the keys before cannot be known
            weights[place : place + 5] = KEY_WEIGHTS
        return [text], ids, weights
    if kind in HARDER:
        text, digits = needles(rng, draw_harder(rng, kind), rng.randint(SHORTEST[kind], stage.tokens), "train")
        ids = [*tokenizer(text).input_ids, tokenizer.eos_token_id]
        is_digit = [token.strip("▁").isdigit() for token in tokenizer.convert_ids_to_tokens(ids)]
        weights = [0.0 if digit else FILLER_WEIGHT for digit in is_digit]
        weights[-digits - 1 : -1] = KEY_WEIGHTS * (digits // 5)  # before <eos>; where keys are first told, they cannot be known
        return [text], ids, weights
    texts: list[str] = []
    ids = []
    while len(ids) <= stage.tokens:
        texts.append(story(rng))
        ids += [*tokenizer(texts[-1]).input_ids, tokenizer.eos_token_id]
    ids = ids[: stage.tokens + 1]
    return texts, ids, [0.0 if token == tokenizer.bos_token_id else STORY_WEIGHT for token in ids]


def batch_of(samples: list[tuple[list[str], list[int], list[float]]], pad: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs, the next tokens and their loss weights, each [samples, tokens], padded on the right."""
    ids = torch.full((len(samples), tokens + 1), pad)
    weights = torch.zeros(len(samples), tokens + 1)
    for row, (_, sample_ids, sample_weights) in enumerate(samples):
        ids[row, : len(sample_ids)] = torch.tensor(sample_ids)
        weights[row, : len(sample_ids)] = torch.tensor(sample_weights)
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]


def summarise(scores: dict[str, dict[str, float]]) -> str:
    """Return the main scores in one line."""
    harder = "".join(f", {kind} {scores[kind]['exact_match']:.2%}" for kind in ("statements", *HARDER) if kind in scores)
    return (
        f"passkey {scores['passkey']['exact_match']:.2%}, recall {scores['recall']['value_accuracy']:.2%}{harder}, "
        f"story {scores['story']['nats_per_token']:.3f} nats per token, perplexity {scores['story']['perplexity']:.3f}"
    )


def is_good_enough(stage: Stage, scores: dict[str, dict[str, float]]) -> bool:
    """Whether the probe shows that a stage has taught its recall, and all else that it has and that ends in a key."""
    keys = [kind for kind in ("passkey", "statements") if getattr(stage, kind)] + [*HARDER] * bool(stage.needles)
    return scores["recall"]["value_accuracy"] >= GOOD_ENOUGH and all(scores[kind]["exact_match"] >= GOOD_ENOUGH for kind in keys)


def train(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, stages: tuple[Stage, ...], settings: dict[str, Any], file: Path
) -> Progress:
    """Train in place, from the progress in `file`, if an earlier training with these settings stopped there; return the progress.

    `settings` has all that decides the weights: the seed, the peak learning rate, whether there are harder tasks, and the rest.
    """
    seed, peak = settings["seed"], settings["rate"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
    progress = resume(file, settings, model, optimizer)
    start = time.perf_counter() - progress.seconds
    for number, stage in list(enumerate(stages, 1))[progress.stage - 1 :]:
        # A probe is as long as its stage and looks at other samples than the final scores.
        probe = texts_from(seed, FIRST_PROBE, PROBE_SAMPLES, stage.tokens, stage.pairs, settings["harder"])
        for step in range(progress.step + 1, stage.steps + 1):
            # Warm-up in the first stage, half a cosine down to nothing in the last one.
            rate = min(1.0, step / WARM_UP) if number == 1 else 1.0
            if number == len(stages):
                rate = 0.5 * (1 + math.cos(math.pi * step / stage.steps))
            optimizer.param_groups[0]["lr"] = peak * rate
            samples = [sample(sample_rng(seed, progress.next_sample + row), tokenizer, stage) for row in range(stage.batch)]
            progress.next_sample += stage.batch
            progress.seen.update(text_hash(text) for texts, _, _ in samples for text in texts)
            inputs, targets, weights = batch_of(samples, token_id(tokenizer, "<pad>"), stage.tokens)
            losses = functional.cross_entropy(model(input_ids=inputs).logits.transpose(1, 2), targets, reduction="none")
            loss = (losses * weights).sum() / weights.sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            progress.recent.append(loss.item())
            progress.step = step
            if step % REPORT_EVERY and step < stage.steps:
                continue
            progress.mean, progress.recent = sum(progress.recent) / len(progress.recent), []
            scores = score(model, tokenizer, probe, stage.pairs)
            progress.seconds = time.perf_counter() - start
            print(
                f"{progress.seconds:5.0f} s  stage {number}  step {step}  loss {progress.mean:.4f}  {summarise(scores)}", flush=True
            )
            if number < len(stages) and is_good_enough(stage, scores):
                break
            save(file, progress, settings, model, optimizer)
        progress.stage_steps.append(progress.step)
        progress.stage, progress.step = number + 1, 0
        save(file, progress, settings, model, optimizer)
    return progress


def read_arguments() -> argparse.Namespace:
    """Return the command's arguments; exit with a message if one is out of range."""
    parser = argparse.ArgumentParser(description="Train a small teacher from nothing, or go on where the same command was stopped.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=0, help="a number >= 0 (default: 0)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--steps", type=float, default=1.0, help="scale the steps of every stage (default: 1.0)")
    parser.add_argument("--family", choices=FAMILIES, default=Sizes.family, help=f"(default: {Sizes.family})")
    parser.add_argument("--layers", type=int, default=Sizes.layers, help=f"(default: {Sizes.layers})")
    parser.add_argument("--width", type=int, default=Sizes.width, help=f"a multiple of {HEAD} (default: {Sizes.width})")
    parser.add_argument("--mlp", type=int, default=Sizes.mlp, help=f"width within the MLPs (default: {Sizes.mlp})")
    parser.add_argument("--rate", type=float, default=LEARNING_RATE, help=f"peak learning rate (default: {LEARNING_RATE})")
    parser.add_argument("--harder", action="store_true", help=f"train on {', '.join(HARDER)} and 64 pairs as well")
    arguments = parser.parse_args()
    if arguments.seed < 0:
        parser.error("--seed must not be negative: random.Random takes -1 and 1 for the same seed")
    if min(arguments.layers, arguments.width, arguments.mlp, arguments.threads) < 1 or min(arguments.steps, arguments.rate) <= 0:
        parser.error("--layers, --width, --mlp, --threads, --steps and --rate must be above 0")
    if arguments.width % HEAD:
        parser.error(f"--width {arguments.width} is no multiple of {HEAD}, the width of a head")
    return arguments


def main() -> None:
    """Train, score on held-out texts, and write the checkpoint with its scores."""
    arguments = read_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer()
    sizes = Sizes(arguments.family, arguments.layers, arguments.width, arguments.mlp)
    model = build_model(tokenizer, STAGES[-1].tokens, sizes)
    curriculum = HARDER_STAGES if arguments.harder else STAGES
    stages = tuple(replace(stage, steps=max(1, round(stage.steps * arguments.steps))) for stage in curriculum)
    print(f"{model.num_parameters()} parameters, {len(tokenizer)} tokens in the vocabulary", flush=True)

    settings = {"seed": arguments.seed, "rate": arguments.rate, "harder": arguments.harder, "threads": arguments.threads}
    settings |= {"sizes": asdict(sizes), "stages": [asdict(stage) for stage in stages]}
    file = arguments.output.with_name(f"{arguments.output.name}.progress")
    try:
        progress = train(model, tokenizer, stages, settings, file)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    last = stages[-1]
    held_out = texts_from(arguments.seed, FIRST_HELD_OUT, FINAL_SAMPLES, last.tokens, last.pairs, arguments.harder)
    scores = score(model, tokenizer, held_out, last.pairs)
    for kind, texts in held_out.items():
        scores[kind]["texts_also_seen_in_training"] = sum(text_hash(text) in progress.seen for text in texts)
    print(f"held out: {summarise(scores)}", flush=True)

    model.generation_config = GenerationConfig(
        bos_token_id=token_id(tokenizer, "<bos>"),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=token_id(tokenizer, "<pad>"),
    )
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    results = {
        "held_out": scores,
        "final_training_loss": progress.mean,
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "training_seconds": round(progress.seconds, 1),
    }
    report = json.dumps(results | describe_training(settings, stages, progress), indent=2)
    (arguments.output / "scores.json").write_text(report + "\n", encoding="utf-8")
    file.unlink()


def describe_training(settings: dict[str, Any], stages: tuple[Stage, ...], progress: Progress) -> dict[str, Any]:
    """Return the facts of scores.json about how the model was trained and scored."""
    return {
        "held_out_tokens": stages[-1].tokens,
        "held_out_recall_pairs": stages[-1].pairs,
        "held_out_seeds": f"seed * {SEED_STRIDE} + {FIRST_HELD_OUT} and up; training stays below",
        "seed": settings["seed"],
        "steps": sum(progress.stage_steps),
        "steps_of_each_stage": progress.stage_steps,
        "tokens": sum(steps * stage.batch * stage.tokens for steps, stage in zip(progress.stage_steps, stages, strict=True)),
        "threads": settings["threads"],
        "settings": {
            "sizes": settings["sizes"],
            "stages": settings["stages"],
            "good_enough": GOOD_ENOUGH,
            "learning_rate": settings["rate"],
            "warm_up_steps": WARM_UP,
            "weights": {
                "story": STORY_WEIGHT,
                "recall_value": VALUE_WEIGHT,
                "digit_of_an_answer": DIGIT_WEIGHT,
                "filler": FILLER_WEIGHT,
            },
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
    }


if __name__ == "__main__":
    main()
