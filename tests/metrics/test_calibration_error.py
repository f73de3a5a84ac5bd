import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from rbue.metrics import adaptive_ece, ece, mce, reliability


def loop_bins(probs, labels, bins):
    """Bins in exact rational arithmetic, image by image: {bin number from 1: [(confidence, right)]}."""
    found = {}
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        number = min(bins, math.ceil(Fraction(confidence) * bins))
        found.setdefault(number, []).append((confidence, row.index(confidence) == label))
    return found


def loop_errors(probs, labels, bins):
    gaps = [
        (len(members), abs(sum(c for c, _ in members) - sum(r for _, r in members)) / len(members))
        for members in loop_bins(probs, labels, bins).values()
    ]
    return sum(n * gap for n, gap in gaps) / len(labels), max(gap for _, gap in gaps)


@pytest.mark.parametrize("bins", [1, 7, 15, 30])
def test_ece_and_mce_equal_a_plain_loop(make_batch, bins):
    probs, labels = make_batch(images=300)
    expected_ece, expected_mce = loop_errors(probs, labels, bins)
    assert ece(probs, labels, bins).item() == pytest.approx(expected_ece, abs=1e-12)
    assert mce(probs, labels, bins).item() == pytest.approx(expected_mce, abs=1e-12)


@pytest.mark.parametrize(("norm", "ours"), [("l1", ece), ("max", mce)])
def test_equal_to_torchmetrics_away_from_the_edges(make_batch, norm, ours):
    probs, labels = make_batch(images=500)
    expected = multiclass_calibration_error(probs, labels, num_classes=5, n_bins=30, norm=norm)
    assert ours(probs, labels).item() == pytest.approx(expected.item(), abs=1e-6)


def test_thirty_bins_are_the_default(make_batch):
    probs, labels = make_batch()
    assert ece(probs, labels) == ece(probs, labels, bins=30) != ece(probs, labels, bins=29)
    assert len(reliability(probs, labels).counts) == 30


def test_confidence_one_shares_the_last_bin_unlike_torchmetrics():
    probs = torch.tensor([[1.0, 0.0], [0.99, 0.01]])
    labels = torch.tensor([1, 0])
    assert reliability(probs, labels, bins=10).counts.tolist() == [0] * 9 + [2]
    # Together: |1/2 - (1 + 0.99)/2|. In a bin each, as in torchmetrics: (|0 - 1| + |1 - 0.99|)/2.
    assert ece(probs, labels, bins=10).item() == pytest.approx(0.495, abs=1e-6)
    theirs = multiclass_calibration_error(probs, labels, num_classes=2, n_bins=10)
    assert theirs.item() == pytest.approx(0.505, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [3, 10, 30])
def test_an_edge_belongs_to_the_bin_below(dtype, bins):
    for m in range(math.ceil(bins / 2), bins + 1):
        edge = torch.tensor(m / bins, dtype=dtype)
        above = torch.nextafter(edge, torch.tensor(2.0, dtype=dtype))
        for confidence, expected in ((edge, m), (above, min(m + 1, bins))):
            if confidence < 0.5:
                continue
            probs = torch.stack([confidence, 1 - confidence.clamp(max=1)])[None]
            counts = reliability(probs, torch.tensor([0]), bins).counts.tolist()
            assert counts.index(1) + 1 == expected, (m, bins, dtype, confidence)


def test_reliability_describes_every_bin():
    probs = torch.tensor([[0.55, 0.45], [0.6, 0.4], [0.95, 0.05]], dtype=torch.float64)
    diagram = reliability(probs, torch.tensor([0, 1, 0]), bins=10)
    assert diagram.edges.tolist() == [m / 10 for m in range(11)]
    assert diagram.counts.tolist() == [0, 0, 0, 0, 0, 2, 0, 0, 0, 1]
    assert diagram.confidence[5].item() == pytest.approx(0.575)
    assert diagram.accuracy[5].item() == 0.5
    assert diagram.accuracy[9].item() == 1.0
    assert diagram.confidence[0].isnan()
    assert diagram.accuracy[0].isnan()
    assert diagram.ece.item() == pytest.approx((2 * 0.075 + 0.05) / 3)
    assert diagram.mce.item() == pytest.approx(0.075)


@pytest.mark.parametrize("bins", [1, 4, 7, 30])
def test_adaptive_ece_equals_numpy_runs(make_batch, bins):
    probs, labels = make_batch(images=101)
    confidence, predicted = probs.numpy().max(1), probs.numpy().argmax(1)
    order = np.argsort(-confidence)
    gaps = [
        len(run) * abs(confidence[run].mean() - (predicted[run] == labels.numpy()[run]).mean())
        for run in np.array_split(order, bins)
    ]
    assert adaptive_ece(probs, labels, bins).item() == pytest.approx(sum(gaps) / 101, abs=1e-12)


def test_adaptive_ece_with_fewer_images_than_bins():
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64)
    assert adaptive_ece(probs, torch.tensor([1, 0]), bins=30).item() == pytest.approx((0.9 + 0.4) / 2)


def test_adaptive_ece_splits_ties_by_their_common_accuracy():
    probs = torch.tensor([[0.8, 0.2]] * 4, dtype=torch.float64)
    # Cut in two, each half counts half right: |0.8 - 0.5|, however the four are ordered.
    for labels in ([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 0]):
        assert adaptive_ece(probs, torch.tensor(labels), bins=2).item() == pytest.approx(0.3)


@settings(max_examples=60, deadline=None)
@given(tenths=st.lists(st.integers(5, 10), min_size=1, max_size=30), bins=st.integers(1, 40), seed=st.integers(0, 1000))
def test_range_and_invariance_to_order(tenths, bins, seed):
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.tensor(tenths, dtype=torch.float64) / 10
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = torch.randint(0, 2, (len(tenths),), generator=generator)
    order = torch.randperm(len(tenths), generator=generator)
    for metric in (ece, mce, adaptive_ece):
        value = metric(probs, labels, bins).item()
        assert 0 <= value <= 1
        assert value == pytest.approx(metric(probs[order], labels[order], bins).item(), abs=1e-12)
    assert ece(probs, labels, bins) <= mce(probs, labels, bins) + 1e-12
