"""How well a score ranks images: detection and selective prediction.

Detection tells the positives (errors, unknown images) from the rest; a higher score means more positive. Selective
prediction answers only the surest part of the images, and asks what error remains. Equal scores have no order: taken as
one group, they make results independent of the data's order.
"""

from __future__ import annotations

from numbers import Real
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


def augrc(confidence: Tensor, correct: Tensor) -> Tensor:
    """Area under the generalised risk-coverage curve, ``∫ P(wrong and answered) d coverage``; lower is better.

    The generalised risk counts errors among all images, not only among the answered ones: ``E_k / n`` with ``E_k``
    errors among the ``k`` surest. The area is that under straight lines from (0, 0) through ``(k / n, E_k / n)``, and
    equals ``(1 - AUROC)·a·(1 - a) + ½ (1 - a)²`` for the accuracy ``a`` (Traub et al., Overcoming Common Flaws in the
    Evaluation of Selective Classification Systems, NeurIPS 2024). Unlike ``aurc`` it does not weigh the errors of the
    surest few many times.

    Args:
        confidence: One real number an image, higher for surer.
        correct: Whether the prediction is right, one an image.

    Example:
        >>> round(augrc(torch.tensor([0.9, 0.5, 0.5]), torch.tensor([True, True, False])).item(), 4)
        0.1111
    """
    confidence, correct = _checks.scores_and_flags(confidence, correct, "confidence", "correct")
    _, error = descending_with_tied_means(confidence, ~correct)
    return (error.cumsum(0) - error / 2).sum() / len(error) ** 2


def coverage_at_risk(confidence: Tensor, correct: Tensor, risk: float = 0.05) -> Tensor:
    """The largest fraction of images that a threshold answers with an error rate of at most ``risk``; 0 if none does.

    Equal confidences pass a threshold together. This is the rate on the images given, without a guarantee for others:
    :func:`rbue.decisions.abstaining.fit` gives one.

    Args:
        confidence: One real number an image, higher for surer.
        correct: Whether the prediction is right, one an image.
        risk: The error rate among answered images, in [0, 1].

    Example:
        >>> coverage_at_risk(torch.tensor([0.9, 0.7, 0.6, 0.2]), torch.tensor([True, True, False, False]), 0.4).item()
        0.75
    """
    error_rate(risk)
    confidence, correct = _checks.scores_and_flags(confidence, correct, "confidence", "correct")
    wrong, right = counts_above(confidence, ~correct)
    answered = wrong + right
    allowed = answered[wrong.double() / answered <= risk]
    return (allowed.max() if len(allowed) else answered.new_zeros(())).double() / len(confidence)


def error_rate(risk: float) -> float:
    """Refuse what is none."""
    if not isinstance(risk, Real) or not 0 <= risk <= 1:
        raise InvalidInput(f"risk is {risk!r}; give an error rate in [0, 1].")
    return risk


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
    true_positives = positive[order].cumsum(0)[flagged - 1]
    return true_positives, flagged - true_positives
