"""MC-DropReLU (paper §3.2, strategy I): keep each ReLU with probability q, at test time too."""

from __future__ import annotations

from dataclasses import dataclass

from rbue.activations import DropReLU
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

    def activation(self) -> DropReLU:
        """``x`` in place of ``max(x, 0)`` with probability ``1 - q``."""
        return DropReLU(self.q, self.mask)
