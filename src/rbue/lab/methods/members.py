"""Ensembles whose members lie in one network: beside each other in every pass, or kept from moments of its training.

Sample ``k`` is member ``k``, and there are no more samples than members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rbue.call_sites import evaluating, unchanged
from rbue.errors import InvalidInput
from rbue.lab.methods.base import Loss, Method, TrainingProgress, outputs_of, spec_of
from rbue.sampling.collect import SampleStream
from rbue.sampling.passes import class_scores


def member_stream(outputs: Callable[[Tensor, list[int]], Tensor], members: int) -> SampleStream:
    """Samples that are members; ``outputs(x, numbers)`` are the class scores ``(s, B, classes)`` of some of them."""

    def draw(x: Tensor, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        numbers = samples.tolist()
        if max(numbers, default=0) >= members:
            raise InvalidInput(f"there is no sample {max(numbers)}: there are {members}, one a member.")
        yield slice(0, len(x)), slice(0, len(numbers)), outputs(x, numbers)

    return draw


class StoredSamples(Method):
    """Samples that training leaves in the network, whose ``outputs(x, numbers)`` are the class scores of some."""

    one_classifier = False

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, draws: str = "independent") -> SampleStream:
        """The samples in the order in which they were kept; another seed gives the same."""
        return member_stream(networks[0].outputs, self.limit or 1)  # type: ignore[arg-type]


@dataclass(frozen=True)
class MembersInOnePass(Method):
    """``members`` networks in one, prepared to return class scores ``(B, members, classes)``.

    ``summed`` says that members are trained on the sum of their losses: each takes the steps it would take alone.
    Otherwise it is the mean.
    """

    members: int = 4
    summed = False
    one_classifier = False

    def __post_init__(self) -> None:
        at_least_two(self.members)

    @property
    def limit(self) -> int:
        """One sample a member."""
        return self.members

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, progress: TrainingProgress) -> Loss:
        """The cross-entropy of every member on every image; the scores are the mean probabilities."""
        logits = class_scores(network(x))
        loss = F.cross_entropy(logits.flatten(0, 1), y.repeat_interleave(self.members, 0))
        return loss * self.members if self.summed else loss, logits.softmax(2).mean(1)

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, draws: str = "independent") -> SampleStream:
        """All members in one pass."""
        return member_stream(lambda x, numbers: outputs_of(networks[0], x)[:, numbers].transpose(0, 1), self.members)


class MembersAsRows(nn.Module):
    """A network whose output has rows for each member, all of the first one first: now ``(B, members, classes)``.

    ``repeated`` gives it an image once a member; otherwise it makes the rows of its members itself.
    """

    def __init__(self, network: nn.Module, members: int, repeated: bool) -> None:
        super().__init__()
        self.network, self.members, self.repeated = network, members, repeated

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of every member."""
        rows = x.repeat(self.members, *[1] * (x.dim() - 1)) if self.repeated else x
        return class_scores(self.network(rows)).unflatten(0, (self.members, -1)).transpose(0, 1)


def in_order_of_calls(network: nn.Module, modules: Iterable[nn.Module], example: Tensor) -> list[nn.Module]:
    """Those of the modules that one pass calls, as it comes to them first; the pass leaves no trace."""
    called: dict[nn.Module, None] = {}
    with ExitStack() as hooks, unchanged(network, example.device), evaluating(network):
        for one in modules:
            hooks.enter_context(one.register_forward_pre_hook(lambda module, _: called.setdefault(module)))
        network(example)
    return list(called)


def at_least_two(members: int) -> None:
    """Refuse an ensemble of one."""
    if members < 2:
        raise InvalidInput(f"an ensemble has at least 2 members, not {members}.")


def refuse_average(method: Method, average: str | None) -> None:
    """Refuse a recipe that averages weights, which has a learning rate of its own."""
    if average is not None:
        raise InvalidInput(
            f"{spec_of(method)} has a learning rate schedule of its own, so weights cannot be averaged ({average}) as "
            "well; use average none."
        )


def redrawn(initial: Tensor, shape: Sequence[int], factor: float = 1.0) -> nn.Parameter:
    """New initial weights of any shape, drawn from the old ones: so they have their distribution, times a factor."""
    values = initial.detach().flatten()
    return nn.Parameter(factor * values[torch.randint(len(values), tuple(shape))])


class KeptMembers(nn.Module):
    """A network that is trained, and copies that keep its weights and statistics of some moments.

    The copies are frozen parameters: stored, counted and moved with the network, and no optimiser changes them. The
    last member is the trained network itself.
    """

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__()
        self.network = network
        self.kept = nn.ModuleList(deepcopy(network) for _ in range(members - 1)).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of the network in training."""
        return class_scores(self.network(x))

    def keep(self, member: int) -> None:
        """Make the network as it is now this member."""
        if member < len(self.kept):
            self.kept[member].load_state_dict(self.network.state_dict())

    def outputs(self, x: Tensor, numbers: list[int]) -> Tensor:
        """Class scores of some members."""
        members = [*self.kept, self.network]
        return torch.stack([outputs_of(members[number], x) for number in numbers])
