"""When to stop drawing samples for an image: its answer has settled at a stated confidence."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

import torch
from torch import Tensor

from rbue.errors import InvalidInput
from rbue.prediction import RunningStatistics


@dataclass(frozen=True)
class Adaptive:
    """Sample in rounds of doubling size and stop for each image when its answer has settled.

    It has settled when, with probability ``confidence``, its label would not change with more samples and its
    mean probabilities are within ``tolerance`` of their limit.

    With ``n`` samples, class means ``m`` and sample deviations ``s``, the first holds when
    ``m_top - m_j > t (s_top + s_j) / sqrt(n)`` for every other class (whatever the correlation of the two),
    the second when ``t s_j / sqrt(n) <= tolerance`` for every class. ``t`` is the two-sided Student quantile
    with ``n - 1`` degrees of freedom; the risk ``1 - confidence`` is divided by the number of looks, so that
    looking often does not make stopping early more likely to be wrong. The quantile is that of normal samples. Where
    most samples agree and few do not, a first round may see none of those. The label is then right, but the mean is
    off by more than ``tolerance`` with a risk that can be many times the stated one: a share ``e`` of samples with the
    opposite answer goes unseen with probability ``(1 - e)**first``, which is 71 % for 0.021 and 16, and below 5 % from
    ``e = 3 / first`` on. A larger ``first`` guards against it.
    """

    tolerance: float = 0.02
    confidence: float = 0.95
    first: int = 16

    def __post_init__(self) -> None:
        for name, kind, words in (
            ("tolerance", Real, "a number"),
            ("confidence", Real, "a number"),
            ("first", Integral, "an integer"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise InvalidInput(f"{name} must be {words}, not {getattr(self, name)!r}.")
        if not 0 < self.tolerance < 1:
            raise InvalidInput(f"tolerance must lie in (0, 1), not {self.tolerance}.")
        if not 0 < self.confidence < 1:
            raise InvalidInput(f"confidence must lie in (0, 1), not {self.confidence}.")
        if self.first < 4:
            raise InvalidInput(f"first is the size of the first round and must be at least 4, not {self.first}.")

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

    def settled(self, statistics: RunningStatistics, rows: Tensor, looks: int) -> Tensor:
        """For each image of ``rows``, whether it needs no more samples."""
        from scipy.special import stdtrit  # type: ignore[import-untyped]

        n = int(statistics.count[rows[0]])
        mean, squares = statistics.mean[rows], statistics.squares[rows]
        t = float(stdtrit(n - 1, 1 - (1 - self.confidence) / looks / 2))
        half_width = t * torch.sqrt(squares / (n - 1) / n)
        precise = half_width.amax(1) <= self.tolerance
        top = mean.argmax(1, keepdim=True)
        lead = mean.gather(1, top) - mean
        safe = (lead > half_width.gather(1, top) + half_width).sum(1) == mean.shape[1] - 1
        return (precise & safe).flatten(1).all(1) if precise.dim() > 1 else precise & safe
