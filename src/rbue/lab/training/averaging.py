"""Averages of the weights on the way, SWA (Izmailov et al., 2018) or EMA, in tensors beside the network.

After ``n`` epochs from the start of averaging on, SWA is ``a_n = a_{n-1} + (w - a_{n-1}) / n`` of the weights ``w`` at
their ends. After every step EMA is ``a + (1 - decay) (w - a)``, beginning with the weights before the first of them.
Every parameter is averaged. Buffers are not: BatchNorm's are estimated again at the end of training.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rbue.call_sites import innermost
from rbue.lab.training.recipe import Recipe


class WeightAverage:
    """The average of one network's weights.

    The tensors stay where they are, so that a captured step can change them. How many epochs they are the average of
    follows from the epoch's number; so they are all that a checkpoint needs.

    Attributes:
        tensors: the average of each parameter, by its name.
    """

    def __init__(self, network: nn.Module, recipe: Recipe) -> None:
        self.recipe = recipe
        named = [(name, one) for name, one in innermost(network).named_parameters() if one.is_floating_point()]
        self.weights: list[Tensor] = [one for _, one in named]
        self.tensors = {name: one.detach().clone() for name, one in named}

    @property
    def _values(self) -> list[Tensor]:
        return list(self.tensors.values())

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """EMA begins with the weights of its first epoch; what it was before is lost."""
        if self.recipe.average == "ema" and epoch == self.recipe.average_from:
            torch._foreach_copy_(self._values, self.weights)

    @torch.no_grad()
    def after_step(self) -> None:
        """EMA: a part of the way to the new weights, in one launch or a few; before its first epoch it is not used."""
        if self.recipe.average_decay is not None:
            torch._foreach_lerp_(self._values, self.weights, 1 - self.recipe.average_decay)

    @torch.no_grad()
    def end_epoch(self, epoch: int) -> None:
        """SWA: one more epoch in the average."""
        count = epoch - self.recipe.average_from + 1
        if self.recipe.average == "swa" and count > 0:
            torch._foreach_lerp_(self._values, self.weights, 1 / count)

    @torch.no_grad()
    def into_network(self) -> None:
        """Make the average the network's weights."""
        torch._foreach_copy_(self.weights, self._values)
