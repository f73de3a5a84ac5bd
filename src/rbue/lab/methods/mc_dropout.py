"""MC-Dropout (paper §2; Gal and Ghahramani, 2016): dropout that stays on at test time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from rbue.activations import Dropout
from rbue.call_sites import convert
from rbue.lab.methods.base import Loss, TrainingProgress, cross_entropy, register
from rbue.sampling.collect import SampleStream
from rbue.sampling.stacking import StackedPasses


@register("mc-dropout", shown=1)
@dataclass(frozen=True)
class MCDropout:
    """Inputs of layers are dropped with probability ``p``.

    ``where="last"`` drops before the classifier, which is what the paper's diversity figures look like (it does not
    say); ``where="all"`` drops before every convolution and linear layer, but not before the projections inside
    ``nn.MultiheadAttention``, which are no calls of their own.
    """

    p: float = 0.5
    where: str = "last"
    networks = 1
    limit = None

    def __post_init__(self) -> None:
        Dropout(self.p)

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Put dropout before the chosen layers."""
        return convert(network, Dropout(self.p), where=self.where, example=example)

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, progress: TrainingProgress) -> Loss:
        """Cross-entropy of one random pass."""
        return cross_entropy(network, x, y)

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, memory: int | None = None) -> SampleStream:
        """Random passes of the one network; with ``last`` everything before the classifier runs once."""
        return StackedPasses(networks[0], x, seed, memory)
