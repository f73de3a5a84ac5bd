"""How much memory the rows of a pass take while it runs."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from rbue.torch_internals import TorchDispatchMode, tree_leaves


class LiveRows:
    """Follows the tensors of one pass from when they are noted until nobody holds them any more.

    Attributes:
        peak: the most bytes a row that were held at once: ``peak[False]`` in tensors with one row an image,
            ``peak[True]`` in those with one a sample and image.
    """

    def __init__(self) -> None:
        self.peak = {False: 0.0, True: 0.0}
        self._held = {False: 0.0, True: 0.0}
        self._owners: Counter[tuple[bool, int]] = Counter()

    def note(self, x: Tensor, rows: int, sampled: bool) -> None:
        """Count the memory of ``x``, once for all tensors that share it."""
        storage = x.untyped_storage()
        owner, size = (sampled, storage.data_ptr()), storage.nbytes() / rows
        if not self._owners[owner]:
            self._held[sampled] += size
            self.peak[sampled] = max(self.peak[sampled], self._held[sampled])
        self._owners[owner] += 1
        weakref.finalize(x, self._forget, owner, size).atexit = False

    def _forget(self, owner: tuple[bool, int], size: float) -> None:
        self._owners[owner] -= 1
        if not self._owners[owner]:
            self._held[owner[0]] -= size

    def inside(self, inputs: Iterable[Tensor], rows: int, sampled: bool) -> TorchDispatchMode:
        """Follow what one call makes of its inputs on the way to its result: attention, say, makes much."""
        return _Inside(self, inputs, rows, sampled)


class _Inside(TorchDispatchMode):
    """Sees every operation within a call; what comes from weights alone (such as their casts) is not a row's."""

    def __init__(self, live: LiveRows, inputs: Iterable[Tensor], rows: int, sampled: bool) -> None:
        super().__init__()
        self.live, self.rows, self.sampled = live, rows, sampled
        self.carrying = {x.untyped_storage().data_ptr() for x in inputs}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(self._carries(x) for x in tree_leaves((args, kwargs))):
            for x in tree_leaves(out):
                if isinstance(x, Tensor):
                    self.carrying.add(x.untyped_storage().data_ptr())
                    self.live.note(x, self.rows, self.sampled)
        return out

    def _carries(self, x: Any) -> bool:
        return isinstance(x, Tensor) and x.untyped_storage().data_ptr() in self.carrying
