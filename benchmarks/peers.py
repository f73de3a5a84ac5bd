"""The random activations that most people would write, put in the place of ``F.relu``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

plain_relu = F.relu
Relu = Callable[..., Tensor]


def rand_formula(x: Tensor, inplace: bool = False) -> Tensor:
    """DropReLU(0.9) with torch's own random numbers."""
    return torch.where(torch.rand_like(x) < 0.9, plain_relu(x), x)


def torch_rrelu(x: Tensor, inplace: bool = False) -> Tensor:
    """Torch's own RReLU."""
    return F.rrelu(x, 1 / 8, 1 / 3, training=True)


PEERS: dict[str, Relu] = {"torch.rand formula": rand_formula, "torch F.rrelu": torch_rrelu}


def with_relu(relu: Relu | None) -> AbstractContextManager:
    """Networks that call ``F.relu`` call this instead; None changes nothing."""
    return nullcontext() if relu is None else mock.patch.object(F, "relu", relu)
