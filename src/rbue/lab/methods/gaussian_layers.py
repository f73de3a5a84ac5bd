"""Convolutions and linear layers whose weights are independent Gaussians, for variational inference.

A plain layer becomes Gaussian in place: its ``weight`` turns into the mean, and a parameter ``weight_rho`` of the same
shape is added: ``σ = log(1 + exp(rho))``. Biases stay points. A Gaussian layer is used in two ways:

* *Training*, local reparameterisation (Kingma et al., 2015): the pre-activations are Gaussian themselves, with mean
  ``W x`` and variance ``σ² x²``, and are drawn one by one. Gradients are far less noisy than with one draw a batch.
* *Sampling*: one weight draw, shared by all images, so that a sample is a network. Sample ``k`` of a seed is the same
  draw on any device, from the stateless stream.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from rbue import random_stream
from rbue.call_sites import evaluating, innermost, unchanged
from rbue.call_sites.table import path_word
from rbue.errors import InvalidInput, warn
from rbue.torch_internals import uncompiled

_TINY = 1e-16  # keeps the square root differentiable where a pre-activation has no variance, or one rounded below 0


class GaussianLayer(nn.Module):
    """What the Gaussian layers share."""

    weight: Tensor
    bias: Tensor | None
    weight_rho: nn.Parameter
    drawn: Tensor | None = None
    """The weights of the running sample; None while every pre-activation is drawn on its own."""

    @property
    def std(self) -> Tensor:
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
        variance = self.linear_map(x * x, self.std**2, None)
        return mean + torch.sqrt(variance.clamp_min(_TINY)) * torch.randn_like(mean)

    def kl(self, prior_std: float | None, tied: bool = False) -> Tensor:
        """``KL(q || N(m, s²)) = Σ log(s/σ) + (σ² + (μ - m)²) / (2 s²) - 1/2`` over the weights.

        ``s`` is the given one, or ``sqrt(2 / fan_in)``, the scale of initialisation. The prior's
        mean ``m`` is 0, or tied to ``μ``, which leaves the divergence to the ``σ``.
        """
        fan_in = self.weight[0].numel()
        prior = math.sqrt(2 / fan_in) if prior_std is None else prior_std
        std = self.std
        square = std**2 if tied else std**2 + self.weight**2
        return (math.log(prior) - torch.log(std) + square / (2 * prior**2) - 0.5).sum()


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

_WAY_OUT = "use plain layers, without weight_norm, spectral_norm, pruning or parametrizations."


def make_gaussian(network: nn.Module, relative_std: float) -> nn.Module:
    """Turn every ``nn.Conv2d`` and ``nn.Linear`` into a Gaussian one, in place.

    The standard deviations start at ``relative_std / sqrt(fan_in)``: small against the weights themselves. Layers like
    these that have to stay as they are are named in a warning.
    """
    inner = innermost(network)
    layers: list[nn.Module] = []
    left: list[str] = []
    for path, layer in inner.named_modules():
        obstacle = _obstacle(layer)
        if obstacle is not None:
            left.append(f"{path or 'the network'} ({obstacle})")
        elif type(layer) in GAUSSIAN:
            layers.append(layer)
    names = ", ".join(left)
    if not layers:
        found = f": it has {names}; {_WAY_OUT}" if left else "."
        raise InvalidInput(f"{type(inner).__name__} has no nn.Conv2d or nn.Linear for SVI to make random{found}")
    if left:
        warn(f"SVI leaves the weights of these layers as they are: {names}; where they should be random, {_WAY_OUT}")
    for layer in layers:
        weight: Tensor = layer.weight  # type: ignore[assignment]
        start = relative_std / math.sqrt(weight[0].numel())
        rho = math.log(math.expm1(start))
        layer.__class__ = GAUSSIAN[type(layer)]
        layer.weight_rho = nn.Parameter(torch.full_like(weight, rho))
    return network


def _obstacle(layer: nn.Module) -> str | None:
    """What keeps a convolution, linear layer or attention from becoming Gaussian; None for every other module too.

    A weight computed from other tensors is computed in a hook or a property: later than it is drawn from, and a draw
    would fill in what is pruned. A subclass may compute something else.
    """
    if isinstance(layer, nn.MultiheadAttention):
        return "nn.MultiheadAttention"
    if isinstance(layer, NonDynamicallyQuantizableLinear):  # a part of nn.MultiheadAttention, which is named itself
        return None
    if isinstance(layer, GaussianLayer) or not isinstance(layer, tuple(GAUSSIAN)):
        return None
    if "weight" not in layer._parameters:
        return "weight computed from other tensors"
    if type(layer) not in GAUSSIAN:
        return f"class {type(layer).__name__}"
    return "forward set on the instance" if "forward" in vars(layer) else None


def gaussian_layers(network: nn.Module) -> Iterator[tuple[str, GaussianLayer]]:
    """The Gaussian layers of a network with their paths."""
    for path, layer in network.named_modules():
        if isinstance(layer, GaussianLayer):
            yield path, layer


@contextmanager
def weight_draw(network: nn.Module, seed: int, sample: int) -> Iterator[None]:
    """Inside the block the network is sample ``sample`` of its weights, whatever it is wrapped in."""
    layers = list(gaussian_layers(innermost(network)))
    with torch.no_grad():
        for path, layer in layers:
            layer.drawn = layer.weight + layer.std * standard_normal(layer.weight, seed, sample, path_word(path))
    try:
        with _unfused():
            yield
    finally:
        for _, layer in layers:
            layer.drawn = None


_fused_before: list[bool] = []
_fused_lock = threading.Lock()


@contextmanager
def _unfused() -> Iterator[None]:
    """Inside the block transformer layers call their parts, whose weights torch's fused kernel would read itself.

    torch has one switch for all threads: the last block to go puts back what the first to come has found.
    """
    with _fused_lock:
        _fused_before.append(torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with _fused_lock:
            torch.backends.mha.set_fastpath_enabled(_fused_before.pop())


def idle_layers(network: nn.Module, example: Tensor) -> list[str]:
    """The paths of Gaussian layers that one pass in evaluation mode does not call; it leaves no trace.

    If the example does not pass through the network, nothing is known of its layers, and none is named.
    """
    network = innermost(network)
    layers = list(gaussian_layers(network))
    with suppress(Exception), unchanged(network, example.device), evaluating(network), uncompiled(), _unfused():
        with _calls_noted(layers) as called:
            network(example)
        return [path for path, _ in layers if path not in called]
    return []


@contextmanager
def _calls_noted(layers: Sequence[tuple[str, GaussianLayer]]) -> Iterator[set[str]]:
    """The paths of the layers that run inside the block; hooks would not see a call of ``forward`` itself."""
    called: set[str] = set()

    def noting(path: str, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def noted(x: Tensor) -> Tensor:
            called.add(path)
            return forward(x)

        return noted

    for path, layer in layers:
        layer.forward = noting(path, layer.forward)  # type: ignore[assignment, method-assign]
    try:
        yield called
    finally:
        for _, layer in layers:
            del layer.forward


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
