"""How much work a piece of code is, as far as matrix products and convolutions go."""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import flop_registry

from rbue.torch_internals import TorchDispatchMode


class Products(TorchDispatchMode):
    """Counts the operations in products inside, as :class:`torch.utils.flop_counter.FlopCounterMode` does.

    That one also follows modules, by hooks that other threads and compiled networks would notice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        words = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None:
            with self:  # in inference mode operators arrive whole, and a product is a part of one
                out = func.decompose(*args, **words)
            return func(*args, **words) if out is NotImplemented else out
        out = func(*args, **words)
        self.count += formula(*args, **words, out_val=out)
        return out
