"""Hashes of elements that compiled GPU code reads from memory.

A kernel written by hand computes ``mix(element)`` on the way. A compiled one has more to do for each element (the
BatchNorm before, the sum with a skip connection) and is bound by instructions, so it reads the hash instead: one table
serves all rows and stays in the cache. Tables are made by an ordinary pass inside :func:`keeping`; code compiled
afterwards finds them. A captured graph reads a table at its address, so none is ever dropped or made again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import torch
from torch import Tensor

from rbue.kernels.layout import ElementLayout
from rbue.torch_internals import is_exporting

_LARGEST, _ALL = 4 << 20, 32 << 20
"""Elements of the largest table kept, since a cache holds no more, and of all of them."""

_Key = tuple[tuple[int, ...], torch.memory_format, torch.device]
_kept: dict[_Key, Tensor] = {}
_keeper: int | None = None  # the thread that is inside keeping()
_lock = threading.RLock()


@contextmanager
def keeping() -> Iterator[None]:
    """Keep the tables of the random sites that this thread passes on a GPU inside; one thread at a time."""
    global _keeper
    import_module("torch._inductor.inductor_prims")  # slow to import; has the operator of written()
    with _lock:
        before, _keeper = _keeper, threading.get_ident()
        try:
            yield
        finally:
            _keeper = before


def note(layout: ElementLayout) -> None:
    """Keep the table of a site, if this thread is keeping tables."""
    if _keeper != threading.get_ident() or layout.device.type != "cuda" or layout.shared > 1:
        return  # the words of channels are few, and written to memory
    size = layout.row_elements
    if size > _LARGEST or _key(layout) in _kept:
        return
    if size + sum(table.numel() for table in _kept.values()) <= _ALL:
        _kept[_key(layout)] = layout.table()


def find(layout: ElementLayout) -> Tensor | None:
    """The table of a site, for code that is being compiled and knows the sizes of a row."""
    if not torch.compiler.is_dynamo_compiling() or is_exporting() or layout.shared != 1:
        return None
    from torch.fx.experimental.symbolic_shapes import has_static_value  # slow to import, and here already

    if not all(has_static_value(size) for size in layout.row_shape):
        return None
    return _kept.get(_key(layout))


def written(gradient: Tensor) -> Tensor:
    """A gradient that was drawn from a table, as it is, but written to memory in its own type.

    Two parts of BatchNorm's backward read it. Left alone, torch's compiler would write the slopes to memory for them,
    in ``float32``.
    """
    return torch.ops.prims.inductor_force_stride_order(gradient, gradient.stride())


def _key(layout: ElementLayout) -> _Key:
    return layout.row_shape, layout.memory_format, layout.device
