"""Run a network and leave it as it was: its training flags, buffers and attributes, and torch's random numbers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rbue.call_sites.draws import tensors_in

_training_flags: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
_flags_lock = threading.Lock()
_OF_MODULES = frozenset(vars(nn.Module()))


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode; afterwards each has the flag it had before.

    Blocks may overlap in threads: the first to come notes the flags, the last to go puts them back.
    """
    modules = list(network.modules())
    with _flags_lock:
        for module in modules:
            users, flag = _training_flags.get(module, (0, module.training))
            _training_flags[module] = users + 1, flag
        for module in modules:  # when all are noted: a wrapper may set its own flag on the network inside, too
            module.training = False
    try:
        yield
    finally:
        with _flags_lock:
            for module in modules:
                users, flag = _training_flags.pop(module)
                if users > 1:
                    _training_flags[module] = users - 1, flag
                else:
                    module.training = flag


@contextmanager
def unchanged(network: nn.Module, device: torch.device) -> Iterator[None]:
    """A pass inside leaves no trace: neither in the network's buffers and attributes nor in torch's random numbers."""
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in network.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not is_lazy(buffer)
    ]
    with forked_generators(device), torch.no_grad(), keeping_attributes(network):
        try:
            yield
        finally:
            for module, name, buffer, content in buffers:
                if _differ(buffer, content):
                    buffer.copy_(content)
                module._buffers[name] = buffer


def forked_generators(device: torch.device) -> AbstractContextManager[None]:
    """What is drawn or seeded inside leaves torch's random numbers, of the CPU and a device, as they are."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


@contextmanager
def keeping_attributes(network: nn.Module, rows: Collection[int] | None = None) -> Iterator[list[str]]:
    """Attributes in which a pass inside keeps tensors for later ones stay as they were: they may be random ones.

    With ``rows``, only those with one of these numbers of rows: tables that are made once may stay. Lists and dicts get
    back what they held, and buffers that were replaced too. The names of what was put back are in the list that is
    given.
    """
    before = [(module, dict(vars(module)), _contents(module)) for module in network.modules()]
    put_back: list[str] = []

    def is_of_pass(value: Any) -> bool:
        return any(rows is None or (x.dim() > 0 and x.size(0) in rows) for x in tensors_in(value))

    try:
        yield put_back
    finally:
        for module, had, contents in before:
            own = vars(module)
            for name in [name for name, value in own.items() if value is not had.get(name) and is_of_pass(value)]:
                if name in had:
                    own[name] = had[name]
                elif name in _OF_MODULES:
                    continue
                else:
                    del own[name]
                put_back.append(name)
            for name, content in contents.items():
                value = own.get(name)
                if (
                    value is had[name]
                    and [*map(id, _items(value))] != [*map(id, _items(content))]
                    and is_of_pass(value)
                ):
                    value.clear()
                    value.extend(content) if isinstance(value, list) else value.update(content)
                    put_back.append(name)


def _contents(module: nn.Module) -> dict[str, list | dict]:
    """Copies of what may be changed in place."""
    own = vars(module).items()
    return {
        name: copy.copy(value)
        for name, value in own
        if type(value) in (list, dict) and (name not in _OF_MODULES or name == "_buffers")
    }


def _items(value: list | dict) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _differ(buffer: Tensor, content: Tensor) -> bool:
    """Whether a buffer was written to, which an expanded one cannot be; one that is no plain array counts as such."""
    if buffer.is_meta:
        return False
    if buffer.layout is not torch.strided or buffer.is_nested or buffer.is_quantized:
        return True
    mine, kept = (one.contiguous().flatten().view(torch.uint8) for one in (buffer, content))
    return not torch.equal(mine, kept)
