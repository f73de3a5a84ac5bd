"""TreeNet (Lee et al., 2015, https://arxiv.org/abs/1511.06314): members that share the first layers of one network.

The network is a row of units: its parts in the order they are called, those of an ``nn.Sequential`` each on its own.
The first of them are the trunk, once for all members; every unit after it has a copy a member, with weights of its own.
By default half of the units are shared, rounded up: ResNet-18 divides after its second stage, VGG-13 and DenseNet-121
after their third, the small CNN after its second convolution.

Where the trunk ends, a batch becomes ``(members * B, ...)``, whose rows each member's units divide and join again. So
whatever the network does between its units stays as it is written. Each branch is trained on its own loss, as a network
alone would be, and the trunk by the mean of what they pass back.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rbue.call_sites import evaluating
from rbue.errors import InvalidInput
from rbue.lab.methods.base import register
from rbue.lab.methods.members import MembersAsRows, MembersInOnePass, in_order_of_calls, redrawn
from rbue.sampling.passes import class_scores


class Branches(nn.Module):
    """One unit a member, each for its rows of the batch; those of the first units all get the trunk's."""

    def __init__(self, unit: nn.Module, members: int, divides: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList([unit, *(deepcopy(unit) for _ in range(members - 1))])
        self.divides = divides

    def forward(self, x: Tensor) -> Tensor:
        """Rows of the first member first."""
        count = len(self.members)
        if self.divides:
            shared = x.detach() + (x - x.detach()) / count  # x itself; of its gradient the mean over members
            parts = [shared] * count
        else:
            parts = list(x.unflatten(0, (count, -1)))
        return torch.cat([member(part) for member, part in zip(self.members, parts, strict=True)])


def units(network: nn.Module, example: Tensor) -> list[str]:
    """The paths of the parts of a network that have weights or buffers, as a pass calls them."""
    named: dict[nn.Module, str] = {}
    for path, child in network.named_children():
        inside = child.named_children() if isinstance(child, nn.Sequential) else [("", child)]
        named |= {one: f"{path}.{name}".strip(".") for name, one in inside if one.state_dict()}
    return [named[one] for one in in_order_of_calls(network, named, example)]


@register("treenet", shown=1)
@dataclass(frozen=True)
class TreeNet(MembersInOnePass):
    """``members`` branches from one trunk, which is the part ``shared`` of the network's units."""

    shared: float = 0.5
    summed = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.shared < 1:
            raise InvalidInput(f"shared of treenet must be a part of the network from 0 to below 1, not {self.shared}.")

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Give every unit after the trunk a copy a member, in place, and refuse a network that this would change."""
        found = units(network, example)
        trunk = min(math.ceil(self.shared * len(found)), len(found) - 1)
        if not found[trunk:]:
            raise InvalidInput(f"{type(network).__name__} has no parts with weights for treenet to branch.")
        x = torch.randn_like(example)
        with torch.no_grad(), evaluating(network):
            plain = class_scores(network(x))
        for place, path in enumerate(found[trunk:]):
            network.set_submodule(path, Branches(network.get_submodule(path), self.members, divides=place == 0))
        tree = MembersAsRows(network, self.members, repeated=False)
        self._refuse_other_outputs(tree, x, plain)
        for path in found[trunk:]:
            for copy in network.get_submodule(path).members[1:]:  # type: ignore[index]
                for parameter in copy.parameters():
                    if parameter.dim() > 1:  # others are constants at first
                        parameter.data = redrawn(parameter, parameter.shape).data
        return tree

    def _refuse_other_outputs(self, tree: MembersAsRows, x: Tensor, plain: Tensor) -> None:
        """Raise unless every member of a tree of copies is the network."""
        problem = f"treenet cannot branch {type(tree.network).__name__} after {self.shared:g} of its parts"
        try:
            with torch.no_grad(), evaluating(tree):
                difference = (tree(x) - plain.unsqueeze(1)).abs().max()
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InvalidInput(f"{problem} ({reason}); choose another place or network.") from error
        if difference > 1e-3 * plain.abs().max():
            raise InvalidInput(f"{problem}, since something passes by them; choose another place or network.")
