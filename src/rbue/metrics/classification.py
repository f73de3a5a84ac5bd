"""How often the predicted class is the true one (paper §4.1), and proper scoring rules.

A proper score is least, on average, for the true probabilities and for no others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rbue.errors import whole_number
from rbue.metrics import _checks


def accuracy(probs: Tensor, labels: Tensor) -> Tensor:
    """Fraction of images whose most probable class is the label; a tie goes to the lower class number.

    Args:
        probs: Class probabilities ``(B, C)`` or ``(B, C, ...)``.
        labels: Class numbers ``(B,)`` or ``(B, ...)``.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])).item()
        0.5
    """
    return hits(probs, labels, k=1).double().mean()


def top_k_accuracy(probs: Tensor, labels: Tensor, k: int = 5) -> Tensor:
    """Fraction of images whose label is among the ``k`` most probable classes.

    Equal probabilities are ranked by class number, the lower first, so that ``k=1`` is exactly ``accuracy``
    and a constant prediction is not right for every label.

    Args:
        probs: Class probabilities ``(B, C)`` or ``(B, C, ...)``.
        labels: Class numbers ``(B,)`` or ``(B, ...)``.
        k: From 1 to the number of classes.

    Example:
        >>> top_k_accuracy(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([1]), k=2).item()
        1.0
    """
    return hits(probs, labels, k).double().mean()


def hits(probs: Tensor, labels: Tensor, k: int = 1) -> Tensor:
    """Whether the label is among the ``k`` first, one bool an image, flat."""
    rows, labels = _checks.probabilities_and_labels(probs, labels)
    whole_number(k, "k", most=rows.shape[1])
    own = rows.gather(1, labels[:, None])
    classes = torch.arange(rows.shape[1], device=rows.device)
    ahead = (rows > own) | ((rows == own) & (classes < labels[:, None]))
    return ahead.sum(dim=1) < k


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
