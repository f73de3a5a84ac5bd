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

from rbue.activations import RandomSlope
from rbue.kernels import native
from rbue.kernels.dispatch import random_relu, rounded_cap
from rbue.kernels.layout import ElementLayout
from rbue.kernels.slope_forms import SlopeForm, form_of
from rbue.kernels.triton_support import triton_fused, triton_kernels
from rbue.torch_internals import plain_eager

_MOST_CHANNELS = 65535  # one program each, in the third dimension of a grid


class Normalised(NamedTuple):
    """What BatchNorm makes of ``x`` at inference, and what is added to that; not computed.

    ``(x - mean) / sqrt(var + eps) * weight + bias + residual``, channel by channel. The residual may be what another
    BatchNorm makes, not computed either.
    """

    x: Tensor
    mean: Tensor
    var: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    residual: Tensor | Normalised | None = None

    def compute(self) -> Tensor:
        """The same in separate steps."""
        found = F.batch_norm(self.x, self.mean, self.var, self.weight, self.bias, eps=self.eps)
        if self.residual is None:
            return found
        added = self.residual.compute() if isinstance(self.residual, Normalised) else self.residual
        return found.add_(added)  # no third map while x is there

    def inputs(self) -> list[Tensor]:
        """What it is computed from, but for the parameters."""
        if self.residual is None:
            return [self.x]
        return [self.x, *(self.residual.inputs() if isinstance(self.residual, Normalised) else [self.residual])]

    def affine(self, kernels: ModuleType) -> Tensor:
        """The numbers of this BatchNorm as kernels take them."""
        return kernels.affine(self.mean, self.var, self.weight, self.bias, self.eps)


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
    activation: RandomSlope | None = None,
    keys: Tensor | None = None,
    *,
    repeat: int = 1,
    cap: float | None = None,
) -> Tensor:
    """A random activation of what BatchNorm makes, as :func:`.random_relu`; a plain ReLU without an activation."""
    x, cap = before.x, rounded_cap(cap, before.x.dtype)
    mask = "element" if activation is None else activation.mask
    layout = ElementLayout.of(x, x.shape[0] * repeat if keys is None else keys.shape[-1], repeat, mask)
    kernels, form = _gpu_kernels(x), _kernel_form(activation)
    if kernels is None or layout.patches > 1 or (form is None and activation is not None):
        whole = before.compute()
        if activation is None or keys is None:
            return whole.clamp(0, cap)
        return random_relu(whole, activation, keys, repeat=repeat, cap=cap)
    added = before.residual
    residual, residual_norm = (added.x, added.affine(kernels)) if isinstance(added, Normalised) else (added, None)
    norm = before.affine(kernels)
    return kernels.normalised_relu(x, norm, residual, residual_norm, form, keys, layout, cap)


def pooled_relu(
    x: Tensor, activation: RandomSlope, keys: Tensor, *, repeat: int = 1, cap: float | None = None
) -> Tensor:
    """The mean over the pixels of a random activation of ``x``, ``(rows, channels)``."""
    cap = rounded_cap(cap, x.dtype)
    layout = ElementLayout.of(x, keys.shape[-1], repeat, activation.mask)
    kernels = _gpu_kernels(x) or (native if native.supports_pooling(x, layout) else None)
    form = _kernel_form(activation)
    if kernels is None or layout.patches > 1 or form is None:
        return random_relu(x, activation, keys, repeat=repeat, cap=cap).flatten(2).mean(2)
    return kernels.pooled_relu(x, form, keys, layout, cap)


def _gpu_kernels(x: Tensor) -> ModuleType | None:
    return triton_fused() if x.is_cuda else None


def _kernel_form(activation: RandomSlope | None) -> SlopeForm | None:
    """What kernels take; None where they know no such class, or no ReLU is ever kept, which has no threshold."""
    return None if activation is None or activation.fixed_slope == 1 else form_of(activation)
