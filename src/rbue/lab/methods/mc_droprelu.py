"""MC-DropReLU (paper §3.2, strategy I): keep each ReLU with probability q, at test time too; and any activation."""

from __future__ import annotations

from dataclasses import dataclass

from rbue.activations import DropActivation, DropReLU
from rbue.activations.base import Activation
from rbue.lab.methods.base import RandomSites, register


@register("mc-droprelu", shown=1)
@dataclass(frozen=True)
class MCDropReLU(RandomSites):
    """Each ReLU is kept with probability ``q``, else its input passes; ``where`` places them (paper §4.5).

    ``mask`` is ``channel`` where the ReLUs of a channel are kept or dropped together.
    """

    q: float = 0.9
    where: str = "all"
    mask: str = "element"
    of: str = ""

    def activation(self) -> Activation:
        """``x`` in place of ``max(x, 0)`` with probability ``1 - q``."""
        return DropReLU(self.q, self.mask)


@register("mc-dropactivation", shown=1)
@dataclass(frozen=True)
class MCDropActivation(MCDropReLU):
    """As mc-droprelu, for networks with GELU, SiLU and the like: any activation is kept with probability ``q``."""

    def activation(self) -> Activation:
        """``x`` in place of ``f(x)`` with probability ``1 - q``."""
        return DropActivation(self.q, self.mask)
