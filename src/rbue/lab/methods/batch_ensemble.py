"""BatchEnsemble (Wen et al., 2020, https://arxiv.org/abs/2002.06715): members share weights up to a rank-1 factor.

Member ``m`` has the weights ``W ∘ s_m r_mᵀ`` in every convolution and linear layer, with one ``W`` for all. ``r_m``
scales the layer's inputs and ``s_m`` its outputs, a number a channel:

    y = s_m ∘ (W (r_m ∘ x)) + b_m.

So all members pass through at once, as rows of one batch. Both vectors start as random signs and are not decayed.
Biases are a member's own; BatchNorm is shared, as it is by default in the authors' code. Every image is repeated
for every member, in training too: each sees what a network alone would see, and the recipe's epochs are right for it.
(Divided among the members, a batch costs less, but each of them sees a part of the images and needs more epochs.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rbue.call_sites import innermost
from rbue.errors import InvalidInput
from rbue.lab.methods.base import register
from rbue.lab.methods.members import MembersAsRows, MembersInOnePass


class RankOneLayer(nn.Module):
    """What the layers share: rows of a batch ``(members * B, ...)`` are scaled by member."""

    fast_in: nn.Parameter
    fast_out: nn.Parameter
    member_bias: nn.Parameter | None

    def linear_map(self, x: Tensor) -> Tensor:
        """The layer without its bias, the same for all members."""
        raise AssertionError("every layer says what it does with its weights")

    def of_member(self, values: Tensor, like: Tensor) -> Tensor:
        """``(members, C)`` as ``(members * B, C)``, to go with the rows of a batch."""
        return values.to(like.dtype).repeat_interleave(len(like) // len(values), 0)

    def forward(self, x: Tensor) -> Tensor:
        """``s ∘ (W (r ∘ x)) + b``."""
        y = self.linear_map(x * self.of_member(self.fast_in, x))
        y = y * self.of_member(self.fast_out, y)
        return y if self.member_bias is None else y + self.of_member(self.member_bias, y)


class RankOneLinear(RankOneLayer, nn.Linear):
    """``nn.Linear`` with a factor a member; inputs may have axes between rows and features."""

    def linear_map(self, x: Tensor) -> Tensor:
        """``x Wᵀ``."""
        return F.linear(x, self.weight)

    def of_member(self, values: Tensor, like: Tensor) -> Tensor:
        """Along the last axis."""
        rows = super().of_member(values, like)
        return rows.view(len(rows), *[1] * (like.dim() - 2), -1)


class RankOneConv2d(RankOneLayer, nn.Conv2d):
    """``nn.Conv2d`` with a factor a member."""

    def linear_map(self, x: Tensor) -> Tensor:
        """The convolution."""
        return self._conv_forward(x, self.weight, None)

    def of_member(self, values: Tensor, like: Tensor) -> Tensor:
        """Along the channels."""
        return super().of_member(values, like)[:, :, None, None]


_RANK_ONE: dict[type[nn.Module], type[RankOneLayer]] = {nn.Linear: RankOneLinear, nn.Conv2d: RankOneConv2d}


def make_rank_one(network: nn.Module, members: int) -> None:
    """Give every ``nn.Conv2d`` and ``nn.Linear`` a rank-1 factor and a bias a member, in place."""
    layers = [layer for layer in network.modules() if type(layer) in _RANK_ONE and "weight" in layer._parameters]
    if not layers:
        raise InvalidInput(f"{type(network).__name__} has no nn.Conv2d or nn.Linear for the members to differ in.")
    for layer in layers:
        weight, bias = layer.get_parameter("weight"), layer._parameters["bias"]
        inputs = weight.shape[1] * getattr(layer, "groups", 1)
        layer.__class__ = _RANK_ONE[type(layer)]
        for name, size in (("fast_in", inputs), ("fast_out", len(weight))):
            layer.register_parameter(name, nn.Parameter(torch.randint(0, 2, (members, size)) * 2.0 - 1))
        own = None if bias is None else nn.Parameter(bias.detach().expand(members, -1).clone())
        layer.register_parameter("member_bias", own)
        layer.register_parameter("bias", None)


@register("batch-ensemble", shown=1)
@dataclass(frozen=True)
class BatchEnsemble(MembersInOnePass):
    """``members`` networks with shared weights, which each scales by vectors of its own."""

    undecayed = ("fast_in", "fast_out")

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Give layers the vectors of the members."""
        make_rank_one(innermost(network), self.members)
        return MembersAsRows(network, self.members, repeated=True)
