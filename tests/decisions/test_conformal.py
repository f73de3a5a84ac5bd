"""Sets against a plain double loop on data with ties; coverage over 1,000 draws against the exact binomial band."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from rbue.decisions.conformal import (
    APS,
    LAC,
    RAPS,
    NormalisedResiduals,
    QuantileResiduals,
    Residuals,
    _uniforms,
    rank_of_threshold,
)
from rbue.errors import InvalidInput
from rbue.prediction import MultiLabel, Prediction, Regression

SCORES = [
    LAC(),
    APS(),
    APS(randomised=False),
    RAPS(penalty=0.0625, free_ranks=2),
    RAPS(randomised=False, penalty=0.125, free_ranks=1),
]


def tied(images, classes, seed):
    """Probabilities that are multiples of 1/16, so that ties are the rule and sums exact."""
    rng = np.random.default_rng(seed)
    probs = np.stack([rng.multinomial(16, rng.dirichlet(np.full(classes, 0.7))) for _ in range(images)]) / 16
    return probs, rng.integers(0, classes, images)


def loop_score(score, probs, label, u):
    """The score of one class of one image, by comparing it with every other class."""
    if type(score) is LAC:
        return 1 - probs[label]
    before, rank = 0.0, 1
    for other in range(len(probs)):
        if probs[other] > probs[label] or (probs[other] == probs[label] and other < label):
            before += probs[other]
            rank += 1
    found = before + (u if score.randomised else 1) * probs[label]
    if isinstance(score, RAPS):
        found += score.penalty * max(0, rank - score.free_ranks)
    return found


def loop_sets(score, held, labels, new, coverage, by_class, seed):
    """Split conformal sets, plainly."""
    classes = held.shape[1]
    u_held, u_new = (_uniforms(len(x), seed, part).tolist() for x, part in ((held, "held out"), (new, "new")))
    own = [loop_score(score, held[i], labels[i], u_held[i]) for i in range(len(held))]
    sets = np.zeros(new.shape, dtype=bool)
    for label in range(classes):
        used = sorted(own[i] for i in range(len(held)) if not by_class or labels[i] == label)
        rank = next(k for k in range(1, len(used) + 1) if k >= (len(used) + 1) * coverage - 1e-9)
        for i in range(len(new)):
            sets[i, label] = loop_score(score, new[i], label, u_new[i]) <= used[rank - 1]
    return sets


@pytest.mark.parametrize("by_class", [False, True], ids=["marginal", "by class"])
@pytest.mark.parametrize("score", SCORES, ids=repr)
def test_sets_equal_a_double_loop_with_ties(score, by_class):
    for seed in range(3):
        held, labels = tied(120, 4, seed)
        new, _ = tied(60, 4, seed + 100)
        for coverage in (0.5, 0.8, 0.9):
            fitted = score.fit(held, labels, coverage, by_class=by_class, seed=seed)
            expected = loop_sets(score, held, labels, new, coverage, by_class, seed)
            assert (fitted(new).numpy() == expected).all()
            assert (fitted(torch.from_numpy(new).float(), first=0).numpy() == expected).all()


def band(hits, draws, chance):
    """Whether a count lies in the exact binomial band that holds 99.9 % of them."""
    low, high = binom.ppf([0.0005, 0.9995], draws, chance)
    return low <= hits <= high


def drawn(rng, images, classes=4):
    """Probabilities and labels that follow others: what a network is sure of is not what is true."""
    probs = rng.dirichlet(np.full(classes, 0.8), images)
    mixed = 0.6 * probs + 0.4 / classes
    labels = (mixed.cumsum(1) < rng.random((images, 1))).sum(1).clip(max=classes - 1)
    return torch.from_numpy(probs), torch.from_numpy(labels)


DRAWS = pytest.mark.parametrize("draws", [300, pytest.param(1000, marks=pytest.mark.slow)])


@DRAWS
@pytest.mark.parametrize(
    "score", [SCORES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in SCORES[1:])], ids=repr
)
def test_coverage_over_many_draws_is_in_the_exact_band(score, draws):
    """49 held-out images and a new one: the true class is covered with probability ⌈50·0.9⌉ / 50 = 0.9 exactly."""
    rng = np.random.default_rng(1)
    probs, labels = drawn(rng, 50_000)
    hits = 0
    for draw in range(draws):
        rows = slice(50 * draw, 50 * draw + 49)
        fitted = score.fit(probs[rows], labels[rows], coverage=0.9, seed=draw)
        new = 50 * draw + 49
        hits += bool(fitted(probs[new : new + 1])[0, labels[new]])
    # Scores without randomness may tie (the last class of APS always scores 1): coverage is then above.
    if isinstance(score, APS) and not score.randomised:
        assert hits >= binom.ppf(0.0005, draws, 0.9)
    else:
        assert band(hits, draws, 0.9), hits


@pytest.mark.slow
@pytest.mark.parametrize("score", SCORES[:2], ids=repr)
def test_coverage_of_each_class_over_1000_draws(score):
    """19 held-out images of each class, of which one is predicted badly: each is covered with ⌈20·0.9⌉ / 20."""
    rng = np.random.default_rng(2)
    labels = torch.arange(3).repeat(20)
    hits = np.zeros(3)
    for draw in range(1000):
        logits = torch.from_numpy(rng.normal(size=(60, 3)))
        logits[torch.arange(60), labels] += torch.tensor([2.0, 1.0, -1.0])[labels]
        probs = logits.softmax(1)
        fitted = score.fit(probs[:57], labels[:57], coverage=0.9, by_class=True, seed=draw)
        hits += fitted(probs[57:])[range(3), range(3)].numpy()
    assert all(band(count, 1000, 0.9) for count in hits), hits


@DRAWS
@pytest.mark.parametrize("score", [Residuals(), NormalisedResiduals(), QuantileResiduals()], ids=repr)
def test_coverage_of_intervals_over_many_draws(score, draws):
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(draws):
        mean, std = torch.from_numpy(rng.normal(size=50)), torch.from_numpy(rng.uniform(0.1, 2, 50))
        true = mean + 1.7 * std * torch.from_numpy(rng.normal(size=50)) + 0.1
        given = {Residuals: mean, NormalisedResiduals: (mean, std)}.get(
            type(score), torch.stack([mean - std, mean, mean + std], 1)
        )
        held = tuple(part[:49] for part in given) if isinstance(given, tuple) else given[:49]
        new = tuple(part[49:] for part in given) if isinstance(given, tuple) else given[49:]
        lower, upper = score.fit(held, true[:49], coverage=0.9)(new)
        hits += bool(lower[0] <= true[49] <= upper[0])
    assert band(hits, draws, 0.9), hits


def test_the_correction_is_exact():
    assert [rank_of_threshold(n, 0.9) for n in (9, 10, 19, 99, 100, 999)] == [9, 10, 18, 90, 91, 900]
    assert rank_of_threshold(9, 0.7) == 7
    assert rank_of_threshold(99, 0.29) == 29  # 100 * 0.29 is 28.999999999999996
    assert rank_of_threshold(99, 0.57) == 57  # and 100 * 0.57 is 56.99999999999999
    assert rank_of_threshold(999, 0.07) == 70  # 1000 * 0.07 is 70.00000000000001


@pytest.mark.parametrize(("coverage", "needed"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1)])
def test_too_few_images_say_how_many_are_needed(coverage, needed):
    probs, labels = torch.full((needed, 2), 0.5), torch.zeros(needed, dtype=torch.int64)
    LAC().fit(probs, labels, coverage)
    if needed > 1:
        with pytest.raises(InvalidInput, match=f"{needed - 1} images are too few.*at least {needed}"):
            LAC().fit(probs[1:], labels[1:], coverage)
        with pytest.raises(InvalidInput, match=f"class 1 has 0 images.*at least {needed} of each"):
            LAC().fit(probs, labels, coverage, by_class=True)
    fitted = LAC().fit(probs, labels, coverage, by_class=True, too_few="whole")
    assert fitted.thresholds[1] == math.inf
    assert fitted(probs[:1])[0, 1]
    for too_few in ("error", "whole"):
        enough = LAC().fit(
            probs.repeat(2, 1), torch.cat([labels, labels + 1]), coverage, by_class=True, too_few=too_few
        )
        assert enough.thresholds.tolist() == [0.5, 0.5]


def test_batches_give_the_sets_of_all_images():
    probs, labels = drawn(np.random.default_rng(0), 300)
    fitted = APS().fit(probs[:200], labels[:200])
    whole = fitted(probs[200:])
    assert torch.equal(torch.cat([fitted(probs[200:250], first=0), fitted(probs[250:])]), whole)
    assert torch.equal(torch.cat([fitted(probs[250:], first=50), fitted(probs[200:250], first=0)]).roll(50, 0), whole)
    assert not torch.equal(_uniforms(50, 0, "new"), _uniforms(50, 0, "held out"))


@pytest.mark.parametrize("score", [SCORES[1], SCORES[3]], ids=repr)
def test_images_that_are_asked_one_at_a_time_are_covered_too(score):
    """Each has a random number of its own: with that of the first, 0.89, sets asked for 0.8 would hold 0.7."""
    rng = np.random.default_rng(4)
    probs, labels = drawn(rng, 2500)
    fitted = score.fit(probs[:1000], labels[:1000], coverage=0.8)
    sets = torch.cat([fitted(probs[place : place + 1]) for place in range(1000, 2500)])
    assert sets[torch.arange(1500), labels[1000:]].double().mean().item() == pytest.approx(0.8, abs=0.05)
    assert torch.equal(sets, fitted(probs[1000:], first=0))


def test_never_empty_adds_the_label_and_nothing_else():
    probs, labels = drawn(np.random.default_rng(0), 300)
    fitted = LAC().fit(probs, labels, coverage=0.3)
    plain, filled = fitted(probs), fitted(probs, never_empty=True)
    empty = ~plain.any(1)
    assert empty.any()
    assert torch.equal(plain[~empty], filled[~empty])
    assert torch.equal(filled[empty].nonzero()[:, 1], probs[empty].argmax(1))


def test_predictions_samples_and_arrays_are_the_same():
    rng = np.random.default_rng(0)
    samples = torch.from_numpy(rng.dirichlet(np.ones(3), (5, 40)))
    labels = torch.from_numpy(rng.integers(0, 3, 40))
    mean = samples.mean(0)
    prediction = Prediction(mean, mean, mean.long(), mean[:, 0], samples_used=torch.full((40,), 5), seed=0)
    expected = APS().fit(mean, labels)(mean)
    frozen = mean.numpy().copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (prediction, samples, samples.numpy(), mean.numpy(), mean.numpy().astype(">f8"), frozen):
            assert torch.equal(APS().fit(given, labels.numpy())(given), expected)
    with pytest.raises(InvalidInput, match="prediction is an array of object; give one of numbers"):
        APS().fit(mean.numpy().astype(object), labels)


def test_sets_refuse_another_temperature_than_they_were_fitted_at():
    rng = np.random.default_rng(0)
    samples = torch.from_numpy(rng.dirichlet(np.ones(3), (5, 40)))
    labels, mean = torch.from_numpy(rng.integers(0, 3, 40)), samples.mean(0)
    plain = Prediction(mean, mean, mean.long(), mean[:, 0], samples_used=torch.full((40,), 5), seed=0)
    scaled = plain.scaled(2.0)
    for by_class in (False, True):
        sets = APS().fit(scaled, labels, coverage=0.5, by_class=by_class)
        assert torch.equal(sets(scaled), sets(scaled.probs, first=0))
        for other in (plain, samples, samples.numpy()):
            with pytest.raises(InvalidInput, match="has the temperature 1, and these sets were fitted at 2"):
                sets(other)
    with pytest.raises(InvalidInput, match="has the temperature 2, and these sets were fitted at 1"):
        LAC().fit(samples, labels, coverage=0.5)(scaled)


def test_regression_gives_what_its_numbers_give():
    mean, variance, targets = torch.randn(40), torch.rand(40) + 0.1, torch.randn(40)
    count = torch.full((40,), 5)
    prediction = Regression(mean, variance, samples_used=count, seed=0)
    assert torch.equal(Residuals().fit(prediction, targets)(prediction).lower, Residuals().fit(mean, targets)(mean)[0])
    pair = mean, variance.sqrt()
    for one, other in zip(
        NormalisedResiduals().fit(prediction, targets)(prediction),
        NormalisedResiduals().fit(pair, targets.numpy())(pair),
        strict=True,
    ):
        assert torch.equal(one, other)
    quantiles = torch.stack([mean - 1, mean, mean + 1], 1)
    prediction = Regression(quantiles, quantiles, samples_used=count, seed=0, outputs="quantiles")
    thresholds = [QuantileResiduals().fit(one, targets).threshold for one in (prediction, quantiles, quantiles[:, ::2])]
    assert len(set(thresholds)) == 1
    with pytest.raises(InvalidInput, match="prediction is of outputs='values'; give a Regression of"):
        QuantileResiduals().fit(replace(prediction, outputs="values"), targets)
    assert Residuals().fit(mean[:, None], targets[:, None]).threshold == Residuals().fit(mean, targets).threshold


def test_constants_by_position_are_those_of_the_documentation():
    assert RAPS(0.1, 2) == RAPS(penalty=0.1, free_ranks=2)
    with pytest.raises(TypeError):
        APS(0.1)


def test_errors_name_the_value_and_the_way_out():
    probs, labels = torch.full((20, 2), 0.5), torch.zeros(20, dtype=torch.int64)
    with pytest.raises(InvalidInput, match=r"coverage is 1.5; give a number in \(0, 1\)"):
        LAC().fit(probs, labels, 1.5)
    with pytest.raises(InvalidInput, match="3 classes; these sets were fitted on 2"):
        LAC().fit(probs, labels)(torch.full((1, 3), 1 / 3))
    with pytest.raises(InvalidInput, match=r"shape \(20,\)"):
        LAC().fit(probs[:, 0], labels)
    for penalty in (-1, math.inf, "a"):
        with pytest.raises(InvalidInput, match=f"penalty is {penalty!r}"):
            RAPS(penalty=penalty)
    given, same = (RAPS(penalty, 1, randomised=False).scores(probs) for penalty in (torch.tensor(0.125), 0.125))
    assert torch.equal(given, same)
    pixels = torch.full((20, 2, 3), 0.5)
    with pytest.raises(InvalidInput, match=r"prediction.probs has shape \(20, 2, 3\); give one row a pixel"):
        LAC().fit(Prediction(pixels, pixels, pixels, pixels, samples_used=labels, seed=0), labels)
    with pytest.raises(
        InvalidInput, match=r"of maps \(B, C, ...\) give one row a pixel, .* one random pixel of each image"
    ):
        LAC().fit(pixels[..., None], labels)
    several = MultiLabel(probs, probs, labels, probs, samples_used=labels, seed=0)
    with pytest.raises(InvalidInput, match="MultiLabel, which has no classes"):
        LAC().fit(several, labels)
    with pytest.raises(InvalidInput, match="too_few is 'none'"):
        LAC().fit(probs, labels, too_few="none")
    with pytest.raises(InvalidInput, match="all positive"):
        NormalisedResiduals().fit((torch.zeros(20), torch.zeros(20)), torch.zeros(20))
    with pytest.raises(InvalidInput, match="the 19 standard deviations for 20 means"):
        NormalisedResiduals().fit((torch.zeros(20), torch.ones(19)), torch.zeros(20))
    with pytest.raises(InvalidInput, match=r"shape \(20, 1\); .* with Q of at least 2"):
        QuantileResiduals().fit(torch.zeros(20, 1), torch.zeros(20))
    with pytest.raises(InvalidInput, match="targets has 19 numbers for 20 images"):
        Residuals().fit(torch.zeros(20), torch.zeros(19))
