"""MC-DropReLU (paper §3.2, strategy I): keep each ReLU with probability q, at test time too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from rbue.activations import DropReLU
from rbue.call_sites import convert
from rbue.lab.methods.base import Loss, TrainingProgress, cross_entropy, register
from rbue.sampling.collect import SampleStream
from rbue.sampling.stacking import StackedPasses


@register("mc-droprelu", shown=1)
@dataclass(frozen=True)
class MCDropReLU:
    """Each ReLU is kept with probability ``q``, else its input passes; ``where`` places them (paper §4.5)."""

    q: float = 0.9
    where: str = "all"
    networks = 1
    limit = None

    def __post_init__(self) -> None:
        DropReLU(self.q)

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Make the ReLUs random."""
        return convert(network, DropReLU(self.q), where=self.where, example=example)

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, progress: TrainingProgress) -> Loss:
        """Cross-entropy of one random pass."""
        return cross_entropy(network, x, y)

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, memory: int | None = None) -> SampleStream:
        """Random passes of the one network."""
        return StackedPasses(networks[0], x, seed, memory)
