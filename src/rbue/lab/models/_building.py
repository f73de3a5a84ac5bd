"""What the networks share: channel counts under a width factor, pooling that stops in time, initialisation."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from rbue.errors import InvalidInput


def scaled(channels: int, width: float, multiple: int = 8) -> int:
    """``width * channels``, rounded to the nearest multiple and never below one multiple."""
    if isinstance(width, bool) or not isinstance(width, (int, float)) or not (math.isfinite(width) and width > 0):
        raise InvalidInput(f"width is {width!r}; give a number above 0, such as 1 for the full network or 0.25.")
    return max(1, math.floor(channels * width / multiple + 0.5)) * multiple


def halved(x: Tensor, kind: str) -> Tensor:
    """2x2 pooling, ``"max"`` or ``"average"``; a map with a side of 1 stays as it is, where pooling would end it."""
    if min(x.shape[-2:]) < 2:
        return x
    return F.max_pool2d(x, 2) if kind == "max" else F.avg_pool2d(x, 2)


def pooled(x: Tensor) -> Tensor:
    """The mean of each channel, ``(B, C)``, whatever the size of the map."""
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def initialise(network: nn.Module) -> None:
    """He's normal initialisation for convolutions, zero for all biases; torch's own for the rest."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)
