"""Whether the Triton kernels can be used here; they are imported only when a CUDA tensor asks for them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch


def triton_kernels() -> ModuleType | None:
    """The kernels of the activations, or None where there is no CUDA device or no Triton."""
    return _module("triton_kernels")


def triton_fused() -> ModuleType | None:
    """The kernels that do more at once, or None."""
    return _module("triton_fused")


@cache
def _module(name: str) -> ModuleType | None:
    if not torch.cuda.is_available():
        return None
    try:
        return import_module(f"rbue.activations.{name}")
    except ImportError:
        return None
