"""Brightness, contrast and saturation, pixel by pixel."""

from __future__ import annotations

import numpy as np

from rbue.lab.corruptions.batch import Batch, Floats, to_bytes
from rbue.lab.corruptions.registry import corruption
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


def _value(images: Floats) -> Floats:
    return np.maximum(np.maximum(images[..., :1], images[..., 1:2]), images[..., 2:])
