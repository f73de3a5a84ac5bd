"""Weather: snow, fog, and spatter on the lens. Frost has a module of its own, for its textures."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rbue.errors import RbueError
from rbue.lab.corruptions.blur import apply_map, enlargement_map, smooth, trail
from rbue.lab.corruptions.corrupting import Batch, Floats, corruption, to_bytes
from rbue.lab.data.images import Bytes

_GREY = (0.299, 0.587, 0.114)
_WATER = np.array([175, 238, 238]) / 255.0
_MUD = np.array([63, 42, 20]) / 255.0
_LIGHT_FROM_UPPER_LEFT = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])


@corruption(
    cifar=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    tiny_imagenet=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
)
def snow(
    batch: Batch,
    mean: float,
    std: float,
    enlargement: float,
    threshold: float,
    radius: float,
    trail_std: float,
    mix: float,
) -> Bytes:
    """``mix·x + (1 - mix)·max(x, 1.5·grey(x) + ½) + s + s turned by 180 degrees``.

    The flakes ``s`` are normal noise, enlarged, kept where it reaches ``threshold``, and blurred along a direction
    between -135 and -45 degrees.
    """
    layer = batch.normal(*batch.size)[..., None]
    layer *= std
    layer += mean
    if enlargement > 1:
        layer = apply_map(enlargement_map(*batch.size, enlargement), layer)
    layer[layer < threshold] = 0.0
    flakes = trail(to_bytes(layer), radius, trail_std, batch.uniform(-135.0, -45.0)) / 255.0

    clear = batch.fractions
    grey = clear[..., :1] * _GREY[0] + clear[..., 1:2] * _GREY[1] + clear[..., 2:] * _GREY[2]
    snowy = np.maximum(clear, grey * 1.5 + 0.5)
    snowy *= 1 - mix
    snowy += mix * clear
    snowy += flakes + flakes[:, ::-1, ::-1]
    return to_bytes(snowy)


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
    cloud = _plasma(batch.uniform(-1.0, 1.0, side * side - 1), side, decay)[:, :height, :width]
    foggy += amount * cloud[..., None]
    foggy *= largest / (largest + amount)
    return to_bytes(foggy)


def _plasma(noise: Floats, side: int, decay: float) -> Floats:
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
    batch: Batch, mean: float, std: float, smoothing: float, threshold: float, strength: float, mud: float
) -> Bytes:
    """Where smoothed normal noise reaches ``threshold`` there is liquid.

    Water adds ``strength·m·(pale turquoise)``, with ``m`` brightest along the drops' edges. Mud covers:
    ``(1 - m)·x + m·brown``, with ``m`` the drops' shape, smoothed by ``strength`` pixels and 0 below 0.8.
    """
    liquid = batch.normal(*batch.size)
    liquid *= std
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
            f"spatter needs OpenCV, which could not be imported ({error}); run `pip install 'rbue[lab]'`."
        ) from error
    return cv2
