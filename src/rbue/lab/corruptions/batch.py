"""Images on their way through a corruption, and the random numbers that belong to each of them.

Every image has a generator of its own, ``Generator(Philox(key))``, whose 128-bit key is the seed (64 bits) and the
image number, severity and corruption (48, 8 and 8 bits). Distinct keys are distinct streams, so an image's numbers
depend neither on the batch it is in nor on its neighbours. ``SCHEME`` counts changes of the keys, of the order of the
draws or of the arithmetic: pixels are promised to stay the same within one scheme and one version of the libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from rbue.lab.data.images import Bytes

SCHEME = 1
INDEX_LIMIT = 1 << 48
SEED_LIMIT = 1 << 64
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Batch:
    """RGB images (uint8, NHWC) with what their random numbers depend on."""

    images: Bytes
    index: NDArray[np.uint64]
    seed: int
    severity: int
    corruption: int
    frost_folder: Path | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.images.shape[1], self.images.shape[2]

    @property
    def fractions(self) -> Floats:
        """The images as fractions of 255: a new array."""
        return self.images / 255.0

    @cached_property
    def _generators(self) -> list[Generator]:
        key = np.array([self.seed, 0], dtype=np.uint64)
        generators = []
        for number in self.index.tolist():
            key[1] = number << 16 | self.severity << 8 | self.corruption
            generators.append(Generator(Philox(key=key)))
        return generators

    def normal(self, *shape: int) -> Floats:
        """Standard normal numbers, ``(B, *shape)``."""
        return self._fill(shape, lambda generator, out: generator.standard_normal(out=out))

    def uniform(self, low: float, high: float, *shape: int) -> Floats:
        """Numbers between ``low`` and ``high``, ``(B, *shape)``."""
        numbers = self._fill(shape, lambda generator, out: generator.random(out=out))
        numbers *= high - low
        numbers += low
        return numbers

    def integers(self, low: int, high: int, *shape: int) -> NDArray[np.int64]:
        """Integers from ``low`` to ``high - 1``, ``(B, *shape)``."""
        draws = [generator.integers(low, high, shape) for generator in self._generators]
        return np.array(draws, dtype=np.int64).reshape(-1, *shape)

    def poisson(self, rates: Floats) -> Floats:
        """Poisson counts with the given rates, ``(B, ...)``."""
        out = np.empty_like(rates)
        for counts, rate, generator in zip(out, rates, self._generators, strict=True):
            counts[:] = generator.poisson(rate)
        return out

    def _fill(self, shape: tuple[int, ...], draw: Callable[[Generator, Floats], Any]) -> Floats:
        rows = np.empty((len(self.images), int(np.prod(shape))))
        for row, generator in zip(rows, self._generators, strict=True):
            draw(generator, row)
        return rows.reshape(-1, *shape)


def to_bytes(fractions: NDArray[Any]) -> Bytes:
    """Fractions clipped to [0, 1], times 255, cut off (not rounded) as the published sets were. Works in place."""
    np.clip(fractions, 0.0, 1.0, out=fractions)
    fractions *= 255.0
    return fractions.astype(np.uint8)
