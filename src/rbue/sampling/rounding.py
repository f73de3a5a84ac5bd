"""Whether two outputs are the same but for the rounding of other kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ROUNDING = 64 * torch.finfo(torch.float32).eps
"""How much of a score, at the most, other kernels for float32 round away; offsets make scores large."""
_SMALL = 1e-3
"""Columns of scores below this part of the largest score are small beside it, and not by chance."""
_NEVER = 9e3
"""Networks give a class that is impossible a score at least this far from 0: often -1e4, which is -9984 in bfloat16."""


def agree(
    found: Tensor, expected: Tensor, slack: float = 1, among: Tensor | None = None, by_column: bool = False
) -> bool:
    """Whether two outputs ``(s, b, ...)`` are equal but for the rounding of other kernels.

    What rounding does is measured by how far scores lie apart ``among`` the outputs, by default the expected ones: all
    of them may be large, as temperatures in kelvin are, and say no more for that. Half precision, and the kernels of
    GPUs, round by a part of the score itself. A score that is the same everywhere is a constant, and says nothing.

    ``by_column`` asks the same of small columns by themselves, such as numbers in another unit. They may be differences
    of large ones, which round by more: so it is asked of the same kernels, or where more passes can follow.
    """
    if found.shape != expected.shape:
        return False
    off = (found - expected).abs().masked_fill(found == expected, 0)
    among = expected if among is None else among
    if by_column and found.dim() > 2:
        axis = 2 if found.dim() > 4 else -1  # the classes of maps, or the last of sequences
        sizes = among.abs().movedim(axis, 0).flatten(1).amax(1)
        small = (sizes < _SMALL * sizes.max()).nonzero()[:, 0]
        of_found, of_expected, of_among = (one.index_select(axis, small) for one in (found, expected, among))
        if len(small) and not agree(of_found, of_expected, slack, of_among, by_column):
            return False
    several = among.shape[0] * among.shape[1] > 1
    constant = (among == among[:1, :1]).all(0, keepdim=True).all(1, keepdim=True) & several
    largest = _largest_score(found, expected, constant)
    if expected.dtype not in (torch.float32, torch.float64):
        rounding = slack * 3e-2 * largest
    elif expected.is_cuda:
        rounding = slack * 1e-3 * largest
    else:
        rounding = slack * 1e-3 * _widest_range(among) + max(1, slack) * _ROUNDING * largest
    return float(off.max()) <= rounding < math.inf


def _largest_score(found: Tensor, expected: Tensor, constant: Tensor) -> float:
    """The largest score expected; not one that stands for "never", such as -1e9 or -inf.

    Such a one is far from the others, whatever they are, and always exactly the same. Nor one that is ``constant``.
    """
    sizes = expected.abs()
    given = (found == expected) & ((sizes >= _NEVER) | constant)
    return float(sizes.masked_fill(given, 0).max())


def _widest_range(scores: Tensor) -> float:
    """How far the scores ``(s, b, ...)`` of one place lie apart at the most; "never" is left out beside others."""
    usual = scores.abs() < _NEVER
    usual |= ~usual.flatten(0, 1).any(0)
    low, high = (scores.masked_fill(~usual, end).flatten(0, 1) for end in (math.inf, -math.inf))
    return float((high.amax(0) - low.amin(0)).nan_to_num(0.0, posinf=0.0).max())
