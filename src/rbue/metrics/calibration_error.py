"""How far confidence and accuracy lie apart (paper §4.1): ECE, its equal-mass form, and the worst bin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rbue.errors import whole_number
from rbue.metrics import _checks
from rbue.metrics.ranking import descending_with_tied_means


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: what the bins ``((m-1)/M, m/M]`` hold.

    Attributes:
        edges: ``(M + 1,)`` from 0 to 1.
        counts: ``(M,)`` images in each bin.
        confidence: ``(M,)`` mean confidence in each bin, NaN where it is empty.
        accuracy: ``(M,)`` fraction of right predictions in each bin, NaN where it is empty.
    """

    edges: Tensor
    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def gaps(self) -> Tensor:
        """``|acc - conf|`` of each bin, 0 where it is empty."""
        return (self.accuracy - self.confidence).abs().nan_to_num(nan=0.0)

    @property
    def ece(self) -> Tensor:
        """``Σ_m |B_m| / n · |acc(B_m) - conf(B_m)|``."""
        return (self.counts * self.gaps).sum() / self.counts.sum()

    @property
    def mce(self) -> Tensor:
        """``max_m |acc(B_m) - conf(B_m)|`` over the bins that are not empty."""
        return self.gaps.max()


class BinSums(NamedTuple):
    """What a reliability diagram is made of; sums, so that batches and processes can be added up."""

    counts: Tensor
    confidence: Tensor
    correct: Tensor

    def reliability(self) -> Reliability:
        """Turn the sums into means."""
        bins = len(self.counts)
        edges = torch.arange(bins + 1, dtype=torch.float64, device=self.counts.device) / bins
        return Reliability(edges, self.counts, self.confidence / self.counts, self.correct / self.counts)


def reliability(probs: Tensor, labels: Tensor, bins: int = 30) -> Reliability:
    """Sort the images by top-label confidence into ``bins`` equal bins ``((m-1)/M, m/M]``.

    A confidence on an edge belongs to the bin below it, and 1.0 to the last bin. No product such as
    ``confidence·M`` is rounded to find the bin: the confidence is compared with ``m/M`` rounded to the
    confidence's own dtype, so that 0.3 is in ``(0.2, 0.3]`` in float16, float32 and float64 alike.

    Args:
        probs: Class probabilities ``(B, C)`` or ``(B, C, ...)``.
        labels: Class numbers ``(B,)`` or ``(B, ...)``.
        bins: The number ``M`` of bins.

    Example:
        >>> diagram = reliability(torch.tensor([[0.5, 0.5], [0.9, 0.1]]), torch.tensor([0, 1]), bins=2)
        >>> diagram.counts.tolist(), diagram.accuracy.tolist()
        ([1, 1], [1.0, 0.0])
    """
    return bin_sums(probs, labels, bins).reliability()


def ece(probs: Tensor, labels: Tensor, bins: int = 30) -> Tensor:
    """Expected calibration error with ``M = bins`` equal bins (paper §4.1).

    ``ECE = Σ_m |B_m| / n · |acc(B_m) - conf(B_m)|``, where ``B_m`` holds the images whose confidence is in
    ``((m-1)/M, m/M]``. The confidence is that of the predicted label: the paper's sentence says the
    ground-truth label, its formula and its reference the predicted one. See ``reliability`` for the edges.

    Args:
        probs: Class probabilities ``(B, C)`` or ``(B, C, ...)``.
        labels: Class numbers ``(B,)`` or ``(B, ...)``.
        bins: The number ``M`` of bins.

    Example:
        >>> round(ece(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1])).item(), 4)
        0.3
    """
    return reliability(probs, labels, bins).ece


def mce(probs: Tensor, labels: Tensor, bins: int = 30) -> Tensor:
    """Maximum calibration error, the largest ``|acc(B_m) - conf(B_m)|`` over the bins of ``ece``.

    Args:
        probs: Class probabilities ``(B, C)`` or ``(B, C, ...)``.
        labels: Class numbers ``(B,)`` or ``(B, ...)``.
        bins: The number of bins.

    Example:
        >>> round(mce(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1])).item(), 4)
        0.6
    """
    return reliability(probs, labels, bins).mce


def adaptive_ece(probs: Tensor, labels: Tensor, bins: int = 30) -> Tensor:
    """Calibration error of ``ece`` over bins of equal mass instead of equal width.

    The images are sorted by confidence and cut into ``bins`` runs whose sizes differ by at most one; with
    fewer images than bins every image is a bin. Where a cut falls among equal confidences, each of those
    images counts with their common accuracy, so the order of the data does not matter.

    Args:
        probs: Class probabilities ``(B, C)`` or ``(B, C, ...)``.
        labels: Class numbers ``(B,)`` or ``(B, ...)``.
        bins: The number of bins.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.6, 0.4]])
        >>> round(adaptive_ece(probs, torch.tensor([0, 1, 0, 1]), bins=2).item(), 4)
        0.2
    """
    return equal_mass_error(*top_label(probs, labels), bins)


def top_label(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The confidence of the predicted label and whether it is right, one of each an image, flat."""
    rows, labels = _checks.probabilities_and_labels(probs, labels)
    predicted = rows.argmax(dim=1)
    return rows.gather(1, predicted[:, None]).squeeze(1), predicted == labels


def bin_sums(probs: Tensor, labels: Tensor, bins: int) -> BinSums:
    """Add up counts, confidences and right predictions over the bins ``((m-1)/M, m/M]``."""
    whole_number(bins, "bins")
    confidence, correct = top_label(probs, labels)
    inner_edges = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    place = torch.bucketize(confidence, inner_edges.to(confidence.dtype), right=False)

    def per_bin(values: Tensor) -> Tensor:
        return values.new_zeros(bins).index_add_(0, place, values)

    return BinSums(per_bin(torch.ones_like(place)), per_bin(confidence.double()), per_bin(correct.double()))


def equal_mass_error(confidence: Tensor, correct: Tensor, bins: int) -> Tensor:
    """``adaptive_ece`` from confidences and right-or-wrong flags."""
    whole_number(bins, "bins")
    confidence, accuracy = descending_with_tied_means(confidence, correct)
    runs = (confidence - accuracy).tensor_split(bins)
    return torch.stack([run.sum().abs() for run in runs]).sum() / len(confidence)
