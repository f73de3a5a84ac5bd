"""Snapshot Ensemble (Huang et al., 2017, https://arxiv.org/abs/1704.00109): one training, kept at the ends of cycles.

The epochs of one training are divided into ``M`` cycles. In each the learning rate falls from the recipe's first to 0
by a cosine, step by step: ``α(t) = α₀ / 2 · (cos(π t / T) + 1)`` after ``t`` of the ``T`` steps of a cycle. The network
is kept at the end of each, and the prediction is the mean of what was kept.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from rbue.errors import InvalidInput
from rbue.lab.methods.base import TrainingBatches, register, spec_of
from rbue.lab.methods.members import KeptMembers, StoredSamples, at_least_two, refuse_average


def cycle_ends(epochs: int, cycles: int) -> list[int]:
    """The epochs after which cycles of almost one length end.

    >>> cycle_ends(200, 4), cycle_ends(10, 4)
    ([50, 100, 150, 200], [2, 5, 7, 10])
    """
    return [epochs * number // cycles for number in range(1, cycles + 1)]


def cycle_at(epochs: int, cycles: int, at: float) -> tuple[int, int]:
    """Between which epochs the cycle lies that runs ``at`` so many epochs."""
    return next((start, end) for start, end in pairwise([0, *cycle_ends(epochs, cycles)]) if at < end)


class Cyclic(StoredSamples, ABC):
    """Training by cycles of the learning rate, of which some moments are kept as members."""

    cycles: int

    @abstractmethod
    def kept_after(self, epochs: int) -> list[int]:
        """The epochs after which a member is kept, the last one among them."""

    def learning_rate(self, start: float, epochs: int, at: float) -> float:
        """From ``start`` to 0 by a cosine, again in each cycle."""
        first, end = cycle_at(epochs, self.cycles, at)
        return start / 2 * (math.cos(math.pi * (at - first) / (end - first)) + 1)

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Give the network room for what is kept of it."""
        return KeptMembers(network, self.limit or 1)

    def end_epoch(self, network: nn.Module, epoch: int, epochs: int, batches: TrainingBatches) -> None:
        """Keep a member where one is due."""
        ends = self.kept_after(epochs)
        if epoch in ends:
            network.keep(ends.index(epoch))  # type: ignore[operator]


@register("snapshot-ensemble", shown=1)
@dataclass(frozen=True)
class SnapshotEnsemble(Cyclic):
    """One training in ``members`` cycles of the learning rate, with the network at the end of each as a member."""

    members: int = 4

    def __post_init__(self) -> None:
        at_least_two(self.members)

    @property
    def limit(self) -> int:
        """One sample a member."""
        return self.members

    @property
    def cycles(self) -> int:  # type: ignore[override]
        """One a member."""
        return self.members

    def kept_after(self, epochs: int) -> list[int]:
        """The ends of cycles."""
        return cycle_ends(epochs, self.members)

    def check_training(self, epochs: int, average: str | None) -> None:
        """A cycle takes at least an epoch."""
        refuse_average(self, average)
        if epochs < self.members:
            raise InvalidInput(f"{spec_of(self)} needs at least {self.members} epochs, one a cycle, not {epochs}.")
