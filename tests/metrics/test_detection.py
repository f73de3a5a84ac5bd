import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from rbue.errors import InvalidInput
from rbue.metrics import aupr, auroc, fpr95


def loop_fpr95(scores, positive):
    """Try every score as the threshold, plainly."""
    best = 1.0
    for threshold in scores:
        found = [p for s, p in zip(scores, positive, strict=True) if s >= threshold]
        if 100 * sum(found) >= 95 * sum(positive):
            best = min(best, (len(found) - sum(found)) / (len(positive) - sum(positive)))
    return best


# Few distinct scores, so that ties are the rule.
tied_scores = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=60)


@settings(max_examples=100, deadline=None)
@given(pairs=tied_scores)
def test_equal_to_references_with_ties(pairs):
    scores, positive = ([p[0] / 3 for p in pairs], [p[1] for p in pairs])
    assume(0 < sum(positive) < len(positive))
    inputs = torch.tensor(scores), torch.tensor(positive)
    assert auroc(*inputs).item() == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    assert aupr(*inputs).item() == pytest.approx(average_precision_score(positive, scores), abs=1e-12)
    assert fpr95(*inputs).item() == pytest.approx(loop_fpr95(scores, positive), abs=1e-12)


def test_auroc_is_the_chance_of_the_right_order():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(300, generator=generator)
    positive = torch.rand(300, generator=generator) < 0.3
    above = scores[positive][:, None] > scores[~positive][None, :]
    assert auroc(scores, positive).item() == pytest.approx(above.double().mean().item(), abs=1e-12)
    assert auroc(-scores, positive).item() == pytest.approx(1 - above.double().mean().item(), abs=1e-12)


def test_ninety_five_of_a_hundred_is_enough():
    # 95 positives above the negative and 5 below: exactly 95 % are found before it.
    scores = torch.cat([torch.full((95,), 2.0), torch.tensor([1.0]), torch.full((5,), 0.0)])
    positive = torch.cat([torch.ones(95), torch.zeros(1), torch.ones(5)]).bool()
    assert fpr95(scores, positive).item() == 0.0
    positive[0] = False
    assert fpr95(scores, positive).item() == 1.0


@pytest.mark.parametrize("positives", [20, 40, 60, 100, 140])
def test_fpr95_threshold_is_not_moved_by_rounding(positives):
    needed = positives * 95 // 100
    scores = torch.cat([torch.full((needed,), 2.0), torch.ones(1), torch.zeros(positives - needed)])
    positive = torch.ones(positives + 1).bool()
    positive[needed] = False
    assert fpr95(scores, positive).item() == 0.0


def test_infinite_scores_and_numeric_flags_are_welcome():
    scores = torch.tensor([math.inf, 1.0, -math.inf, 0.0])
    assert auroc(scores, torch.tensor([1, 1, 0, 0])).item() == 1.0


@pytest.mark.parametrize("metric", [auroc, aupr, fpr95])
@pytest.mark.parametrize("flag", [True, False])
def test_one_kind_only_is_refused(metric, flag):
    with pytest.raises(InvalidInput, match=f"marks {3 * flag} of 3 images"):
        metric(torch.rand(3), torch.tensor([flag] * 3))
