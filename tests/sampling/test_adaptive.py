"""Adaptive stopping keeps the confidence it states."""

import numpy as np
import pytest
import torch
from networks import build
from scipy import stats
from torch import nn
from torch.nn import functional as F

import rbue
from rbue.errors import InvalidInput
from rbue.prediction import RegressionStatistics, RunningStatistics
from rbue.sampling.adaptive import student_quantile
from rbue.sampling.collect import SampleProgress


def simulate(draw, rule, limit, images=600):
    """Feed made-up samples to the rule; return the statistics and when each image stopped."""
    plan = rule.rounds(limit)
    statistics = RunningStatistics(images, torch.device("cpu"))
    active, done = torch.arange(images), 0
    for target in plan:
        statistics.add(active, draw(target - done, active))
        done = target
        if target != plan[-1]:
            active = active[~rule.settled(statistics, active, len(plan))]
        if not len(active):
            break
    return statistics


def test_an_answer_has_settled_where_the_stated_inequalities_hold():
    rule, n, looks = rbue.Adaptive(tolerance=0.05, confidence=0.9), 16, 3
    generator = torch.Generator().manual_seed(0)
    middle = torch.randn(500, 4, generator=generator, dtype=torch.float64)
    spread = torch.rand(500, 4, generator=generator, dtype=torch.float64) * 0.8
    probs = (middle + spread * torch.randn(n, 500, 4, generator=generator, dtype=torch.float64)).softmax(2)
    statistics = RunningStatistics(500, torch.device("cpu"))
    statistics.add(torch.arange(500), probs)
    found = rule.settled(statistics, torch.arange(500), looks).numpy()

    mean, deviation = probs.numpy().mean(0), probs.numpy().std(0, ddof=1)
    half_width = stats.t.ppf(1 - (1 - rule.confidence) / looks / 2, n - 1) * deviation / n**0.5
    precise = (half_width <= rule.tolerance).all(1)
    top = mean.argmax(1)
    rows = np.arange(500)
    ahead = mean[rows, top][:, None] - mean > half_width[rows, top][:, None] + half_width
    ahead[rows, top] = True
    safe = ahead.all(1)
    np.testing.assert_array_equal(found, precise & safe)
    assert (precise & ~safe).any()
    assert (safe & ~precise).any()
    assert found.any()


@pytest.mark.parametrize("gap", [0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_label_and_mean_hold_at_the_stated_confidence(gap, spread):
    """Two-class samples with a known mean; heavy spreads give nearly Bernoulli samples."""
    confidence, tolerance, images = 0.95, 0.03, 600
    generator = torch.Generator().manual_seed(0)

    def draw(count, rows):
        noise = torch.randn(count, len(rows), generator=generator, dtype=torch.float64) * spread
        p = torch.sigmoid(noise + gap * 4)
        return torch.stack([p, 1 - p], dim=2)

    truth = float(draw(200_000, torch.zeros(1))[..., 0].mean())
    found = simulate(draw, rbue.Adaptive(tolerance, confidence), 1024, images)
    stopped = found.count < 1024
    mean = found.mean[:, 0]
    wrong_label = ((mean < 0.5) & stopped).double().mean()
    off_mean = (((mean - truth).abs() > tolerance) & stopped).double().mean()
    slack = 4 * (confidence * (1 - confidence) / images) ** 0.5
    assert float(wrong_label) <= 1 - confidence + slack
    assert float(off_mean) <= 1 - confidence + slack


@pytest.mark.parametrize(("middle", "spread"), [(4, 2), (5, 3), (6, 4)])
def test_sure_answers_with_rare_doubts_hold_too(middle, spread):
    """Most samples are near 1 and few are low, which a first look can miss: at most twice the stated risk."""
    tolerance, images = 0.02, 2000
    generator = torch.Generator().manual_seed(1)

    def draw(count, rows):
        noise = torch.randn(count, len(rows), generator=generator, dtype=torch.float64) * spread
        p = torch.sigmoid(noise + middle)
        return torch.stack([p, 1 - p], dim=2)

    truth = float(draw(200_000, torch.zeros(1))[..., 0].mean())
    found = simulate(draw, rbue.Adaptive(), 100, images)
    off = (((found.mean[:, 0] - truth).abs() > tolerance) & (found.count < 100)).double().mean()
    assert float(off) <= 2 * (1 - rbue.Adaptive().confidence)


@pytest.mark.parametrize("share", [0.021, 0.1, 0.19, 0.3])
def test_samples_with_the_opposite_answer_that_the_first_round_misses(share):
    """The chance to see none of them, the label that holds, and how far the mean is off then."""
    images, first = 2000, 16
    generator = torch.Generator().manual_seed(2)

    def draw(count, rows):
        p = (torch.rand(count, len(rows), generator=generator, dtype=torch.float64) >= share).double()
        return torch.stack([p, 1 - p], dim=2)

    found = simulate(draw, rbue.Adaptive(first=first), 1024, images)
    unseen = (found.count == first).double().mean()
    assert float(unseen) == pytest.approx((1 - share) ** first, abs=4 * (0.25 / images) ** 0.5)
    assert float((found.mean[:, 0] < 0.5).double().mean()) <= 0.05
    assert float(((found.mean[:, 1] - share).abs() > 3 / first).double().mean()) <= 0.05


def test_easy_images_stop_early_and_hard_ones_do_not():
    generator = torch.Generator().manual_seed(0)

    def draw(count, rows):
        noise = torch.randn(count, len(rows), generator=generator) * torch.where(rows < 300, 0.1, 1.5)
        p = torch.sigmoid(noise + torch.where(rows < 300, 4.0, 0.0))
        return torch.stack([p, 1 - p], dim=2)

    count = simulate(draw, rbue.Adaptive(0.02, 0.95), 512).count
    assert count[:300].tolist() == [16] * 300
    assert float(count[300:].double().mean()) > 400


def test_adaptive_agrees_with_a_thousand_fixed_samples():
    network, x = build("residual", batch=80)
    with torch.no_grad():
        network.head.weight.mul_(4)  # make the passes disagree
    rbue.convert(network, rbue.DropReLU(0.7), example=x)
    fixed = rbue.predict(network, x, samples=1000)
    rule = rbue.Adaptive(tolerance=0.02, confidence=0.95)
    adaptive = rbue.predict(network, x, samples=1000, adaptive=rule)
    stopped = adaptive.samples_used < 1000
    assert float(stopped.double().mean()) > 0.2
    agree = (adaptive.label == fixed.label)[stopped].double().mean()
    assert float(agree) >= 0.95
    close = ((adaptive.probs - fixed.probs).abs().amax(1) <= 0.02)[stopped].double().mean()
    assert float(close) >= 0.95
    assert float(adaptive.samples_used.double().mean()) < 700
    assert adaptive.votes.sum(1).equal(adaptive.samples_used)


def test_an_image_that_never_settles_gets_all_samples_and_equals_the_fixed_result():
    network, x = build("residual")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    rule = rbue.Adaptive(tolerance=1e-6, confidence=0.99)
    adaptive = rbue.predict(network, x, samples=50, adaptive=rule)
    fixed = rbue.predict(network, x, samples=50)
    assert adaptive.samples_used.tolist() == [50] * 4
    torch.testing.assert_close(adaptive.probs, fixed.probs, rtol=0, atol=2e-6)
    torch.testing.assert_close(adaptive.variance, fixed.variance, rtol=1e-3, atol=1e-7)


def test_per_pixel_images_settle_when_all_their_pixels_do():
    network, x = build("per-pixel")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    found = rbue.predict(network, x, samples=64, adaptive=rbue.Adaptive(0.2, 0.9))
    assert found.samples_used.shape == (4,)
    assert found.votes.sum(1).amax((1, 2)).equal(found.samples_used)


@pytest.mark.parametrize("limit", [1, 3, 16, 17, 100, 1000])
def test_rounds_end_at_the_limit_and_grow(limit):
    rounds = rbue.Adaptive().rounds(limit)
    assert rounds[-1] == limit
    assert rounds == sorted(set(rounds))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(tolerance=0), "0"),
        (dict(tolerance=float("inf")), "inf"),
        (dict(confidence=1.0), r"1\.0"),
        (dict(confidence=-0.5), r"-0\.5"),
        (dict(first=2), "2"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InvalidInput, match=message):
        rbue.Adaptive(**settings)


@pytest.mark.parametrize(("name", "value"), [("tolerance", "a"), ("confidence", None), ("first", 8.5)])
def test_settings_that_are_no_numbers_are_named(name, value):
    with pytest.raises(rbue.InvalidInput, match=f"{name}.* {value!r}"):
        rbue.Adaptive(**{name: value})


@pytest.mark.parametrize("degrees", [3, 4, 15, 16, 31, 63, 100, 999, 2000])
def test_quantiles_of_students_distribution_are_scipys(degrees):
    for probability in (0.5, 0.9, 0.975, 0.99, 0.99375, 0.9999, 0.05):
        found, expected = student_quantile(degrees, probability), stats.t.ppf(probability, degrees)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_an_interval_has_the_quantile_of_one_degree_less_than_samples():
    statistics = RegressionStatistics(1, torch.device("cpu"))
    statistics.add(torch.arange(1), torch.tensor([0.0, 0.0, 1.0, 1.0]).reshape(4, 1, 1))
    half_width = stats.t.ppf(0.975, 3) * (1 / 3 / 4) ** 0.5  # squares of 1 in all
    for factor in (0.999, 1.001):
        settled = rbue.Adaptive(half_width * factor).settled(statistics, torch.arange(1), looks=1)
        assert settled.tolist() == [factor > 1]


def test_a_progress_bar_jumps_over_samples_that_are_not_needed(monkeypatch):
    net, x = build("residual", batch=6)
    rbue.convert(net, rbue.DropReLU(0.8), example=x)
    advanced = []
    monkeypatch.setattr(SampleProgress, "advance", lambda self, drawn: advanced.append(drawn))
    found = rbue.predict(net, x, samples=32, adaptive=rbue.Adaptive(tolerance=0.02, first=4), progress=True)
    assert found.samples_used.sum() < 6 * 32 == sum(advanced)


class ByTheBatch(nn.Module):
    """Scores against the mean of the batch, so that an image's answer depends on what it is in."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x):
        h = F.relu(self.first(x))
        return self.head(h - h.mean(0))


@pytest.mark.filterwarnings("ignore:.*batch:rbue.RbueWarning")
@pytest.mark.parametrize("memory", [None, 20_000])
def test_images_of_a_batch_on_which_answers_depend_settle_together(memory):
    torch.manual_seed(0)
    net, x = ByTheBatch(), torch.randn(24, 8)
    rbue.convert(net, rbue.DropReLU(0.8), example=x)
    settings = {"outputs": "values", "memory": memory}
    found = rbue.predict(net, x, samples=2000, adaptive=rbue.Adaptive(0.1), **settings)
    used = int(found.samples_used[0])
    assert used < 2000
    assert found.samples_used.eq(used).all()
    torch.testing.assert_close(found.mean, rbue.predict(net, x, samples=used, **settings).mean)
