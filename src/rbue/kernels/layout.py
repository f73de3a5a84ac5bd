"""Which element of which image stands where in an activation's tensor.

A key belongs to a *row*: one image in one sample. Usually row ``r`` is ``x[r]``. Two other cases occur inside
networks: images cut into ``k`` patches along the first dimension, ``(rows * k, ...)``, and the first random
site of a sampler, where one input row feeds ``repeat`` output rows (one for each sample, samples first).
An element's number is its place in the row in logical order, whatever the memory format. Where one draw serves a whole
channel, it is the place of the channel.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from rbue import random_stream
from rbue.torch_internals import is_exporting, is_vmapped


@dataclass(frozen=True)
class ElementLayout:
    """How ``rows`` keys spread over an input tensor, and the shape and memory order of the output.

    ``shared`` neighbours in logical order have one number.
    """

    shape: tuple[int, ...]
    rows: int
    repeat: int
    memory_format: torch.memory_format
    dense: bool
    device: torch.device
    shared: int = 1

    @classmethod
    def of(cls, x: Tensor, rows: int, repeat: int = 1, mask: str = "element") -> ElementLayout:
        """The layout of ``x`` under ``rows`` keys; ``rows / repeat`` must divide ``x.shape[0]``.

        With ``mask="channel"`` the elements of a channel, dimension 1 as for BatchNorm, have one number.
        """
        memory_format, dense = _memory_format(x)
        shared = math.prod(x.shape[2:]) if mask == "channel" else 1
        return cls(tuple(x.shape), rows, repeat, memory_format, dense, x.device, shared)

    @property
    def patches(self) -> int:
        """How many slices of the first dimension make one row."""
        if self.shape[0] * self.repeat == self.rows:
            return 1  # also where a compiler knows the number of rows only by name
        return self.shape[0] * self.repeat // self.rows

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return (self.patches, *self.shape[1:])

    @property
    def number_shape(self) -> tuple[int, ...]:
        """The shape of the numbers of one row, which broadcasts against it."""
        return self.row_shape if self.shared == 1 else (*self.row_shape[:2], *[1] * (len(self.shape) - 2))

    def rows_of(self, x: Tensor) -> Tensor:
        """The input as ``(1, rows / repeat, patches, ...)``, to broadcast against the output's rows."""
        return x.unflatten(0, (1, self.rows // self.repeat, self.patches))

    def rows_of_output(self, out: Tensor) -> Tensor:
        """The output as ``(repeat, rows / repeat, patches, ...)``."""
        return out.unflatten(0, (self.repeat, self.rows // self.repeat, self.patches))

    def as_output(self, rows: Tensor) -> Tensor:
        """The inverse of :meth:`rows_of_output`."""
        return rows.flatten(0, 2)

    @property
    def row_elements(self) -> int:
        """How many elements one row has."""
        return math.prod(self.row_shape)

    def empty_output(self, dtype: torch.dtype) -> Tensor:
        """An uninitialised output in the memory format of the input."""
        return self._empty(self.rows, dtype)

    def empty_rows(self, samples: int, rows: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised memory for some rows of some samples, shaped and ordered like the output's rows."""
        return self._empty(samples * rows, dtype).unflatten(0, (samples, rows, self.patches))

    def _empty(self, rows: int, dtype: torch.dtype) -> Tensor:
        shape = (rows * self.patches, *self.shape[1:])
        return torch.empty(shape, dtype=dtype, device=self.device, memory_format=self.memory_format)

    def broadcast_keys(self, keys: Tensor) -> Tensor:
        """The lanes of keys ``(2 or 3, rows)``, shaped to broadcast against the output's rows."""
        return keys.reshape(keys.shape[0], self.repeat, self.rows // self.repeat, *[1] * len(self.shape))

    def table(self) -> Tensor:
        """``mix(number)`` of each element of one row, kept between calls, in the memory order of the input."""
        if self.memory_format is torch.contiguous_format and self.shared == 1:
            return _row_table(self.row_shape, self.device)
        return _reordered_table(self)

    def traced_table(self) -> Tensor:
        """``mix(number)``, to broadcast against one row, computed on the spot, for tracers and compilers."""
        row = self.number_shape
        count = 1
        for size in row:
            count = count * size
        return random_stream.element_table(count, self.device).reshape(row)


def _memory_format(x: Tensor) -> tuple[torch.memory_format, bool]:
    """The order in which ``x`` lies in memory, channels last or not, and whether without gaps."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if x.is_contiguous() or last is None or is_vmapped(x):
        return torch.contiguous_format, x.is_contiguous()
    dense = x.is_contiguous(memory_format=last)
    return (last if dense else torch.contiguous_format), dense


def repeat_rows(x: Tensor, times: int) -> Tensor:
    """``times`` copies of ``x`` along its first dimension, in the same memory format."""
    if is_exporting():  # a graph has no use for memory to be filled
        return x.unsqueeze(0).expand(times, *x.shape).flatten(0, 1)
    shape = (times * x.shape[0], *x.shape[1:])
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=_memory_format(x)[0])
    out.unflatten(0, (times, x.shape[0])).copy_(x)
    return out


_longest_table: dict[torch.device, Tensor] = {}


def _table_prefix(count: int, device: torch.device) -> Tensor:
    table = _longest_table.get(device)
    if table is None or len(table) < count:
        table = random_stream.element_table(1 << (count - 1).bit_length() if count else 1, device)
        _longest_table[device] = table
    return table[:count]


_MOST_REORDERED = 32 << 20
"""Elements of all tables kept in another order: each is a copy, and inputs may come in ever new sizes."""

_reordered: dict[tuple[tuple[int, ...], torch.memory_format, torch.device, int], Tensor] = {}  # last used at the end
_reordering = threading.Lock()


@lru_cache(maxsize=64)
def _row_table(row_shape: tuple[int, ...], device: torch.device) -> Tensor:
    return _table_prefix(math.prod(row_shape), device).view(row_shape)


def _reordered_table(layout: ElementLayout) -> Tensor:
    key = layout.row_shape, layout.memory_format, layout.device, layout.shared
    with _reordering:
        table = _reordered.pop(key, None)
        if table is None:
            numbers = _row_table(layout.number_shape, layout.device)
            table = numbers.expand(layout.row_shape).contiguous(memory_format=layout.memory_format)
            room = _MOST_REORDERED - table.numel()
            while _reordered and sum(other.numel() for other in _reordered.values()) > room:
                del _reordered[next(iter(_reordered))]
        _reordered[key] = table
    return table
