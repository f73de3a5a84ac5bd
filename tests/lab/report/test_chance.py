"""What of a comparison is more than chance: intervals, methods told apart, and the sentence about them."""

import numpy as np
import pytest
import torch

from rbue import metrics
from rbue.lab.report.chance import FEWEST, resample, verdict

CLASSES = 4


def answers(labels, right, confidence=0.7):
    """Probabilities that are right where they should be, with one confidence for all images or one for each."""
    probs = np.repeat((1 - np.broadcast_to(confidence, len(labels)))[:, None] / (CLASSES - 1), CLASSES, 1)
    probs[np.arange(len(labels)), np.where(right, labels, (labels + 1) % CLASSES)] = confidence
    return probs


def judged(images, draws=500, **right):
    """Methods that are right on these images."""
    labels = np.arange(images) % CLASSES
    return resample({name: [answers(labels, one)] for name, one in right.items()}, labels, draws)


def some(images, *wrong):
    right = np.ones(images, dtype=bool)
    right[list(wrong)] = False
    return right


def test_a_clear_winner_is_named():
    found = judged(200, good=some(200, 1, 2), bad=some(200, *range(60)), worse=some(200, *range(90)))
    assert found["accuracy"].ahead == found["nll"].ahead == ["good"]
    assert found["accuracy"].is_best("good")
    assert not found["accuracy"].is_best("bad")
    said = verdict(found)
    assert said.startswith(
        "On 200 images `good` is ahead of the other 2 in accuracy (99.0 %) and in likelihood (NLL 0."
    )
    assert said.endswith("by more than chance.")
    assert "`good` is ahead of `bad` in" in verdict(judged(200, good=some(200, 1), bad=some(200, *range(60))))


def test_sixty_images_tell_nothing_of_three_more_mistakes():
    found = judged(60, mc=some(60, 1, 2), single=some(60, 1, 2, 3, 4, 5))
    assert not found["accuracy"].apart("mc", "single")
    assert not any(one.is_best(name) for one in found.values() for name in ("mc", "single"))
    said = verdict(found)
    assert said.startswith("`mc` and `single` cannot be told apart on 60 images, neither by accuracy nor by likelihood")
    assert "Only differences in accuracy above about 5 points would show." in said


def test_those_ahead_may_be_several():
    found = judged(200, one=some(200, 1, 2), other=some(200, 3, 4, 5), bad=some(200, *range(80)))
    assert found["accuracy"].ahead == ["one", "other"]
    assert "`one` and `other` lead in accuracy and in likelihood (NLL), in an order that may be chance" in verdict(
        found
    )
    assert not found["accuracy"].is_best("one")


def test_measures_may_disagree():
    labels = np.arange(200) % CLASSES
    right = some(200, *range(30))
    probs = {"bold": [answers(labels, right, 0.999)], "meek": [answers(labels, right, 0.9)]}
    found = resample(probs, labels, 500)
    assert (found["accuracy"].ahead, found["nll"].ahead) == (["bold", "meek"], ["meek"])
    said = verdict(found)
    assert "no method is ahead in accuracy; `meek` is ahead of `bold` in likelihood (NLL 0." in said


def test_equal_answers_are_a_tie():
    found = judged(100, a=some(100, 1), b=some(100, 1), c=some(100, 1), d=some(100, 1))
    assert all(one.ahead == ["a", "b", "c", "d"] for one in found.values())
    assert verdict(found).startswith("The 4 methods cannot be told apart on 100 images")
    assert "would show" not in verdict(found)
    labels = np.arange(100) % CLASSES
    probs = answers(labels, some(100, 1))
    rounded = resample({"a": [probs], "b": [probs * (1 - 1e-14)]}, labels, 200)
    assert not any(one.apart("a", "b") for one in rounded.values())


def test_one_method_has_nothing_to_be_compared_with():
    found = judged(60, alone=some(60, 1, 2, 3))
    assert not found["accuracy"].is_best("alone")
    said = verdict(found)
    assert "`alone` is right on 95.0 % of 60 images (95 % interval: 86.1 % to 99.0 %)" in said
    assert "no other method" in said


def test_few_images_tell_nothing():
    found = judged(FEWEST - 1, good=some(FEWEST - 1), bad=~some(FEWEST - 1))
    assert not found["accuracy"].apart("good", "bad")
    assert "too few to tell `good` and `bad` apart" in verdict(found)


def test_intervals_are_those_of_a_plain_loop():
    random = np.random.default_rng(1)
    labels = random.integers(0, CLASSES, 80)
    probs = random.dirichlet(np.ones(CLASSES), 80)
    probs[:9], labels[:9] = [[0.5, 0.3, 0.1, 0.1], *[[0.2, 0.52, 0.2, 0.08]] * 8], 0  # 0.5 is the edge of a bin
    found = resample({"one": [probs]}, labels, 4000)
    p, y = torch.from_numpy(probs), torch.from_numpy(labels)
    for name, measure in (("nll", metrics.nll), ("brier", metrics.brier), ("ece", metrics.ece)):
        picked = [torch.from_numpy(random.integers(0, 80, 80)) for _ in range(300)]
        loop = np.array([float(measure(p[chosen], y[chosen])) for chosen in picked])
        value = float(measure(p, y))
        assert found[name].values[0] == pytest.approx(value)
        wanted = value + np.quantile(loop - loop.mean(), [0.025, 0.975])
        assert found[name].interval("one") == pytest.approx(wanted, abs=0.4 * loop.std())
        assert found[name].draws.std() == pytest.approx(loop.std(), rel=0.15)


def test_shares_have_exact_intervals():
    low, high = judged(60, perfect=some(60))["accuracy"].interval("perfect")
    assert (round(low, 3), high) == (0.940, 1)


def test_no_interval_of_a_calibration_error_is_below_zero():
    labels = np.arange(80) % CLASSES
    found = resample({"one": [answers(labels, some(80, *range(20)), 0.75)]}, labels, 200)["ece"]
    assert found.values[0] == pytest.approx(0)
    assert found.interval("one")[0] == 0


def test_trainings_count_as_their_mean():
    labels = np.arange(100) % CLASSES
    trainings = [answers(labels, some(100, 1)), answers(labels, some(100, *range(11)))]
    found = resample({"two": trainings, "one": trainings[:1]}, labels, 200)
    assert found["accuracy"].values == pytest.approx([0.94, 0.99])
    low, high = found["accuracy"].interval("two")
    assert 0.89 < low < 0.94 < high < 1  # that of 94 right answers of 100 would begin at 0.87
    assert found["ece"].values[0] == pytest.approx(
        np.mean([float(metrics.ece(torch.from_numpy(one), torch.from_numpy(labels))) for one in trainings])
    )


@pytest.mark.slow
def test_equal_methods_are_told_apart_as_seldom_as_stated():
    random = np.random.default_rng(0)
    wrong = []
    for _ in range(300):
        hard = random.random(100) < 0.2
        right = {f"m{n}": ~np.where(random.random(100) < 0.5, hard, random.random(100) < 0.2) for n in range(6)}
        accuracy = judged(100, 300, **right)["accuracy"]
        wrong.append(any(accuracy.apart(a, b) for a in right for b in right))
    assert np.mean(wrong) < 0.09  # 0.05, with three standard errors
