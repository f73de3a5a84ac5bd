"""Fog: a plasma cloud over the image."""

from __future__ import annotations

import numpy as np

from rbue.lab.corruptions.batch import Batch, Floats, to_bytes
from rbue.lab.corruptions.registry import corruption
from rbue.lab.data.images import Bytes


@corruption(
    cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    tiny_imagenet=((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
)
def fog(batch: Batch, amount: float, decay: float) -> Bytes:
    """``(x + amount·cloud)·m / (m + amount)``, where ``m`` is the image's largest value: the highlights stay."""
    height, width = batch.size
    side = 1 << (max(height, width) - 1).bit_length()
    foggy = batch.fractions
    largest = foggy.max(axis=(1, 2, 3), keepdims=True)
    cloud = plasma(batch.uniform(-1.0, 1.0, side * side - 1), side, decay)[:, :height, :width]
    foggy += amount * cloud[..., None]
    foggy *= largest / (largest + amount)
    return to_bytes(foggy)


def plasma(noise: Floats, side: int, decay: float) -> Floats:
    """Clouds between 0 and 1 by midpoint displacement on a torus.

    From one corner on, each round puts a point into the middle of every square of four known ones and then of every
    diamond of four: their mean plus noise in ±w², where ``w`` begins at 100 and is divided by ``decay`` every round.

    Args:
        noise: Numbers in ±1, ``(B, side² - 1)``, used up in order.
        side: A power of two.
        decay: The larger, the smoother.

    Returns:
        ``(B, side, side)``.
    """
    cloud = np.zeros((len(noise), side, side))
    used, wobble, step = 0, 100.0, side
    while step >= 2:
        half = step // 2
        cells = side // step
        rough = noise[:, used : used + 3 * cells * cells].reshape(-1, 3, cells, cells) * wobble**2
        used += 3 * cells * cells
        corners = cloud[:, ::step, ::step]
        below = corners + np.roll(corners, -1, axis=1)
        middles = (below + np.roll(below, -1, axis=2)) / 4 + rough[:, 0]
        cloud[:, half::step, half::step] = middles
        beside = corners + np.roll(corners, -1, axis=2) + middles + np.roll(middles, 1, axis=1)
        cloud[:, ::step, half::step] = beside / 4 + rough[:, 1]
        under = corners + np.roll(corners, -1, axis=1) + middles + np.roll(middles, 1, axis=2)
        cloud[:, half::step, ::step] = under / 4 + rough[:, 2]
        step, wobble = half, wobble / decay
    cloud -= cloud.min(axis=(1, 2), keepdims=True)
    cloud /= cloud.max(axis=(1, 2), keepdims=True)
    return cloud
