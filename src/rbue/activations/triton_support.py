"""Whether the Triton kernels can be used here; they are imported only when a CUDA tensor asks for them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch


@cache
def triton_kernels() -> ModuleType | None:
    """The kernel module, or None where there is no CUDA device or no Triton."""
    if not torch.cuda.is_available():
        return None
    try:
        return import_module("rbue.activations.triton_kernels")
    except ImportError:
        return None
