"""When to stop drawing samples for an image: its answer has settled at a stated confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from numbers import Real

import torch
from torch import Tensor

from rbue.errors import InvalidInput, whole_number
from rbue.prediction import RunningMoments
from rbue.random_stream import INDEPENDENT, Cycle


@dataclass(frozen=True)
class Adaptive:
    """Sample in rounds of doubling size and stop for each image when its answer has settled.

    It has settled when, with probability ``confidence``, its label would not change with more samples and its
    mean probabilities are within ``tolerance`` of their limit.

    With ``n`` samples, class means ``m`` and sample standard deviations ``s``, the first holds when
    ``m_top - m_j > t (s_top + s_j) / sqrt(n)`` for every other class (whatever the correlation of the two),
    the second when ``t s_j / sqrt(n) <= tolerance`` for every class. ``t`` is the two-sided Student quantile
    with ``n - 1`` degrees of freedom; the risk ``1 - confidence`` is divided by the number of looks, so that
    looking often does not make stopping early more likely to be wrong. The quantile is that of normal samples. Where
    most samples agree and few do not, a first round may see none of those. The label is then right, but the mean is
    off by more than ``tolerance`` with a risk that can be many times the stated one: a share ``e`` of samples with the
    opposite answer goes unseen with probability ``(1 - e)**first``, which is 71 % for 0.021 and 16, and below 5 % from
    ``e = 3 / first`` on. A larger ``first`` guards against it.

    Several labels settle each by itself: its mean probability is within ``tolerance`` and surely above or below one
    half. Numbers (``outputs="values"``, ``"gaussian"``, ``"quantiles"`` or a function) have no label: there
    ``tolerance`` is absolute, in the unit of the output, and all means of an image have to be within it; with
    ``"gaussian"`` those of the mean, not of the variance.

    Balanced samples err less in the mean. What each element does alone cancels within a cycle: after ``n`` of its
    ``L`` samples ``(L - n) / (L - 1)`` of that variance is left, and nothing at its end. What elements do together
    does not cancel. One cycle cannot tell the two apart, so ``interactions`` says which part of the variance is taken
    for the latter. The intervals shrink by the square root of ``random_stream.Cycle.error``.
    """

    tolerance: float = 0.02
    confidence: float = 0.95
    first: int = 16
    interactions: float = 0.25

    def __post_init__(self) -> None:
        for name in ("tolerance", "confidence", "interactions"):
            if not isinstance(getattr(self, name), Real):
                raise InvalidInput(f"{name} must be a number, not {getattr(self, name)!r}.")
        if not 0 < self.tolerance < math.inf:
            raise InvalidInput(f"tolerance must be positive, not {self.tolerance}.")
        if not 0 < self.confidence < 1:
            raise InvalidInput(f"confidence must lie in (0, 1), not {self.confidence}.")
        if not 0 <= self.interactions <= 1:
            raise InvalidInput(
                f"interactions is a part of the variance and must lie in [0, 1], not {self.interactions}."
            )
        whole_number(self.first, "first, the size of the first round,", least=4)

    def rounds(self, samples: int) -> list[int]:
        """The numbers of samples after each round, at most ``samples``.

        >>> Adaptive(first=16).rounds(100)
        [16, 32, 64, 100]
        """
        sizes = []
        size = self.first
        while size < samples:
            sizes.append(size)
            size *= 2
        return [*sizes, samples]

    def settled(self, statistics: RunningMoments, rows: Tensor, looks: int, cycle: Cycle = INDEPENDENT) -> Tensor:
        """For each image of ``rows``, whether it needs no more samples."""
        n = int(statistics.count[rows[0]])
        squares = statistics.squares[rows]
        t = student_quantile(n - 1, 1 - (1 - self.confidence) / looks / 2)
        half_width = t * torch.sqrt(squares / (n - 1) / n * cycle.error(n, self.interactions))
        settled = statistics.settled(rows, half_width, self.tolerance)
        return settled.flatten(1).all(1) if settled.dim() > 1 else settled


@cache
def student_quantile(degrees: int, probability: float) -> float:
    """The ``t`` below which Student's distribution with ``degrees`` degrees of freedom has this probability.

    With ``θ = arctan(t / √degrees)`` the distribution function is a finite sum (Abramowitz and Stegun, 26.7.3 and
    26.7.4). It rises with ``θ``, so bisection finds ``θ``.
    """
    low, high = 0.0, math.pi / 2
    tail = 2 * abs(probability - 0.5)  # P(|T| <= t)
    for _ in range(60):  # halves the interval to less than the last digit of a float64
        middle = (low + high) / 2
        low, high = (middle, high) if _within(degrees, middle) < tail else (low, middle)
    return math.copysign(math.tan((low + high) / 2) * math.sqrt(degrees), probability - 0.5)


def _within(degrees: int, angle: float) -> float:
    """``P(|T| <= √degrees tan(angle))``: for odd degrees ``2/π (θ + sin θ (cos θ + 2/3 cos³θ + ...))``, else a like."""
    odd = degrees % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(odd + 1, degrees, 2):  # the last power of the cosine is degrees - 2
        total += term
        term *= k / (k + 1) * math.cos(angle) ** 2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
