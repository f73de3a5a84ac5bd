"""Scores of regression against scipy, numerical integration and the definitions."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import rbue
from rbue import metrics
from rbue.decisions.conformal import QuantileResiduals
from rbue.errors import InvalidInput


def normal_batch(shape=(40,)):
    generator = torch.Generator().manual_seed(0)
    mean, spread, noise = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    std = spread.abs() + 0.1
    return mean, std, mean + 1.5 * std * noise


@pytest.mark.parametrize("shape", [(40,), (10, 2, 2)])
def test_gaussian_nll_equals_scipy(shape):
    mean, std, targets = normal_batch(shape)
    expected = -stats.norm(mean, std).logpdf(targets).mean()
    assert metrics.gaussian_nll(mean, std**2, targets).item() == pytest.approx(expected, abs=1e-12)


def test_gaussian_crps_is_the_integral_that_defines_it():
    mean, std, targets = normal_batch((6,))
    found = []
    for m, s, y in zip(mean.tolist(), std.tolist(), targets.tolist(), strict=True):
        below, _ = integrate.quad(lambda z: stats.norm.cdf(z, m, s) ** 2, -20, y, epsabs=1e-10)  # noqa: B023
        above, _ = integrate.quad(lambda z: stats.norm.sf(z, m, s) ** 2, y, 20, epsabs=1e-10)  # noqa: B023
        found.append(below + above)
    assert metrics.gaussian_crps(mean, std, targets).item() == pytest.approx(np.mean(found), abs=1e-8)


@pytest.mark.parametrize("fair", [True, False])
def test_sample_crps_equals_all_pairs(fair):
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(7, 5, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    pairs = (samples[:, None] - samples[None]).abs().sum((0, 1)) / (7 * 6 if fair else 49)
    expected = ((samples - targets).abs().mean(0) - pairs / 2).mean()
    assert metrics.sample_crps(samples, targets, fair=fair).item() == pytest.approx(expected.item(), abs=1e-12)


def test_samples_as_a_distribution_have_the_integral_for_a_score():
    samples, y = np.array([0.3, -1.0, 2.0, 0.9]), 0.5
    edges = np.sort(np.append(samples, y))
    steps = [(np.mean(samples <= a) - (a >= y)) ** 2 * (b - a) for a, b in pairwise(edges)]
    found = metrics.sample_crps(torch.tensor(samples)[:, None], torch.tensor([y], dtype=torch.float64), fair=False)
    assert found.item() == pytest.approx(sum(steps), abs=1e-12)


def test_the_fair_score_has_the_mean_of_the_distribution_whatever_the_number_of_samples():
    generator = torch.Generator().manual_seed(0)
    targets = torch.full((200_000,), 0.7, dtype=torch.float64)
    limit = metrics.gaussian_crps(torch.zeros_like(targets), torch.ones_like(targets), targets).item()
    few = torch.randn(3, 200_000, generator=generator, dtype=torch.float64)
    assert metrics.sample_crps(few, targets).item() == pytest.approx(limit, abs=0.005)
    assert metrics.sample_crps(few, targets, fair=False).item() > limit + 0.1


def test_coverage_and_quantiles_of_a_normal_distribution():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(50_000, generator=generator, dtype=torch.float64)
    levels = torch.tensor([0.05, 0.3, 0.5, 0.95], dtype=torch.float64)
    quantiles = torch.tensor(stats.norm.ppf(levels)).expand(50_000, 4)
    error = 4 * math.sqrt(0.25 / 50_000)
    assert metrics.interval_coverage(quantiles[:, 0], quantiles[:, 3], targets).item() == pytest.approx(0.9, abs=error)
    assert metrics.quantile_calibration_error(quantiles, levels, targets).item() < error
    narrow = metrics.quantile_calibration_error(0.5 * quantiles, levels, targets).item()
    expected = np.abs(stats.norm.cdf(0.5 * stats.norm.ppf(levels)) - levels.numpy()).mean()
    assert narrow == pytest.approx(expected, abs=error)


@pytest.mark.parametrize("fair", [True, False])
def test_samples_may_come_in_batches(fair):
    generator = torch.Generator().manual_seed(0)
    samples, targets = torch.randn(4, 50, generator=generator), torch.randn(50, generator=generator)
    metric = metrics.SampleCRPS(fair=fair)
    for part, truth in zip(samples.split([5, 45], 1), targets.split([5, 45]), strict=True):
        metric.update(part, truth)
    torch.testing.assert_close(metric.compute(), metrics.sample_crps(samples, targets, fair), rtol=0, atol=1e-12)


def test_an_empty_interval_covers_nothing():
    """Quantiles that are too wide are narrowed by the same number, beyond nothing where they were the narrowest."""
    generator = torch.Generator().manual_seed(0)
    width, targets = 3 * torch.rand(4000, generator=generator), 0.3 * torch.randn(4000, generator=generator)
    quantiles = torch.stack([-width, width], 1)
    intervals = QuantileResiduals().fit(quantiles[:2000], targets[:2000], coverage=0.5)(quantiles[2000:])
    assert (intervals.lower > intervals.upper).sum() > 100
    found = metrics.interval_coverage(*intervals, targets[2000:])
    assert found.item() == pytest.approx(0.5, abs=0.05)
    metric = metrics.IntervalCoverage()
    assert metric(*intervals, targets[2000:]) == found


def test_the_ends_of_an_interval_belong_to_it_and_maps_have_quantiles():
    one = torch.ones(2, 3)
    assert metrics.interval_coverage(one, one, one).item() == 1
    assert metrics.quantile_calibration_error(one[:, None], torch.tensor([0.75]), one).item() == 0.25
    assert metrics.gaussian_nll(one, one, one).dtype is torch.float64
    quantiles = torch.stack([one * 0, one * 2], 1)  # (2, 2, 3)
    assert metrics.quantile_calibration_error(quantiles, torch.tensor([0.25, 0.75]), one).item() == 0.25


def bad():
    one = torch.ones(3)
    levels = torch.tensor([0.5])
    return [
        (metrics.gaussian_nll, (one, 0 * one, one), "variance holds 0; give positive numbers"),
        (metrics.gaussian_nll, (one, one[:2], one), r"variance has shape \(2,\) and mean \(3,\)"),
        (metrics.gaussian_nll, (one, one, one.long()), "targets has dtype torch.int64"),
        (metrics.gaussian_nll, (one, one, one * float("nan")), "targets holds 3 NaN"),
        (metrics.gaussian_nll, (one, one, one * float("inf")), "targets holds inf"),
        (metrics.gaussian_nll, (one[:0], one[:0], one[:0]), r"mean has shape \(0,\), that is nothing"),
        (metrics.gaussian_nll, (one, one, one.to("meta")), "mean is on cpu and targets on meta"),
        (metrics.sample_crps, (one.expand(2, 3) * float("nan"), one), "samples holds 6 NaN"),
        (metrics.gaussian_crps, (one, -one, one), "std holds -1"),
        (metrics.sample_crps, (one[None], one), "holds 1 sample, and the fair score compares pairs"),
        (metrics.sample_crps, (torch.ones(4, 2), one), r"samples has shape \(4, 2\) for targets of \(3,\)"),
        (metrics.sample_crps, (torch.ones(5, 4, 3), torch.ones(3, 4)), r"targets of \(3, 4\); give \(S, B, ...\)"),
        (
            metrics.quantile_calibration_error,
            (one[:, None], 2 * levels, one),
            r"levels go from 1 to 1; give .*\(0, 1\)",
        ),
        (metrics.quantile_calibration_error, (torch.ones(3, 2), levels, one), r"\(3, 2\) for 1 levels; give \(B, 1,"),
    ]


@pytest.mark.parametrize(("function", "inputs", "message"), bad())
def test_bad_numbers_are_one_clear_sentence(function, inputs, message):
    with pytest.raises(InvalidInput, match=message):
        function(*inputs)


def test_a_prediction_in_the_place_of_its_numbers_is_told_which():
    prediction = rbue.Regression(torch.ones(3), torch.ones(3), samples_used=torch.ones(3), seed=0)
    with pytest.raises(InvalidInput, match=r"mean is a Regression; give one of its tensors, e\.g\. prediction\.mean"):
        metrics.gaussian_nll(prediction, torch.ones(3), torch.ones(3))
