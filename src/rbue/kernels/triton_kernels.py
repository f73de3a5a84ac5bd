"""Fused kernels for CUDA devices: one read and one write an element, the bits computed on the way.

The kernels are bound by instructions as much as by memory, so a program takes a block of ``pixels x channels`` in four
rows: an element's logical number needs one addition and no division where the channels lie last, and its hash serves
all four. A row in logical order is a row of one channel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from rbue import random_stream
from rbue.kernels.layout import ElementLayout
from rbue.kernels.slope_forms import SlopeForm

MIX_1 = tl.constexpr(random_stream.MIX_MULTIPLIERS[0])
MIX_2 = tl.constexpr(random_stream.MIX_MULTIPLIERS[1])
BITS_1 = tl.constexpr(random_stream.BITS_MULTIPLIERS[0])
BITS_2 = tl.constexpr(random_stream.BITS_MULTIPLIERS[1])

_CHANGING = (
    "lane_stride", "sample_stride", "rows", "x_rows", "first_row", "sites", "images", "samples", "threshold",
)  # fmt: skip
UNSPECIALISED = {"do_not_specialize": _CHANGING, "do_not_specialize_on_alignment": ("keys_ptr",)}
"""What changes from batch to batch and site to site: Triton would compile a kernel again where it is 1 or a multiple of
16, which would be no faster. A kernel need not have all of it."""

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_ROWS, MOST_OF_A_ROW = 4, 1024
"""Rows of a program, and elements it has of each."""

_LONGEST_ROW = 1 << 30  # places in a row are counted in 32 bits
MOST_PROGRAMS_DOWN = 65535  # what CUDA allows in the second dimension of a grid


def cdiv(x: int, y: int) -> int:
    """``x / y``, rounded up; Triton's own, which its kernels may call too, takes ten times as long."""
    return -(-x // y)


def next_power_of_2(x: int) -> int:
    """The smallest power of two that is not below ``x``."""
    return 1 << (x - 1).bit_length()


def supports(x: Tensor, layout: ElementLayout, hashed: bool = True) -> bool:
    """Whether the kernels handle this tensor; the reference handles the rest."""
    longest = layout.row_elements if hashed else _even_split(x.numel())[0]
    fits = x.numel() > 0 and longest <= _LONGEST_ROW
    return x.is_cuda and x.dtype in _DTYPES and layout.dense and fits and not x.is_neg()


@triton.jit
def mix(x):
    """The mixing of the stream."""
    x = (x ^ (x >> 16)) * MIX_1
    x = (x ^ (x >> 15)) * MIX_2
    return x ^ (x >> 15)


@triton.jit
def _tile(channels, plane, slabs, across, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """The places in the memory of a row that a program takes, the elements there, and which of them exist.

    A division takes as many instructions as an element does. Those by ``slabs`` and ``across``, and that by how many
    elements share a number, vanish where they are 1, as Triton compiles that case apart.
    """
    slab = tl.program_id(0) % slabs
    start = slab // across * channels * plane
    pixel = tl.program_id(0) // slabs * PIXELS + tl.arange(0, PIXELS)[:, None]
    channel = slab % across * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    exist = (pixel < plane) & (channel < channels)
    return start + pixel * channels + channel, start + channel * plane + pixel, exist


@triton.jit
def own_rows(first_row, rows, ROWS: tl.constexpr):
    """The rows of a program; the last one again where there are no more: cheaper than a mask.

    They are no dimension of its block: versions of Triton differ in whether one thread would have all of them, which it
    must for mixing an element's number once.
    """
    own = ()
    for index in tl.static_range(ROWS):
        own += (tl.minimum(first_row + tl.program_id(1) * ROWS + index, rows - 1),)
    return own


@triton.jit
def read_rows(pointer, own, elements, place, inside):
    """What the rows of a program have at some places: read before anything is written, which reads would wait for."""
    found = ()
    for row in tl.static_range(len(own)):
        found += (tl.load(pointer + own[row].to(tl.int64) * elements + place, mask=inside),)
    return found


@triton.jit
def copied_rows(own, x_rows, REPEATED: tl.constexpr):
    """The rows of the input of which rows of the output are copies."""
    found = ()
    for index in tl.static_range(len(own)):
        found += (own[index] % x_rows if REPEATED else own[index],)
    return found


@triton.jit
def row_keys(keys_ptr, lane_stride, row, LANES: tl.constexpr, exists=None):
    """The lanes of the key of a row, or of several: two, and its turn where draws are balanced."""
    found = ()
    for lane in tl.static_range(LANES):
        found += (tl.load(keys_ptr + lane * lane_stride + row, mask=exists).to(tl.uint32, bitcast=True),)
    return found


@triton.jit
def word_of(mixed, keys, DROP: tl.constexpr):
    """The random word of a mixed element number under a key, signed; turned as its class is."""
    h = (mixed ^ keys[0]) * BITS_1
    h = h ^ (h >> 15)
    word = (h ^ keys[1]) * BITS_2
    if len(keys) == 3:
        word = word + keys[2] if DROP else word ^ keys[2]
    return word.to(tl.int32, bitcast=True)


@triton.jit
def wide_relu(x, word, threshold, steepness, intercept, DROP: tl.constexpr):
    """The random activation of float32 numbers."""
    if DROP:
        # A selection would be made after the result is narrowed, which then is done one number at a time.
        least = tl.where(word >= threshold, 0.0, float("-inf"))
        y = tl.maximum(x, least, propagate_nan=tl.PropagateNan.ALL)
    else:
        y = tl.where(x < 0, _slope(word, steepness, intercept) * x, tl.abs(x))  # -0 becomes +0
    return y


@triton.jit
def _slope(word, steepness, intercept):
    """The twin of ``RReLU.slopes``, with ``random_stream.as_mantissas``."""
    return tl.fma(((word >> 9) + 0x4B400000).to(tl.float32, bitcast=True), steepness, intercept)


@triton.jit
def _narrow_relu(x, word, threshold, steepness, intercept, cap, DROP: tl.constexpr, CAPPED: tl.constexpr):
    """The random activation of numbers as they are stored."""
    if DROP:
        y = tl.where((x < 0) & (word >= threshold), 0.0, x)
    else:
        y = wide_relu(x.to(tl.float32), word, threshold, steepness, intercept, DROP)
    if CAPPED:
        y = tl.where(y > cap, cap, y)
    return y


@triton.jit(**UNSPECIALISED)
def _forward_kernel(
    x_ptr, out_ptr, keys_ptr, lane_stride, rows, x_rows, first_row, elements, channels, plane, slabs, across,
    shared, threshold, steepness, intercept, cap,
    REPEATED: tl.constexpr, DROP: tl.constexpr, CAPPED: tl.constexpr, LANES: tl.constexpr,
    ROWS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    place, element, exist = _tile(channels, plane, slabs, across, PIXELS, CHANNELS)
    inside = None if WHOLE else exist
    own = own_rows(first_row, rows, ROWS)
    x = read_rows(x_ptr, copied_rows(own, x_rows, REPEATED), elements, place, inside)
    mixed = mix((element // shared).to(tl.uint32))
    for index in tl.static_range(ROWS):
        row = own[index]
        word = word_of(mixed, row_keys(keys_ptr, lane_stride, row, LANES), DROP)
        y = _narrow_relu(x[index], word, threshold, steepness, intercept, cap, DROP, CAPPED)
        tl.store(out_ptr + row.to(tl.int64) * elements + place, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _gradient(
    grad, y, mixed, keys_ptr, lane_stride, row, steepness, intercept, cap,
    DROP: tl.constexpr, CAPPED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The gradient at the input of one row."""
    if DROP:
        result = tl.where(y == 0, 0.0, grad)
    else:
        wide, wide_grad = y.to(tl.float32), grad.to(tl.float32)
        negative = wide.to(tl.int32, bitcast=True) < 0
        slope = _slope(word_of(mixed, row_keys(keys_ptr, lane_stride, row, LANES), DROP), steepness, intercept)
        result = tl.where(negative, slope * wide_grad, tl.where(wide == 0, 0.0, wide_grad))
    if CAPPED:
        result = tl.where(y >= cap, 0.0, result)
    return result


@triton.jit(**UNSPECIALISED)
def _backward_kernel(
    grad_ptr, y_ptr, out_ptr, keys_ptr, lane_stride, rows, first_row, elements, channels, plane, slabs, across,
    shared, steepness, intercept, cap,
    DROP: tl.constexpr, CAPPED: tl.constexpr, LANES: tl.constexpr,
    ROWS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    place, element, exist = _tile(channels, plane, slabs, across, PIXELS, CHANNELS)
    inside = None if WHOLE else exist
    own = own_rows(first_row, rows, ROWS)
    grad = read_rows(grad_ptr, own, elements, place, inside)
    y = read_rows(y_ptr, own, elements, place, inside)
    mixed = None if DROP else mix((element // shared).to(tl.uint32))
    for index in tl.static_range(ROWS):
        row = own[index]
        result = _gradient(
            grad[index], y[index], mixed, keys_ptr, lane_stride, row, steepness, intercept, cap, DROP, CAPPED, LANES
        )
        tl.store(out_ptr + row.to(tl.int64) * elements + place, result.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _absorb(lane, word):
    return mix(lane ^ word)


@triton.jit(**UNSPECIALISED)
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
            _keys_kernel[(cdiv(rows, 128), sites)](
                state.contiguous(), samples.contiguous(), stride, images.contiguous(), numbers, out, rows, sites,
                BLOCK=128,
            )  # fmt: skip
    return out


def forward(
    x: Tensor, form: SlopeForm, keys: Tensor, layout: ElementLayout, cap: float | None, inplace: bool
) -> Tensor:
    """The random activation; ``layout.repeat`` copies of ``x``, each with bits of its own."""
    out = x if inplace else layout.empty_output(x.dtype)
    launch = Launch.of(layout, hashed=True)
    with torch.cuda.device_of(x):
        for first_row, grid in launch.parts():
            _forward_kernel[grid](
                x, out, keys, keys.stride(0), launch.rows, launch.rows // layout.repeat, first_row, *launch.shape,
                layout.shared, form.threshold, form.steepness, form.intercept, cap or 0.0,
                REPEATED=layout.repeat > 1, DROP=form.drop, CAPPED=cap is not None, LANES=keys.shape[0],
                **launch.constants,
            )  # fmt: skip
    if inplace:
        torch.autograd.graph.increment_version(x)
    return out


def backward(
    grad: Tensor, out: Tensor, form: SlopeForm, keys: Tensor | None, layout: ElementLayout, cap: float | None
) -> Tensor:
    """The gradient at the input, from the output; the twin of ``capped_backward`` in :mod:`rbue.activations.relu`."""
    result = torch.empty_like(out)
    launch = Launch.of(layout, hashed=keys is not None)
    anything = out if keys is None else keys
    with torch.cuda.device_of(out):
        for first_row, grid in launch.parts():
            _backward_kernel[grid](
                grad, out, result, anything, 0 if keys is None else keys.stride(0), launch.rows, first_row,
                *launch.shape, layout.shared, form.steepness, form.intercept, cap or 0.0,
                DROP=form.drop, CAPPED=cap is not None, LANES=2 if keys is None else keys.shape[0], **launch.constants,
            )  # fmt: skip
    return result


@dataclass(frozen=True)
class Launch:
    """How a tensor is cut into programs.

    Attributes:
        rows: how many rows there are.
        elements: how many elements a row has: some patches of ``channels * plane``.
        channels: how many elements lie side by side at a pixel; 1 where they have the logical order.
        plane: how many pixels a channel has.
        block: rows, pixels and channels of a program, the latter two powers of two.
    """

    rows: int
    elements: int
    channels: int
    plane: int
    block: tuple[int, int, int]

    @classmethod
    def of(cls, layout: ElementLayout, hashed: bool) -> Launch:
        """Blocks of a size that suits an H200; where no bits are drawn, all elements are alike and form long rows."""
        rows, elements = layout.rows, layout.row_elements
        if not hashed:
            elements, rows = _even_split(rows * elements)
        channels, plane = 1, elements
        if hashed and layout.memory_format is not torch.contiguous_format:
            channels, plane = layout.shape[1], math.prod(layout.shape[2:])
        across = min(MOST_OF_A_ROW, _tile_width(channels))
        down = min(MOST_OF_A_ROW // across, next_power_of_2(plane))
        return cls(rows, elements, channels, plane, (rows_of_a_program(rows), down, across))

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Elements, channels and pixels of a row, and how many tiles of channels a row and a patch have."""
        across = cdiv(self.channels, self.block[2])
        slabs = self.elements // (self.channels * self.plane) * across
        return self.elements, self.channels, self.plane, slabs, across

    def parts(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """The first row and the grid of each launch; one launch, but for very many rows."""
        together, down, _ = self.block
        along = self.shape[3] * cdiv(self.plane, down)
        for first in range(0, self.rows, together * MOST_PROGRAMS_DOWN):
            left = cdiv(self.rows - first, together)
            yield first, (along, min(left, MOST_PROGRAMS_DOWN))

    @property
    def constants(self) -> dict[str, int]:
        """What a kernel is compiled with."""
        rows, pixels, channels = self.block
        whole = self.plane % pixels == self.channels % channels == 0
        warps = warps_for(pixels * channels)
        return {"ROWS": rows, "PIXELS": pixels, "CHANNELS": channels, "WHOLE": whole, "num_warps": warps}


def rows_of_a_program(rows: int) -> int:
    """Four or one, since each form is compiled; a program that has fewer rows of its own has the last one again."""
    return 1 if rows == 1 else MOST_ROWS


def warps_for(elements: int) -> int:
    """So many that a thread has eight elements of a row: 16 bytes in half precision, the most it reads at once."""
    return max(1, elements // 256)


def _tile_width(channels: int) -> int:
    """A power of two that divides the channels if a large one does, else one that covers them."""
    divisor = channels & -channels
    return divisor if divisor >= 16 else next_power_of_2(channels)


def _even_split(total: int) -> tuple[int, int]:
    """``elements, rows`` with ``elements * rows = total`` and elements large."""
    rows = 1
    while total % 2 == 0 and total > 1 << 20:
        total //= 2
        rows *= 2
    return total, rows
