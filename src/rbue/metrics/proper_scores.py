"""Proper scoring rules: least, on average, for the true probabilities and for no others."""

from __future__ import annotations

import torch
from torch import Tensor

from rbue.metrics import _checks


def nll(probs: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood, the mean over images of ``-ln p_y``, in nats.

    Nothing is clipped: one image whose true class has probability 0 makes the result infinite.

    Args:
        probs: Class probabilities ``(B, C)`` or ``(B, C, ...)``.
        labels: Class numbers ``(B,)`` or ``(B, ...)``.

    Example:
        >>> round(nll(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 1])).item(), 4)
        0.4904
        >>> nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1])).item()
        inf
    """
    return log_losses(probs, labels).mean()


def brier(probs: Tensor, labels: Tensor) -> Tensor:
    """Brier score, the mean over images of ``Σ_c (p_c - [c = y])²``; from 0 (sure and right) to 2.

    Args:
        probs: Class probabilities ``(B, C)`` or ``(B, C, ...)``.
        labels: Class numbers ``(B,)`` or ``(B, ...)``.

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 0])).item()
        1.25
    """
    return squared_errors(probs, labels).mean()


def log_losses(probs: Tensor, labels: Tensor) -> Tensor:
    """``-ln p_y``, one value an image, flat."""
    rows, labels = _checks.probabilities_and_labels(probs, labels)
    return -rows.gather(1, labels[:, None]).squeeze(1).double().log()


def squared_errors(probs: Tensor, labels: Tensor) -> Tensor:
    """``Σ_c (p_c - [c = y])²``, one value an image, flat."""
    rows, labels = _checks.probabilities_and_labels(probs, labels)
    truth = torch.zeros_like(rows, dtype=torch.float64).scatter_(1, labels[:, None], 1.0)
    return (rows - truth).square().sum(dim=1)
