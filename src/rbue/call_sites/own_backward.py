"""ReLUs inside of an ``autograd.Function``, whose backward is its author's and knows nothing of random slopes."""

from __future__ import annotations

import sys
from types import FrameType

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

_APPLY = Function.apply.__func__.__code__  # type: ignore[attr-defined]


def function_around(x: Tensor) -> type | None:
    """The ``autograd.Function`` whose forward is running, if the gradient at ``x`` is left to its backward.

    Gradient checkpointing is such a function too, but its backward runs the same code again.
    """
    if torch.is_grad_enabled() or not x.requires_grad or torch.compiler.is_compiling():
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _APPLY:
            function: type = frame.f_locals["cls"]
            return None if issubclass(function, CheckpointFunction) else function
        frame = frame.f_back
    return None
