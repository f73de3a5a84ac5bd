"""Random words inside one exported graph (:func:`rbue.export`).

The bits are those of :mod:`rbue.random_stream`. Words travel as ``int64`` in ``[0, 2**32)``, where torch's arithmetic
never overflows whatever compiles it, and all sites read one table of element hashes, which the graph makes once. For
ONNX the two steps of the stream are operators of our own, because only who writes the file knows the integer types that
its runtimes wrap around (:mod:`rbue.exporting.onnx_file`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rbue import random_stream
from rbue.kernels.layout import ElementLayout
from rbue.random_stream import BITS_MULTIPLIERS, LANE_START, multiply, shift_right
from rbue.torch_internals import is_exporting

_WORD = 0xFFFFFFFF
_local = threading.local()


class ExportedWords:
    """How random words are drawn in the graph that is being traced.

    Args:
        elements: of the largest row of a random site.
        device: where the graph runs.
        as_operators: whether the steps are left as calls of :func:`absorb_operator` and :func:`words_operator`.
    """

    def __init__(self, elements: int, device: torch.device, as_operators: bool) -> None:
        self.device = device
        self._absorb: Callable[..., Tensor] = absorb_operator if as_operators else _absorb
        self._words: Callable[..., Tensor] = words_operator if as_operators else _words
        self.table = self._absorb(self._constant(0), torch.arange(elements, device=device))

    def _constant(self, *numbers: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)

    def seed_state(self, seed: Tensor, balanced: bool) -> Tensor:
        """The lanes after the seed, ``(2,)``; see :func:`rbue.random_stream.seed_state`."""
        low, high = seed & _WORD, (seed >> 32) & _WORD
        state = self._absorb(self._absorb(self._constant(*LANE_START), low), high)
        return self._absorb(state, self._constant(random_stream.BALANCED)) if balanced else state

    def site_keys(self, state: Tensor, samples: Tensor, images: Tensor, numbers: Tensor) -> Tensor:
        """Keys of shape ``(2, sites, rows)``; see :func:`rbue.kernels.keys.site_keys`."""
        samples, images, numbers = (one.to(torch.int64) & _WORD for one in (samples, images, numbers))
        rows = self._absorb(self._absorb(state.unsqueeze(-1), samples), images)
        return self._absorb(rows.unsqueeze(1), numbers.unsqueeze(-1))

    def draw(self, layout: ElementLayout, keys: Tensor, mirrored: bool) -> Tensor:
        """The ``int32`` words of a site's elements, ``(repeat, rows / repeat, patches, ...)``."""
        k1, k2, *turn = layout.broadcast_keys(keys)
        shape = layout.number_shape
        count = 1
        for size in shape:
            count = count * size
        return self._words(self.table[:count].reshape(shape), k1, k2, turn[0] & _WORD if turn else None, mirrored)


@contextmanager
def exporting(elements: int, device: torch.device, as_operators: bool) -> Iterator[ExportedWords]:
    """Draw the words of this thread's passes inside for one graph."""
    _local.words = ExportedWords(elements, device, as_operators)
    try:
        yield _local.words
    finally:
        _local.words = None


def current() -> ExportedWords | None:
    """What :func:`exporting` is at work in this thread."""
    return getattr(_local, "words", None) if is_exporting() else None


def _absorb(state: Tensor, word: Tensor) -> Tensor:
    return random_stream.mix(state ^ word)


def _words(table: Tensor, k1: Tensor, k2: Tensor, turn: Tensor | None, mirrored: bool) -> Tensor:
    h = multiply(table ^ k1, BITS_MULTIPLIERS[0])
    h = h ^ shift_right(h, 15)
    h = multiply(h ^ k2, BITS_MULTIPLIERS[1])
    if turn is not None:
        h = h ^ turn if mirrored else h + turn
    return random_stream.to_int32(h)


@torch.library.custom_op("rbue::absorb", mutates_args=())
def absorb_operator(state: Tensor, word: Tensor) -> Tensor:
    """:func:`rbue.random_stream.absorb` of words in ``int64``."""
    return _absorb(state, word)


@absorb_operator.register_fake
def _(state: Tensor, word: Tensor) -> Tensor:
    return state ^ word


@torch.library.custom_op("rbue::words", mutates_args=())
def words_operator(table: Tensor, k1: Tensor, k2: Tensor, turn: Tensor | None, mirrored: bool) -> Tensor:
    """:func:`rbue.random_stream.bits`, and ``turned`` where there is a turn: words in ``int64`` in, ``int32`` out."""
    return _words(table, k1, k2, turn, mirrored)


@words_operator.register_fake
def _(table: Tensor, k1: Tensor, k2: Tensor, turn: Tensor | None, mirrored: bool) -> Tensor:
    return (table ^ k1).to(torch.int32)
