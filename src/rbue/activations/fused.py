"""Random activations together with what stands beside them at inference, in one pass over the memory.

A sampler's passes are bound by memory between their convolutions: BatchNorm, a skip connection and a ReLU read and
write the same map one after the other, and a mean over the pixels reads it again. Fused they read it once. Sums are
kept in ``float32`` on the way, so in half precision the result is a little finer than that of the separate steps.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from rbue.activations import native
from rbue.activations.definitions import Activation, DropReLU
from rbue.activations.layout import ElementLayout
from rbue.activations.operator import plain_eager, random_relu, rounded_cap
from rbue.activations.triton_support import triton_fused, triton_kernels

_MOST_CHANNELS = 65535  # one program each, in the third dimension of a grid


class Normalised(NamedTuple):
    """What BatchNorm makes of ``x`` at inference, and what is added to that; not computed.

    ``(x - mean) / sqrt(var + eps) * weight + bias + residual``, channel by channel.
    """

    x: Tensor
    mean: Tensor
    var: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    residual: Tensor | None = None

    def compute(self) -> Tensor:
        """The same in separate steps."""
        found = F.batch_norm(self.x, self.mean, self.var, self.weight, self.bias, eps=self.eps)
        return found if self.residual is None else found.add_(self.residual)  # no third map while x is there

    def inputs(self) -> list[Tensor]:
        """What it is computed from, but for the parameters."""
        return [self.x] if self.residual is None else [self.x, self.residual]


def can_be_fused(x: Tensor) -> bool:
    """Whether there are kernels for maps such as ``x``."""
    kernels = triton_kernels()
    if kernels is None or triton_fused() is None or not plain_eager(x):
        return False
    if x.dim() < 2 or x.shape[1] > _MOST_CHANNELS:
        return False
    return bool(kernels.supports(x, ElementLayout.of(x, x.shape[0])))


def can_be_pooled(x: Tensor) -> bool:
    """Whether a kernel takes the mean over the pixels of ``x`` with its activation."""
    if x.dim() < 3 or not plain_eager(x):
        return False
    return can_be_fused(x) or native.supports_pooling(x, ElementLayout.of(x, x.shape[0]))


def normalised_relu(
    before: Normalised,
    activation: Activation | None = None,
    keys: Tensor | None = None,
    *,
    repeat: int = 1,
    cap: float | None = None,
) -> Tensor:
    """A random activation of what BatchNorm makes, as :func:`.random_relu`; a plain ReLU without an activation."""
    x, cap = before.x, rounded_cap(cap, before.x.dtype)
    layout = ElementLayout.of(x, x.shape[0] * repeat if keys is None else keys.shape[-1], repeat)
    kernels = _gpu_kernels(x)
    if kernels is None or layout.patches > 1 or _passes_everything(activation):
        whole = before.compute()
        if activation is None or keys is None:
            return whole.clamp(0, cap)
        return random_relu(whole, activation, keys, repeat=repeat, cap=cap)
    norm = kernels.affine(before.mean, before.var, before.weight, before.bias, before.eps)
    out: Tensor = kernels.normalised_relu(x, norm, before.residual, activation, keys, layout, cap)
    return out


def pooled_relu(
    x: Tensor, activation: Activation, keys: Tensor, *, repeat: int = 1, cap: float | None = None
) -> Tensor:
    """The mean over the pixels of a random activation of ``x``, ``(rows, channels)``."""
    cap = rounded_cap(cap, x.dtype)
    layout = ElementLayout.of(x, keys.shape[-1], repeat)
    kernels = _gpu_kernels(x) or (native if native.supports_pooling(x, layout) else None)
    if kernels is None or layout.patches > 1 or _passes_everything(activation):
        return random_relu(x, activation, keys, repeat=repeat, cap=cap).flatten(2).mean(2)
    out: Tensor = kernels.pooled_relu(x, activation, keys, layout, cap)
    return out


def _gpu_kernels(x: Tensor) -> ModuleType | None:
    return triton_fused() if x.is_cuda else None


def _passes_everything(activation: Activation | None) -> bool:
    """Whether it has no threshold in 32 bits."""
    return isinstance(activation, DropReLU) and activation.q == 0
