"""Selective prediction: the error that remains when only the surest part of the images is answered."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rbue.metrics import _checks
from rbue.metrics._ties import descending_with_tied_means


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
