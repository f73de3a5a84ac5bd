"""MC-RReLU (paper §3.2, strategy II): draw the slope of each negative input from U(lower, upper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from rbue.activations import RReLU
from rbue.call_sites import convert
from rbue.lab.methods.base import Loss, TrainingProgress, cross_entropy, register
from rbue.sampling.collect import SampleStream
from rbue.sampling.stacking import StackedPasses


@register("mc-rrelu")
@dataclass(frozen=True)
class MCRReLU:
    """Negative inputs are scaled by a slope from ``U(lower, upper)``; ``where`` places the random ReLUs."""

    lower: float = 1 / 8
    upper: float = 1 / 3
    where: str = "all"
    networks = 1
    limit = None

    def __post_init__(self) -> None:
        RReLU(self.lower, self.upper)

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Make the ReLUs random."""
        return convert(network, RReLU(self.lower, self.upper), where=self.where, example=example)

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, progress: TrainingProgress) -> Loss:
        """Cross-entropy of one random pass."""
        return cross_entropy(network, x, y)

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, memory: int | None = None) -> SampleStream:
        """Random passes of the one network."""
        return StackedPasses(networks[0], x, seed, memory)
