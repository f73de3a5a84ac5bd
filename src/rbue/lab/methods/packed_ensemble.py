"""Packed-Ensemble (Laurent et al., 2023, https://arxiv.org/abs/2210.09184): narrow members in grouped convolutions.

Each of ``M`` members has ``α / M`` of the network's channels. They lie beside each other, so that a layer of ``C``
channels has ``α C``, in ``M`` groups that do not see each other: one pass of one network is that of all members. With
``α = 2`` and ``M = 4`` a member has half of the width, and all of them together as many weights as the network. The
first layer, whose input all members share, needs no groups; the last gives every member a score a class. There are no
further groups inside of a member (``γ = 1``).

The members are trained on the sum of their losses, which is to train each of them alone. Their first weights have the
distribution of the network's own, times ``√(M / α)``, since their layers are so much narrower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rbue.call_sites import evaluating
from rbue.errors import InvalidInput
from rbue.lab.methods.base import register
from rbue.lab.methods.members import MembersInOnePass, in_order_of_calls, redrawn
from rbue.sampling.passes import class_scores


class PackedLinear(nn.Linear):
    """A linear layer a member: ``(B, M * inputs)`` to ``(B, M * outputs)`` by weights ``(M, outputs, inputs)``."""

    def forward(self, x: Tensor) -> Tensor:
        """``y_m = W_m x_m + b_m``."""
        members = x.unflatten(-1, (len(self.weight), -1))
        y = torch.einsum("...mi,moi->...mo", members, self.weight)
        return (y if self.bias is None else y + self.bias).flatten(-2)


class SplitScores(nn.Module):
    """A packed network, whose class scores become ``(B, members, classes)``."""

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__()
        self.network, self.members = network, members

    def forward(self, x: Tensor) -> Tensor:
        """Those of the first member come first inside."""
        return class_scores(self.network(x)).unflatten(1, (self.members, -1))


@register("packed-ensemble", shown=1)
@dataclass(frozen=True)
class PackedEnsemble(MembersInOnePass):
    """``members`` networks of ``alpha / members`` of the width, as groups of one network."""

    alpha: float = 2.0
    summed = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise InvalidInput(f"alpha of packed-ensemble must be a number above 0, not {self.alpha}.")

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Make every convolution, linear layer and BatchNorm one of groups, in place."""
        layers = [one for one in network.modules() if isinstance(one, (nn.Conv2d, nn.Linear))]
        called = in_order_of_calls(network, layers, example)
        if not called:
            raise InvalidInput(f"{type(network).__name__} calls no nn.Conv2d or nn.Linear to divide among members.")
        for layer in network.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                settings = layer.eps, layer.momentum, layer.affine, layer.track_running_stats
                layer.__init__(self._packed(layer.num_features), *settings)  # type: ignore[misc]
            elif (type(layer) is nn.Conv2d and layer.groups == 1) or type(layer) is nn.Linear:
                self._pack(layer, layer is called[0], layer is called[-1])
        packed = SplitScores(network, self.members)
        _refuse_mixing(packed, example)
        return packed

    def _packed(self, channels: int) -> int:
        """The channels of all members, for those of one network."""
        return self.members * max(1, round(channels * self.alpha / self.members))

    def _pack(self, layer: nn.Conv2d | nn.Linear, first: bool, last: bool) -> None:
        outputs, inputs, *kernel = layer.weight.shape
        groups = 1 if first else self.members
        inputs = inputs if first else self._packed(inputs) // groups
        outputs = self.members * outputs if last else self._packed(outputs)
        factor = math.sqrt(self.members / self.alpha)
        shape = [outputs, inputs, *kernel]
        if isinstance(layer, nn.Conv2d):
            layer.in_channels, layer.out_channels, layer.groups = inputs * groups, outputs, groups
        else:
            layer.in_features, layer.out_features = inputs * groups, outputs
            if not first:
                layer.__class__ = PackedLinear
                shape = [groups, outputs // groups, inputs]
        layer.weight = redrawn(layer.weight, shape, factor)
        if layer.bias is not None:
            layer.bias = redrawn(layer.bias, shape[: len(shape) - 1 - len(kernel)])


def _refuse_mixing(packed: SplitScores, example: Tensor) -> None:
    """Raise unless the scores of the first member depend on its own parameters alone.

    All parameters of a packed layer have the members in order along their first axis. Where channels are joined, the
    groups of the next layer are not the members any more.
    """
    name = type(packed.network).__name__
    problem = f"packed-ensemble cannot divide {name} among {packed.members} members"
    try:
        with evaluating(packed), torch.enable_grad():
            scores = packed(torch.randn_like(example))[:, 0].sum()
        found = torch.autograd.grad(scores, list(packed.parameters()), allow_unused=True)
        others = [one.unflatten(0, (packed.members, -1))[1:] for one in found if one is not None]
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInput(f"{problem} ({reason}); use another network.") from error
    if any(bool(one.any()) for one in others):
        raise InvalidInput(f"{problem}: it joins or mixes channels between its layers; use another network.")
