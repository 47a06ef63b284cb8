"""How often a sparse cache keeps other pairs than a strict float64 top-λ, and how often a split of a text changes a choice.

    compose build lola --from MODEL -o STUDENT
    python benchmarks/choices.py STUDENT TEXT [--tokens 2048] [--splits 12]

The model runs in float32 on the first tokens of the text. At every eviction the scores ‖v̂ - v‖ of all competing pairs are computed
again in float64. The features, the values and the earlier evictions are those of the run. The state is their sum in float64. The
script counts the evicted pairs that the strict order keeps (of equal scores it keeps the older pair).

Then the heads of each layer run on the same queries, keys and values with the strict order of their own scores. The outputs are
compared token by token. Last, the whole model runs on the text in several calls, which begin at one to eight random tokens.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import AutoTokenizer

import composer
from blocks.memories import sparse
from blocks.memories.sparse import Sparse
from composer.model.cache import new_cache
from composer.model.hosts import attentions

FALLING, WORTH = sparse.pairs_to_evict, Sparse._score


class Choices:
    """A record of a run's choices: the evicted pairs, by layer, and the number of them that the strict float64 order keeps."""

    def __init__(self, *, compare: bool = False, strict: bool = False) -> None:
        self.compare, self.strict = compare, strict
        self.evicted: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        self.pairs = self.different = 0
        self.sums: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def record_eligible(self, memory: Sparse, eligible: Any, below: Any, place: tuple[int, int]) -> Any:
        """Replace ``Sparse._score``: keep a reference to the competing pairs, and return their scores."""
        self.eligible, self.place = eligible, place
        return WORTH(memory, eligible, below, place)

    def pairs_to_evict(self, score: Tensor, resolution: Tensor, is_pair: Tensor, gone: Tensor, count: int) -> Tensor:
        """Replace ``blocks.scores.base.pairs_to_evict``: make the choice and record it."""
        index = FALLING(score, torch.zeros_like(score) if self.strict else resolution, is_pair, gone, count)
        among = slice(score.shape[1])
        position = self.eligible["position"][:, among].gather(1, index)
        real = is_pair.gather(1, index)
        if bool(real.any()):
            self.evicted[self.place].append(position.masked_fill(~real, -1))
        if self.compare:
            self.count_differences(index, real, is_pair, gone, among)
        return index

    def count_differences(self, index: Tensor, real: Tensor, is_pair: Tensor, gone: Tensor, among: slice) -> None:
        """Compare a choice with the strict float64 order."""
        key, value = (self.eligible[name][:, among].double() for name in ("mapped", "value"))
        mass = key.new_zeros(key.shape[0], *key.shape[2:])
        matrix, mass = self.sums.get(self.place, (mass[..., None].expand(*mass.shape, value.shape[3]), mass))
        divisor = torch.einsum("behf,bhf->beh", key, mass)[..., None]
        predicted = torch.einsum("behf,bhfv->behv", key, matrix) / torch.where(divisor > 0, divisor, 1.0)
        score = (predicted - value).norm(dim=-1).masked_fill(~is_pair, -math.inf).masked_fill(gone, math.inf)
        # Sorted from the youngest to the oldest, so that of equal scores the younger is evicted.
        order = score.shape[1] - 1 - score.flip(1).argsort(dim=1, stable=True)
        strict = torch.zeros_like(gone).scatter(1, order[:, : index.shape[1]], True)
        self.pairs += int(real.sum())
        self.different += int((real & ~strict.gather(1, index)).sum())
        key, value = (
            states.gather(1, index[..., None].expand(-1, -1, -1, states.shape[-1])) * real[..., None] for states in (key, value)
        )
        self.sums[self.place] = matrix + torch.einsum("behf,behv->bhfv", key, value), mass + key.sum(1)

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the choices of the calls inside, without gradients."""

        def worth(memory: Sparse, *inputs: Any) -> Any:
            return self.record_eligible(memory, *inputs)

        with (
            mock.patch.object(sparse, "pairs_to_evict", self.pairs_to_evict),
            mock.patch.object(Sparse, "_score", worth),
            torch.no_grad(),
        ):
            yield

    def equals(self, other: Choices) -> bool:
        """Whether both runs made the same choices."""
        return all(torch.equal(*(torch.cat(choices.evicted[place], dim=1) for choices in (self, other))) for place in self.evicted)


def run(model: Any, ids: Tensor, bounds: list[int], choices: Choices) -> Tensor:
    """Return the logits of a text that is split into calls at these bounds."""
    cache = new_cache(model.config)
    with choices.record():
        pieces = zip([0, *bounds], [*bounds, ids.shape[1]], strict=True)
        return torch.cat([model(ids[:, start:end], past_key_values=cache, use_cache=True).logits for start, end in pieces], dim=1)


def compute_difference(outputs: Tensor, references: Tensor) -> float:
    """Return the largest difference of two outputs at one token, relative to the norm of the second."""
    outputs, references = outputs.flatten(2), references.flatten(2)
    return float(((outputs - references).norm(dim=-1) / references.norm(dim=-1)).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--splits", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = options.text.read_text(encoding="utf-8")[: 16 * options.tokens]
    ids = torch.tensor([AutoTokenizer.from_pretrained(options.model)(text)["input_ids"][: options.tokens]])
    model = composer.load(options.model).float().eval()

    layers, calls = [attention for _, attention in attentions(model)], []
    for layer in layers:
        layer.listener = lambda call, *_, layer=layer: calls.append((layer, call))
    whole, worst = Choices(compare=True), 0.0
    logits = run(model, ids, [], whole)
    for layer in layers:
        layer.listener = None
    for layer, call in calls:
        empty = layer.composed.empty_state(1, call.heads.dtype, call.heads.device)
        with Choices(strict=True).record():
            heads, _ = layer.composed(call.inputs, empty, call.model_call.backend, False)
        worst = max(worst, compute_difference(call.heads, heads))
    share = f"{whole.different:,} of {whole.pairs:,} evicted pairs ({whole.different / whole.pairs:.4%})"
    print(f"{ids.shape[1]:,} tokens: {share} do not have the smallest float64 scores")
    print(f"strict order: the heads' outputs differ by at most {worst:.1e} at a token")

    numbers, changed, most = random.Random(0), 0, 0.0
    for _ in range(options.splits):
        bounds = sorted(numbers.sample(range(1, ids.shape[1]), numbers.randint(1, 8)))
        choices = Choices()
        most = max(most, compute_difference(run(model, ids, bounds, choices), logits))
        changed += not choices.equals(whole)
    print(f"{changed} of {options.splits} splits change a choice; logits differ by at most {most:.1e} at a token")


if __name__ == "__main__":
    main()
