"""Random ReLUs (paper §3.2): ``x`` where ``x >= 0`` and ``a * x`` with a random slope ``a`` elsewhere.

DropReLU draws ``a`` from {0, 1}, RReLU from an interval. The formulas here are the reference every kernel is tested
against, bit for bit, and the form that compilers fuse.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rbue import random_stream
from rbue.activations.base import Activation, check_mask, check_number, check_probability_kept
from rbue.activations.calls import FORMS, SiteCall, read_relu
from rbue.errors import InvalidInput
from rbue.torch_internals import is_exporting


class RandomSlope(Activation):
    """A ReLU whose slope for ``x < 0`` is random, at most ``cap`` where the call has one (6 for ReLU6).

    Its backward needs the output alone, which the next layer keeps anyway, so a mask is never stored.
    """

    noun = "ReLU"
    calls = FORMS.keys()

    draws_in_backward: ClassVar[bool]
    """Whether the gradient follows from the output only together with the random words."""

    fixed_slope: float | None = None
    """The slope where it is not random at all."""

    @property
    @abstractmethod
    def mean_slope(self) -> float:
        """``E[a]``."""

    @property
    @abstractmethod
    def slope_variance(self) -> float:
        """``Var[a]``."""

    @abstractmethod
    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """The output without a cap.

        The negative side is selected, never multiplied by zero: NaN stays NaN and ``-inf`` gives what ReLU gives.
        """

    @abstractmethod
    def backward(self, grad: Tensor, out: Tensor, words: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradient at the input from the output, and where it is 0 instead: at ``±0``, as in ``torch.relu``."""

    def read(self, func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> SiteCall | None:
        """Every spelling of ReLU."""
        return read_relu(func, args, kwargs)

    def formula(self, x: Tensor, words: Tensor, call: SiteCall) -> Tensor:
        """``x`` or ``a * x``, at most the cap."""
        return self.capped_forward(x, words, call.cap)

    def capped_forward(self, x: Tensor, words: Tensor, cap: float | None) -> Tensor:
        """:meth:`forward`, at most ``cap``."""
        y = self.forward(x, words)
        return y if cap is None else torch.clamp(y, max=cap)

    def capped_backward(self, grad: Tensor, out: Tensor, words: Tensor | None, cap: float | None) -> Tensor:
        """:meth:`backward`, 0 at and above the cap too, as in ReLU6."""
        result, blocked = self.backward(grad, out, words)
        if cap is not None:
            blocked = blocked | (out >= cap)
        return torch.where(blocked, 0.0, result)

    def mean(self, x: Tensor, call: SiteCall) -> Tensor:
        """``x`` where ``x >= 0``, ``E[a] * x`` elsewhere; the gradient at ``±0`` is the slope, as in ``leaky_relu``."""
        slope, cap = self.mean_slope, call.cap
        if slope == 0:
            return F.relu(x) if cap is None else F.hardtanh(x, 0.0, cap)
        y = F.leaky_relu(x, slope)
        return y if cap is None else F.hardtanh(y, -float("inf"), cap)

    def variance(self, x: Tensor, call: SiteCall) -> Tensor:
        """``Var[a] * x**2`` where ``x < 0``, else 0."""
        return torch.where(x < 0, self.slope_variance * x * x, 0.0)


@dataclass(frozen=True, repr=False)
class DropReLU(RandomSlope):
    """Keep each ReLU with probability ``q``, otherwise pass the input through (strategy I).

    The slope for ``x < 0`` is ``a = 1 - Q`` with ``Q ~ Bernoulli(q)``: ``q=1`` is the plain network, ``q=0``
    the linear one. The paper uses 0.8 to 0.95.

    With ``mask="channel"`` the ReLUs of an image's channel are kept or dropped together; that is dimension 1, as for
    BatchNorm.

    >>> DropReLU(q=0.9).mean_slope
    0.1
    """

    q: float = 0.9
    mask: str = "element"

    draws_in_backward = False

    def __post_init__(self) -> None:
        check_probability_kept(self, "a ReLU")
        check_mask(self)

    @property
    def fixed_slope(self) -> float | None:  # type: ignore[override]
        """0 for ``q=1``, 1 for ``q=0``, the one probability without a 32-bit threshold."""
        return 1.0 - self.q if self.q in (0, 1) else None

    @property
    def cycle(self) -> random_stream.Cycle:  # type: ignore[override]
        """Each ReLU is dropped once, or kept once if that is rarer."""
        return random_stream.drop_cycle(self.q)

    @property
    def mean_slope(self) -> float:
        """``E[a] = 1 - q``."""
        return round(1 - self.q, 15)

    @property
    def slope_variance(self) -> float:
        """``Var[a] = q (1 - q)``."""
        return self.q * (1 - self.q)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """0 where ``x < 0`` and the ReLU is kept, else ``x``."""
        return torch.where((x < 0) & (words >= random_stream.threshold(1 - self.q)), 0.0, x)

    def backward(self, grad: Tensor, out: Tensor, words: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradient passes exactly where the output is not 0."""
        return grad, out == 0


@dataclass(frozen=True)
class RReLU(RandomSlope):
    """Draw the slope of each negative input from ``U(lower, upper)`` (strategy II).

    >>> round(RReLU().mean_slope, 4)
    0.2292
    """

    lower: float = 1 / 8
    upper: float = 1 / 3

    draws_in_backward = True
    cycle = random_stream.Cycle(2, -1.0, mirrored=True)  # the two slopes have the mean of all

    def __post_init__(self) -> None:
        check_number(self, "lower")
        check_number(self, "upper")
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

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """``a * x`` where ``x < 0``.

        ``+0`` for ``±0``, so that ``-0`` in the output always means a negative input whose product was too small to
        represent; :meth:`backward` needs the difference.
        """
        sloped = (self.slopes(words) * x).to(x.dtype)  # half precision is multiplied in float32
        return torch.where(x < 0, sloped, x.abs())

    def backward(self, grad: Tensor, out: Tensor, words: Tensor | None) -> tuple[Tensor, Tensor]:
        """The slopes are drawn again; the sign of the output says where they apply."""
        assert words is not None
        negative = torch.signbit(out)
        return torch.where(negative, (self.slopes(words) * grad).to(grad.dtype), grad), (out == 0) & ~negative

    def slopes(self, words: Tensor) -> Tensor:
        """The ``float32`` slopes ``lower + (upper - lower) * u`` with ``u`` uniform in ``(0, 1)``."""
        if words.is_cuda and torch.compiler.is_compiling() and not is_exporting():
            steepness, intercept = self.slope_line()
            return random_stream.as_mantissas(words) * steepness + intercept
        scale = (self.upper - self.lower) / (1 << 24)
        return random_stream.odd_words(words) * scale + self.mean_slope

    def slope_line(self) -> tuple[float, float]:
        """How slopes follow from :func:`~rbue.random_stream.as_mantissas` in one instruction: steepness, intercept.

        The steepness is rounded first, and the intercept such that no error of that is left in the middle. So a slope
        is that of :meth:`slopes` to a unit in the last place.
        """
        width = float(np.float32(self.upper - self.lower))
        return width / (1 << 23), self.mean_slope - 1.5 * width + width / (1 << 24)
