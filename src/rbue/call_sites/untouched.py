"""Run a network and leave it as it was: its training flags, buffers and attributes, and torch's random numbers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import NoneType
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
        (path, module, name, buffer, buffer.clone())
        for path, module in network.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not is_lazy(buffer)
    ]
    with forked_generators(device), torch.no_grad(), keeping_attributes(network) as changed:
        try:
            yield
        finally:
            for path, module, name, buffer, content in buffers:
                if _differ(buffer, content):
                    buffer.copy_(content)
                    changed.add(path)  # a number of how much of it is filled goes with it
                module._buffers[name] = buffer


def forked_generators(device: torch.device) -> AbstractContextManager[None]:
    """What is drawn or seeded inside leaves torch's random numbers, of the CPU and a device, as they are."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


@contextmanager
def keeping_attributes(
    network: nn.Module, paths: Iterable[str] | None = None, rows: Collection[int] | None = None
) -> Iterator[set[str]]:
    """What a pass inside keeps for later ones in modules is taken away again: tensors there may be random ones.

    They may be in attributes, in lists and dicts, or take the place of buffers. What else a module notes beside them
    goes with them, such as a flag that they are there. With ``paths`` only these modules are watched, and with ``rows``
    only tensors with one of these numbers of rows count: tables that are made once may stay. The paths of modules from
    which something was taken are in the set that is given, or put there.
    """
    modules = network.named_modules() if paths is None else [(path, network.get_submodule(path)) for path in paths]
    before = [(path, module, dict(vars(module)), _contents(module)) for path, module in modules]
    changed: set[str] = set()

    def is_of_pass(value: Any) -> bool:
        return any(rows is None or (x.dim() > 0 and x.size(0) in rows) for x in tensors_in(value))

    try:
        yield changed
    finally:
        for path, module, had, contents in before:
            own = vars(module)
            for name, content in contents.items():
                value = own.get(name)
                if value is had[name] and _put_back(value, content, is_of_pass):
                    changed.add(path)
                    module._non_persistent_buffers_set.intersection_update(module._buffers)
            mine = {name: value for name, value in own.items() if name not in _OF_MODULES}
            new = {name: value for name, value in mine.items() if value is not had.get(name, own)}
            if path in changed or any(map(is_of_pass, new.values())):
                changed.add(path)
                for name, value in new.items():
                    if is_of_pass(value) or isinstance(value, _PLAIN):
                        _set(own, name, had)


_PLAIN = (bool, int, float, str, tuple, NoneType, torch.device, torch.dtype)
"""What a module notes of the tensors that it keeps."""


def _contents(module: nn.Module) -> dict[str, list | dict]:
    """Copies of what may be changed in place."""
    own = vars(module).items()
    return {
        name: copy.copy(value)
        for name, value in own
        if type(value) in (list, dict) and (name not in _OF_MODULES or name == "_buffers")
    }


def _put_back(value: list | dict, content: list | dict, is_of_pass: Callable[[Any], bool]) -> bool:
    """Put back what a list or a dict held, if tensors of a pass are there now. It is never without what stays in it."""
    if isinstance(value, list):
        held = {*map(id, content)}
        found = any(id(one) not in held and is_of_pass(one) for one in value)
        if found:
            value[:] = content
        return found
    new = [name for name, one in value.items() if one is not content.get(name, value)]  # type: ignore[union-attr]
    found = any(is_of_pass(value[name]) for name in new)
    for name in new if found else ():
        if is_of_pass(value[name]) or isinstance(value[name], _PLAIN):
            _set(value, name, content)
    return found


def _set(own: dict[str, Any], name: str, had: Any) -> None:
    if name in had:
        own[name] = had[name]
    else:
        own.pop(name, None)


def _differ(buffer: Tensor, content: Tensor) -> bool:
    """Whether a buffer was written to, which an expanded one cannot be; one that is no plain array counts as such."""
    if buffer.is_meta:
        return False
    if buffer.layout is not torch.strided or buffer.is_nested or buffer.is_quantized:
        return True
    mine, kept = (one.contiguous().flatten().view(torch.uint8) for one in (buffer, content))
    return not torch.equal(mine, kept)
