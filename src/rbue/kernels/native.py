"""The random activations of ``float32`` CPU tensors in compiled code: one read and one write an element.

The numbers are those of the formulas in :mod:`rbue.activations.relu`, bit for bit.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rbue import random_stream
from rbue.activations import DropReLU, RReLU
from rbue.kernels.layout import ElementLayout
from rbue.kernels.native_library import Function, Keys, Rows, native_library
from rbue.kernels.slope_forms import SlopeForm, form_of

_WORTH_THREADS = 1 << 15  # elements, as in torch
_MOST_CHANNELS = 1 << 14  # of a pixel that is pooled


class _Draw(NamedTuple):
    """What to apply to which elements, under which keys."""

    form: SlopeForm
    keys: Tensor | None
    layout: ElementLayout
    cap: float | None


def supports(x: Tensor, keys: Tensor | None, layout: ElementLayout) -> bool:
    """Whether this backend handles the tensor; :mod:`.torch_operations` handles, or refuses, the rest."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and layout.dense
        and not x.is_neg()
        and (keys is None or (_is_words(keys) and x.shape[0] * layout.repeat == layout.rows * layout.patches))
        and library() is not None
    )


def supports_keys(state: Tensor, samples: Tensor, images: Tensor, numbers: Tensor) -> bool:
    """Whether :func:`site_keys` handles these numbers."""
    words = (state, samples, images, numbers)
    return all(map(_is_words, words)) and len(samples) in (1, len(images)) and library() is not None


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, if there are any that give the right numbers."""
    found = native_library()
    return found if found is not None and _agrees(found) else None


def _supported() -> ctypes.CDLL:
    kernels = library()
    assert kernels is not None
    return kernels


def site_keys(state: Tensor, samples: Tensor, images: Tensor, numbers: Tensor) -> Tensor:
    """The keys of every row at every site, ``(2, sites, rows)``."""
    return _site_keys(_supported(), state, samples, images, numbers)


def forward(
    x: Tensor, form: SlopeForm, keys: Tensor, layout: ElementLayout, cap: float | None, inplace: bool
) -> Tensor:
    """The random activation; ``layout.repeat`` copies of ``x``, each with bits of its own."""
    out = x if inplace else layout.empty_output(torch.float32)
    _forward(_supported(), x, out, _Draw(form, keys, layout, cap))
    if inplace:
        torch.autograd.graph.increment_version(x)
    return out


def supports_pooling(x: Tensor, layout: ElementLayout) -> bool:
    """Whether :func:`pooled_relu` handles the tensor."""
    return supports(x, None, layout) and layout.patches == 1 and x.dim() > 2 and 0 < x.shape[1] <= _MOST_CHANNELS


def pooled_relu(x: Tensor, form: SlopeForm, keys: Tensor, layout: ElementLayout, cap: float | None) -> Tensor:
    """The mean over the pixels of ``layout.repeat`` random activations of ``x``, ``(rows, channels)``."""
    out = torch.empty((layout.rows, layout.shape[1]), dtype=torch.float32, device=x.device)
    _pooled(_supported(), x, out, _Draw(form, keys, layout, cap))
    return out


def backward(
    grad: Tensor, out: Tensor, form: SlopeForm, keys: Tensor | None, layout: ElementLayout, cap: float | None
) -> Tensor:
    """The gradient at the input, from the output; the twin of ``capped_backward`` in :mod:`rbue.activations.relu`."""
    result = torch.empty_like(out)
    _backward(_supported(), grad, out, result, _Draw(form, keys, layout, cap))
    return result


def _site_keys(kernels: ctypes.CDLL, state: Tensor, samples: Tensor, images: Tensor, numbers: Tensor) -> Tensor:
    rows, sites = images.shape[0], numbers.shape[0]
    words = [tensor.contiguous() for tensor in (state, samples, images, numbers)]
    out = torch.empty((2, sites, rows), dtype=torch.int32, device=images.device)
    start, sample, image, number = (tensor.data_ptr() for tensor in words)
    kernels.rbue_keys(start, sample, int(len(samples) > 1), image, number, rows, sites, out.data_ptr())
    return out


def _forward(kernels: ctypes.CDLL, x: Tensor, out: Tensor, draw: _Draw) -> None:
    _run(kernels.rbue_forward, x, out, draw, _threads(out.numel()))


def _pooled(kernels: ctypes.CDLL, x: Tensor, out: Tensor, draw: _Draw) -> None:
    layout = draw.layout
    last = layout.memory_format is not torch.contiguous_format
    threads = _threads(layout.rows * layout.row_elements)
    _run(kernels.rbue_pooled, x, out, draw, layout.shape[1], int(last), threads)


def _run(function: Any, x: Tensor, out: Tensor, draw: _Draw, *more: int) -> None:
    form, keys, layout, cap = draw
    assert keys is not None
    table, keys = layout.table(), _plain_rows(keys)
    rows = Rows(layout.rows, layout.rows // layout.repeat, layout.row_elements)
    tensors = x.data_ptr(), out.data_ptr(), table.data_ptr()
    function(*tensors, _lanes(keys), rows, _function(form, cap), *more)


def _backward(kernels: ctypes.CDLL, grad: Tensor, out: Tensor, result: Tensor, draw: _Draw) -> None:
    form, keys, layout, cap = draw
    function, threads = _function(form, cap), _threads(out.numel())
    tensors = grad.data_ptr(), out.data_ptr(), result.data_ptr()
    if keys is None:  # every element is treated alike
        kernels.rbue_backward(*tensors, None, Keys(), Rows(1, 1, out.numel()), function, threads)
        return
    keys, table = _plain_rows(keys), layout.table()
    rows = Rows(layout.rows, layout.rows, layout.row_elements)
    kernels.rbue_backward(*tensors, table.data_ptr(), _lanes(keys), rows, function, threads)


def _function(form: SlopeForm, cap: float | None) -> Function:
    return Function(form.drop, form.threshold, form.scale, form.middle, math.nan if cap is None else cap)


def _is_words(tensor: Tensor) -> bool:
    return tensor.dtype == torch.int32 and tensor.device.type == "cpu"


def _plain_rows(keys: Tensor) -> Tensor:
    return keys if keys.stride(1) == 1 else keys.contiguous()


def _lanes(keys: Tensor) -> Keys:
    step = keys.stride(0) * keys.element_size()
    return Keys(*(keys.data_ptr() + lane * step for lane in range(keys.shape[0])))


def _threads(elements: int) -> int:
    return torch.get_num_threads() if elements >= _WORTH_THREADS else 1


def _agrees(kernels: ctypes.CDLL) -> bool:
    """Whether a library gives the formula's numbers; a compiler may have ideas of its own about rounding."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(4, 257, generator=generator, dtype=torch.float32)
        special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, -2e-39]
        x[:, :8] = torch.tensor(special, dtype=torch.float32)
        grad = torch.randn(4, 257, generator=generator, dtype=torch.float32)
        lanes = random_stream.signed32(0x9E3779B9) * torch.arange(12, dtype=torch.int32).view(3, 4)
        keys = lanes[:2]
        maps = x[:, 8:248].contiguous().view(4, 20, 3, 4)
        if not _agrees_on_keys(kernels) or not _agrees_on_means(kernels, maps, keys):
            return False
        layout = ElementLayout.of(x, 4)
        drawn = random_stream.bits(layout.traced_table(), *layout.broadcast_keys(keys)).view(4, 257)
        for activation, cap, keys in product((DropReLU(0.6), RReLU()), (None, 2.0), (lanes[:2], lanes)):
            form, words = form_of(activation), drawn
            assert form is not None
            if len(keys) == 3:
                words = random_stream.turned(drawn, keys[2].unsqueeze(1), activation.cycle.mirrored)
            out, result = torch.empty_like(x), torch.empty_like(x)
            draw = _Draw(form, keys, layout, cap)
            _forward(kernels, x, out, draw)
            _backward(kernels, grad, out, result, draw)
            expected = activation.capped_forward(x, words, cap)
            slopes = activation.capped_backward(grad, expected, words, cap)
            if not (_same_bits(out, expected) and _same_bits(result, slopes)):
                return False
    return True


def _agrees_on_keys(kernels: ctypes.CDLL) -> bool:
    state, images = random_stream.seed_state(2**63 + 5, "cpu"), torch.arange(-3, 40, dtype=torch.int32)
    numbers = torch.tensor([-5, 7, 2**31 - 1], dtype=torch.int32)
    for samples in (images[:1], images.flip(0)):
        lanes = random_stream.absorb(random_stream.absorb(state.unsqueeze(-1), samples), images)
        expected = random_stream.absorb(lanes.unsqueeze(1), numbers.unsqueeze(-1))
        if not _site_keys(kernels, state, samples, images, numbers).equal(expected):
            return False
    return True


def _agrees_on_means(kernels: ctypes.CDLL, x: Tensor, keys: Tensor) -> bool:
    """Sums may be rounded in another order."""
    layout, out = ElementLayout.of(x, len(x)), torch.empty(x.shape[:2], dtype=torch.float32)
    words = random_stream.bits(layout.traced_table(), *layout.broadcast_keys(keys)).view(x.shape)
    form = form_of(RReLU())
    assert form is not None
    _pooled(kernels, x, out, _Draw(form, keys, layout, None))
    return torch.allclose(out, RReLU().forward(x, words).mean((2, 3)), rtol=1e-5, atol=1e-6)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.view(torch.int32).equal(b.view(torch.int32))
