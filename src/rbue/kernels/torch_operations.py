"""A fast eager CPU form for ``float32``: vectorised passes over pieces that stay in the cache, no boolean tensor.

``torch.where`` and comparisons are the slow operations on a CPU (each costs as much as the whole hash), so the
selection is done with ``threshold_backward``, the one vectorised select that works on integers, and ``maximum``:

* DropReLU: ``maximum(x, +0)`` where the ReLU is kept, ``maximum(x, -inf)`` where it is dropped; NaN propagates.
* RReLU: ``maximum(x, a * x)``, since ``0 < a <= 1``.

The words are those of :mod:`rbue.random_stream`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rbue import random_stream
from rbue.kernels.layout import ElementLayout
from rbue.kernels.slope_forms import SlopeForm

_MINUS_INFINITY = random_stream.signed32(0xFF800000)  # its bits as a float32

AT_ONCE = 1 << 21
"""Elements of one piece: three tensors of this size fit into a large cache, and fresh memory is rarely asked for."""


def supports(x: Tensor, layout: ElementLayout) -> bool:
    """Whether this backend handles the tensor; the reference handles the rest."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and layout.dense


def forward(
    x: Tensor, form: SlopeForm, keys: Tensor, layout: ElementLayout, cap: float | None, inplace: bool, saved: bool
) -> Tensor:
    """The random activation; ``layout.repeat`` copies of ``x``, each with bits of its own.

    ``saved`` says that the output will be kept for :func:`backward`.
    """
    result = x if inplace else layout.empty_output(torch.float32)
    x_rows, out_rows = layout.rows_of(x), layout.rows_of_output(result)
    for piece in _pieces(keys, layout):
        x_part, out = x_rows[:, piece.rows], out_rows[piece.samples, piece.rows]
        # Working in the output saves memory; in place it still holds the input.
        candidate = piece.scratch.view(torch.float32) if inplace else out
        if form.drop:
            _minus_infinity_where_dropped(piece, form, candidate)
        else:
            slope = _slopes(piece, form)
            if saved:
                # -0 must mean "negative input, product underflowed": see RReLU.forward. Both sides of the maximum
                # must be +0, as which zero it returns depends on the processor.
                x_part = torch.add(x_part, 0.0, out=piece.words.view(torch.float32))
            torch.mul(slope, x_part, out=candidate)
        torch.maximum(x_part, candidate, out=out)
        if cap is not None:
            out.clamp_(max=cap)
    return result


def backward(
    grad: Tensor, out: Tensor, form: SlopeForm, keys: Tensor | None, layout: ElementLayout, cap: float | None
) -> Tensor:
    """The gradient at the input, from the output; the twin of ``capped_backward`` in :mod:`rbue.activations.relu`."""
    if form.drop:
        result = torch.ops.aten.threshold_backward(grad, out.abs(), 0)
    else:
        assert keys is not None
        result = _rrelu_backward(grad, out, form, keys, layout)
    if cap is not None:
        result = torch.ops.aten.threshold_backward(result, cap - out, 0)
    return result


def _rrelu_backward(grad: Tensor, out: Tensor, form: SlopeForm, keys: Tensor, layout: ElementLayout) -> Tensor:
    result = layout.empty_output(torch.float32)
    grad_rows, out_rows, result_rows = layout.rows_of(grad), layout.rows_of(out), layout.rows_of_output(result)
    for piece in _pieces(keys, layout):
        slope = _slopes(piece, form)
        out_bits = out_rows[:, piece.rows].view(torch.int32)
        one = 0x3F800000
        # slope where the sign bit of the output is set, 1.0 elsewhere
        sign = torch.bitwise_right_shift(out_bits, 31, out=piece.words)
        coefficient = slope.view(torch.int32).bitwise_xor_(one).bitwise_and_(sign).bitwise_xor_(one)
        product = torch.mul(coefficient.view(torch.float32), grad_rows[:, piece.rows], out=result_rows[:, piece.rows])
        not_plus_zero = torch.neg(out_bits, out=piece.words).bitwise_or_(out_bits).bitwise_right_shift_(31)
        product.view(torch.int32).bitwise_and_(not_plus_zero)
    return result


class _Piece(NamedTuple):
    """Some rows of some samples: ``words`` before their last multiplication, and a tensor to work in."""

    samples: slice
    rows: slice
    words: Tensor
    scratch: Tensor
    turn: Tensor | None  # of the samples in their cycles, if draws are balanced


def _pieces(keys: Tensor, layout: ElementLayout) -> Iterator[_Piece]:
    """Walk over the output; all pieces share their memory."""
    per_sample = layout.rows // layout.repeat
    at_once = max(1, AT_ONCE // max(1, layout.row_elements))
    rows, samples = min(per_sample, at_once), min(layout.repeat, max(1, at_once // max(1, per_sample)))
    words, scratch = (layout.empty_rows(samples, rows, torch.int32) for _ in range(2))
    k1, k2, *turn = layout.broadcast_keys(keys)
    for first_sample in range(0, layout.repeat, samples):
        for first_row in range(0, per_sample, rows):
            where = slice(first_sample, first_sample + samples), slice(first_row, first_row + rows)
            here = slice(layout.repeat - first_sample), slice(per_sample - first_row)
            piece = _Piece(*where, words[here], scratch[here], turn[0][where] if turn else None)
            random_stream.unfinished_bits_into(piece.words, piece.scratch, layout.table(), k1[where], k2[where])
            yield piece


def _minus_infinity_where_dropped(piece: _Piece, form: SlopeForm, out: Tensor) -> None:
    """``-inf`` where ``word < t``, found as ``~word > ~t``; ``+0`` elsewhere."""
    complement = random_stream.finish_complement_(piece.words)
    if piece.turn is not None:
        complement.sub_(piece.turn)  # ~(word + turn) = ~word - turn
    bits = complement.new_full((), _MINUS_INFINITY).expand_as(complement)
    limit = ~form.threshold
    torch.ops.aten.threshold_backward.grad_input(bits, complement, limit, grad_input=out.view(torch.int32))


def _slopes(piece: _Piece, form: SlopeForm) -> Tensor:
    """``lower + (upper - lower) * u``, in ``scratch``."""
    words = random_stream.finish_(piece.words)
    if piece.turn is not None:
        words.bitwise_xor_(piece.turn)
    odd = words.bitwise_right_shift_(8).bitwise_or_(1)
    slope = piece.scratch.view(torch.float32).copy_(odd)
    return slope.mul_(form.scale).add_(form.middle)
