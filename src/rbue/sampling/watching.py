"""What is noted while a pass runs: the memory it holds, the work it does, the random numbers that its code reads."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import torch
from torch import Size, Tensor, strided, uint8
from torch import bool as bool_
from torch.overrides import TorchFunctionMode

from rbue.call_sites.draws import tensors_in
from rbue.torch_internals import TorchDispatchMode

_MARK, _SIZES_MARK = "_rbue_random", "_rbue_random_sizes"
_serial = count()
_OPERATORS = {"__bool__", "__int__", "__float__", "__complex__", "__index__", "__contains__", "__array__"}
_READS = _OPERATORS | {"item", "tolist", "numpy", "equal", "allclose", "is_nonzero"}
_SELECTS = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"}
"""What returns as many rows as the numbers given say; besides, ``where`` of a condition, and indices of booleans."""
_SIZE_READS = {"__len__", "__iter__", "size", "numel", "nelement", "unbind", "split", "chunk"}
_SHAPE = Tensor.shape.__get__  # type: ignore[attr-defined]


class LiveRows:
    """Follows the tensors of one pass from when they are noted until nobody holds them any more.

    Attributes:
        peak: the most bytes a row that were held at once: ``peak[False]`` in tensors with one row an image,
            ``peak[True]`` in those with one a sample and image.
    """

    def __init__(self) -> None:
        self.peak = {False: 0.0, True: 0.0}
        self._held = {False: 0.0, True: 0.0}
        self._owners: Counter[tuple[bool, int]] = Counter()

    def note(self, x: Tensor, rows: int, sampled: bool) -> None:
        """Count the memory of ``x``, once for all tensors that share it."""
        storage = x.untyped_storage()
        owner, size = (sampled, storage.data_ptr()), storage.nbytes() / rows
        if not self._owners[owner]:
            self._held[sampled] += size
            self.peak[sampled] = max(self.peak[sampled], self._held[sampled])
        self._owners[owner] += 1
        weakref.finalize(x, self._forget, owner, size).atexit = False

    def _forget(self, owner: tuple[bool, int], size: float) -> None:
        self._owners[owner] -= 1
        if not self._owners[owner]:
            self._held[owner[0]] -= size

    def inside(self, inputs: Iterable[Tensor], rows: int, sampled: bool) -> TorchDispatchMode:
        """Follow what one call makes of its inputs on the way to its result: attention, say, makes much."""
        return _Inside(self, inputs, rows, sampled)


class _Inside(TorchDispatchMode):
    """Sees every operation within a call; what comes from weights alone (such as their casts) is not a row's."""

    def __init__(self, live: LiveRows, inputs: Iterable[Tensor], rows: int, sampled: bool) -> None:
        super().__init__()
        self.live, self.rows, self.sampled = live, rows, sampled
        self.carrying = {x.untyped_storage().data_ptr() for x in inputs}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(x.untyped_storage().data_ptr() in self.carrying for x in tensors_in([args, kwargs])):
            for x in tensors_in([out]):
                self.carrying.add(x.untyped_storage().data_ptr())
                self.live.note(x, self.rows, self.sampled)
        return out


class LargestTensor(TorchFunctionMode):
    """Notes the bytes of the largest tensor that any call inside returns."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.layout is strided:  # torch does not say how many bytes a sparse one has
            self.nbytes = max(self.nbytes, out.nbytes)
        return out


class HostReads(TorchFunctionMode):
    """Whether the network's code looks at what random sites made, so that samples may go different ways.

    An early exit asks whether all of a batch are sure; of a batch of many samples it asks something else. It may ask
    how many are not, too: of what random numbers have selected, the sizes are random.

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
        name = getattr(func, "__name__", "")
        if name in _READS:
            self.found |= self._any_random(args, kwargs)
        elif name in _SIZE_READS or func == _SHAPE:
            self.found |= any(self._sizes(x) for x in tensors_in(args))
        elif name in ("__getitem__", "__setitem__"):
            self.found |= self._any_random((_in_slices(args[1]),), {})
        out = func(*args, **kwargs)
        holds = isinstance(out, (Tensor, tuple, list, dict)) and not isinstance(out, Size)  # most calls ask for a shape
        if holds and self._any_random(args, kwargs):
            self.follow(out)
            self._follow_sizes(name, args, kwargs, out)
        return out

    def _follow_sizes(self, name: str, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        """Note which sizes of a result are random: those of a selection by random numbers, as far as they are kept."""
        sizes: set[int] = set().union(*(self._sizes(x) for x in tensors_in([args, kwargs])))
        selects = name in _SELECTS or (name == "where" and len(args) + len(kwargs) == 1)
        if name == "__getitem__":
            by = [x for x in tensors_in([args[1]]) if x.dtype in (bool_, uint8)]
            selects = self._any_random((by,), {})
        for one in tensors_in([out]):
            kept = set(one.shape) if selects else sizes & set(one.shape)
            if kept:
                setattr(one, _SIZES_MARK, (self.serial, kept))

    def _sizes(self, x: Tensor) -> set[int]:
        serial, sizes = getattr(x, _SIZES_MARK, (None, set()))
        return sizes if serial == self.serial else set()

    def _any_random(self, args: tuple, kwargs: dict[str, Any]) -> bool:
        return any(getattr(x, _MARK, None) == self.serial for x in tensors_in([args, kwargs]))


def _in_slices(where: Any) -> list[Tensor]:
    """Tensors that say where slices of an index begin or end."""
    parts = where if isinstance(where, tuple) else (where,)
    ends = [end for one in parts if isinstance(one, slice) for end in (one.start, one.stop, one.step)]
    return [end for end in ends if isinstance(end, Tensor)]


class Products(TorchDispatchMode):
    """Counts the operations in products inside, as :class:`torch.utils.flop_counter.FlopCounterMode` does.

    That one also follows modules, by hooks that other threads and compiled networks would notice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        words = kwargs or {}
        from torch.utils.flop_counter import flop_registry  # brings Triton with it

        formula = flop_registry.get(func._overloadpacket)
        if formula is None:
            with self:  # in inference mode operators arrive whole, and a product is a part of one
                out = func.decompose(*args, **words)
            return func(*args, **words) if out is NotImplemented else out
        out = func(*args, **words)
        self.count += formula(*args, **words, out_val=out)
        return out


class Generators:
    """Torch's random numbers, of the CPU and of a device, as they were when this was made."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = self._states()

    @property
    def moved(self) -> bool:
        """Whether any were drawn since."""
        return not all(map(torch.equal, self.before, self._states()))

    def _states(self) -> list[Tensor]:
        there = [torch.get_rng_state()]
        return [*there, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else there
