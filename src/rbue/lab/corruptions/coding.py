"""Coarser pixels and JPEG, both through Pillow."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from rbue.lab.corruptions.batch import Batch
from rbue.lab.corruptions.registry import corruption
from rbue.lab.data.images import Bytes


@corruption(cifar=(0.95, 0.9, 0.85, 0.75, 0.65), tiny_imagenet=(0.9, 0.8, 0.7, 0.6, 0.5))
def pixelate(batch: Batch, share: float) -> Bytes:
    """Box averages on a grid of ``int(side·share)`` pixels, and back."""
    height, width = batch.size
    coarse_height, coarse_width = max(1, int(height * share)), max(1, int(width * share))
    across = _resize_lines(batch.images, coarse_width)
    coarse = _resize_lines(across.transpose(0, 2, 1, 3), coarse_height).transpose(0, 2, 1, 3)
    across = _resize_lines(coarse, width)
    return _resize_lines(across.transpose(0, 2, 1, 3), height).transpose(0, 2, 1, 3)


@corruption(cifar=(80, 65, 58, 50, 40), tiny_imagenet=(65, 58, 50, 40, 25), threaded=False)
def jpeg_compression(batch: Batch, quality: float) -> Bytes:
    """To JPEG of that quality and back."""
    out = np.empty_like(batch.images)
    for row, image in zip(out, batch.images, strict=True):
        with io.BytesIO() as file:
            Image.fromarray(image).save(file, "JPEG", quality=int(quality))
            row[:] = np.asarray(Image.open(file))
    return out


def _resize_lines(images: Bytes, length: int) -> Bytes:
    """All lines of all images in one call. Pillow does rows first, then columns, so this is its own result."""
    count, height, width, channels = images.shape
    lines = Image.fromarray(np.ascontiguousarray(images).reshape(count * height, width, channels))
    resized = lines.resize((length, count * height), Image.Resampling.BOX)
    return np.asarray(resized).reshape(count, height, length, channels)
