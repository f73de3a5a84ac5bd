"""Whether the Triton kernels can be used here; they are imported only when a CUDA tensor asks for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType

import torch


def triton_kernels() -> ModuleType | None:
    """The kernels of the activations, or None where there is no CUDA device or no Triton, or they are not wanted."""
    return None if _this_thread.goes_by_formula else _module("triton_kernels")


def triton_fused() -> ModuleType | None:
    """The kernels that do more at once, or None."""
    return None if _this_thread.goes_by_formula else _module("triton_fused")


class _Thread(threading.local):
    goes_by_formula = False


_this_thread = _Thread()


@contextmanager
def by_formula() -> Iterator[None]:
    """Use no kernels inside, in this thread: Triton compiles each form of them, which a few rows are not worth."""
    before, _this_thread.goes_by_formula = _this_thread.goes_by_formula, True
    try:
        yield
    finally:
        _this_thread.goes_by_formula = before


@cache
def _module(name: str) -> ModuleType | None:
    if not torch.cuda.is_available():
        return None
    try:
        return import_module(f"rbue.kernels.{name}")
    except ImportError:
        return None
