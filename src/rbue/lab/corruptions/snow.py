"""Snow: flakes blown across an image that turns paler."""

from __future__ import annotations

import numpy as np

from rbue.lab.corruptions import linear
from rbue.lab.corruptions.batch import Batch, to_bytes
from rbue.lab.corruptions.motion import trail
from rbue.lab.corruptions.registry import corruption
from rbue.lab.data.images import Bytes

_GREY = (0.299, 0.587, 0.114)


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
    deviation: float,
    enlargement: float,
    threshold: float,
    radius: float,
    trail_deviation: float,
    mix: float,
) -> Bytes:
    """``mix·x + (1 - mix)·max(x, 1.5·grey(x) + ½) + s + s turned by 180 degrees``.

    The flakes ``s`` are normal noise, enlarged, kept where it reaches ``threshold``, and blurred along a direction
    between -135 and -45 degrees.
    """
    layer = batch.normal(*batch.size)[..., None]
    layer *= deviation
    layer += mean
    if enlargement > 1:
        layer = linear.apply(linear.enlargement(*batch.size, enlargement), layer)
    layer[layer < threshold] = 0.0
    flakes = trail(to_bytes(layer), radius, trail_deviation, batch.uniform(-135.0, -45.0)) / 255.0

    clear = batch.fractions
    grey = clear[..., :1] * _GREY[0] + clear[..., 1:2] * _GREY[1] + clear[..., 2:] * _GREY[2]
    snowy = np.maximum(clear, grey * 1.5 + 0.5)
    snowy *= 1 - mix
    snowy += mix * clear
    snowy += flakes + flakes[:, ::-1, ::-1]
    return to_bytes(snowy)
