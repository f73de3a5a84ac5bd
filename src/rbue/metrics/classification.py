"""How often the predicted class is the true one (paper §4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

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
    _checks.whole_number(k, "k", most=rows.shape[1])
    own = rows.gather(1, labels[:, None])
    classes = torch.arange(rows.shape[1], device=rows.device)
    ahead = (rows > own) | ((rows == own) & (classes < labels[:, None]))
    return ahead.sum(dim=1) < k
