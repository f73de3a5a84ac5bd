"""The binomial distribution function and the intervals of Clopper and Pearson, in float64, without SciPy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_TINY = 1e-300
"""In place of a 0 that a step of the continued fraction would divide by."""
_STEPS = 100
"""More than halving alone needs to find a probability to the last digit."""


def cdf(successes: Tensor, trials: Tensor, chance: Tensor) -> Tensor:
    """``P(X ≤ k)`` for ``X ~ Bin(n, p)``, which is ``I_{1-p}(n - k, k + 1)``, the regularised incomplete beta function.

    Its continued fraction (DLMF 8.17.22) is evaluated by the modified Lentz method on the side of the mean where it
    converges in about ``√n`` steps; in NumPy, as these are many small steps.
    """
    k, n, p = torch.broadcast_tensors(successes.double(), trials.double(), chance.double().to(successes.device))
    inside = (k >= 0) & (k < n) & (p > 0) & (p < 1)
    a, b, x = torch.where(inside, n - k, 1.0), torch.where(inside, k + 1, 1.0), torch.where(inside, 1 - p, 0.5)
    turned = x > (a + 1) / (a + b + 2)
    # I_x(a, b) = 1 - I_{1-x}(b, a); 1 - x is p itself, not rounded twice.
    y = torch.where(inside, p, 0.5)
    a, b, x, y = (torch.where(turned, *pair) for pair in ((b, a), (a, b), (y, x), (x, y)))
    front = a * x.log() + b * y.log() + torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    found = front.exp() * _fraction(a, b, x) / a
    found = torch.where(turned, 1 - found, found)
    edges = torch.where((k >= n) | ((p <= 0) & (k >= 0)), 1.0, 0.0).to(found)
    return torch.where(inside, found, edges)


def clopper_pearson(successes: Tensor, trials: Tensor, confidence: float) -> tuple[Tensor, Tensor]:
    """Both ends of the exact interval: ``P(X ≥ k; lower) = P(X ≤ k; upper) = (1 - confidence) / 2``."""
    tail = (1 - confidence) / 2
    # With failures for successes the lower end becomes an upper one.
    return 1 - upper_bound(trials - successes, trials, tail), upper_bound(successes, trials, tail)


def upper_bound(successes: Tensor, trials: Tensor, tail: float) -> Tensor:
    """The chance ``p`` with ``P(X ≤ k; p) = tail``: the true one lies above it with probability ``tail`` at most."""
    k, n = successes.double(), trials.double()
    scale = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma((n - k).clamp(min=1))
    # Newton on log P, which is concave in t = logit p; the score interval (Wilson, JASA 1927) is where it starts.
    z = torch.special.ndtri(torch.tensor(1 - tail, dtype=torch.float64, device=k.device))
    t = ((k + z**2 / 2 + z * (k * (n - k) / n + z**2 / 4).sqrt()) / (n + z**2)).logit(1e-12).nan_to_num()
    low, high, done = torch.full_like(t, -700), torch.full_like(t, 40), k >= n
    for _ in range(_STEPS):
        p, rest = t.sigmoid(), (-t).sigmoid()
        found = cdf(k, n, p)
        low, high = torch.where(found > tail, t, low), torch.where(found > tail, high, t)
        # dP/dt = -Γ(n+1) / (Γ(k+1) Γ(n-k)) p^(k+1) (1-p)^(n-k)
        slope = (scale + (k + 1) * p.log() + (n - k) * rest.log()).exp()
        newton = t + (found / tail).log() * found / slope
        # Each step squares the error: nothing is left of it after one this small. Near p = 1, p itself is rounded.
        close = (newton - t).abs() <= torch.clamp(1e-15 / rest, min=1e-9)
        # Halving where a step leaves the bracket, or where P or its slope is too small for a float.
        stepped = torch.where(close | ((newton > low) & (newton < high)), newton, (low + high) / 2)
        t = torch.where(done, t, stepped)
        done = done | close | (high - low <= 1e-9)
        if bool(done.all()):
            break
    return torch.where(k >= n, 1.0, t.sigmoid())


def _fraction(first: Tensor, second: Tensor, where: Tensor) -> Tensor:
    """``1 / (1 + d_1 / (1 + d_2 / (1 + …)))``."""
    a, b, x = (values.cpu().numpy() for values in (first, second, where))
    numerator, denominator = np.ones_like(x), 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = denominator.copy()
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            denominator = 1 / _not_zero(1 + term * denominator)
            numerator = _not_zero(1 + term / numerator)
            step = denominator * numerator
            value = value * step
        if (np.abs(step - 1) < 3e-15).all():
            break
    return torch.as_tensor(value, device=where.device)


def _not_zero(value: np.ndarray) -> np.ndarray:
    return np.where(np.abs(value) < _TINY, _TINY, value)
