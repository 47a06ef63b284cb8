"""The random score is splitmix64 of the seed, the layer, the head and the position alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blocks.scores.random import counter_uniform
from tests.composer.graph.memories_by_hand import mixed, uniform

COUNT = 4096


def test_random_scores_equal_splitmix64() -> None:
    """The mixing function gives the published outputs of two seeds, and the counter version equals it."""
    step = 0x9E3779B97F4A7C15
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    second = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    for seed, outputs in ((0, first), (1234567, second)):
        assert [mixed((seed + count * step) % 2**64) for count in range(len(outputs))] == outputs
    for seed in (0, 1, 1234567, 2**63 - 1):
        for layer, first_head in ((0, 0), (31, 24)):
            position = torch.tensor([[[0, 1, 2], [131_072, 7, 2**40]]])
            wanted = [
                [uniform(seed, layer, first_head + head, place) for head, place in enumerate(row)] for row in position[0].tolist()
            ]
            assert counter_uniform(seed, layer, first_head, position)[0].tolist() == wanted


def sample(seed: int = 0, layer: int = 0, first_head: int = 0, heads: int = 8, start: int = 0) -> Tensor:
    """Draw the scores of some thousand positions and a few heads."""
    return counter_uniform(seed, layer, first_head, torch.arange(start, start + COUNT)[None, :, None].expand(1, -1, heads))[0]


def test_random_scores_depend_only_on_seed_layer_head_and_position() -> None:
    whole = sample()
    assert torch.equal(whole, sample())
    assert torch.equal(whole[100:], sample(start=100)[:-100])
    assert torch.equal(whole[:, 3:], sample(first_head=3, heads=5))
    for other in (sample(seed=1), sample(layer=1), sample(first_head=8), sample(start=COUNT)):
        assert not (whole == other).any()


def test_random_scores_are_uniform() -> None:
    """The mean, the variance, sixteen equal bins and the correlation of neighbours are within five standard deviations."""
    numbers = sample()
    count, centred = numbers.numel(), numbers - 0.5
    assert numbers.dtype == torch.float64
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert abs(centred.mean().item()) < 5 * math.sqrt(1 / 12 / count)
    assert abs(centred.square().mean().item() - 1 / 12) < 5 * math.sqrt(1 / 180 / count)
    parts = (numbers * 16).long().flatten().bincount(minlength=16)
    assert ((parts - count / 16).abs() < 5 * math.sqrt(count / 16 * 15 / 16)).all()
    others = [sample(seed=1), sample(layer=1), sample(first_head=1), sample(start=1), sample(seed=2**62)]
    for other in others:
        assert abs((centred * (other - 0.5)).mean().item()) < 5 / 12 / math.sqrt(count)
