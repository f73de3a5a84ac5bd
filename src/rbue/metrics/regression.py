"""How good predicted numbers are: proper scores of distributions, coverage of intervals, calibration of quantiles.

A proper score is least, on average, for the true distribution. ``targets`` have the shape of the means, ``(B, ...)``;
each number counts as one. Lower is better but for the coverage, which should be the stated one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rbue.errors import InvalidInput
from rbue.metrics import _checks


def gaussian_nll(mean: Tensor, variance: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood of normal distributions, the mean of ``½ ln(2πσ²) + (y - μ)² / 2σ²``, in nats.

    Nothing is clipped: a variance has to be positive.

    Args:
        mean: Means ``(B, ...)``, such as ``prediction.mean``.
        variance: Variances of the same shape, such as ``prediction.variance``.
        targets: True values of the same shape.

    Example:
        >>> round(gaussian_nll(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 4.0]), torch.tensor([0.0, 3.0])).item(), 4)
        1.5155
    """
    return normal_log_losses(mean, variance, targets).mean()


def gaussian_crps(mean: Tensor, std: Tensor, targets: Tensor) -> Tensor:
    """Continuous ranked probability score of normal distributions, in the unit of the targets.

    ``CRPS(F, y) = ∫ (F(z) - [z ≥ y])² dz``. For a normal distribution, with ``z = (y - μ) / σ``, it is
    ``σ (z (2Φ(z) - 1) + 2φ(z) - 1/√π)`` (Gneiting and Raftery, Strictly Proper Scoring Rules, JASA 2007, eq. 21, with
    the sign that makes lower better).

    Args:
        mean: Means ``(B, ...)``, such as ``prediction.mean``.
        std: Standard deviations of the same shape, such as ``prediction.std``.
        targets: True values of the same shape.

    Example:
        >>> round(gaussian_crps(torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([0.0])).item(), 4)
        0.2337
    """
    return normal_crps(mean, std, targets).mean()


def sample_crps(samples: Tensor, targets: Tensor, fair: bool = True) -> Tensor:
    """Continuous ranked probability score from samples, ``E|X - y| - ½ E|X - X'|``, in the unit of the targets.

    Args:
        samples: Samples ``(S, B, ...)``, such as ``prediction.samples``; at least two if ``fair``.
        targets: True values ``(B, ...)``.
        fair: Whether pairs of different samples alone count in the second mean: an unbiased estimate of the score of
            the distribution that independent samples come from, whatever their number (Ferro, Fair scores for ensemble
            forecasts, QJRMS 2014). If not, the score is that of the samples as a distribution of its own, which is
            larger for few samples. Balanced samples lie further apart than independent ones within a cycle.

    Example:
        >>> drawn = torch.tensor([[0.0], [2.0]])
        >>> sample_crps(drawn, torch.tensor([1.0])).item(), sample_crps(drawn, torch.tensor([1.0]), fair=False).item()
        (0.0, 0.5)
    """
    return crps_of_samples(samples, targets, fair).mean()


def interval_coverage(lower: Tensor, upper: Tensor, targets: Tensor) -> Tensor:
    """Fraction of targets with ``lower ≤ y ≤ upper``; for intervals of level 0.9 it should be 0.9.

    Args:
        lower: Lower ends ``(B, ...)``.
        upper: Upper ends of the same shape; an interval whose lower end is the greater one covers nothing.
        targets: True values of the same shape.

    Example:
        >>> mean, std = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])
        >>> interval_coverage(mean - 1.645 * std, mean + 1.645 * std, torch.tensor([1.0, 2.0])).item()
        0.5
    """
    return covered(lower, upper, targets).double().mean()


def quantile_calibration_error(quantiles: Tensor, levels: Tensor, targets: Tensor) -> Tensor:
    """How far quantiles are from what they claim, ``1/Q Σ_l |P(y ≤ q_l) - l|`` with the observed fraction for ``P``.

    It is 0 if a part ``l`` of the targets lies below the quantile of each level ``l`` (Kuleshov et al., Accurate
    Uncertainties for Deep Learning Using Calibrated Regression, ICML 2018, who square the differences).

    Args:
        quantiles: Predicted quantiles ``(B, Q, ...)``, such as ``prediction.mean`` with ``outputs="quantiles"``.
        levels: Their levels ``(Q,)``, each in (0, 1).
        targets: True values ``(B, ...)``.

    Example:
        >>> quantiles = torch.tensor([[-1.0, 1.0]]).expand(4, 2)
        >>> levels, targets = torch.tensor([0.25, 0.75]), torch.tensor([-2.0, 0.0, 0.5, 3.0])
        >>> quantile_calibration_error(quantiles, levels, targets).item()
        0.0
        >>> quantile_calibration_error(quantiles, levels, targets + 9).item()
        0.5
    """
    below, numbers = below_quantiles(quantiles, levels, targets)
    return (below / numbers - levels).abs().mean()


def normal_log_losses(mean: Tensor, variance: Tensor, targets: Tensor) -> Tensor:
    """``½ ln(2πσ²) + (y - μ)² / 2σ²``, one value a number, flat."""
    mean, variance, targets = _checks.numbers({"mean": mean, "variance": variance, "targets": targets})
    _positive(variance, "variance")
    return 0.5 * (torch.log(2 * math.pi * variance) + (targets - mean).square() / variance)


def normal_crps(mean: Tensor, std: Tensor, targets: Tensor) -> Tensor:
    """The score of each number, flat."""
    mean, std, targets = _checks.numbers({"mean": mean, "std": std, "targets": targets})
    _positive(std, "std")
    z = (targets - mean) / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


def crps_of_samples(samples: Tensor, targets: Tensor, fair: bool) -> Tensor:
    """The score of each number, flat.

    Sorted, ``Σ_{i<j} |x_i - x_j| = Σ_i (2i - S + 1) x_(i)`` with ``i`` from 0: no ``(S, S)`` matrix is needed.
    """
    _checks.finite_rows(samples, "samples")
    shape = getattr(targets, "shape", ())
    (targets,) = _checks.numbers({"targets": targets})
    count = samples.shape[0]
    if samples.ndim < 2 or [size for size in samples.shape[1:] if size > 1] != [size for size in shape if size > 1]:
        raise InvalidInput(
            f"samples has shape {tuple(samples.shape)} for targets of {tuple(shape)}; give (S, B, ...) for (B, ...)."
        )
    if fair and count < 2:
        raise InvalidInput("samples holds 1 sample, and the fair score compares pairs; give more, or fair=False.")
    rows = samples.double().reshape(count, -1)
    places = torch.arange(count, device=rows.device, dtype=torch.float64)[:, None]
    apart = ((2 * places - count + 1) * rows.sort(0).values).sum(0)
    return (rows - targets).abs().mean(0) - apart / (count * (count - 1 if fair else count))


def covered(lower: Tensor, upper: Tensor, targets: Tensor) -> Tensor:
    """Whether each target is in its interval, flat."""
    lower, upper, targets = _checks.numbers({"lower": lower, "upper": upper, "targets": targets})
    return (lower <= targets) & (targets <= upper)


def below_quantiles(quantiles: Tensor, levels: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """How many targets lie at or below each quantile, ``(Q,)``, and how many there are."""
    _checks.finite_rows(quantiles, "quantiles")
    levels = levels_of(levels)
    if quantiles.ndim < 2 or quantiles.shape[1] != len(levels):
        raise InvalidInput(
            f"quantiles has shape {tuple(quantiles.shape)} for {len(levels)} levels; give (B, {len(levels)}, ...)."
        )
    _, targets = _checks.numbers({"quantiles[:, 0]": quantiles[:, 0], "targets": targets})
    rows = quantiles.movedim(1, 0).reshape(len(levels), -1)
    return (targets <= rows).sum(1).double(), targets.numel()


def levels_of(levels: Tensor) -> Tensor:
    """Levels of quantiles ``(Q,)`` in float64."""
    (levels,) = _checks.numbers({"levels": levels})
    low, high = (float(bound) for bound in torch.aminmax(levels))
    if low <= 0 or high >= 1:
        raise InvalidInput(f"levels go from {low:.6g} to {high:.6g}; give some in (0, 1).")
    return levels


def _positive(values: Tensor, name: str) -> None:
    least = float(values.detach().min())
    if least <= 0:
        raise InvalidInput(f"{name} holds {least:.6g}; give positive numbers (exp() of a log-variance).")
