import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from rbue.metrics import brier, nll


def test_nll_equals_scikit_learn(make_batch):
    probs, labels = make_batch()
    assert nll(probs, labels).item() == pytest.approx(log_loss(labels, probs, labels=range(5)), abs=1e-12)


def test_nll_of_an_impossible_label_is_infinite():
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert nll(probs, torch.tensor([1, 0])).item() == math.inf
    assert nll(probs, torch.tensor([0, 0])).item() == pytest.approx(math.log(2) / 2)


def test_nll_does_not_clip_small_probabilities():
    small = 1e-30
    probs = torch.tensor([[small, 1 - small]], dtype=torch.float64)
    assert nll(probs, torch.tensor([0])).item() == pytest.approx(-math.log(small))


def test_brier_equals_numpy(make_batch):
    probs, labels = make_batch()
    residual = probs.numpy() - np.eye(5)[labels.numpy()]
    assert brier(probs, labels).item() == pytest.approx((residual**2).sum() / len(labels), abs=1e-14)


def test_brier_goes_from_zero_to_two():
    sure = torch.tensor([[1.0, 0.0, 0.0]])
    assert brier(sure, torch.tensor([0])).item() == 0.0
    assert brier(sure, torch.tensor([2])).item() == 2.0


def test_pixels(make_batch):
    probs, labels = make_batch(images=4, classes=3, extra=(2, 5))
    expected = torch.nn.functional.nll_loss(probs.log(), labels)
    assert nll(probs, labels).item() == pytest.approx(expected.item(), abs=1e-14)
    flat = probs.permute(0, 2, 3, 1).reshape(-1, 3)
    assert brier(probs, labels).item() == pytest.approx(brier(flat, labels.flatten()).item(), abs=1e-14)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), classes=st.integers(2, 8))
def test_the_true_distribution_scores_best_on_average(seed, classes):
    generator = torch.Generator().manual_seed(seed)
    truth, other = torch.rand(2, classes, generator=generator, dtype=torch.float64).add(0.01)
    truth, other = truth / truth.sum(), other / other.sum()
    every_label = torch.arange(classes)

    def expected(score, forecast):
        return sum(truth[label] * score(forecast[None], every_label[label : label + 1]) for label in range(classes))

    for score in (nll, brier):
        assert expected(score, truth) <= expected(score, other) + 1e-12
