"""Damage a batch of images: check what came in, share the work among threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rbue.errors import InvalidInput
from rbue.lab.corruptions.batch import INDEX_LIMIT, SEED_LIMIT, Batch
from rbue.lab.corruptions.registry import CORRUPTIONS, check_severity, find
from rbue.lab.data.images import Bytes

SMALLEST_SIDE = 16
_VALUES_AT_ONCE = 256 * 32 * 32 * 3  # few enough to stay in a core's cache, enough to spread Python's own costs


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
    corruption, severity = find(name), check_severity(severity)
    pixels = _as_pixels(images)
    numbers = _as_numbers(index, len(pixels))
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < SEED_LIMIT:
        raise InvalidInput(f"A seed is a whole number from 0 to 2**64 - 1, got {seed!r}.")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, (int, np.integer)) or threads < 1):
        raise InvalidInput(f"threads must be a whole number of at least 1, or None for one a core, got {threads!r}.")
    chosen = corruption.constants(severity, max(pixels.shape[1:3]), constants)
    folder = None if frost is None else Path(frost)
    out = np.empty((*pixels.shape[:3], 3), dtype=np.uint8)

    def work(part: slice) -> None:
        batch = Batch(
            _as_rgb(pixels[part]), numbers[part], int(seed), severity, CORRUPTIONS.index(corruption.name), folder
        )
        out[part] = corruption.damage(batch, *chosen)

    workers = (threads or usable_cores()) if corruption.threaded else 1
    _share(work, _parts(pixels, workers), workers)
    return out


def constants_of(
    name: str, severity: int, side: int, constants: str | float | Sequence[float] | None = None
) -> tuple[float, ...]:
    """The constants that :func:`corrupt` would use for images of this longest side."""
    return find(name).constants(check_severity(severity), side, constants)


def _share(work: Callable[[slice], None], parts: list[slice], threads: int) -> None:
    if min(len(parts), threads) <= 1:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(min(len(parts), threads)) as pool:
        for _ in pool.map(work, parts):
            pass


def _parts(pixels: NDArray[Any], workers: int) -> list[slice]:
    at_once = _VALUES_AT_ONCE // (pixels.shape[1] * pixels.shape[2] * 3)
    step = max(1, min(at_once, -(-len(pixels) // workers)))
    return [slice(start, start + step) for start in range(0, len(pixels), step)]


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


def _as_rgb(pixels: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:3], 3)))


def _as_numbers(index: ArrayLike | None, count: int) -> NDArray[np.uint64]:
    if index is None:
        return np.arange(count, dtype=np.uint64)
    numbers = np.asarray(index)
    if numbers.shape != (count,) or (count and numbers.dtype.kind not in "iu"):
        raise InvalidInput(
            f"the index needs one whole number an image, ({count},), got {numbers.dtype} {numbers.shape}."
        )
    if count and not (numbers.min() >= 0 and numbers.max() < INDEX_LIMIT):
        raise InvalidInput(f"image numbers must lie in 0..2**48 - 1, got {numbers.min()}..{numbers.max()}.")
    return numbers.astype(np.uint64)
