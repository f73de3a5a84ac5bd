"""Tensors among the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_WHOLE = (torch.int64, torch.int32, torch.int16)
_ALONG_A_DIMENSION = {"gather", "index_select", "index_add", "index_copy", "index_fill", "index_reduce"}
_ALONG_A_DIMENSION |= {"scatter", "scatter_add", "scatter_reduce", "take_along_dim"}


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in nested arguments."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ():
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list, dict)):  # asked here, as this is done at every call of a pass
            found += tensors_in(item)
    return found


def row_numbers(func: Callable, args: tuple, kwargs: dict[str, Any]) -> list[Tensor]:
    """Tensors of whole numbers by which a call picks rows of another tensor."""
    name = getattr(func, "__name__", "")
    if not name.startswith("__"):
        name = name.rstrip("_")
    found: list[Any] = []
    if name in ("__getitem__", "__setitem__", "index_put", "take"):
        where = args[1] if len(args) > 1 else kwargs.get("indices", kwargs.get("index"))
        found = [where[0] if isinstance(where, (tuple, list)) and where else where]
    elif name in _ALONG_A_DIMENSION:
        given = [*args[1:], *kwargs.values()]
        dimension = kwargs.get("dim", next((one for one in args[1:] if isinstance(one, int)), 0))
        found = given if dimension in (0, -tensors_in([args, kwargs])[0].dim()) else []
    return [x for x in found if isinstance(x, Tensor) and x.dtype in _WHOLE]
