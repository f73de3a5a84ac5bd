"""Cyclical SGLD (Zhang et al., 2020, https://arxiv.org/abs/1902.03932): samples of the posterior, some a cycle.

The learning rate ``ℓ`` falls from the recipe's first to 0 by a cosine in each of ``cycles`` cycles. A cycle explores by
SGD first. Then it samples: after every step all weights get normal noise, and the network is kept at the end of each of
its last ``samples`` epochs. Noise is on in the last tenth of a cycle, or in those epochs if they are more.

With the mean loss over ``N`` images, weight decay as the prior and momentum ``μ``, with which a gradient moves the
weights by ``ℓ / (1 - μ)`` in the end, Langevin dynamics at temperature ``T`` have noise of standard deviation

    √(2 ℓ T / ((1 - μ) N)).

The noise goes to the weights and not, as in the authors' SGHMC, through the momentum. Both sample the same where the
loss is flat; where its curvature ``k`` is not far below ``(1 - μ)² / ℓ``, the spread is too large. At ``T = 1`` it
samples the posterior itself, as far as that goes. The default is the authors' for CIFAR, 1/50,000: a cold posterior,
near its modes. Its noise is so weak that the samples of one cycle are almost one network, the one of a snapshot
ensemble.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rbue.errors import InvalidInput
from rbue.lab.methods.base import register, spec_of
from rbue.lab.methods.members import refuse_average
from rbue.lab.methods.snapshot_ensemble import Cyclic, cycle_at, cycle_ends


@register("sgld")
@dataclass(frozen=True)
class SGLD(Cyclic):
    """One training in ``cycles`` cycles of the learning rate, each ending in ``samples`` samples under noise."""

    cycles: int = 4
    samples: int = 3
    temperature: float = 2e-5
    trains_alone = True

    def __post_init__(self) -> None:
        for name in ("cycles", "samples"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} of sgld must be at least 1, not {getattr(self, name)}.")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InvalidInput(f"temperature of sgld must be a number of at least 0, not {self.temperature}.")

    @property
    def limit(self) -> int:
        """All that are kept."""
        return self.cycles * self.samples

    def kept_after(self, epochs: int) -> list[int]:
        """The last epochs of each cycle."""
        return [end - before for end in cycle_ends(epochs, self.cycles) for before in reversed(range(self.samples))]

    def check_training(self, epochs: int, average: str | None) -> None:
        """A sample takes an epoch."""
        refuse_average(self, average)
        if epochs // self.cycles < self.samples:
            raise InvalidInput(
                f"{spec_of(self)} needs at least {self.limit} epochs, one a sample, not {epochs}; train longer, or use "
                f"fewer cycles or samples, as in sgld:{self.cycles},1."
            )

    def weight_noise(self, learning_rate: float, momentum: float, images: int, epochs: int, at: float) -> float:
        """``√(2 ℓ T / ((1 - μ) N))`` while it samples."""
        start, end = cycle_at(epochs, self.cycles, at)
        if at < end - max(self.samples, (end - start) / 10):
            return 0.0
        return math.sqrt(2 * learning_rate * self.temperature / ((1 - momentum) * images))

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Give the network room for the samples."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise InvalidInput("sgld trains in one process: each of several would add noise of its own.")
        return super().prepare(network, example)
