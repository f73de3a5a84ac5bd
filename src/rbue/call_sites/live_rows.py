"""How much memory the rows of a pass take while it runs."""

from __future__ import annotations

import weakref
from collections import Counter

from torch import Tensor


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
