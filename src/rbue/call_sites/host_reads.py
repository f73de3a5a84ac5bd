"""Whether a network's code looks at random numbers, so that what it does next may differ from sample to sample."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from torch.overrides import TorchFunctionMode

from rbue.call_sites.nested import tensors_in

_MARK = "_rbue_random"
_serial = count()
_OPERATORS = {"__bool__", "__int__", "__float__", "__complex__", "__index__", "__contains__", "__array__"}
_READS = _OPERATORS | {"item", "tolist", "numpy", "equal", "allclose", "is_nonzero"}


class HostReads(TorchFunctionMode):
    """Follows what random sites made through one pass.

    An early exit asks whether all of a batch are sure; of a batch of many samples it asks something else.

    Attributes:
        found: whether a number that depends on them became one of Python's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = False
        self.serial = next(_serial)

    def follow(self, x: Any) -> None:
        """What a random site made."""
        for one in tensors_in([x]):
            setattr(one, _MARK, self.serial)

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        random = any(getattr(x, _MARK, None) == self.serial for x in tensors_in([args, kwargs]))
        self.found |= random and getattr(func, "__name__", "") in _READS
        out = func(*args, **kwargs)
        if random:
            self.follow(out)
        return out
