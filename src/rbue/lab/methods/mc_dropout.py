"""MC-Dropout (paper §2; Gal and Ghahramani, 2016): dropout that stays on at test time."""

from __future__ import annotations

from dataclasses import dataclass

from rbue.activations import Dropout
from rbue.lab.methods.base import RandomSites, register


@register("mc-dropout", shown=1)
@dataclass(frozen=True)
class MCDropout(RandomSites):
    """Inputs of layers are dropped with probability ``p``.

    ``where="last"`` drops before the classifier, which is what the paper's diversity figures look like (it does not
    say); ``where="all"`` drops before every convolution and linear layer, but not before the projections inside
    ``nn.MultiheadAttention``, which are no calls of their own.
    """

    p: float = 0.5
    where: str = "last"
    of: str = ""

    def activation(self) -> Dropout:
        """Dropout before layers."""
        return Dropout(self.p)
