"""SWAG (Maddox et al., 2019, https://arxiv.org/abs/1902.02476): a Gaussian fitted to the iterates of SGD.

The learning rate falls by a cosine to half of the recipe's over the first part of training, ``start``, and stays there.
From then on the weights ``θ_i`` at the end of each epoch are collected: their mean ``θ̄``, the variance ``Σ`` of each
weight, and the last ``K`` deviations ``D_i = θ_i - θ̄_i`` from the mean so far. With normal ``z₁``, ``z₂`` a sample is

    θ = θ̄ + Σ^½ z₁ / √2 + D z₂ / √(2 (K - 1)).

No step has seen those weights, so BatchNorm's statistics are estimated again for each sample. That takes the training
images, which are not there at test time. Therefore the samples are fixed when training ends: their random numbers are
those of the stream for seed 0, and their statistics are stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rbue.batchnorm import update_bn
from rbue.errors import InvalidInput
from rbue.lab.methods.base import TrainingBatches, outputs_of, register, spec_of
from rbue.lab.methods.gaussian_layers import standard_normal
from rbue.lab.methods.members import StoredSamples, refuse_average
from rbue.sampling.passes import class_scores

_STATISTICS = ("running_mean", "running_var")


class CollectedWeights(nn.Module):
    """A network with the Gaussian of its weights, ``(P,)`` and ``(K, P)``, and the statistics of samples, ``(S, ...)``.

    They are frozen parameters: stored, counted and moved with the network, and no optimiser changes them.
    """

    mean: Tensor
    squares: Tensor
    deviations: Tensor
    statistics: Tensor
    collected: Tensor

    def __init__(self, network: nn.Module, rank: int, samples: int) -> None:
        super().__init__()
        self.network = network
        weights, statistics = len(self._weights()), len(self._statistics())
        shapes = {"mean": (weights,), "squares": (weights,), "deviations": (rank, weights)}
        for name, shape in {**shapes, "statistics": (samples, statistics)}.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape), requires_grad=False))
        self.register_buffer("collected", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of the network in training, and of the mean of the weights once it is trained."""
        return class_scores(self.network(x))

    def _named_statistics(self) -> dict[str, Tensor]:
        buffers = self.network.named_buffers()
        return {name: one for name, one in buffers if name.rpartition(".")[2] in _STATISTICS}

    def _statistics(self) -> Tensor:
        return _joined(self._named_statistics())

    def _weights(self) -> Tensor:
        return _joined(dict(self.network.named_parameters()))

    @torch.no_grad()
    def collect(self, count: int) -> None:
        """Take the weights in as number ``count``, from 1 on (Welford, 1962: ``squares`` are those of deviations)."""
        weights = self._weights()
        before = weights - self.mean
        self.mean += before / count
        after = weights - self.mean
        self.squares += before * after
        self.deviations[(count - 1) % len(self.deviations)] = after
        self.collected.fill_(count)

    def sample(self, number: int) -> Tensor:
        """The weights of a sample, ``(P,)``."""
        count = int(self.collected)
        rank = min(count, len(self.deviations))
        spread = (self.squares / (2 * count)).sqrt() * standard_normal(self.mean, 0, number, 1)
        with torch.autocast(self.mean.device.type, enabled=False):  # the same weights in training and at test time
            low_rank = standard_normal(self.deviations[:rank, 0], 0, number, 2) @ self.deviations[:rank]
        return self.mean + spread + low_rank / math.sqrt(2 * (rank - 1))

    @torch.no_grad()
    def estimate_statistics(self, batches: TrainingBatches) -> None:
        """Note the statistics of each sample; then the network becomes the mean, with its own."""
        device = self.mean.device
        # Autocast keeps the halves of weights that it has cast, and does not see that others are put in their place.
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
            for number, row in enumerate(self.statistics):
                self._put_weights(self.sample(number))
                update_bn(self.network, (x for x, _ in batches()))
                row.copy_(self._statistics())
            self._put_weights(self.mean)
            update_bn(self.network, (x for x, _ in batches()))

    def _put_weights(self, weights: Tensor) -> None:
        for name, value in _parted(weights, dict(self.network.named_parameters())).items():
            self.network.get_parameter(name).copy_(value)

    def outputs(self, x: Tensor, numbers: list[int]) -> Tensor:
        """Class scores of some samples."""
        return torch.stack([outputs_of(partial(functional_call, self.network, self._state(one)), x) for one in numbers])

    def _state(self, number: int) -> dict[str, Tensor]:
        weights = _parted(self.sample(number), dict(self.network.named_parameters()))
        return weights | _parted(self.statistics[number], self._named_statistics())


def _joined(tensors: dict[str, Tensor]) -> Tensor:
    """All values in one vector; in the logical order, whatever the memory format."""
    return torch.cat([one.detach().flatten() for one in tensors.values()] or [torch.zeros(0)])


def _parted(values: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parts of a vector, each in the shape of the tensor whose name it has."""
    parts = values.split([one.numel() for one in like.values()])
    return {name: part.view(one.shape) for (name, one), part in zip(like.items(), parts, strict=True)}


@register("swag")
@dataclass(frozen=True)
class SWAG(StoredSamples):
    """A Gaussian of rank ``rank`` plus diagonal over the weights at the ends of epochs, from ``start`` of training on.

    ``samples`` networks are drawn from it when training ends.
    """

    rank: int = 20
    samples: int = 30
    start: float = 0.6
    draws_samples = True  # there could be more of them

    def __post_init__(self) -> None:
        for name in ("rank", "samples"):
            if getattr(self, name) < 2:
                raise InvalidInput(f"{name} of swag must be at least 2, not {getattr(self, name)}.")
        if not 0 <= self.start < 1:
            raise InvalidInput(f"start of swag must be a part of training from 0 to below 1, not {self.start}.")

    @property
    def limit(self) -> int:
        """As many as were drawn when training ended."""
        return self.samples

    def _first(self, epochs: int) -> int:
        """How many epochs come before the first that is collected."""
        return math.ceil(round(self.start * epochs, 6))

    def check_training(self, epochs: int, average: str | None) -> None:
        """A spread takes at least two epochs."""
        refuse_average(self, average)
        if epochs - self._first(epochs) < 2:
            raise InvalidInput(
                f"{spec_of(self)} collects the weights of {epochs - self._first(epochs)} of {epochs} epochs, and needs "
                "two; train longer."
            )

    def learning_rate(self, start: float, epochs: int, at: float) -> float:
        """By a cosine to half of ``start`` where collecting begins, then constant."""
        first = self._first(epochs)
        part = min(1.0, at / first) if first else 1.0
        return start * (3 + math.cos(math.pi * part)) / 4

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Give the network room for the Gaussian."""
        return CollectedWeights(network, self.rank, self.samples)

    def end_epoch(self, network: nn.Module, epoch: int, epochs: int, batches: TrainingBatches) -> None:
        """Collect the weights; in the end draw the samples."""
        if epoch > self._first(epochs):
            network.collect(epoch - self._first(epochs))  # type: ignore[operator]
        if epoch == epochs:
            network.estimate_statistics(batches)  # type: ignore[operator]
