"""How well a score ranks images: detection and selective prediction.

Detection tells the positives (errors, unknown images) from the rest; a higher score means more positive. Selective
prediction answers only the surest part of the images, and asks what error remains. Equal scores have no order: taken as
one group, they make results independent of the data's order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rbue.errors import InvalidInput
from rbue.metrics import _checks


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


class RiskCoverage(NamedTuple):
    """The risk-coverage curve: answering the fraction ``coverage`` of images errs at the rate ``risk``."""

    coverage: Tensor
    risk: Tensor


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """Error rate among the ``k`` surest of ``n`` images, for ``k = 1 … n``, at coverage ``k / n``.

    Where a cut falls among equal confidences, the risk is its expectation over a random choice among them:
    each counts with their mean error. So the curve does not depend on the order of the data.

    Args:
        confidence: One real number an image, higher for surer.
        correct: Whether the prediction is right, one an image.

    Returns:
        ``coverage`` and ``risk``, each ``(n,)``.

    Example:
        >>> coverage, risk = risk_coverage(torch.tensor([0.9, 0.5, 0.5]), torch.tensor([True, True, False]))
        >>> risk
        tensor([0.0000, 0.2500, 0.3333], dtype=torch.float64)
    """
    confidence, correct = _checks.scores_and_flags(confidence, correct, "confidence", "correct")
    _, error = descending_with_tied_means(confidence, ~correct)
    answered = torch.arange(1, len(error) + 1, dtype=torch.float64, device=error.device)
    return RiskCoverage(answered / len(error), error.cumsum(0) / answered)


def aurc(confidence: Tensor, correct: Tensor) -> Tensor:
    """Area under the risk-coverage curve: the mean of the risks of ``risk_coverage``; lower is better.

    Args:
        confidence: One real number an image, higher for surer.
        correct: Whether the prediction is right, one an image.

    Example:
        >>> round(aurc(torch.tensor([0.9, 0.5, 0.5]), torch.tensor([True, True, False])).item(), 4)
        0.1944
    """
    return risk_coverage(confidence, correct).risk.mean()


def descending_with_tied_means(scores: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by falling score; every flag of a group of equal scores becomes the mean flag of the group.

    That mean is the expectation over a random order inside the group.

    Returns:
        The sorted scores and, beside each, the tied mean as float64.
    """
    order = scores.argsort(descending=True)
    scores = scores[order]
    _, group, size = torch.unique_consecutive(scores, return_inverse=True, return_counts=True)
    hits = torch.zeros(size.shape, dtype=torch.float64, device=scores.device)
    hits.index_add_(0, group, flags[order].double())
    return scores, (hits / size)[group]


def counts_above(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Count the positives and the negatives at or above each distinct score, from the highest score down."""
    order = scores.argsort(descending=True)
    _, size = torch.unique_consecutive(scores[order], return_counts=True)
    flagged = size.cumsum(0)
    true_positives = positive[order].long().cumsum(0)[flagged - 1]
    return true_positives, flagged - true_positives
