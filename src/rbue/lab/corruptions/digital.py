"""Digital corruptions: brightness, contrast, saturation, elastic transform, coarser pixels and JPEG."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rbue.lab.corruptions.corrupting import Batch, Floats, corruption, to_bytes
from rbue.lab.data.images import Bytes


@corruption(cifar=(0.05, 0.1, 0.15, 0.2, 0.3), tiny_imagenet=(0.1, 0.2, 0.3, 0.4, 0.5))
def brightness(batch: Batch, added: float) -> Bytes:
    """``V + added`` in HSV, at most 1.

    With hue and saturation kept, that is ``x·V'/V``, where ``V`` is the pixel's largest value; black becomes grey.
    """
    images = batch.fractions
    value = _value(images)
    with np.errstate(invalid="ignore"):
        images /= value
    np.copyto(images, 1.0, where=value == 0)
    images *= np.clip(value + added, 0.0, 1.0)
    return to_bytes(images)


@corruption(
    cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    tiny_imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
)
def saturate(batch: Batch, factor: float, added: float) -> Bytes:
    """``S·factor + added`` in HSV, between 0 and 1.

    With hue and value kept, that is ``V - (V - x)·S'/S``; grey has no hue, counts as red, and so turns reddish.
    """
    images = batch.fractions
    value = _value(images)
    smallest = np.minimum(np.minimum(images[..., :1], images[..., 1:2]), images[..., 2:])
    with np.errstate(invalid="ignore", divide="ignore"):
        saturation = (value - smallest) / value
        saturation[value == 0] = 0.0
        change = np.clip(saturation * factor + added, 0.0, 1.0) / saturation
    grey = (saturation == 0)[..., 0]
    change[grey] = 0.0
    changed = value - (value - images) * change
    if added:
        changed[grey, 1:] *= 1 - min(added, 1.0)
    return to_bytes(changed)


def _value(images: Floats) -> Floats:
    return np.maximum(np.maximum(images[..., :1], images[..., 1:2]), images[..., 2:])


@corruption(cifar=(0.75, 0.5, 0.4, 0.3, 0.15), tiny_imagenet=(0.4, 0.3, 0.2, 0.1, 0.05))
def contrast(batch: Batch, factor: float) -> Bytes:
    """``(x - mean)·factor + mean`` with the mean of each channel of the image."""
    height, width = batch.size
    # Sums of integers are exact in any order, so that a mean cannot depend on the batch.
    mean = batch.images.sum(axis=(1, 2), dtype=np.int64, keepdims=True) / (255.0 * height * width)
    images = batch.fractions
    images -= mean
    images *= factor
    images += mean
    return to_bytes(images)


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
    images = _sample(batch.fractions.astype(np.float32), *sources, edge_twice=False)
    if strength:
        moves = batch.uniform(-1.0, 1.0, 2, height, width)
        std = smoothing * side
        moves = gaussian_filter(moves, (0, 0, std, std), mode="reflect", truncate=3.0) * (strength * side)
        rows, columns = np.arange(height)[:, None] + moves[:, 0], np.arange(width) + moves[:, 1]
        images = _sample(images, rows, columns, edge_twice=True)
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


def _sample(images: NDArray[np.float32], rows: Floats, columns: Floats, edge_twice: bool) -> NDArray[np.float32]:
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


@corruption(cifar=(0.95, 0.9, 0.85, 0.75, 0.65), tiny_imagenet=(0.9, 0.8, 0.7, 0.6, 0.5))
def pixelate(batch: Batch, share: float) -> Bytes:
    """Box averages on a grid of ``int(side·share)`` pixels, and back."""
    height, width = batch.size
    coarse_height, coarse_width = max(1, int(height * share)), max(1, int(width * share))
    across = _resize_lines(batch.images, coarse_width)
    coarse = _resize_lines(across.transpose(0, 2, 1, 3), coarse_height).transpose(0, 2, 1, 3)
    across = _resize_lines(coarse, width)
    return _resize_lines(across.transpose(0, 2, 1, 3), height).transpose(0, 2, 1, 3)


def _resize_lines(images: Bytes, length: int) -> Bytes:
    """All lines of all images in one call. Pillow does rows first, then columns, so this is its own result."""
    count, height, width, channels = images.shape
    lines = Image.fromarray(np.ascontiguousarray(images).reshape(count * height, width, channels))
    resized = lines.resize((length, count * height), Image.Resampling.BOX)
    return np.asarray(resized).reshape(count, height, length, channels)


@corruption(cifar=(80, 65, 58, 50, 40), tiny_imagenet=(65, 58, 50, 40, 25), threaded=False)
def jpeg_compression(batch: Batch, quality: float) -> Bytes:
    """To JPEG of that quality and back."""
    out = np.empty_like(batch.images)
    for row, image in zip(out, batch.images, strict=True):
        with io.BytesIO() as file:
            Image.fromarray(image).save(file, "JPEG", quality=int(quality))
            row[:] = np.asarray(Image.open(file, formats=("JPEG",)))
    return out
