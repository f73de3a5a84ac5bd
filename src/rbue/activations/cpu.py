"""A fast eager CPU form for ``float32``: a dozen vectorised integer passes, no boolean tensor.

``torch.where`` and comparisons are the slow operations on a CPU (each costs as much as the whole hash), so the
selection is done with bit masks and ``maximum``:

* DropReLU: ``maximum(x, +0)`` where the ReLU is kept, ``maximum(x, -inf)`` where it is dropped; NaN propagates.
* RReLU: ``maximum(x, a * x)``, since ``0 < a <= 1``.

The words are those of :mod:`rbue.random_stream`, bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rbue import random_stream
from rbue.activations.definitions import Activation, DropReLU, RReLU
from rbue.activations.layout import ElementLayout

_MINUS_INFINITY = random_stream.signed32(0xFF800000)  # its bits as a float32


def supports(x: Tensor, layout: ElementLayout) -> bool:
    """Whether this backend handles the tensor; the reference handles the rest."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and layout.dense


def forward(
    x: Tensor,
    activation: Activation,
    keys: Tensor,
    layout: ElementLayout,
    cap: float | None,
    inplace: bool,
    saved: bool,
) -> Tensor:
    """The random activation; ``layout.repeat`` copies of ``x``, each with bits of its own.

    ``saved`` says that the output will be kept for :func:`backward`.
    """
    words, scratch = _words(keys, layout)
    x_rows = layout.rows_of(x)
    if isinstance(activation, DropReLU):
        dropped = words.bitwise_right_shift_(1)
        dropped.sub_(random_stream.threshold(1 - activation.q) // 2).bitwise_right_shift_(31)
        candidate = dropped.bitwise_and_(_MINUS_INFINITY).view(torch.float32)
    else:
        candidate = _slopes(words, scratch, activation)
        if saved:
            # -0 must mean "negative input, product underflowed": see reference.forward. Both sides of the maximum
            # must be +0, as which zero it returns depends on the processor.
            x_rows = torch.add(x_rows, 0.0, out=words.view(torch.float32))
        candidate.mul_(x_rows)
    out = layout.rows_of(x) if inplace else candidate
    torch.maximum(x_rows, candidate, out=out)
    if cap is not None:
        out.clamp_(max=cap)
    return x if inplace else layout.as_output(out)


def backward(
    grad: Tensor,
    out: Tensor,
    activation: Activation,
    keys: Tensor | None,
    layout: ElementLayout,
    cap: float | None,
) -> Tensor:
    """The gradient at the input, from the output; the twin of ``reference.backward``."""
    if isinstance(activation, DropReLU):
        result = torch.ops.aten.threshold_backward(grad, out.abs(), 0)
    else:
        assert keys is not None
        result = layout.as_output(_rrelu_backward(grad, out, activation, keys, layout))
    if cap is not None:
        result = torch.ops.aten.threshold_backward(result, cap - out, 0)
    return result


def _rrelu_backward(grad: Tensor, out: Tensor, activation: RReLU, keys: Tensor, layout: ElementLayout) -> Tensor:
    words, scratch = _words(keys, layout)
    slope = _slopes(words, scratch, activation)
    out_bits = layout.rows_of(out).view(torch.int32)
    one = 0x3F800000
    # slope where the sign bit of the output is set, 1.0 elsewhere
    sign = torch.bitwise_right_shift(out_bits, 31, out=words)
    coefficient = slope.view(torch.int32).bitwise_xor_(one).bitwise_and_(sign).bitwise_xor_(one)
    product = coefficient.view(torch.float32).mul_(layout.rows_of(grad))
    not_plus_zero = torch.neg(out_bits, out=words).bitwise_or_(out_bits).bitwise_right_shift_(31)
    product.view(torch.int32).bitwise_and_(not_plus_zero)
    return product


def _words(keys: Tensor, layout: ElementLayout) -> tuple[Tensor, Tensor]:
    """The random words of every output element in the memory order of the output, and a tensor to work in."""
    words = layout.rows_of_output(layout.empty_output(torch.int32))
    scratch = layout.rows_of_output(layout.empty_output(torch.int32))
    k1, k2 = layout.broadcast_keys(keys)
    return random_stream.bits_into(words, scratch, layout.table(), k1, k2), scratch


def _slopes(words: Tensor, scratch: Tensor, activation: RReLU) -> Tensor:
    odd = scratch.view(torch.float32).copy_(words.bitwise_right_shift_(8).bitwise_or_(1))
    return odd.mul_((activation.upper - activation.lower) / (1 << 24)).add_(activation.mean_slope)
