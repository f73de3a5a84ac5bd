"""Blurs: out of focus, Gaussian, frosted glass, motion, and zooming while the shutter is open."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rbue.lab.corruptions.corrupting import Batch, Floats, corruption, to_bytes
from rbue.lab.data.images import Bytes

if TYPE_CHECKING:
    from scipy import sparse  # type: ignore[import-untyped]

# ImageMagick cuts off at 16 bits, not 8: what is this close below a grey level counts as that level.
_ALMOST = 0.0019
_NEGLIGIBLE = 1e-9


@corruption(
    cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    tiny_imagenet=((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
)
def defocus_blur(batch: Batch, radius: float, edge_std: float) -> Bytes:
    """The mean over a disk of ``radius`` whose edge is softened by a 3x3 Gaussian; mirrored at the border."""
    kernel = _disk(radius, edge_std)
    reach = len(kernel) // 2
    height, width = batch.size
    padded = np.pad(batch.fractions, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    blurred = np.zeros(batch.images.shape)
    for row, column in np.argwhere(kernel > 0):
        blurred += kernel[row, column] * padded[:, row : row + height, column : column + width]
    return to_bytes(blurred)


@lru_cache(maxsize=16)
def _disk(radius: float, edge_std: float) -> Floats:
    """The kernel of a lens out of focus: a uniform disk, smoothed by a 3x3 Gaussian, without its empty margin."""
    reach = int(radius) + 1
    line = np.arange(-reach, reach + 1)
    inside = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float64)
    inside /= inside.sum()
    tap = float(np.exp(-0.5 / edge_std**2))
    for axis in (0, 1):
        inside = (inside + tap * (np.roll(inside, 1, axis) + np.roll(inside, -1, axis))) / (1 + 2 * tap)
    return inside


@corruption(cifar=(0.4, 0.6, 0.7, 0.8, 1.0), tiny_imagenet=(0.5, 0.75, 1.0, 1.25, 1.5))
def gaussian_blur(batch: Batch, std: float) -> Bytes:
    """A Gaussian of ``std`` pixels, cut off at four of them; the border is repeated."""
    return to_bytes(smooth(batch.fractions, std))


def smooth(images: Floats, std: float) -> Floats:
    """A Gaussian over height and width of ``(B, H, W, ...)``; the border is repeated."""
    from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]  # slow to load

    return gaussian_filter(images, (0.0, std, std, *[0.0] * (images.ndim - 3)), mode="nearest", truncate=4.0)


@corruption(
    cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    tiny_imagenet=((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
)
def glass_blur(batch: Batch, std: float, reach: int, rounds: int) -> Bytes:
    """A Gaussian blur, ``rounds`` times a copying of random neighbours, and the Gaussian blur again.

    In a round the pixels are visited from the last to the first, a margin of ``reach`` left out, and each becomes a
    copy of the pixel at an offset from ``-reach`` to ``reach - 1`` in both directions. (The published script means to
    swap the two, but its swap copies.)
    """
    reach, rounds = int(reach), int(rounds)
    count, (height, width) = len(batch.images), batch.size
    pixels = to_bytes(smooth(batch.fractions, std)).reshape(count, height * width, 3)
    steps = batch.integers(-reach, reach, rounds, 2, height - 2 * reach, width - 2 * reach)
    for number in range(rounds):
        source = _sources(steps[:, number, 0], steps[:, number, 1], reach, height, width)
        pixels = np.take_along_axis(pixels, source[:, :, None], axis=1)
    return to_bytes(smooth(pixels.reshape(batch.images.shape) / 255.0, std))


def _sources(
    down: NDArray[np.int64], right: NDArray[np.int64], reach: int, height: int, width: int
) -> NDArray[np.int64]:
    """Where each pixel's value comes from after one round, ``(B, H·W)``."""
    places = np.arange(height * width).reshape(height, width)
    source = np.repeat(places[None], len(down), axis=0)
    source[:, reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] += down * width + right
    source = source.reshape(len(down), -1)
    # A pixel further on has been visited before, so it already shows its own source: follow it, two steps at a time.
    unfinished = source > places.reshape(-1)
    while unfinished.any():
        onward = np.take_along_axis(source, source, axis=1)
        still = np.take_along_axis(unfinished, source, axis=1)
        source = np.where(unfinished, onward, source)
        unfinished &= still
    return source


@corruption(
    cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)), tiny_imagenet=((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3))
)
def motion_blur(batch: Batch, radius: float, std: float) -> Bytes:
    """A trail of ``2·ceil(radius) + 1`` pixels at an angle between -45 and 45 degrees."""
    return trail(batch.images, radius, std, batch.uniform(-45.0, 45.0))


def trail(images: Bytes, radius: float, std: float, degrees: Floats) -> Bytes:
    """``Σ k_i·x(row + ceil(i·sin t - ½), column + ceil(i·cos t - ½))`` with ``k_i ∝ exp(-i²/(2·std²))``.

    Args:
        images: uint8, ``(B, H, W, C)``; the border is repeated.
        radius: ``i`` runs from 0 to ``2·ceil(radius)``.
        std: Of the Gaussian.
        degrees: The angle ``t`` of each image.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-0.5 * (steps / std) ** 2)
    weights /= weights.sum()
    steps, weights = steps[weights > _NEGLIGIBLE], weights[weights > _NEGLIGIBLE].astype(np.float32)

    by_angle = np.argsort(degrees, kind="stable")
    angles = np.deg2rad(degrees[by_angle])[:, None]
    right = np.ceil(steps * np.cos(angles) - 0.5).astype(np.int64)
    down = np.ceil(steps * np.sin(angles) - 0.5).astype(np.int64)

    margin = int(steps[-1]) + 1
    height, width = images.shape[1:3]
    frame = ((0, 0), (margin, margin), (margin, margin), (0, 0))
    padded = np.pad(images[by_angle], frame, mode="edge").astype(np.float32)
    total = np.zeros(images.shape, dtype=np.float32)
    for step, weight in enumerate(weights):
        for first, last in _equal_runs(down[:, step], right[:, step]):
            top, left = margin + int(down[first, step]), margin + int(right[first, step])
            total[first:last] += weight * padded[first:last, top : top + height, left : left + width]
    blurred = np.empty_like(images)
    blurred[by_angle] = np.minimum(total + np.float32(_ALMOST), 255.0).astype(np.uint8)
    return blurred


def _equal_runs(down: NDArray[np.int64], right: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The stretches in which neither changes; images of similar angle share a step and are moved together."""
    changes = np.flatnonzero((down[1:] != down[:-1]) | (right[1:] != right[:-1])) + 1
    return list(pairwise([0, *changes.tolist(), len(down)]))


@corruption(cifar=(1.06, 1.11, 1.16, 1.21, 1.26), tiny_imagenet=(1.06, 1.11, 1.16, 1.21, 1.26))
def zoom_blur(batch: Batch, largest: float) -> Bytes:
    """The mean of the image and its enlargements by 1, 1.01, ... below ``largest``."""
    return to_bytes(apply_map(_mean_enlargement_map(*batch.size, largest), batch.fractions))


def apply_map(matrix: sparse.csr_array, images: NDArray[Any]) -> Floats:
    """A linear map on every image and channel of ``(B, H, W, C)``; the matrix is ``(H·W, H·W)``."""
    count, height, width, channels = images.shape
    pixels_first = images.reshape(count, height * width, channels).transpose(1, 0, 2).reshape(height * width, -1)
    mapped: Floats = matrix @ pixels_first.astype(np.float64)
    return mapped.reshape(height * width, count, channels).transpose(1, 0, 2).reshape(images.shape)


@lru_cache(maxsize=64)
def enlargement_map(height: int, width: int, factor: float) -> sparse.csr_array:
    """The middle of an image, enlarged by ``factor`` with linear interpolation and cut to the old size."""
    from scipy import sparse

    return sparse.csr_array(sparse.kron(_enlarge_line(height, factor), _enlarge_line(width, factor), format="csr"))


@lru_cache(maxsize=16)
def _mean_enlargement_map(height: int, width: int, largest: float, step: float = 0.01) -> sparse.csr_array:
    """The mean of an image and its enlargements by ``1, 1 + step, ...`` below ``largest``."""
    factors = np.arange(1.0, largest, step)
    from scipy import sparse

    total = sparse.eye_array(height * width, format="csr")
    for factor in factors:
        total = total + enlargement_map(height, width, float(factor))
    return sparse.csr_array(total / (len(factors) + 1))


def _enlarge_line(length: int, factor: float) -> sparse.csr_array:
    """The matrix of one axis: what scipy's ``zoom`` makes of each unit vector."""
    kept = int(np.ceil(length / factor))
    first = (length - kept) // 2
    from scipy import sparse
    from scipy.ndimage import zoom

    enlarged = zoom(np.eye(length)[first : first + kept], (factor, 1.0), order=1)
    surplus = (len(enlarged) - length) // 2
    return sparse.csr_array(enlarged[surplus : surplus + length])
