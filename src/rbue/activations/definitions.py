"""What can be random in a pass.

DropReLU and RReLU (paper §3.2) return ``x`` where ``x >= 0`` and ``a * x`` with a random slope ``a`` elsewhere. Dropout
is the rival they are compared with (paper §2): it acts on the inputs of layers, not on ReLUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Union

from rbue.errors import InvalidInput


def _check_number(owner: object, name: str) -> None:
    """Refuse what is not a finite number, and make NumPy's one Python's."""
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidInput(f"{name} must be a finite number, not {value!r}.")
    if not isinstance(value, (int, float)):
        object.__setattr__(owner, name, float(value))


@dataclass(frozen=True)
class DropReLU:
    """Keep each ReLU with probability ``q``, otherwise pass the input through (strategy I).

    The slope for ``x < 0`` is ``a = 1 - Q`` with ``Q ~ Bernoulli(q)``: ``q=1`` is the plain network, ``q=0``
    the linear one. The paper uses 0.8 to 0.95.

    >>> DropReLU(q=0.9).mean_slope
    0.1
    """

    q: float = 0.9

    def __post_init__(self) -> None:
        _check_number(self, "q")
        if not 0 <= self.q <= 1:
            raise InvalidInput(f"q is the probability that a ReLU is kept and must lie in [0, 1], not {self.q}.")

    @property
    def mean_slope(self) -> float:
        """``E[a] = 1 - q``."""
        return round(1 - self.q, 15)

    @property
    def slope_variance(self) -> float:
        """``Var[a] = q (1 - q)``."""
        return self.q * (1 - self.q)


@dataclass(frozen=True)
class RReLU:
    """Draw the slope of each negative input from ``U(lower, upper)`` (strategy II).

    >>> round(RReLU().mean_slope, 4)
    0.2292
    """

    lower: float = 1 / 8
    upper: float = 1 / 3

    def __post_init__(self) -> None:
        _check_number(self, "lower")
        _check_number(self, "upper")
        if not 0 <= self.lower < self.upper <= 1:
            raise InvalidInput(f"RReLU needs 0 <= lower < upper <= 1, not lower={self.lower} and upper={self.upper}.")

    @property
    def mean_slope(self) -> float:
        """``E[a] = (lower + upper) / 2``."""
        return (self.lower + self.upper) / 2

    @property
    def slope_variance(self) -> float:
        """``Var[a] = (upper - lower)**2 / 12``."""
        return (self.upper - self.lower) ** 2 / 12


@dataclass(frozen=True)
class Dropout:
    """Set each input of a layer to 0 with probability ``p``, else divide it by ``1 - p`` (Srivastava et al., 2014).

    The scaling keeps the mean, so the expected network is the plain one. The paper uses 0.2 and 0.5.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        _check_number(self, "p")
        if not 0 <= self.p < 1:
            raise InvalidInput(f"p is the probability that a value is dropped and must lie in [0, 1), not {self.p}.")


Activation = Union[DropReLU, RReLU]  # noqa: UP007 (isinstance and documentation tools read it at run time)
Randomness = Union[DropReLU, RReLU, Dropout]  # noqa: UP007
