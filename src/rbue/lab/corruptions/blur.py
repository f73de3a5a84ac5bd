"""Blurs that move no pixel at random: out of focus, Gaussian, and zooming while the shutter is open."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rbue.lab.corruptions import linear
from rbue.lab.corruptions.batch import Batch, Floats, to_bytes
from rbue.lab.corruptions.registry import corruption
from rbue.lab.data.images import Bytes


@corruption(
    cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    tiny_imagenet=((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
)
def defocus_blur(batch: Batch, radius: float, edge_deviation: float) -> Bytes:
    """The mean over a disk of ``radius`` whose edge is softened by a 3x3 Gaussian; mirrored at the border."""
    kernel = disk(radius, edge_deviation)
    reach = len(kernel) // 2
    height, width = batch.size
    padded = np.pad(batch.fractions, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    blurred = np.zeros(batch.images.shape)
    for row, column in np.argwhere(kernel > 0):
        blurred += kernel[row, column] * padded[:, row : row + height, column : column + width]
    return to_bytes(blurred)


@corruption(cifar=(0.4, 0.6, 0.7, 0.8, 1.0), tiny_imagenet=(0.5, 0.75, 1.0, 1.25, 1.5))
def gaussian_blur(batch: Batch, deviation: float) -> Bytes:
    """A Gaussian of ``deviation`` pixels, cut off at four deviations; the border is repeated."""
    return to_bytes(smooth(batch.fractions, deviation))


@corruption(cifar=(1.06, 1.11, 1.16, 1.21, 1.26), tiny_imagenet=(1.06, 1.11, 1.16, 1.21, 1.26))
def zoom_blur(batch: Batch, largest: float) -> Bytes:
    """The mean of the image and its enlargements by 1, 1.01, ... below ``largest``."""
    return to_bytes(linear.apply(linear.mean_enlargement(*batch.size, largest), batch.fractions))


def smooth(images: Floats, deviation: float) -> Floats:
    """A Gaussian over height and width of ``(B, H, W, ...)``; the border is repeated."""
    from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]  # slow to load

    deviations = (0.0, deviation, deviation, *[0.0] * (images.ndim - 3))
    result: Floats = gaussian_filter(images, deviations, mode="nearest", truncate=4.0)
    return result


@lru_cache(maxsize=16)
def disk(radius: float, edge_deviation: float) -> Floats:
    """The kernel of a lens out of focus: a uniform disk, smoothed by a 3x3 Gaussian, without its empty margin."""
    reach = int(radius) + 1
    line = np.arange(-reach, reach + 1)
    inside = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float64)
    inside /= inside.sum()
    tap = float(np.exp(-0.5 / edge_deviation**2))
    for axis in (0, 1):
        inside = (inside + tap * (np.roll(inside, 1, axis) + np.roll(inside, -1, axis))) / (1 + 2 * tap)
    return inside
