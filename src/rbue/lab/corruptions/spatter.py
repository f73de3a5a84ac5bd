"""Spatter: drops of water or mud on the lens."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbue.errors import RbueError
from rbue.lab.corruptions.batch import Batch, Floats, to_bytes
from rbue.lab.corruptions.blur import smooth
from rbue.lab.corruptions.registry import corruption
from rbue.lab.data.images import Bytes

_WATER = np.array([175, 238, 238]) / 255.0
_MUD = np.array([63, 42, 20]) / 255.0
_LIGHT_FROM_UPPER_LEFT = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])


@corruption(
    cifar=(
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    tiny_imagenet=(
        (0.62, 0.1, 0.7, 0.7, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1),
        (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    ),
)
def spatter(
    batch: Batch, mean: float, deviation: float, smoothing: float, threshold: float, strength: float, mud: float
) -> Bytes:
    """Where smoothed normal noise reaches ``threshold`` there is liquid.

    Water adds ``strength·m·(pale turquoise)``, with ``m`` brightest along the drops' edges. Mud covers:
    ``(1 - m)·x + m·brown``, with ``m`` the drops' shape, smoothed by ``strength`` pixels and 0 below 0.8.
    """
    liquid = batch.normal(*batch.size)
    liquid *= deviation
    liquid += mean
    liquid = smooth(liquid, smoothing)
    images = batch.fractions
    if mud:
        cover = smooth((liquid > threshold).astype(np.float64), strength)
        cover[cover < 0.8] = 0.0
        images *= 1 - cover[..., None]
        images += cover[..., None] * _MUD
    else:
        liquid[liquid < threshold] = 0.0
        images += (strength * _shine(to_bytes(liquid)))[..., None] * _WATER
    return to_bytes(images)


def _shine(liquid: Bytes) -> Floats:
    """How brightly water shines, 0 to 1 in every image: its depth times a relief of the distance to its edges."""
    cv2 = _opencv()
    relief = np.empty(liquid.shape, dtype=np.float32)
    for drops, out in zip(liquid, relief, strict=True):
        from_edge = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
        height = cv2.equalizeHist(cv2.blur(np.minimum(from_edge, 20), (3, 3)).astype(np.uint8))
        out[:] = cv2.blur(cv2.filter2D(height, cv2.CV_8U, _LIGHT_FROM_UPPER_LEFT), (3, 3))
    shine: NDArray[Any] = liquid * relief
    brightest = shine.max(axis=(1, 2), keepdims=True)
    return shine / np.where(brightest > 0, brightest, 1.0)


def _opencv() -> ModuleType:
    try:
        import cv2
    except ImportError as error:
        raise RbueError(
            f"spatter needs OpenCV, which could not be imported ({error}); run `pip install rbue[lab]`."
        ) from error
    return cv2
