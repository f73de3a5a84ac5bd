"""The size of a network: its parameters and the multiply-adds of one image."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rbue.errors import InvalidInput


def parameters(network: nn.Module) -> int:
    """How many numbers are trained; a parameter shared by two modules counts once.

    Examples:
        >>> parameters(nn.Linear(4, 3))
        15
    """
    return sum(parameter.numel() for parameter in network.parameters())


def multiply_adds(network: nn.Module, input_shape: Sequence[int]) -> int:
    """How many multiplications, each with its addition, the convolutions and matrix products of one image take.

    Biases, BatchNorm, ReLU and pooling are not counted, as is usual. A copy of the network runs once, in evaluation
    mode, on a black image; the network itself is not touched. What runs is counted, so functional calls count like
    modules. A network built under ``torch.device("meta")`` is counted without computing anything.

    Args:
        network: what to count.
        input_shape: shape of one image without the batch dimension, ``(C, H, W)``.

    Examples:
        >>> multiply_adds(nn.Conv2d(3, 8, 3, padding=1), (3, 32, 32)) == 32 * 32 * 8 * 3 * 9
        True
    """
    shape = tuple(input_shape)
    if not shape or not all(isinstance(side, Integral) and side > 0 for side in shape):
        raise InvalidInput(f"input_shape is {input_shape!r}; give the shape of one image, such as (3, 32, 32).")
    first = next((p for p in network.parameters() if p.is_floating_point()), torch.zeros(0))
    image = torch.zeros(1, *shape, device=first.device, dtype=first.dtype)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        copy.deepcopy(network).eval()(image)
    return counter.get_total_flops() // 2  # torch counts a multiply-add as two operations
