"""The activations in plain tensor operations: the reference, and the form that compilers fuse.

Every function is out of place and free of hidden state, so it can be traced, exported and vmapped. ``words``
are the random words of :mod:`rbue.random_stream`, one for each element of ``x``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rbue import random_stream
from rbue.activations.definitions import Activation, DropReLU, RReLU
from rbue.compiling import is_exporting


def slopes(activation: RReLU, words: Tensor) -> Tensor:
    """The ``float32`` slopes ``lower + (upper - lower) * u`` with ``u`` uniform in ``(0, 1)``."""
    if words.is_cuda and torch.compiler.is_compiling() and not is_exporting():
        steepness, intercept = slope_line(activation)
        return random_stream.as_mantissas(words) * steepness + intercept
    scale = (activation.upper - activation.lower) / (1 << 24)
    return random_stream.odd_words(words) * scale + activation.mean_slope


def slope_line(activation: RReLU) -> tuple[float, float]:
    """How slopes follow from :func:`~rbue.random_stream.as_mantissas` in one instruction: steepness and intercept.

    The steepness is rounded first, and the intercept such that no error of that is left in the middle. So a slope is
    that of :func:`slopes` to a unit in the last place.
    """
    width = float(np.float32(activation.upper - activation.lower))
    return width / (1 << 23), activation.mean_slope - 1.5 * width + width / (1 << 24)


def forward(x: Tensor, activation: Activation, words: Tensor, cap: float | None) -> Tensor:
    """The random activation of ``x``, at most ``cap``.

    The negative side is selected, never multiplied by zero: NaN stays NaN and ``-inf`` gives what ReLU gives.
    RReLU returns ``+0`` for ``±0``, so that ``-0`` in its output always means a negative input whose product
    was too small to represent; :func:`backward` needs the difference.
    """
    if isinstance(activation, DropReLU):
        y = torch.where((x < 0) & (words >= random_stream.threshold(1 - activation.q)), 0.0, x)
    else:
        sloped = (slopes(activation, words) * x.to(wide(x.dtype))).to(x.dtype)
        y = torch.where(x < 0, sloped, x.abs())
    return y if cap is None else torch.clamp(y, max=cap)


def backward(grad: Tensor, out: Tensor, activation: Activation, words: Tensor | None, cap: float | None) -> Tensor:
    """The gradient at the input, from the output alone.

    It is 0 at ``±0`` for every activation, as in ``torch.relu``, and 0 at and above the cap, as in ReLU6.
    DropReLU's gradient passes exactly where its output is not 0. RReLU draws its slopes again.
    """
    if isinstance(activation, DropReLU):
        blocked = out == 0
        result = grad
    else:
        assert words is not None
        negative = torch.signbit(out)
        wide_grad = grad.to(wide(grad.dtype))
        result = torch.where(negative, slopes(activation, words) * wide_grad, wide_grad).to(grad.dtype)
        blocked = (out == 0) & ~negative
    if cap is not None:
        blocked = blocked | (out >= cap)
    return torch.where(blocked, 0.0, result)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type products are taken in: ``float32`` for half precision, else the type itself."""
    return torch.float64 if dtype == torch.float64 else torch.float32
