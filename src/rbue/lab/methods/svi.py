"""SVI: stochastic variational inference with independent Gaussian weights (Graves, 2011; Blundell et al., 2015).

The loss of one batch is the mean cross-entropy plus ``β KL(q || p) / N`` with ``N`` training images, so that a whole
epoch sums to the (negative) evidence lower bound. ``β`` grows linearly from 0 to ``kl_weight`` over the first
``warm_up`` of training: with the full divergence from the start the weights collapse to the prior before they have
learnt anything.

The prior's mean is tied to the posterior's, as is common for large networks: with a mean of 0 the divergence pulls each
weight to 0 with a force of ``fan_in / (2 N)``, hundreds of times the paper's weight decay in a deep layer of ResNet-18,
and the network underfits. Tied, the divergence decides about the spread, and weight decay about the means, as for
every other method. ``rho`` is not decayed: that would draw it to 0, a standard deviation of 0.7, with thirty times
the force of the divergence under the paper's recipe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rbue.errors import InvalidInput, warn
from rbue.lab.methods.base import Loss, Method, TrainingProgress, outputs_of, register
from rbue.lab.methods.gaussian_layers import gaussian_layers, idle_layers, make_gaussian, weight_draw
from rbue.sampling.collect import SampleStream


@register("svi")
@dataclass(frozen=True)
class SVI(Method):
    """Gaussian convolution and linear weights; BatchNorm and biases are points.

    Attributes:
        kl_weight: final weight ``β`` of the divergence; 1 is the evidence lower bound.
        warm_up: part of training over which ``β`` grows to it.
        deviation: initial standard deviation of the weights, as a multiple of ``1/sqrt(fan_in)``.
        tied: whether the prior's mean is the posterior's; otherwise it is 0.
    """

    kl_weight: float = 1.0
    warm_up: float = 0.5
    deviation: float = 0.05
    tied: bool = True
    trains_alone = True
    undecayed = ("weight_rho",)
    limit = None

    def __post_init__(self) -> None:
        for name, lowest, highest in (("kl_weight", 0, math.inf), ("warm_up", 0, 1), ("deviation", 1e-6, 10)):
            value = getattr(self, name)
            if not (math.isfinite(value) and lowest <= value <= highest):
                raise InvalidInput(f"{name} of svi must lie between {lowest} and {highest}, not {value}.")

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Give every ``nn.Conv2d`` and ``nn.Linear`` Gaussian weights; warn of those that will have no effect."""
        make_gaussian(network, self.deviation)
        idle = idle_layers(network, example)
        if idle:
            warn(
                f"the random weights of {', '.join(idle)} have no effect, since a pass over the example does not call "
                "these layers; where the network reads a layer's weight, let it call the layer."
            )
        return network

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, progress: TrainingProgress) -> Loss:
        """Cross-entropy plus the weighted divergence from the prior, both an image."""
        grown = 1.0 if self.warm_up == 0 else torch.clamp(progress.fraction / self.warm_up, max=1.0)
        divergence = torch.stack([layer.kl(None, self.tied) for _, layer in gaussian_layers(network)]).sum()
        loss, logits = super().loss(network, x, y, progress)
        return loss + self.kl_weight * grown * divergence / progress.images, logits

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, draws: str = "independent") -> SampleStream:
        """One weight draw a sample, shared by all images."""
        network = networks[0]

        def draw(x: Tensor, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
            for place, number in enumerate(samples.tolist()):
                with weight_draw(network, seed, number):
                    out = outputs_of(network, x)
                yield slice(0, len(x)), slice(place, place + 1), out.unsqueeze(0)

        return draw
