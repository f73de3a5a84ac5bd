"""Motion blur: a one-sided Gaussian trail in one direction, as ImageMagick draws it, without ImageMagick."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbue.lab.corruptions.batch import Batch, Floats
from rbue.lab.corruptions.registry import corruption
from rbue.lab.data.images import Bytes

# ImageMagick cuts off at 16 bits, not 8: what is this close below a grey level counts as that level.
_ALMOST = 0.0019
_NEGLIGIBLE = 1e-9


@corruption(
    cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    tiny_imagenet=((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
)
def motion_blur(batch: Batch, radius: float, deviation: float) -> Bytes:
    """A trail of ``2·ceil(radius) + 1`` pixels at an angle between -45 and 45 degrees."""
    return trail(batch.images, radius, deviation, batch.uniform(-45.0, 45.0))


def trail(images: Bytes, radius: float, deviation: float, degrees: Floats) -> Bytes:
    """``Σ k_i·x(row + ceil(i·sin t - ½), column + ceil(i·cos t - ½))`` with ``k_i ∝ exp(-i²/(2·deviation²))``.

    Args:
        images: uint8, ``(B, H, W, C)``; the border is repeated.
        radius: ``i`` runs from 0 to ``2·ceil(radius)``.
        deviation: Of the Gaussian.
        degrees: The angle ``t`` of each image.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-0.5 * (steps / deviation) ** 2)
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


def _equal_runs(*rows: NDArray[Any]) -> list[tuple[int, int]]:
    """The stretches in which none of the rows changes; images of similar angle share a step and are moved together."""
    changes = np.zeros(len(rows[0]) - 1, dtype=bool)
    for row in rows:
        changes |= row[1:] != row[:-1]
    cuts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(rows[0])]
    return list(pairwise(cuts))
