from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rbue.errors import InvalidInput
from rbue.metrics import augrc, aurc, auroc, coverage_at_risk, risk_coverage


def loop_curve(confidence, correct):
    order = sorted(range(len(confidence)), key=lambda i: -confidence[i])
    wrong, risks = 0, []
    for answered, i in enumerate(order, start=1):
        wrong += not correct[i]
        risks.append(wrong / answered)
    return risks


def test_curve_without_ties():
    confidence = torch.tensor([0.2, 0.9, 0.5, 0.7])
    correct = torch.tensor([False, True, True, False])
    coverage, risk = risk_coverage(confidence, correct)
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert risk.tolist() == pytest.approx([0.0, 1 / 2, 1 / 3, 2 / 4])
    assert risk.tolist() == pytest.approx(loop_curve(confidence.tolist(), correct.tolist()))
    assert aurc(confidence, correct).item() == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 4)


def test_ties_give_the_expectation_over_every_order():
    confidence = [0.9, 0.5, 0.5, 0.5, 0.1]
    correct = [True, False, True, False, True]
    curves = []
    for middle in permutations(range(1, 4)):
        order = [0, *middle, 4]
        curves.append(loop_curve([confidence[0], 0.53, 0.52, 0.51, 0.1], [correct[i] for i in order]))
    expected = torch.tensor(curves, dtype=torch.float64).mean(0)
    risk = risk_coverage(torch.tensor(confidence), torch.tensor(correct)).risk
    torch.testing.assert_close(risk, expected)


@settings(max_examples=50, deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=25), seed=st.integers(0, 1000))
def test_order_never_matters_and_full_coverage_is_the_error_rate(pairs, seed):
    confidence = torch.tensor([float(c) for c, _ in pairs])
    correct = torch.tensor([r for _, r in pairs])
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    curve, shuffled = risk_coverage(confidence, correct), risk_coverage(confidence[order], correct[order])
    torch.testing.assert_close(curve.risk, shuffled.risk)
    assert curve.coverage[-1].item() == 1.0
    assert curve.risk[-1].item() == pytest.approx((~correct).double().mean().item())


def test_better_ordering_has_the_smaller_area():
    correct = torch.tensor([True] * 8 + [False] * 2)
    good = torch.arange(10, 0, -1).float()
    assert aurc(good, correct) < aurc(torch.ones(10), correct) < aurc(-good, correct)
    assert aurc(torch.ones(10), correct).item() == pytest.approx(0.2)


tied_answers = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40)


@settings(max_examples=50, deadline=None)
@given(pairs=tied_answers)
def test_augrc_is_what_auroc_and_accuracy_make_it(pairs):
    """``(1 - AUROC)·a·(1 - a) + ½ (1 - a)²``, with ties too."""
    confidence, correct = torch.tensor([float(c) for c, _ in pairs]), torch.tensor([r for _, r in pairs])
    accuracy = correct.double().mean().item()
    ranking = 1 - auroc(confidence, correct).item() if 0 < accuracy < 1 else 0.0
    expected = ranking * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert augrc(confidence, correct).item() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(pairs=tied_answers, risk=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
def test_coverage_at_risk_tries_every_threshold(pairs, risk):
    best = 0
    for threshold, _ in pairs:
        answered = [right for score, right in pairs if score >= threshold]
        if len(answered) - sum(answered) <= risk * len(answered):
            best = max(best, len(answered))
    confidence, correct = torch.tensor([float(c) for c, _ in pairs]), torch.tensor([r for _, r in pairs])
    assert coverage_at_risk(confidence, correct, risk).item() == best / len(pairs)


def test_one_error_in_twenty_is_a_risk_of_five_percent():
    correct = torch.arange(20) > 0
    assert coverage_at_risk(torch.arange(20.0), correct, risk=0.05).item() == 1.0
    with pytest.raises(InvalidInput, match="risk is 2"):
        coverage_at_risk(torch.arange(20.0), correct, risk=2)
