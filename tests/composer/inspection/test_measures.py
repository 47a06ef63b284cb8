"""Recall, spectra, half-lives, norms, stretches and bins equal known results."""

from __future__ import annotations

import math

import numpy as np
import torch

from composer.inspection.measures import Moment, half_lives, measure_recall, norm, spectrum, stretches, sum_bins


def test_orthogonal_keys_return_every_value_and_shared_keys_do_not() -> None:
    value = torch.eye(4)[:, None]
    exact = Moment(4, torch.tensor([3, 2, 1, 0]), torch.ones(4, 1, dtype=torch.bool), value, value)
    mixed = Moment(4, exact.age, exact.is_stored, value, value.mean(0, keepdim=True).expand_as(value))
    assert measure_recall([exact]).error.tolist() == [[0.0]]
    assert measure_recall([exact]).ages == (1, 2, 3, 4)
    wanted = math.sqrt(0.75**2 + 3 * 0.25**2)
    np.testing.assert_allclose(measure_recall([mixed]).error, wanted)
    np.testing.assert_allclose(measure_recall([mixed]).cosine_by_age, np.full((4, 1), 0.5))


def test_figures_that_a_head_lacks_are_omitted() -> None:
    value = torch.ones(2, 2, 3)
    present = torch.tensor([[True, True], [False, True]])
    back = torch.stack((value[0], torch.zeros(2, 3)))
    recall = measure_recall([Moment(2, torch.tensor([1, 0]), present, value, back)])
    assert recall.error.tolist() == [[0.0, 0.5]]
    assert recall.stored == (1.5,)
    assert np.isnan(recall.error_by_age[0, 0])


def test_effective_rank_counts_directions() -> None:
    vectors = torch.eye(5)[:, :3][:3].repeat(7, 1)[:, None]
    result = spectrum(torch.nn.functional.pad(vectors, (0, 4)))
    np.testing.assert_allclose(result.effective_rank, [3.0])
    np.testing.assert_allclose(result.shares[0], [1 / 3] * 3 + [0.0] * 4)
    logs = torch.randn(20, 2, 6).mul(100)
    assert np.isfinite(spectrum(logs, logarithm=True).effective_rank).all()
    plain = torch.rand(20, 2, 6)
    np.testing.assert_allclose(spectrum(plain.log(), logarithm=True).shares, spectrum(plain).shares, atol=1e-6)


def test_half_lives_stretches_and_bins_equal_values_by_hand() -> None:
    np.testing.assert_allclose(half_lives(torch.tensor([-math.log(2), -math.log(2) / 8])), [1.0, 8.0], rtol=1e-6)
    assert half_lives(torch.tensor([0.0, -0.0])).tolist() == [np.inf, np.inf]
    assert stretches(torch.tensor([True, True, False, True])) == ((0, 1), (3, 3))
    assert stretches(torch.tensor([False])) == ()
    assert sum_bins(torch.arange(5.0), 2).tolist() == [1.0, 5.0, 4.0]
    assert sum_bins(torch.arange(5.0), 2, mean=True).tolist() == [0.5, 2.5, 4.0]


def test_norms_of_large_numbers_do_not_overflow() -> None:
    vectors = torch.tensor([[3e200, 4e200], [0.0, 0.0], [-3.0, 4.0]], dtype=torch.float64)
    np.testing.assert_allclose(norm(vectors), [5e200, 0.0, 5.0], rtol=1e-12)
