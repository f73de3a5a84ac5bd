"""Convolutions and linear layers whose weights are independent Gaussians, for variational inference.

A plain layer becomes Gaussian in place: its ``weight`` turns into the mean, and a parameter ``weight_rho`` of the same
shape is added, with deviation ``σ = log(1 + exp(rho))``. Biases stay points. A Gaussian layer is used in two ways:

* *Training*, local reparameterisation (Kingma et al., 2015): the pre-activations are Gaussian themselves, with mean
  ``W x`` and variance ``σ² x²``, and are drawn one by one. Gradients are far less noisy than with one draw a batch.
* *Sampling*: one weight draw, shared by all images, so that a sample is a network. Sample ``k`` of a seed is the same
  draw on any device, from the stateless stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rbue import random_stream
from rbue.call_sites.table import path_word
from rbue.errors import InvalidInput

_TINY = 1e-16  # keeps the square root differentiable where a pre-activation has no variance


class GaussianLayer(nn.Module):
    """What the Gaussian layers share."""

    weight: Tensor
    bias: Tensor | None
    weight_rho: nn.Parameter
    drawn: Tensor | None = None
    """The weights of the running sample; None while every pre-activation is drawn on its own."""

    @property
    def deviation(self) -> Tensor:
        """``σ`` of each weight."""
        return F.softplus(self.weight_rho)

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer as a function of its weights."""
        raise AssertionError("every Gaussian layer says what it does with its weights")

    def forward(self, x: Tensor) -> Tensor:
        """Pre-activations under the running weight draw, or drawn one by one."""
        if self.drawn is not None:
            return self.linear_map(x, self.drawn, self.bias)
        mean = self.linear_map(x, self.weight, self.bias)
        variance = self.linear_map(x * x, self.deviation**2, None)
        return mean + torch.sqrt(variance + _TINY) * torch.randn_like(mean)

    def kl(self, prior_deviation: float | None, tied: bool = False) -> Tensor:
        """``KL(q || N(m, s²)) = Σ log(s/σ) + (σ² + (μ - m)²) / (2 s²) - 1/2`` over the weights.

        ``s`` is the given deviation, or ``sqrt(2 / fan_in)``, the scale of initialisation. The prior's
        mean ``m`` is 0, or tied to ``μ``, which leaves the divergence to the deviations.
        """
        fan_in = self.weight[0].numel()
        prior = math.sqrt(2 / fan_in) if prior_deviation is None else prior_deviation
        deviation = self.deviation
        square = deviation**2 if tied else deviation**2 + self.weight**2
        return (math.log(prior) - torch.log(deviation) + square / (2 * prior**2) - 0.5).sum()


class GaussianLinear(GaussianLayer, nn.Linear):  # type: ignore[misc]
    """``nn.Linear`` with Gaussian weights."""

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``x Wᵀ + b``."""
        return F.linear(x, weight, bias)


class GaussianConv2d(GaussianLayer, nn.Conv2d):
    """``nn.Conv2d`` with Gaussian weights; noise is drawn for each output position on its own."""

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution."""
        return self._conv_forward(x, weight, bias)


GAUSSIAN: dict[type[nn.Module], type[GaussianLayer]] = {nn.Linear: GaussianLinear, nn.Conv2d: GaussianConv2d}


def make_gaussian(network: nn.Module, relative_deviation: float) -> nn.Module:
    """Turn every ``nn.Conv2d`` and ``nn.Linear`` into a Gaussian one, in place.

    The deviations start at ``relative_deviation / sqrt(fan_in)``: small against the weights themselves.
    """
    layers = [(layer, GAUSSIAN[type(layer)]) for layer in network.modules() if type(layer) in GAUSSIAN]
    if not layers:
        raise InvalidInput(f"{type(network).__name__} has no nn.Conv2d or nn.Linear for SVI to make random.")
    for layer, gaussian in layers:
        weight: Tensor = layer.weight  # type: ignore[assignment]
        start = relative_deviation / math.sqrt(weight[0].numel())
        rho = math.log(math.expm1(start))
        layer.__class__ = gaussian
        layer.weight_rho = nn.Parameter(torch.full_like(weight, rho))
    return network


def gaussian_layers(network: nn.Module) -> Iterator[tuple[str, GaussianLayer]]:
    """The Gaussian layers of a network with their paths."""
    for path, layer in network.named_modules():
        if isinstance(layer, GaussianLayer):
            yield path, layer


@contextmanager
def weight_draw(network: nn.Module, seed: int, sample: int) -> Iterator[None]:
    """Inside the block the network is sample ``sample`` of its weights."""
    layers = list(gaussian_layers(network))
    with torch.no_grad():
        for path, layer in layers:
            layer.drawn = layer.weight + layer.deviation * standard_normal(layer.weight, seed, sample, path_word(path))
    try:
        yield
    finally:
        for _, layer in layers:
            layer.drawn = None


def standard_normal(like: Tensor, seed: int, sample: int, site: int) -> Tensor:
    """Standard normal numbers from the stateless stream, in the shape of ``like`` (Box and Muller, 1958)."""
    state = random_stream.seed_state(seed, like.device)
    for word in (sample, 0, site):
        state = random_stream.absorb(state, random_stream.number(word, like.device))
    words = random_stream.bits(random_stream.element_table(2 * like.numel(), like.device), state[0], state[1])
    uniform = 0.5 + ((words >> 8).to(torch.float32) + 0.5) * 2.0**-24
    radius, angle = uniform.reshape(2, -1)
    normal = torch.sqrt(-2 * torch.log(radius)) * torch.cos(2 * math.pi * angle)
    return normal.reshape(like.shape).to(like.dtype)
