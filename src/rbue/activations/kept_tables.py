"""Hashes of elements that compiled GPU code reads from memory.

A kernel written by hand computes ``mix(element)`` on the way at no cost. A compiled one has more to do for each element
(the BatchNorm before, the sum with a skip connection), and is faster when it reads the hash instead: one table serves
all rows, so it stays in the cache. Tables are made by an ordinary pass inside :func:`keeping`; code compiled afterwards
finds them. A captured graph reads a table at its address, so none is ever dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from rbue.activations.layout import ElementLayout

_LARGEST = 4 << 20
"""Elements of the largest table kept; beyond the cache, computing is cheaper than reading."""

_Key = tuple[tuple[int, ...], torch.memory_format, torch.device]
_kept: dict[_Key, Tensor] = {}
_keeping = False


@contextmanager
def keeping() -> Iterator[None]:
    """Keep the tables of the random sites that are passed on a GPU inside."""
    global _keeping
    before, _keeping = _keeping, True
    try:
        yield
    finally:
        _keeping = before


def note(layout: ElementLayout) -> None:
    """Keep the table of a site, if tables are being kept."""
    if _keeping and layout.device.type == "cuda" and layout.row_elements <= _LARGEST:
        _kept[_key(layout)] = layout.table()


def find(layout: ElementLayout) -> Tensor | None:
    """The table of a site, for code that is being compiled and knows the sizes of a row."""
    if not torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
        return None
    if not all(has_static_value(size) for size in layout.row_shape):
        return None
    return _kept.get(_key(layout))


def _key(layout: ElementLayout) -> _Key:
    return layout.row_shape, layout.memory_format, layout.device
