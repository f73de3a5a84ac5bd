"""Deep Ensemble (Lakshminarayanan et al., 2017): networks from different initialisations, averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from rbue.errors import InvalidInput
from rbue.lab.methods.base import Loss, TrainingProgress, cross_entropy, register
from rbue.lab.methods.members import MemberStream
from rbue.sampling.collect import SampleStream


@register("deep-ensemble", shown=1)
@dataclass(frozen=True)
class DeepEnsemble:
    """``members`` networks, each a Single with a seed of its own; the first is Single itself."""

    members: int = 4

    def __post_init__(self) -> None:
        if self.members < 2:
            raise InvalidInput(f"an ensemble has at least 2 members, not {self.members}.")

    @property
    def networks(self) -> int:
        """One network a member."""
        return self.members

    @property
    def limit(self) -> int:
        """One sample a member."""
        return self.members

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Nothing to prepare: members are plain networks."""
        return network

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, progress: TrainingProgress) -> Loss:
        """Cross-entropy, for each member on its own."""
        return cross_entropy(network, x, y)

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, memory: int | None = None) -> SampleStream:
        """Sample ``k`` is member ``k``."""
        if len(networks) != self.members:
            raise InvalidInput(f"deep-ensemble:{self.members} needs {self.members} networks, not {len(networks)}.")
        return MemberStream(networks)
