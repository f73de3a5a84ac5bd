"""How well a score tells the positives (errors, unknown images) from the rest. Higher means more positive."""

from __future__ import annotations

import torch
from torch import Tensor

from rbue.errors import InvalidInput
from rbue.metrics import _checks
from rbue.metrics._ties import counts_above


def auroc(scores: Tensor, positive: Tensor) -> Tensor:
    """Area under the ROC curve: the chance that a positive scores above a negative, a tie counting half.

    Args:
        scores: One real number an image, higher for more positive.
        positive: Which images are positive; at least one must be and one must not be.

    Example:
        >>> auroc(torch.tensor([0.9, 0.4, 0.4, 0.1]), torch.tensor([True, True, False, False])).item()
        0.875
    """
    true_positives, false_positives = (_from_zero(counts) for counts in _counts(scores, positive))
    area = torch.trapezoid(true_positives, false_positives)
    return area / (true_positives[-1] * false_positives[-1])


def aupr(scores: Tensor, positive: Tensor) -> Tensor:
    """Average precision, ``Σ_k (R_k - R_{k-1})·P_k`` over the distinct scores from the highest down.

    This is the step-wise area under the precision-recall curve; a straight line between its points would be
    too kind. Equal scores are taken together.

    Args:
        scores: One real number an image, higher for more positive.
        positive: Which images are positive; at least one must be and one must not be.

    Example:
        >>> aupr(torch.tensor([0.9, 0.6, 0.4]), torch.tensor([True, False, True])).item()
        0.8333333333333333
    """
    true_positives, false_positives = _counts(scores, positive)
    precision = true_positives.double() / (true_positives + false_positives)
    recall = _from_zero(true_positives) / true_positives[-1]
    return (recall.diff() * precision).sum()


def fpr95(scores: Tensor, positive: Tensor) -> Tensor:
    """False positive rate at the highest threshold that finds at least 95 % of the positives.

    Nothing is interpolated: the threshold is one of the scores, and equal scores pass it together.

    Args:
        scores: One real number an image, higher for more positive.
        positive: Which images are positive; at least one must be and one must not be.

    Example:
        >>> fpr95(torch.tensor([0.9, 0.4, 0.6, 0.1]), torch.tensor([True, True, False, False])).item()
        0.5
    """
    true_positives, false_positives = _counts(scores, positive)
    # In whole numbers: exactly 95 % is enough, and no rounding can say otherwise.
    enough = 100 * true_positives >= 95 * true_positives[-1]
    return false_positives[enough][0].double() / false_positives[-1]


def _counts(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    scores, positive = _checks.scores_and_flags(scores, positive, "scores", "positive")
    found = int(positive.sum())
    if found in (0, positive.numel()):
        raise InvalidInput(f"positive marks {found} of {positive.numel()} images; give at least one of either kind.")
    return counts_above(scores, positive)


def _from_zero(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts]).double()
