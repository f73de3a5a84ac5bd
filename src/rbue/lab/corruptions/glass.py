"""Glass blur: seen through frosted glass, every pixel shows a neighbour."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rbue.lab.corruptions.batch import Batch, to_bytes
from rbue.lab.corruptions.blur import smooth
from rbue.lab.corruptions.registry import corruption
from rbue.lab.data.images import Bytes


@corruption(
    cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    tiny_imagenet=((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
)
def glass_blur(batch: Batch, deviation: float, reach: int, rounds: int) -> Bytes:
    """A Gaussian blur, ``rounds`` times a copying of random neighbours, and the Gaussian blur again.

    In a round the pixels are visited from the last to the first, a margin of ``reach`` left out, and each becomes a
    copy of the pixel at an offset from ``-reach`` to ``reach - 1`` in both directions. (The published script means to
    swap the two, but its swap copies.)
    """
    reach, rounds = int(reach), int(rounds)
    count, (height, width) = len(batch.images), batch.size
    pixels = to_bytes(smooth(batch.fractions, deviation)).reshape(count, height * width, 3)
    steps = batch.integers(-reach, reach, rounds, 2, height - 2 * reach, width - 2 * reach)
    for number in range(rounds):
        source = _sources(steps[:, number, 0], steps[:, number, 1], reach, height, width)
        pixels = np.take_along_axis(pixels, source[:, :, None], axis=1)
    return to_bytes(smooth(pixels.reshape(batch.images.shape) / 255.0, deviation))


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
