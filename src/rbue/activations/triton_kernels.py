"""Fused kernels for CUDA devices: one read and one write an element, the bits computed on the way.

A program owns a block of element positions and walks over several rows with it, so ``mix(element)``, and for
channels-last tensors the division that finds the logical place, are computed once for all of them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rbue import random_stream
from rbue.activations.definitions import Activation, DropReLU
from rbue.activations.layout import ElementLayout

MIX_1 = tl.constexpr(random_stream.MIX_MULTIPLIERS[0])
MIX_2 = tl.constexpr(random_stream.MIX_MULTIPLIERS[1])
BITS_1 = tl.constexpr(random_stream.BITS_MULTIPLIERS[0])
BITS_2 = tl.constexpr(random_stream.BITS_MULTIPLIERS[1])

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MOST_PROGRAMS_DOWN = 65535  # what CUDA allows in the second dimension of a grid


def supports(x: Tensor, layout: ElementLayout) -> bool:
    """Whether the kernels handle this tensor; the reference handles the rest."""
    return x.is_cuda and x.dtype in _DTYPES and layout.dense and x.numel() > 0 and not x.is_neg()


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * MIX_1
    x = (x ^ (x >> 15)) * MIX_2
    return x ^ (x >> 15)


@triton.jit
def _logical_element(place, channels, plane, CHANNELS_LAST: tl.constexpr):
    """The element's number in logical order from its place in the memory of the row."""
    if CHANNELS_LAST:
        patch = place // (channels * plane)
        inner = place % (channels * plane)
        place = patch * (channels * plane) + (inner % channels) * plane + inner // channels
    return place


@triton.jit
def _word(table, keys_ptr, lane_stride, row):
    """The random word of each element of one row, signed."""
    k1 = tl.load(keys_ptr + row).to(tl.uint32, bitcast=True)
    k2 = tl.load(keys_ptr + lane_stride + row).to(tl.uint32, bitcast=True)
    h = (table ^ k1) * BITS_1
    h = h ^ (h >> 15)
    return ((h ^ k2) * BITS_2).to(tl.int32, bitcast=True)


@triton.jit
def _slope(word, scale, middle):
    """``((word >> 8) | 1) * scale + middle``, the odd number as ``2 * (word >> 9) + 1``.

    Converting integers is slow on these machines, so the shifted word becomes the mantissa of a float near
    ``1.5 * 2**23``; every step up to the odd number is exact.
    """
    near = ((word >> 9) + 0x4B400000).to(tl.float32, bitcast=True)
    odd = (near - 12582912.0) * 2.0 + 1.0
    return odd * scale + middle


@triton.jit
def _forward_kernel(
    x_ptr, out_ptr, keys_ptr, lane_stride, rows, x_rows, elements, channels, plane, threshold, scale, middle, cap,
    DROP: tl.constexpr, CAPPED: tl.constexpr, CHANNELS_LAST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    table = _mix(_logical_element(place, channels, plane, CHANNELS_LAST).to(tl.uint32))
    for step in range(ROWS):
        row = tl.program_id(1) * ROWS + step
        if row < rows:
            word = _word(table, keys_ptr, lane_stride, row)
            x = tl.load(x_ptr + (row % x_rows).to(tl.int64) * elements + place, mask=inside)
            if DROP:
                y = tl.where((x < 0) & (word >= threshold), 0.0, x)
            else:
                wide = x.to(tl.float32) + 0.0  # -0 becomes +0
                y = tl.where(wide < 0, _slope(word, scale, middle) * wide, wide)
            if CAPPED:
                y = tl.where(y > cap, cap, y)
            tl.store(out_ptr + row.to(tl.int64) * elements + place, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(
    grad_ptr, y_ptr, out_ptr, keys_ptr, lane_stride, rows, elements, channels, plane, scale, middle, cap,
    DROP: tl.constexpr, CAPPED: tl.constexpr, CHANNELS_LAST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    if not DROP:
        table = _mix(_logical_element(place, channels, plane, CHANNELS_LAST).to(tl.uint32))
    for step in range(ROWS):
        row = tl.program_id(1) * ROWS + step
        if row < rows:
            offset = row.to(tl.int64) * elements + place
            grad = tl.load(grad_ptr + offset, mask=inside)
            y = tl.load(y_ptr + offset, mask=inside)
            if DROP:
                result = tl.where(y == 0, 0.0, grad)
            else:
                wide = y.to(tl.float32)
                negative = wide.to(tl.int32, bitcast=True) < 0
                slope = _slope(_word(table, keys_ptr, lane_stride, row), scale, middle)
                wide_grad = grad.to(tl.float32)
                result = tl.where(negative, slope * wide_grad, tl.where(wide == 0, 0.0, wide_grad))
            if CAPPED:
                result = tl.where(y >= cap, 0.0, result)
            tl.store(out_ptr + offset, result.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _absorb(lane, word):
    return _mix(lane ^ word)


@triton.jit
def _keys_kernel(
    state_ptr, samples_ptr, sample_stride, images_ptr, sites_ptr, out_ptr, rows, sites, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    site = tl.program_id(1)
    inside = row < rows
    sample = tl.load(samples_ptr + row * sample_stride, mask=inside).to(tl.uint32, bitcast=True)
    image = tl.load(images_ptr + row, mask=inside).to(tl.uint32, bitcast=True)
    number = tl.load(sites_ptr + site).to(tl.uint32, bitcast=True)
    for lane in tl.static_range(2):
        start = tl.load(state_ptr + lane).to(tl.uint32, bitcast=True)
        key = _absorb(_absorb(_absorb(start, sample), image), number)
        tl.store(out_ptr + (lane * sites + site) * rows + row, key.to(tl.int32, bitcast=True), mask=inside)


def site_keys(state: Tensor, samples: Tensor, images: Tensor, numbers: Tensor) -> Tensor:
    """The keys of every row at every site, ``(2, sites, rows)``, in one launch."""
    rows, sites = images.shape[0], numbers.shape[0]
    out = torch.empty((2, sites, rows), dtype=torch.int32, device=images.device)
    if sites and rows:
        stride = 0 if samples.shape[0] == 1 else 1
        with torch.cuda.device_of(images):
            _keys_kernel[(triton.cdiv(rows, 128), sites)](
                state.contiguous(), samples.contiguous(), stride, images.contiguous(), numbers, out, rows, sites,
                BLOCK=128,
            )  # fmt: skip
    return out


def forward(
    x: Tensor, activation: Activation, keys: Tensor, layout: ElementLayout, cap: float | None, inplace: bool
) -> Tensor:
    """The random activation; ``layout.repeat`` copies of ``x``, each with bits of its own."""
    out = x if inplace else layout.empty_output(x.dtype)
    grid, shape, constants = _launch(layout, keys, activation, cap)
    drop = isinstance(activation, DropReLU)
    threshold = random_stream.threshold(1 - activation.q) if isinstance(activation, DropReLU) else 0
    rows, elements, channels, plane = shape
    with torch.cuda.device_of(x):
        _forward_kernel[grid](
            x, out, keys, keys.stride(0), rows, rows // layout.repeat, elements, channels, plane, threshold,
            *constants, DROP=drop, CAPPED=cap is not None, **_blocks(layout, elements, rows),
        )  # fmt: skip
    if inplace:
        torch.autograd.graph.increment_version(x)
    return out


def backward(
    grad: Tensor,
    out: Tensor,
    activation: Activation,
    keys: Tensor | None,
    layout: ElementLayout,
    cap: float | None,
) -> Tensor:
    """The gradient at the input, from the output; the twin of ``reference.backward``."""
    result = torch.empty_like(out)
    grid, (rows, elements, channels, plane), constants = _launch(layout, keys, activation, cap)
    anything = out if keys is None else keys
    drop = isinstance(activation, DropReLU)
    with torch.cuda.device_of(out):
        _backward_kernel[grid](
            grad, out, result, anything, 0 if keys is None else keys.stride(0), rows, elements, channels, plane,
            *constants, DROP=drop, CAPPED=cap is not None, **_blocks(layout, elements, rows),
        )  # fmt: skip
    return result


def _launch(
    layout: ElementLayout, keys: Tensor | None, activation: Activation, cap: float | None
) -> tuple[tuple[int, int], tuple[int, int, int, int], tuple[float, float, float]]:
    """Grid, ``(rows, elements a row, channels, pixels a channel)`` and the floating-point arguments."""
    rows, patches = layout.rows, layout.patches
    channels = layout.shape[1] if len(layout.shape) > 1 else 1
    plane = 1
    for size in layout.shape[2:]:
        plane *= size
    elements = patches * channels * plane
    if keys is None:
        # Without keys every element is treated alike; rows of even size keep the machine busy.
        elements, rows = _even_split(rows * elements)
    scale = middle = 0.0
    if not isinstance(activation, DropReLU):
        scale, middle = (activation.upper - activation.lower) / (1 << 24), activation.mean_slope
    blocks = _blocks(layout, elements, rows)
    grid = (triton.cdiv(elements, blocks["BLOCK"]), triton.cdiv(rows, blocks["ROWS"]))
    return grid, (rows, elements, channels, plane), (scale, middle, 0.0 if cap is None else cap)


def _even_split(total: int) -> tuple[int, int]:
    """``elements, rows`` with ``elements * rows = total`` and elements large."""
    rows = 1
    while total % 2 == 0 and total > 1 << 20:
        total //= 2
        rows *= 2
    return total, rows


def _blocks(layout: ElementLayout, elements: int, rows: int) -> dict[str, Any]:
    """Elements and rows of one program, as measured best on an H200.

    Finding the logical place in a channels-last row takes a division, which pays for itself over several rows; in a
    contiguous row there is nothing to share but the hash of the element.
    """
    channels_last = layout.memory_format is not torch.contiguous_format
    block = min(1024 if channels_last else 4096, max(128, triton.next_power_of_2(elements)))
    walk = 8 if channels_last else 1
    while walk > 1 and triton.cdiv(elements, block) * rows // walk < 4096:
        walk //= 2
    while triton.cdiv(rows, walk) > _MOST_PROGRAMS_DOWN:
        walk *= 2
    warps = max(1, block // (256 if channels_last else 512))
    return {"BLOCK": block, "ROWS": walk, "CHANNELS_LAST": channels_last, "num_warps": warps}
