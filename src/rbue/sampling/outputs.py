"""What networks return: the scores in it, and whether two of them are the same but for rounding."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rbue.errors import RbueError

_NEVER = 9e3
"""Networks give a class that is impossible a score at least this far from 0: often -1e4, which is -9984 in bfloat16."""


def class_scores(output: Any) -> Tensor:
    """The tensor of class scores in a network's output: itself, its ``.logits``, or its ``"logits"``/``"out"``."""
    for name in ("logits", "out"):
        if isinstance(output, dict) and name in output:
            output = output[name]
        elif not isinstance(output, Tensor) and hasattr(output, name):
            output = getattr(output, name)
    if not isinstance(output, Tensor):
        raise RbueError(
            f"the network returned {type(output).__name__}; rbue needs a tensor, or an object or dict with 'logits' or "
            "'out'; wrap the network in a module that returns its class scores alone, and convert that."
        )
    return output


def agree(found: Tensor, expected: Tensor, slack: float = 1) -> bool:
    """Whether two outputs ``(s, b, ...)`` are equal but for the rounding of other kernels."""
    if found.shape != expected.shape:
        return False
    precision = slack * (1e-3 if expected.dtype in (torch.float32, torch.float64) else 3e-2)
    off = (found - expected).abs().masked_fill(found == expected, 0)
    # A constant in the place of a score says nothing about how exactly the others are computed.
    several = expected.shape[0] * expected.shape[1] > 1
    constant = (expected == expected[:1, :1]).all(0, keepdim=True).all(1, keepdim=True) & several
    return float(off.max()) <= precision * largest_score(found, expected, constant) < math.inf


def largest_score(found: Tensor, expected: Tensor, constant: Tensor | bool = False) -> float:
    """The largest score expected, as a measure of rounding; not one that stands for "never", such as -1e9 or -inf.

    Such a one is far from the others, whatever they are, and always exactly the same. Nor one that is ``constant``.
    """
    sizes = expected.abs()
    given = (found == expected) & ((sizes >= _NEVER) | constant)
    return float(sizes.masked_fill(given, 0).max())
