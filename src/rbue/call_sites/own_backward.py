"""ReLUs inside of an ``autograd.Function``, whose backward is its author's and knows nothing of random slopes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

from rbue.call_sites.table import site_name
from rbue.errors import warn


def warn_of_own_backward(x: Tensor, noun: str, path: str, call: int, warned: set[tuple[str, int]]) -> None:
    """Warn, once a site, that its gradients are not those of what it computes."""
    function = _function_around(x)
    if function is not None and (path, call) not in warned:
        warned.add((path, call))
        warn(
            f"the {noun} at {site_name(path, call)} is random, but the gradients of {function.__name__} "
            "around it are not; to train the network, call torch.relu there instead."
        )


def _function_around(x: Tensor) -> type[Function] | None:
    """The ``autograd.Function`` whose forward is running, if the gradient at ``x`` is left to its backward.

    Gradient checkpointing is such a function too, but its backward runs the same code again.
    """
    if torch.is_grad_enabled() or not x.requires_grad or torch.compiler.is_compiling():
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        function = _function_of(frame.f_code)
        if function is not None:
            return None if issubclass(function, CheckpointFunction) else function
        frame = frame.f_back
    return None


@lru_cache(maxsize=10_000)
def _function_of(code: CodeType) -> type[Function] | None:
    """The class whose forward this is, found among all classes the first time: torch may call it without a frame."""
    return next((function for function in _below(Function) if _forward_of(function) is code), None)


def _below(base: type[Function]) -> Iterator[type[Function]]:
    for function in base.__subclasses__():
        yield function
        yield from _below(function)


def _forward_of(function: type[Function]) -> CodeType | None:
    """The code of a class's own forward, below what decorates it."""
    return getattr(inspect.unwrap(vars(function).get("forward", function)), "__code__", None)
