"""Single: one plain network, one pass. The baseline every other method is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from rbue.lab.methods.base import Loss, TrainingProgress, cross_entropy, register
from rbue.lab.methods.members import MemberStream
from rbue.sampling.collect import SampleStream


@register("single")
@dataclass(frozen=True)
class Single:
    """A plain network with the softmax as its only uncertainty."""

    networks = 1
    limit = 1

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Nothing to prepare."""
        return network

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, progress: TrainingProgress) -> Loss:
        """Cross-entropy."""
        return cross_entropy(network, x, y)

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, memory: int | None = None) -> SampleStream:
        """One sample: the network itself."""
        return MemberStream(networks)
