"""How uncertain a prediction is, and how much of that the samples disagree about (paper §3.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from rbue.metrics import _checks


def entropy(probs: Tensor) -> Tensor:
    """Entropy of each prediction, ``H(p) = -Σ_c p_c ln p_c`` in nats with ``0·ln 0 = 0``.

    Of the mean probabilities this is the predictive entropy, the paper's measure of uncertainty (§3.3).

    Args:
        probs: Class probabilities ``(B, C)`` or ``(B, C, ...)``.

    Returns:
        One value an image, ``(B,)`` or ``(B, ...)``.

    Example:
        >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    _checks.probabilities(probs)
    return _entropy(probs, dim=1).clamp_min(0)


def expected_entropy(samples: Tensor) -> Tensor:
    """Mean over the samples of the entropy of each: the part of the uncertainty that every sample shares.

    Args:
        samples: Class probabilities ``(S, B, C)`` or ``(S, B, C, ...)``.

    Returns:
        One value an image, ``(B,)`` or ``(B, ...)``.

    Example:
        >>> expected_entropy(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]]))
        tensor([0.3466], dtype=torch.float64)
    """
    _checks.sample_probabilities(samples)
    return _expected_entropy(samples).clamp_min(0)


def mutual_information(samples: Tensor) -> Tensor:
    """Mutual information of class and sample, ``H(mean p) - mean H(p)``: what the samples disagree about.

    It is never negative; a value below zero by rounding is returned as 0.

    Args:
        samples: Class probabilities ``(S, B, C)`` or ``(S, B, C, ...)``.

    Returns:
        One value an image, ``(B,)`` or ``(B, ...)``, in nats.

    Example:
        >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.6931], dtype=torch.float64)
    """
    _checks.sample_probabilities(samples)
    total = torch.zeros_like(samples[0], dtype=torch.float64)
    for sample in samples:
        total = total + sample
    return (_entropy(total / len(samples), dim=1) - _expected_entropy(samples)).clamp_min(0)


def _entropy(probs: Tensor, dim: int) -> Tensor:
    return torch.special.entr(probs.double()).sum(dim=dim)


def _expected_entropy(samples: Tensor) -> Tensor:
    # One sample at a time: widening all of them at once would double or quadruple the memory.
    total = _entropy(samples[0], dim=1)
    for sample in samples[1:]:
        total = total + _entropy(sample, dim=1)
    return total / len(samples)
