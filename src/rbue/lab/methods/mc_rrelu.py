"""MC-RReLU (paper §3.2, strategy II): draw the slope of each negative input from U(lower, upper)."""

from __future__ import annotations

from dataclasses import dataclass

from rbue.activations import RReLU
from rbue.lab.methods.base import RandomSites, register


@register("mc-rrelu")
@dataclass(frozen=True)
class MCRReLU(RandomSites):
    """Negative inputs are scaled by a slope from ``U(lower, upper)``; ``where`` places the random ReLUs."""

    lower: float = 1 / 8
    upper: float = 1 / 3
    where: str = "all"
    of: str = ""

    def activation(self) -> RReLU:
        """``a x`` for negative ``x``, ``a ~ U(lower, upper)``."""
        return RReLU(self.lower, self.upper)
