"""Dropout (Srivastava et al., 2014), the rival that random ReLUs are compared with (paper §2).

It acts on the inputs of layers with weights, not on activations, with masks from the same stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rbue.activations.base import Randomness, check_number
from rbue.activations.calls import LAYERS, SiteCall, read_layer
from rbue.errors import InvalidInput
from rbue.random_stream import Cycle, drop_cycle, threshold


@dataclass(frozen=True)
class Dropout(Randomness):
    """Set each input of a layer to 0 with probability ``p``, else divide it by ``1 - p``.

    The scaling keeps the mean, so the expected network is the plain one. The paper uses 0.2 and 0.5.
    """

    p: float = 0.5

    noun = "weight layer"
    calls = LAYERS.keys()
    in_every_module = True

    def __post_init__(self) -> None:
        check_number(self, "p")
        if not 0 <= self.p < 1:
            raise InvalidInput(f"p is the probability that a value is dropped and must lie in [0, 1), not {self.p}.")

    @property
    def cycle(self) -> Cycle:  # type: ignore[override]
        """Each value is dropped once, or kept once if that is rarer."""
        return drop_cycle(self.p)

    def read(self, func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> SiteCall | None:
        """Convolutions and linear layers."""
        return read_layer(func, args, kwargs)

    def formula(self, x: Tensor, words: Tensor) -> Tensor:
        """``0`` or ``x / (1 - p)``; dropped values are selected, not multiplied by zero."""
        return torch.where(words < threshold(self.p), 0.0, x / (1 - self.p))
