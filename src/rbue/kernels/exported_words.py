"""Random words inside one exported graph (:func:`rbue.export`).

All sites read one table of element hashes, which the graph computes once. For ONNX the words themselves are one
operator of our own, because only who writes the file knows the integer types that its runtime can wrap around
(:mod:`rbue.exporting.onnx_file`); in a program of torch they are the formula.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from rbue import random_stream
from rbue.kernels.layout import ElementLayout

_local = threading.local()


@dataclass(frozen=True)
class ExportedWords:
    """How random words are drawn in the graph that is being traced.

    Attributes:
        table: ``mix(0), mix(1), ...`` for the elements of the largest row, ``int32``.
        as_operator: whether words are left as calls of :func:`words`.
    """

    table: Tensor
    as_operator: bool

    def draw(self, layout: ElementLayout, keys: Tensor, mirrored: bool) -> Tensor:
        """The words of a site's elements, ``(repeat, rows / repeat, patches, ...)``; see :func:`.dispatch.random_words`."""
        k1, k2, *turn = layout.broadcast_keys(keys)
        shape = layout.number_shape
        count = 1
        for size in shape:
            count = count * size
        table = self.table[:count].reshape(shape) if count <= len(self.table) else layout.traced_table()
        drawn = words if self.as_operator else _formula
        return drawn(table, k1, k2, turn[0] if turn else None, mirrored)


@contextmanager
def exporting(elements: int, device: torch.device, as_operator: bool) -> Iterator[None]:
    """Draw the words of this thread's passes inside for one graph; no row has more ``elements``."""
    _local.words = ExportedWords(random_stream.element_table(elements, device), as_operator)
    try:
        yield
    finally:
        _local.words = None


def current() -> ExportedWords | None:
    """What :func:`exporting` is at work in this thread."""
    return getattr(_local, "words", None)


def _formula(table: Tensor, k1: Tensor, k2: Tensor, turn: Tensor | None, mirrored: bool) -> Tensor:
    drawn = random_stream.bits(table, k1, k2)
    return drawn if turn is None else random_stream.turned(drawn, turn, mirrored)


@torch.library.custom_op("rbue::words", mutates_args=())
def words(table: Tensor, k1: Tensor, k2: Tensor, turn: Tensor | None, mirrored: bool) -> Tensor:
    """The words of elements under keys, ``int32``: what :func:`rbue.random_stream.bits` and ``turned`` make."""
    return _formula(table, k1, k2, turn, mirrored)


@words.register_fake
def _(table: Tensor, k1: Tensor, k2: Tensor, turn: Tensor | None, mirrored: bool) -> Tensor:
    return table ^ k1
