"""Elastic transform: the image on a sheet of rubber, pulled as a whole and then in places."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbue.lab.corruptions.batch import Batch, Floats, to_bytes
from rbue.lab.corruptions.registry import corruption
from rbue.lab.data.images import Bytes


@corruption(
    cifar=((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    tiny_imagenet=((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
)
def elastic_transform(batch: Batch, strength: float, smoothing: float, jitter: float) -> Bytes:
    """An affine map, then displacements; lengths are fractions of the shorter side.

    The affine map moves three points around the middle by up to ``jitter`` each way. The displacements are uniform
    noise in ±1, smoothed by a Gaussian of ``smoothing`` and times ``strength``. Values between pixels are interpolated
    linearly, each time; beyond the border the image is mirrored.
    """
    from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]  # slow to load

    height, width = batch.size
    side = min(height, width)
    sources = _affine_sources(batch.uniform(-jitter * side, jitter * side, 3, 2), height, width)
    images = sample(batch.fractions.astype(np.float32), *sources, edge_twice=False)
    if strength:
        moves = batch.uniform(-1.0, 1.0, 2, height, width)
        deviation = smoothing * side
        moves = gaussian_filter(moves, (0, 0, deviation, deviation), mode="reflect", truncate=3.0) * (strength * side)
        rows, columns = np.arange(height)[:, None] + moves[:, 0], np.arange(width) + moves[:, 1]
        images = sample(images, rows, columns, edge_twice=True)
    return to_bytes(images)


def _affine_sources(jitter: Floats, height: int, width: int) -> tuple[Floats, Floats]:
    """For every pixel of the result, the row and column it comes from, ``(B, H, W)`` each."""
    third = min(height, width) // 3
    across, down = width // 2, height // 2
    before = np.array([(across + third, down + third), (across + third, down - third), (across - third, down - third)])
    after = before + jitter
    corners = np.concatenate([after, np.ones_like(after[..., :1])], axis=2)
    back = np.linalg.solve(corners, np.broadcast_to(before.astype(np.float64), after.shape))[:, :, None, None]
    row, column = np.arange(height)[:, None], np.arange(width)
    return tuple(back[:, 0, ..., k] * column + back[:, 1, ..., k] * row + back[:, 2, ..., k] for k in (1, 0))  # type: ignore[return-value]


def sample(images: NDArray[np.float32], rows: Floats, columns: Floats, edge_twice: bool) -> NDArray[np.float32]:
    """Images (B, H, W, C) read between pixels, linearly.

    Args:
        images: What to read.
        rows: ``(B, H, W)``.
        columns: Likewise.
        edge_twice: Whether the mirror beyond the border repeats the outermost pixel (``c b a | a b c``) or not
            (``c b | a b c``).
    """
    count, height, width, channels = images.shape
    top, left = np.floor(rows), np.floor(columns)
    down, right = ((rows - top).astype(np.float32)[..., None], (columns - left).astype(np.float32)[..., None])
    upper = _mirrored(top, height, edge_twice) * width
    lower = _mirrored(top + 1, height, edge_twice) * width
    near, far = _mirrored(left, width, edge_twice), _mirrored(left + 1, width, edge_twice)
    upper += (np.arange(count) * (height * width))[:, None, None]
    lower += (np.arange(count) * (height * width))[:, None, None]
    pixels = images.reshape(-1, channels)

    def between(line: NDArray[np.int64]) -> NDArray[Any]:
        start = pixels.take(line + near, axis=0)
        change = pixels.take(line + far, axis=0)
        change -= start
        change *= right
        start += change
        return start

    start, change = between(upper), between(lower)
    change -= start
    change *= down
    start += change
    return start


def _mirrored(places: Floats, length: int, edge_twice: bool) -> NDArray[np.int64]:
    period = 2 * length if edge_twice else 2 * length - 2
    folded = places.astype(np.int64) % period
    return np.minimum(folded, (period - 1 if edge_twice else period) - folded)
