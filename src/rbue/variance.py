"""The variance of a layer's sum under random ReLUs and dropout (paper §3.4): closed forms and simulation.

Each function takes ``x`` of shape ``(..., K)`` and gives the variance of ``Σ_k f(x_k)`` over the randomness
of ``f``, which is independent for the ``K`` elements; computed in float64.

Example:
    The exact formula holds, the paper's does not:

    >>> x = torch.tensor([-1.0, 2.0, -0.5, 3.0])
    >>> seen = simulate(x, "drop_relu", q=0.8, samples=20_000)
    >>> abs(seen.variance - drop_relu(x, q=0.8)).item() < 4 * seen.standard_error.item()
    True
    >>> abs(seen.variance - drop_relu_paper(x, q=0.8)).item() > 100 * seen.standard_error.item()
    True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from rbue.errors import InvalidInput, whole_number
from rbue.metrics import _checks

__all__ = ["SimulatedVariance", "drop_relu", "drop_relu_paper", "dropout", "rrelu", "simulate"]

Kind = Literal["drop_relu", "rrelu", "dropout"]

# Elements of float64 drawn at a time by `simulate`: 1 Mi of them are 8 MiB.
_WORK_ELEMENTS = 1 << 20


def drop_relu(x: Tensor, q: float) -> Tensor:
    """Variance under DropReLU, ``q(1-q)·Σ_{x<0} x²``, exact.

    Positive elements pass unchanged whether or not the ReLU is kept, so only negative ones vary.

    Args:
        x: Inputs of the activation, ``(..., K)``.
        q: The probability that a ReLU is kept.

    Example:
        >>> drop_relu(torch.tensor([-2.0, 1.0]), q=0.5).item()
        1.0
    """
    q = _probability(q, "q")
    return q * (1 - q) * _squares(_checks.finite_rows(x).clamp(max=0))


def drop_relu_paper(x: Tensor, q: float) -> Tensor:
    """What the paper writes for DropReLU (§3.4), ``q(1-q)·Σ x² + ε``; too large by ``2ε``.

    The paper writes the output as ``Σ (1-Q)·x + Q·ReLU(x)`` with ``Q ~ B(q)``, and its variance as that of
    the first term, ``q(1-q)·Σ x²``, plus that of the second, ``ε = Var(Σ Q·ReLU(x))``. It says ``ε`` cannot
    be calculated; it is ``q(1-q)·Σ_{x>0} x²``, and that is what is added here.

    The error: both terms contain the same ``Q``, so the variance of their sum also has twice their
    covariance, ``2·Cov((1-Q)x, Q·ReLU(x)) = -2q(1-q)·x·ReLU(x)``, in sum ``-2ε``, which the paper drops. With
    it the positive half cancels exactly and ``drop_relu`` remains.

    The paper concludes that ``q <= 1-p`` gives more variance than dropout with rate ``p``. That does not
    follow. Even its main term exceeds dropout's ``p(1-p)·Σ x²`` only where ``q(1-q) >= p(1-p)``, that is (for
    ``p <= ½``) where ``p <= q <= 1-p``; at ``q = 0`` there is no randomness at all. And the exact variance is
    smaller than the main term by ``ε``: at ``q = 1-p`` it is below dropout's unless no element is positive.

    Args:
        x: Inputs of the activation, ``(..., K)``.
        q: The probability that a ReLU is kept.

    Example:
        >>> drop_relu_paper(torch.tensor([-2.0, 1.0]), q=0.5).item()
        1.5
    """
    q = _probability(q, "q")
    x = _checks.finite_rows(x)
    return q * (1 - q) * (_squares(x) + _squares(x.relu()))


def rrelu(x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3) -> Tensor:
    """Variance under RReLU with slopes ``U(l, u)``, ``(u-l)²/12·Σ_{x<0} x²``, exact.

    Args:
        x: Inputs of the activation, ``(..., K)``.
        lower: The least slope ``l`` of the negative half.
        upper: The greatest slope ``u``.

    Example:
        >>> rrelu(torch.tensor([-2.0, 1.0]), lower=0.0, upper=1.0).item()
        0.3333333333333333
    """
    lower, upper = _slopes(lower, upper)
    return (upper - lower) ** 2 / 12 * _squares(_checks.finite_rows(x).clamp(max=0))


def dropout(x: Tensor, p: float, scaled: bool = False) -> Tensor:
    """Variance under dropout, ``p(1-p)·Σ x²`` (paper §3.4).

    Args:
        x: Inputs of the dropout layer, ``(..., K)``.
        p: The probability that an element is dropped.
        scaled: Whether what is kept is divided by ``1-p``, as PyTorch does: then the variance is
            ``p/(1-p)·Σ x²``, and 0 at ``p = 1``, where PyTorch returns zeros.

    Example:
        >>> x = torch.tensor([-2.0, 1.0])
        >>> dropout(x, p=0.5).item(), dropout(x, p=0.5, scaled=True).item()
        (1.25, 5.0)
    """
    p = _probability(p, "p")
    factor = p * (1 - p)
    if scaled and p < 1:
        factor = p / (1 - p)
    return factor * _squares(_checks.finite_rows(x))


@dataclass(frozen=True, eq=False)
class SimulatedVariance:
    """A Monte-Carlo estimate, one value a row of ``x``.

    Attributes:
        variance: The unbiased sample variance of the summed layer.
        standard_error: Its standard error, from the second and fourth central moments of the draws.
        mean: The sample mean of the summed layer.
        samples: The number of draws.
    """

    variance: Tensor
    standard_error: Tensor
    mean: Tensor
    samples: int


def simulate(x: Tensor, kind: Kind, *, samples: int = 10_000, seed: int = 0, **parameters: float) -> SimulatedVariance:
    """Estimate the variance of the summed layer by drawing from the definition itself.

    The closed form of the same name is not used: outputs are drawn, summed, and their spread measured. Memory
    does not grow with ``samples``.

    Args:
        x: Inputs of the layer, ``(..., K)``.
        kind: "drop_relu", "rrelu" or "dropout".
        samples: How many independent draws, at least 2.
        seed: Decides the draws.
        **parameters: Those of the closed form: ``q``; ``lower`` and ``upper``; ``p`` and ``scaled``.

    Example:
        >>> seen = simulate(torch.tensor([-2.0, 1.0]), "drop_relu", q=0.5, samples=20_000)
        >>> abs(seen.variance.item() - 1.0) < 4 * seen.standard_error.item() + 1e-3
        True
    """
    x = _checks.finite_rows(x).detach().double()
    whole_number(samples, "samples", least=2)
    whole_number(seed, "seed", least=0)
    draw = _drawer(kind, parameters)
    generator = torch.Generator(device=x.device).manual_seed(seed)
    at_once = max(1, _WORK_ELEMENTS // x.numel())

    powers = x.new_zeros((4, *x.shape[:-1]))
    shift = x.new_zeros(x.shape[:-1])
    for start in range(0, samples, at_once):
        count = min(at_once, samples - start)
        uniform = torch.rand((count, *x.shape), dtype=x.dtype, device=x.device, generator=generator)
        sums = draw(x, uniform).sum(dim=-1)
        if start == 0:
            # Powers about a point near the mean: about 0 the differences below would cancel.
            shift = sums.mean(dim=0)
        deviation = sums - shift
        for exponent in range(1, 5):
            powers[exponent - 1] += deviation.pow(exponent).sum(dim=0)

    first, second, third, fourth = powers / samples
    variance = (second - first**2).clamp_min(0)
    fourth_central = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
    spread = fourth_central - (samples - 3) / (samples - 1) * variance**2
    return SimulatedVariance(
        variance=variance * samples / (samples - 1),
        standard_error=(spread.clamp_min(0) / samples).sqrt(),
        mean=shift + first,
        samples=samples,
    )


def _drawer(kind: str, parameters: dict[str, float]) -> Callable[[Tensor, Tensor], Tensor]:
    """The definition of ``kind`` as a function of inputs and uniform numbers in ``[0, 1)``."""
    allowed = {"drop_relu": {"q"}, "rrelu": {"lower", "upper"}, "dropout": {"p", "scaled"}}
    if not isinstance(kind, str) or kind not in allowed:
        raise InvalidInput(f'kind is {kind!r}; give "drop_relu", "rrelu" or "dropout".')
    for name in parameters:
        if name not in allowed[kind]:
            raise InvalidInput(f"{kind} has no {name!r}; it takes {', '.join(sorted(allowed[kind]))}.")
    for name in {"q", "p"} & allowed[kind]:
        if name not in parameters:
            raise InvalidInput(f"{kind} needs {name}, which was left out; give it a value from 0 to 1.")

    if kind == "drop_relu":
        q = _probability(parameters["q"], "q")
        return lambda x, uniform: torch.where(uniform < q, x.relu(), x)
    if kind == "rrelu":
        lower, upper = _slopes(parameters.get("lower", 1 / 8), parameters.get("upper", 1 / 3))
        return lambda x, uniform: torch.where(x >= 0, x, (lower + (upper - lower) * uniform) * x)
    p = _probability(parameters["p"], "p")
    scale = 1 / (1 - p) if parameters.get("scaled") and p < 1 else 1.0
    return lambda x, uniform: torch.where(uniform < p, 0.0, x * scale)


def _squares(x: Tensor) -> Tensor:
    return x.double().square().sum(dim=-1)


def _probability(value: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= 1:
        raise InvalidInput(f"{name} is {value!r}; give a probability from 0 to 1.")
    return float(value)


def _slopes(lower: float, upper: float) -> tuple[float, float]:
    numbers = all(isinstance(slope, Real) and math.isfinite(slope) for slope in (lower, upper))
    if not (numbers and lower <= upper):
        raise InvalidInput(f"the slopes are lower={lower!r}, upper={upper!r}; give finite lower <= upper.")
    return float(lower), float(upper)
