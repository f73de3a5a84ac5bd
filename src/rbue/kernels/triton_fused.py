"""Kernels for CUDA devices that run a random activation together with what stands beside it at inference.

Before it BatchNorm and a skip connection, after it the mean over the pixels: each would read and write the whole map
once more.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from rbue.kernels.layout import ElementLayout
from rbue.kernels.slope_forms import SlopeForm
from rbue.kernels.triton_kernels import (
    MOST_OF_A_ROW,
    MOST_PROGRAMS_DOWN,
    UNSPECIALISED,
    cdiv,
    copied_rows,
    mix,
    next_power_of_2,
    own_rows,
    read_rows,
    row_keys,
    rows_of_a_program,
    warps_for,
    wide_relu,
    word_of,
)

_SAMPLES, _CHANNELS = 32, 64
"""Samples and channels of a program that pools: enough of both for its threads to mix an element number once for eight
samples."""


@triton.jit
def _affine_kernel(
    mean_ptr, var_ptr, weight_ptr, bias_ptr, out_ptr, channels, eps,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    mean = tl.load(mean_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.load(var_ptr + channel, mask=inside, other=1.0).to(tl.float32) + eps)
    shift = tl.zeros((BLOCK,), tl.float32)
    if WEIGHTED:
        scale *= tl.load(weight_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        shift += tl.load(bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + channel, scale, mask=inside)
    tl.store(out_ptr + channels + channel, shift - mean * scale, mask=inside)
    tl.store(out_ptr + 2 * channels + channel, mean, mask=inside)
    tl.store(out_ptr + 3 * channels + channel, shift, mask=inside)


@triton.jit
def _numbers_of(affine_ptr, channel, channels, known, WIDE: tl.constexpr):
    """What :func:`affine` made for some channels, as :func:`_normalised` takes it."""
    scale = tl.load(affine_ptr + channel, mask=known)
    offset = tl.load(affine_ptr + (3 if WIDE else 1) * channels + channel, mask=known)
    mean = tl.load(affine_ptr + 2 * channels + channel, mask=known) if WIDE else scale
    return scale, offset, mean


@triton.jit
def _normalised(x, numbers, WIDE: tl.constexpr):
    """What BatchNorm makes of ``x``."""
    scale, offset, mean = numbers
    y = x.to(tl.float32)
    # Mean and shift may both be large; numbers with few digits have lost what taking the mean off first would save.
    return (y - mean) * scale + offset if WIDE else tl.fma(y, scale, offset)


@triton.jit(**UNSPECIALISED)
def _normalised_kernel(
    x_ptr, residual_ptr, affine_ptr, residual_affine_ptr, out_ptr, keys_ptr, lane_stride, rows, x_rows, first_row,
    channels, plane, to_pixel, to_channel, threshold, steepness, intercept, cap,
    REPEATED: tl.constexpr, RESIDUAL: tl.constexpr, RESIDUAL_NORM: tl.constexpr,
    RANDOM: tl.constexpr, DROP: tl.constexpr, CAPPED: tl.constexpr, LANES: tl.constexpr, BY_CHANNEL: tl.constexpr,
    ROWS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[:, None]
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    known = None if WHOLE else channel < channels
    inside = None if WHOLE else (pixel < plane) & known
    own = own_rows(first_row, rows, ROWS)
    place = pixel * to_pixel + channel * to_channel
    elements = channels * plane
    sources = copied_rows(own, x_rows, REPEATED)
    x = read_rows(x_ptr, sources, elements, place, inside)
    residual = read_rows(residual_ptr, sources, elements, place, inside) if RESIDUAL else ()
    WIDE: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    numbers = _numbers_of(affine_ptr, channel, channels, known, WIDE)
    residual_numbers = _numbers_of(residual_affine_ptr, channel, channels, known, WIDE) if RESIDUAL_NORM else ()
    mixed = mix((channel if BY_CHANNEL else channel * plane + pixel).to(tl.uint32))
    for index in tl.static_range(ROWS):
        row = own[index]
        y = _normalised(x[index], numbers, WIDE)
        if RESIDUAL_NORM:
            y += _normalised(residual[index], residual_numbers, WIDE)
        elif RESIDUAL:
            y += residual[index].to(tl.float32)
        if RANDOM:
            word = word_of(mixed, row_keys(keys_ptr, lane_stride, row, LANES), DROP)
            y = wide_relu(y, word, threshold, steepness, intercept, DROP)
        else:
            y = tl.where(y < 0, 0.0, y)
        if CAPPED:
            y = tl.where(y > cap, cap, y)
        tl.store(out_ptr + row.to(tl.int64) * elements + place, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(**UNSPECIALISED)
def _pooled_kernel(
    x_ptr, out_ptr, keys_ptr, lane_stride, images, samples, channels, plane, to_pixel, to_channel,
    threshold, steepness, intercept, cap, share,
    DROP: tl.constexpr, CAPPED: tl.constexpr, LANES: tl.constexpr, BY_CHANNEL: tl.constexpr,
    SAMPLES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    sample = tl.program_id(2) * SAMPLES + tl.arange(0, SAMPLES)[:, None]
    row = sample * images + image
    keys = row_keys(keys_ptr, lane_stride, row, LANES, sample < samples)
    start = x_ptr + image * channels * plane + channel * to_channel
    total = tl.zeros((SAMPLES, CHANNELS), tl.float32)
    for pixel in range(plane):
        x = tl.load(start + pixel * to_pixel, mask=channel < channels, other=0.0).to(tl.float32)
        number = channel if BY_CHANNEL else channel * plane + pixel
        word = word_of(mix(number.to(tl.uint32)), keys, DROP)
        y = wide_relu(x, word, threshold, steepness, intercept, DROP)
        if CAPPED:
            y = tl.where(y > cap, cap, y)
        total += y
    inside = (sample < samples) & (channel < channels)
    tl.store(out_ptr + row * channels + channel, (total * share).to(out_ptr.dtype.element_ty), mask=inside)


def affine(mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """BatchNorm at inference, ``(4, channels)``: scale and offset, mean and shift.

    It is ``x * scale + offset``, or ``(x - mean) * scale + shift``, which keeps more digits of ``float32``.
    """
    mean, var = mean.contiguous(), var.contiguous()
    weight, bias = (None if x is None else x.contiguous() for x in (weight, bias))
    channels = mean.shape[0]
    out = torch.empty((4, channels), dtype=torch.float32, device=mean.device)
    with torch.cuda.device_of(mean):
        _affine_kernel[(cdiv(channels, 128),)](
            mean, var, mean if weight is None else weight, mean if bias is None else bias, out, channels, eps,
            WEIGHTED=weight is not None, BIASED=bias is not None, BLOCK=128,
        )  # fmt: skip
    return out


def normalised_relu(
    x: Tensor,
    norm: Tensor,
    residual: Tensor | None,
    residual_norm: Tensor | None,
    form: SlopeForm | None,
    keys: Tensor | None,
    layout: ElementLayout,
    cap: float | None,
) -> Tensor:
    """The activation of ``(x - mean) * scale + shift + residual``; a plain ReLU without a form.

    With ``residual_norm`` the residual is normalised too.
    """
    out = layout.empty_output(x.dtype)
    channels, plane = layout.shape[1], math.prod(layout.shape[2:])
    steps = _steps(layout)
    together, pixels, across = _block(layout)
    with torch.cuda.device_of(x):
        for first_row in range(0, layout.rows, together * MOST_PROGRAMS_DOWN):
            down = min(cdiv(layout.rows - first_row, together), MOST_PROGRAMS_DOWN)
            _normalised_kernel[(cdiv(plane, pixels), down, cdiv(channels, across))](
                x, x if residual is None else residual, norm, norm if residual_norm is None else residual_norm, out,
                x if keys is None else keys, 0 if keys is None else keys.stride(0),
                layout.rows, layout.rows // layout.repeat, first_row, channels, plane, *steps,
                *((0, 0.0, 0.0) if form is None else (form.threshold, form.steepness, form.intercept)), cap or 0.0,
                REPEATED=layout.repeat > 1, RESIDUAL=residual is not None, RESIDUAL_NORM=residual_norm is not None,
                RANDOM=form is not None, DROP=form is not None and form.drop, CAPPED=cap is not None,
                LANES=2 if keys is None else keys.shape[0], BY_CHANNEL=layout.shared > 1,
                ROWS=together, PIXELS=pixels, CHANNELS=across, WHOLE=plane % pixels == channels % across == 0,
                num_warps=warps_for(pixels * across),
            )  # fmt: skip
    return out


def _steps(layout: ElementLayout) -> tuple[int, int]:
    """How far the next pixel and the next channel of an image are."""
    if layout.memory_format is not torch.contiguous_format:
        return layout.shape[1], 1
    return 1, math.prod(layout.shape[2:])


def _block(layout: ElementLayout) -> tuple[int, int, int]:
    """Rows, pixels and channels of a program: side by side in memory, and few forms, since each is compiled."""
    channels, plane = layout.shape[1], next_power_of_2(math.prod(layout.shape[2:]))
    last = _steps(layout)[1] == 1
    across = min(_CHANNELS, next_power_of_2(channels)) if last else 1
    return rows_of_a_program(layout.rows), min(MOST_OF_A_ROW // across, plane), across


def pooled_relu(x: Tensor, form: SlopeForm, keys: Tensor, layout: ElementLayout, cap: float | None) -> Tensor:
    """The mean over the pixels of ``layout.repeat`` random activations of ``x``, ``(rows, channels)``."""
    images, channels = layout.shape[:2]
    plane = math.prod(layout.shape[2:])
    out = torch.empty((layout.rows, channels), dtype=x.dtype, device=x.device)
    block = min(_CHANNELS, next_power_of_2(channels))
    stack = min(_SAMPLES, next_power_of_2(layout.repeat))
    grid = (images, cdiv(channels, block), cdiv(layout.repeat, stack))
    with torch.cuda.device_of(x):
        _pooled_kernel[grid](
            x, out, keys, keys.stride(0), images, layout.repeat, channels, plane, *_steps(layout),
            form.threshold, form.steepness, form.intercept, cap or 0.0, 1.0 / plane,
            DROP=form.drop, CAPPED=cap is not None, LANES=keys.shape[0], BY_CHANNEL=layout.shared > 1,
            SAMPLES=stack, CHANNELS=block,
        )  # fmt: skip
    return out
