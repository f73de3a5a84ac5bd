"""How uncertain a prediction is (paper §3.3), and how different its samples are, two by two (paper §4.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rbue.metrics import _checks

# Elements of float64 work space: 4 Mi of them are 32 MiB, whatever the number of images.
_WORK_ELEMENTS = 1 << 22


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
    return _entropy(probs).clamp_min(0)


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
    return mean_over_samples(samples, _entropy).clamp_min(0)


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
    return (_entropy(mean_over_samples(samples)) - mean_over_samples(samples, _entropy)).clamp_min(0)


def mean_over_samples(samples: Tensor, of: Callable[[Tensor], Tensor] = Tensor.double) -> Tensor:
    """The mean of something, in float64, of each sample: widened at once, all of them would take several times more."""
    total = torch.zeros((), dtype=torch.float64, device=samples.device)
    for sample in samples:
        total = total + of(sample)
    return total / len(samples)


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs.double()).sum(1)


def jsd(samples: Tensor) -> Tensor:
    """Jensen-Shannon divergence of every two samples, averaged over the images (paper §4.4.1), in nats.

    ``JSD(p, r) = ½ KL(p ‖ m) + ½ KL(r ‖ m) = H(m) - ½ H(p) - ½ H(r)`` with ``m = (p + r) / 2`` and
    ``0·ln 0 = 0``; it lies between 0 and ``ln 2``. Memory for the work does not grow with the images.

    Args:
        samples: Class probabilities ``(S, B, C)`` or ``(S, B, C, ...)`` with ``S >= 2``.

    Returns:
        A symmetric ``(S, S)`` float64 matrix with an exact 0 diagonal.

    Example:
        >>> jsd(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([[0.0000, 0.6931],
                [0.6931, 0.0000]], dtype=torch.float64)
    """
    total, images = jsd_sums(samples)
    return total / images


def disagreement(samples: Tensor) -> Tensor:
    """Fraction of images on which two samples predict different labels, DIS of the paper (§4.4.2).

    A tie between classes goes to the lower class number, as in ``accuracy``.

    Args:
        samples: Class probabilities ``(S, B, C)`` or ``(S, B, C, ...)`` with ``S >= 2``.

    Returns:
        A symmetric ``(S, S)`` float64 matrix with a 0 diagonal.

    Example:
        >>> disagreement(torch.tensor([[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]]))
        tensor([[0.0000, 0.5000],
                [0.5000, 0.0000]], dtype=torch.float64)
    """
    total, images = disagreement_sums(samples)
    return total / images


def mean_pairwise(matrix: Tensor) -> Tensor:
    """Mean of ``matrix`` over the pairs ``i < j``: Mean-JSD and Mean-DIS of the paper (§4.4).

    Example:
        >>> mean_pairwise(torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 6.0], [2.0, 6.0, 0.0]])).item()
        3.0
    """
    return _pairs(matrix).mean()


def max_pairwise(matrix: Tensor) -> Tensor:
    """Largest value of ``matrix`` over the pairs ``i < j``: Max-JSD and Max-DIS of the paper (§4.4).

    Example:
        >>> max_pairwise(torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 6.0], [2.0, 6.0, 0.0]])).item()
        6.0
    """
    return _pairs(matrix).max()


def jsd_sums(samples: Tensor) -> tuple[Tensor, int]:
    """The ``(S, S)`` sums over images of the divergences, and how many images they are over."""
    samples = _checks.sample_probabilities(samples, least=2)
    count, images, _ = samples.shape
    total = samples.new_zeros((count, count), dtype=torch.float64)
    for block in _blocks(samples):
        own = torch.special.entr(block).sum(dim=(1, 2))
        for i in range(count - 1):
            middle = (block[i + 1 :] + block[i]) / 2
            total[i, i + 1 :] += torch.special.entr(middle).sum(dim=(1, 2)) - (own[i + 1 :] + own[i]) / 2
    # Only rounding can make a sum of divergences negative.
    total.clamp_min_(0)
    return total + total.T, images


def disagreement_sums(samples: Tensor) -> tuple[Tensor, int]:
    """The ``(S, S)`` numbers of images with different labels, and how many images there are."""
    votes = _checks.sample_probabilities(samples, least=2).argmax(dim=2)
    count, images = votes.shape
    total = torch.zeros((count, count), dtype=torch.float64, device=votes.device)
    for i in range(count):
        total[i] = (votes != votes[i]).sum(dim=1)
    return total, images


def _blocks(samples: Tensor) -> Iterator[Tensor]:
    """Cut ``(S, N, C)`` along the images into float64 blocks that fit the work space."""
    count, images, classes = samples.shape
    step = max(1, _WORK_ELEMENTS // (count * classes))
    for start in range(0, images, step):
        yield samples[:, start : start + step].double()


def _pairs(matrix: Tensor) -> Tensor:
    _checks.square_matrix(matrix)
    row, column = torch.triu_indices(len(matrix), len(matrix), offset=1, device=matrix.device)
    return matrix[row, column]
