"""The random activations as pure functions of their input and five numbers."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from rbue import random_stream
from rbue.activations import DropReLU, RandomSlope, RReLU
from rbue.errors import InvalidInput
from rbue.kernels import keys_at, random_relu

__all__ = ["drop_relu", "rrelu"]


def drop_relu(
    x: Tensor,
    q: float = 0.9,
    *,
    mask: str = "element",
    seed: int | Tensor,
    sample: int | Tensor = 0,
    image: int | Tensor | None = None,
    site: int | Tensor = 0,
    inplace: bool = False,
) -> Tensor:
    """DropReLU (paper §3.2, strategy I): each ReLU is kept with probability ``q``, else ``x`` passes.

    The result depends only on the arguments: the same numbers give the same mask in any batch, on any device.
    The gradient at ``±0`` is 0, as in ``torch.relu``. NaN propagates.

    Args:
        x: floating-point tensor; the first dimension counts images.
        q: probability that a ReLU is kept.
        mask: ``"channel"`` keeps or drops the ReLUs of an image's channel (dimension 1) together.
        seed: 64-bit seed, or an ``int64`` tensor.
        sample: number of the stochastic pass, or a tensor of shape ``()`` or ``(B,)``.
        image: number of each image, shape ``(B,)``; 0 to B-1 by default. A single number says that ``x``
            is one image without a batch dimension.
        site: number of the call site.
        inplace: write the result into ``x``.

    >>> x = torch.tensor([[-1.0, -2.0, 3.0, -4.0]])
    >>> drop_relu(x, 0.5, seed=0)
    tensor([[-1., -2.,  3.,  0.]])
    >>> drop_relu(x, 1.0, seed=0)
    tensor([[0., 0., 3., 0.]])
    """
    return _apply(x, DropReLU(q, mask), seed, sample, image, site, inplace)


def rrelu(
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    *,
    seed: int | Tensor,
    sample: int | Tensor = 0,
    image: int | Tensor | None = None,
    site: int | Tensor = 0,
    inplace: bool = False,
) -> Tensor:
    """RReLU (paper §3.2, strategy II): negative inputs are scaled by a slope from ``U(lower, upper)``.

    The arguments are those of :func:`drop_relu`. Slopes are drawn in ``float32``; half-precision inputs are
    multiplied in ``float32`` too.

    >>> rrelu(torch.tensor([[-1.0, -1.0, 3.0]]), seed=0)
    tensor([[-0.1454, -0.1738,  3.0000]])
    """
    return _apply(x, RReLU(lower, upper), seed, sample, image, site, inplace)


def _apply(
    x: Tensor,
    activation: RandomSlope,
    seed: int | Tensor,
    sample: int | Tensor,
    image: int | Tensor | None,
    site: int | Tensor,
    inplace: bool,
) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InvalidInput(f"x must be a floating-point tensor, not {kind}.")
    if image is None:
        rows = x.shape[0] if x.dim() else 1
        image = torch.arange(rows, dtype=torch.int32, device=x.device)
    if isinstance(seed, Tensor) and seed.device != x.device:
        raise InvalidInput(f"seed is on {seed.device} but x is on {x.device}; move it there.")
    image_word = _number("image", image, x)
    unbatched = image_word.dim() == 0
    rows_of_x = x.unsqueeze(0) if unbatched or x.dim() == 0 else x
    if not unbatched and image_word.shape != rows_of_x.shape[:1]:
        raise InvalidInput(
            f"image must number the {rows_of_x.shape[0]} rows of x, but its shape is {tuple(image_word.shape)}."
        )
    sample_word, site_word = _number("sample", sample, x), _number("site", site, x)
    for name, word in (("sample", sample_word), ("site", site_word)):
        if word.dim() and word.shape != rows_of_x.shape[:1]:
            raise InvalidInput(
                f"{name} must be one number or number the {rows_of_x.shape[0]} rows of x, but its shape is "
                f"{tuple(word.shape)}."
            )
    state = random_stream.seed_state(seed, x.device).unsqueeze(-1)
    if rows_of_x.numel() == 0:
        return x
    state = random_stream.absorb(random_stream.absorb(state, sample_word), image_word.reshape(-1))
    keys = keys_at(state, site_word)
    out = random_relu(rows_of_x, activation, keys, inplace=inplace)
    if inplace:
        return x
    return out.reshape(x.shape) if rows_of_x is not x else out


def _number(name: str, value: int | Tensor, x: Tensor) -> Tensor:
    """A sample, image or site number as words on the device of ``x``."""
    if not isinstance(value, Tensor):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InvalidInput(f"{name} must be an integer or a tensor of integers, not {value!r}.")
        if not -(1 << 31) <= value < 1 << 32:  # a word of 32 bits, or its int32; others would have the bits of one
            raise InvalidInput(f"{name} must lie in [0, 2**32), not {value}.")
        value = int(value)
    elif value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise InvalidInput(f"{name} must hold integers, not {value.dtype}.")
    elif value.device != x.device:
        raise InvalidInput(f"{name} is on {value.device} but x is on {x.device}; move it there.")
    return random_stream.number(value, x.device)
