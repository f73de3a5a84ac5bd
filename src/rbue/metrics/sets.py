"""How good sets of classes are: how often they hold the true one, for whom, and how large they are.

``sets`` are booleans ``(B, C)``, true where a class is in an image's set (:mod:`rbue.decisions.conformal` makes them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rbue.errors import InvalidInput
from rbue.metrics import _binomial, _checks


class Coverage(NamedTuple):
    """How often sets hold the true class in each group of images, with exact bands.

    A group without images has the coverage NaN and the band from 0 to 1.
    """

    coverage: Tensor
    lower: Tensor
    upper: Tensor
    images: Tensor


def binomial_interval(successes: Tensor, trials: Tensor, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    """The exact interval of a chance: ``P(X ≥ k; lower) = P(X ≤ k; upper) = (1 - confidence) / 2``, ``X ~ Bin(n, p)``.

    It holds the true chance with probability ``confidence`` at least, whatever that chance is (Clopper and Pearson, The
    use of confidence or fiducial limits illustrated in the case of the binomial, Biometrika 1934).

    Args:
        successes: How often something happened, whole numbers of any shape.
        trials: Of how many times, of the same shape; 0 gives the interval from 0 to 1.
        confidence: In (0, 1).

    Returns:
        Lower and upper ends, float64.

    Example:
        >>> lower, upper = binomial_interval(torch.tensor(90), torch.tensor(100))
        >>> round(lower.item(), 4), round(upper.item(), 4)
        (0.8238, 0.951)
    """
    if not (isinstance(successes, Tensor) and isinstance(trials, Tensor) and successes.shape == trials.shape):
        raise InvalidInput("successes and trials differ in kind or shape; give two tensors of one shape.")
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence is {confidence}; give a number in (0, 1).")
    wrong = (successes < 0) | (successes > trials)
    if bool(wrong.any()):
        place = int(wrong.flatten().nonzero()[0])
        one, other = successes.flatten()[place].item(), trials.flatten()[place].item()
        raise InvalidInput(f"successes holds {one} of {other} trials; give from 0 to the number of trials.")
    return _binomial.clopper_pearson(successes, trials, confidence)


def set_coverage(sets: Tensor, labels: Tensor) -> Tensor:
    """Fraction of images whose set holds the true class; for sets of level 0.9 it should be 0.9.

    Args:
        sets: Booleans ``(B, C)``.
        labels: Class numbers ``(B,)``.

    Example:
        >>> set_coverage(torch.tensor([[True, False], [True, True]]), torch.tensor([1, 1])).item()
        0.5
    """
    return _held(sets, labels)[0].double().mean()


def set_size(sets: Tensor) -> Tensor:
    """Mean number of classes in a set; at equal coverage smaller is better.

    Args:
        sets: Booleans ``(B, C)``.

    Example:
        >>> set_size(torch.tensor([[True, False], [True, True]])).item()
        1.5
    """
    return _sets(sets).sum(1).double().mean()


def coverage_by_class(sets: Tensor, labels: Tensor, confidence: float = 0.95) -> Coverage:
    """Coverage among the images of each true class, with :func:`binomial_interval` for each.

    Sets may hold nine in ten true classes overall and far fewer of a rare one.

    Args:
        sets: Booleans ``(B, C)``.
        labels: Class numbers ``(B,)``.
        confidence: Of each class's band by itself.

    Returns:
        ``coverage``, ``lower``, ``upper`` and ``images``, each ``(C,)``.

    Example:
        >>> sets = torch.tensor([[True, False], [True, True], [True, False]])
        >>> found = coverage_by_class(sets, torch.tensor([0, 1, 1]))
        >>> found.coverage, found.images
        (tensor([1.0000, 0.5000], dtype=torch.float64), tensor([1, 2]))
    """
    held, labels = _held(sets, labels)
    return _grouped(held, labels, sets.shape[1], confidence)


def coverage_by_size(
    sets: Tensor, labels: Tensor, edges: Sequence[int] | None = None, confidence: float = 0.95
) -> Coverage:
    """Coverage among the images whose sets are equally large, with :func:`binomial_interval` for each stratum.

    The least of them is the size-stratified coverage of Angelopoulos et al., Uncertainty Sets for Image Classifiers
    using Conformal Prediction, ICLR 2021, §4: sets that adapt to the image keep their coverage in every stratum.

    Args:
        sets: Booleans ``(B, C)``.
        labels: Class numbers ``(B,)``.
        edges: The largest size of each stratum but the last, rising: ``[1, 3]`` makes 0 to 1, 2 to 3, and 4 to C.
            Without it each size from 0 to C is one.
        confidence: Of each stratum's band by itself.

    Returns:
        ``coverage``, ``lower``, ``upper`` and ``images``, one value a stratum.

    Example:
        >>> sets = torch.tensor([[True, False], [True, True], [True, False]])
        >>> coverage_by_size(sets, torch.tensor([0, 1, 1]), edges=[1]).coverage
        tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    held, _ = _held(sets, labels)
    bounds = list(range(sets.shape[1]) if edges is None else edges)
    if bounds != sorted(set(bounds)) or not all(0 <= edge < sets.shape[1] for edge in bounds):
        raise InvalidInput(f"edges is {bounds}; give rising sizes from 0 to {sets.shape[1] - 1}.")
    stratum = torch.bucketize(sets.sum(1), torch.tensor(bounds, device=sets.device))
    return _grouped(held, stratum, len(bounds) + 1, confidence)


def _sets(sets: Tensor) -> Tensor:
    if not isinstance(sets, Tensor) or sets.dtype is not torch.bool or sets.ndim != 2 or not sets.numel():
        found = f"{sets.dtype} of shape {tuple(sets.shape)}" if isinstance(sets, Tensor) else type(sets).__name__
        raise InvalidInput(f"sets is {found}; give booleans (images, classes), at least one image.")
    return sets


def _held(sets: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each set holds its true class, and the labels."""
    labels = _checks.labels_of(labels, _sets(sets), "sets")
    return sets.gather(1, labels[:, None]).squeeze(1), labels


def _grouped(held: Tensor, group: Tensor, groups: int, confidence: float) -> Coverage:
    images = group.bincount(minlength=groups)
    hits = group[held].bincount(minlength=groups)
    lower, upper = binomial_interval(hits, images, confidence)
    return Coverage(hits.double() / images, lower, upper, images)
