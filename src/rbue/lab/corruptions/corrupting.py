"""Damage a batch of images: the 19 corruptions by name, each image's own random numbers, the work shared by threads.

Every image has a generator of its own, ``Generator(Philox(key))``, whose 128-bit key is the seed (64 bits) and the
image number, severity and corruption (48, 8 and 8 bits). Distinct keys are distinct streams, so an image's numbers
depend neither on the batch it is in nor on its neighbours. ``SCHEME`` counts changes of the keys, of the order of the
draws or of the arithmetic: pixels are promised to stay the same within one scheme and one version of the libraries.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import ArrayLike, NDArray

from rbue.errors import InvalidInput, did_you_mean
from rbue.lab.data.images import Bytes
from rbue.lab.processes import usable_cores

# The published files carry these names. A corruption's place in this list is part of its random key: only append.
CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    *("defocus_blur", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "spatter"),
    *("brightness", "contrast", "saturate", "elastic_transform", "pixelate", "jpeg_compression"),
)
# Published beside the 15 main ones, and left out of averages by some papers.
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
SEVERITIES = (1, 2, 3, 4, 5)
CIFAR = "cifar"
TINY_IMAGENET = "tiny-imagenet"
CIFAR_UP_TO = 48  # pixels: the longest side that gets CIFAR's constants

SCHEME = 1
SMALLEST_SIDE = 16
_INDEX_LIMIT = 1 << 48
_SEED_LIMIT = 1 << 64
_VALUES_AT_ONCE = 256 * 32 * 32 * 3  # few enough to stay in a core's cache, enough to spread Python's own costs

Floats = NDArray[np.float64]
Constants = tuple[float, ...]
Damage = Callable[..., Bytes]


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


@dataclass(frozen=True)
class Corruption:
    """A corruption: what it does to a :class:`Batch`, and with which constants.

    Attributes:
        name: As the published files call it.
        damage: ``damage(batch, *constants)`` gives the damaged pixels.
        table: By set of constants (``cifar``, ``tiny-imagenet``), one tuple a severity.
        threaded: Whether threads speed it up; not if it is thousands of short calls that wait for Python's lock.
    """

    name: str
    damage: Damage
    table: dict[str, tuple[Constants, ...]]
    threaded: bool = True

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the constants are called."""
        return tuple(inspect.signature(self.damage).parameters)[1:]

    def constants(self, severity: int, side: int, given: str | float | Sequence[float] | None) -> Constants:
        """The constants to use: the table's for a longest side, those of a named set, or the caller's own."""
        if given is None:
            given = CIFAR if side <= CIFAR_UP_TO else TINY_IMAGENET
        if isinstance(given, str):
            if given not in self.table:
                raise InvalidInput(
                    f"there are no constants called {given!r}{did_you_mean(given, self.table)}; "
                    f"known are {' and '.join(map(repr, self.table))}, or give a tuple ({', '.join(self.parameters)})."
                )
            return self.table[given][severity - 1]
        own = _as_tuple(given)
        numbers = all(isinstance(value, (int, float)) and math.isfinite(value) for value in own)
        if len(own) != len(self.parameters) or not numbers:
            raise InvalidInput(
                f"{self.name} takes {len(self.parameters)} finite numbers ({', '.join(self.parameters)}), "
                f"got {given!r}."
            )
        return own


_FOUND: dict[str, Corruption] = {}


def corruption(cifar: Sequence[Any], tiny_imagenet: Sequence[Any], threaded: bool = True) -> Callable[[Damage], Damage]:
    """Registers a function under its own name with its constants for severities 1 to 5."""

    def register(damage: Damage) -> Damage:
        name = damage.__name__
        assert name in CORRUPTIONS, name
        assert len(cifar) == len(tiny_imagenet) == len(SEVERITIES), name
        table = {CIFAR: tuple(map(_as_tuple, cifar)), TINY_IMAGENET: tuple(map(_as_tuple, tiny_imagenet))}
        _FOUND[name] = Corruption(name, damage, table, threaded)
        return damage

    return register


def find(name: str) -> Corruption:
    """The corruption of a name.

    Raises:
        InvalidInput: No such corruption; the message suggests the nearest name.
    """
    if name not in CORRUPTIONS:
        raise InvalidInput(
            f"there is no corruption called {name!r}{did_you_mean(str(name), CORRUPTIONS)}; "
            f"known are {', '.join(CORRUPTIONS)}."
        )
    return _FOUND[name]


def check_severity(severity: int) -> int:
    """Refuse a severity other than 1 to 5."""
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise InvalidInput(f"A severity is 1, 2, 3, 4 or 5, got {severity!r}; severity 0 is the clean image.")
    return int(severity)


def _as_tuple(value: float | Sequence[float]) -> Constants:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)  # type: ignore[return-value]


def corrupt(
    images: ArrayLike,
    name: str,
    severity: int,
    seed: int = 0,
    index: ArrayLike | None = None,
    constants: str | float | Sequence[float] | None = None,
    *,
    frost: str | os.PathLike[str] | None = None,
    threads: int | None = None,
) -> Bytes:
    """Images damaged as in CIFAR-10-C and TinyImageNet-C.

    An image's new pixels depend on its old ones, its number, the corruption, the severity and the seed, and on nothing
    else: not on the batch it came in, nor on the number of threads.

    Args:
        images: uint8, ``(B, H, W, 3)``, or ``(B, H, W, 1)`` for grey, which is widened to RGB; both sides 16 pixels or
            more. Floats between 0 and 1 are rounded to the nearest of 256 levels first.
        name: One of :data:`CORRUPTIONS`.
        severity: 1 to 5.
        seed: Another seed draws other noise, flakes, angles; ``0 <= seed < 2**64``.
        index: The number of each image, by default 0 to B-1.
        constants: ``cifar`` or ``tiny-imagenet``; or this corruption's own numbers, in place of the severity's. By
            default CIFAR's up to a longest side of 48 pixels, TinyImageNet's above.
        frost: A folder with the published frost photographs (see :func:`frost_source`).
        threads: How many work at the same time; by default one a core.

    Returns:
        uint8, ``(B, H, W, 3)``: a new array.

    Raises:
        InvalidInput: An argument that cannot be used.
        RbueError: A library of ``rbue[lab]`` is missing.

    >>> import numpy as np
    >>> from rbue.lab.corruptions import corrupt
    >>> images = np.full((4, 32, 32, 3), 100, dtype=np.uint8)
    >>> noisy = corrupt(images, "gaussian_noise", severity=3, seed=1)
    >>> alone = corrupt(images[2:3], "gaussian_noise", severity=3, seed=1, index=[2])
    >>> bool((noisy[2:3] == alone).all())
    True
    """
    found, severity = find(name), check_severity(severity)
    pixels = _as_pixels(images)
    numbers = _as_numbers(index, len(pixels))
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < _SEED_LIMIT:
        raise InvalidInput(f"A seed is a whole number from 0 to 2**64 - 1, got {seed!r}.")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, (int, np.integer)) or threads < 1):
        raise InvalidInput(f"threads must be a whole number of at least 1, or None for one a core, got {threads!r}.")
    chosen = found.constants(severity, max(pixels.shape[1:3]), constants)
    folder = None if frost is None else Path(frost)
    out = np.empty((*pixels.shape[:3], 3), dtype=np.uint8)

    def work(part: slice) -> None:
        rgb = np.ascontiguousarray(np.broadcast_to(pixels[part], out[part].shape))
        batch = Batch(rgb, numbers[part], int(seed), severity, CORRUPTIONS.index(name), folder)
        out[part] = found.damage(batch, *chosen)

    workers = (threads or usable_cores()) if found.threaded else 1
    at_once = _VALUES_AT_ONCE // (pixels.shape[1] * pixels.shape[2] * 3)
    step = max(1, min(at_once, -(-len(pixels) // workers)))
    parts = [slice(start, start + step) for start in range(0, len(pixels), step)]
    if min(len(parts), workers) <= 1:
        for part in parts:
            work(part)
        return out
    with ThreadPoolExecutor(min(len(parts), workers)) as pool:
        list(pool.map(work, parts))
    return out


def constants_of(name: str, severity: int, side: int) -> tuple[float, ...]:
    """The constants that :func:`corrupt` uses for images of this longest side, if it is given none."""
    return find(name).constants(check_severity(severity), side, None)


def _as_pixels(images: ArrayLike) -> NDArray[Any]:
    array = np.asarray(images)
    if array.ndim != 4:
        raise InvalidInput(
            f"images must have the shape (B, H, W, C), got {array.shape}; for one image give image[None]."
        )
    height, width, channels = array.shape[1:]
    if channels == 4:
        raise InvalidInput(f"images of shape {array.shape} have four channels (RGBA?); give RGB without transparency.")
    if channels not in (1, 3):
        hint = "; this looks like (B, C, H, W), give (B, H, W, C)" if array.shape[1] in (1, 3) else ""
        raise InvalidInput(f"images must have 3 channels, or 1 for grey, got {channels} in {array.shape}{hint}.")
    if min(height, width) < SMALLEST_SIDE:
        raise InvalidInput(f"images must be at least {SMALLEST_SIDE} pixels high and wide, got {height}x{width}.")
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        raise InvalidInput(f"images must be uint8, or floats between 0 and 1, got {array.dtype}.")
    if len(array) and not (array.min() >= 0 and array.max() <= 1):
        raise InvalidInput(
            f"images given as floats must lie between 0 and 1, got {array.min():g} to {array.max():g}; "
            "divide by 255 or undo the normalisation."
        )
    return np.round(array * 255.0).astype(np.uint8)


def _as_numbers(index: ArrayLike | None, count: int) -> NDArray[np.uint64]:
    if index is None:
        return np.arange(count, dtype=np.uint64)
    numbers = np.asarray(index)
    if numbers.shape != (count,) or (count and numbers.dtype.kind not in "iu"):
        raise InvalidInput(
            f"the index needs one whole number an image, ({count},), got {numbers.dtype} {numbers.shape}."
        )
    if count and not (numbers.min() >= 0 and numbers.max() < _INDEX_LIMIT):
        raise InvalidInput(f"image numbers must lie in 0..2**48 - 1, got {numbers.min()}..{numbers.max()}.")
    return numbers.astype(np.uint64)
