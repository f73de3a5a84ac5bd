"""Where in a network the running call is.

Every module that may apply a ReLU itself is given a subclass of its own class, with the same name, whose
``forward`` notes the module's path while it runs. A class, and not a hook or a bound method, because it is
innermost (the user's hooks run outside it), survives ``deepcopy``, pickling and ``DataParallel`` replicas, and
is ordinary code to a compiler. The instances keep their parameters, buffers and hooks untouched.

A :class:`Scope` follows one forward pass of one network. The running scope is held per thread.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import torch
from torch import nn

from rbue.errors import ConversionError

PATHS = "_rbue_paths"
"""Instance attribute of a followed module: ``{owner token: module path}``."""

CONVERSION = "_rbue_conversion"
"""Instance attribute of a converted network: see :mod:`rbue.call_sites.conversion`."""


class Scope:
    """The place of one forward pass: the current module path and how many ReLUs each path has applied."""

    def __init__(self, token: str, counts: dict[str, int] | None = None, path: str = "") -> None:
        self.token = token
        self.path = path
        self.counts: dict[str, int] = {} if counts is None else counts

    def next_call(self) -> int:
        """Count one more ReLU at the current path; return how many came before."""
        number = self.counts.get(self.path, 0)
        self.counts[self.path] = number + 1
        return number


class _Running(threading.local):
    scope: Scope | None = None
    draws: Any = None  # (token, Draw) that a sampler hands to the network it runs
    memories: tuple = ()  # what checkpointed blocks remember: see rbue.call_sites.checkpointing


running = _Running()


def followed_class(base: type[nn.Module]) -> type[nn.Module]:
    """The one subclass of ``base`` whose instances note their path, and run their conversion if they have one."""
    if base not in _followed_classes:
        _followed_classes[base] = _make_followed_class(base)
    return _followed_classes[base]


_followed_classes: dict[type[nn.Module], type[nn.Module]] = {}


def _make_followed_class(base: type[nn.Module]) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        conversion = self.__dict__.get(CONVERSION)
        scope = running.scope
        if conversion is not None and (scope is None or scope.token != conversion.token):
            return conversion.run(self, base.forward, args, kwargs)
        path = None if scope is None else self.__dict__.get(PATHS, {}).get(scope.token)
        if scope is None or path is None:
            if scope is None and not torch.compiler.is_compiling() and in_backward():
                raise ConversionError(
                    f"{type(self).__name__} was run again during backward without its random bits: this kind of "
                    "activation checkpointing is not supported; use torch.utils.checkpoint.checkpoint."
                )
            return base.forward(self, *args, **kwargs)
        outer = scope.path
        scope.path = path
        try:
            return base.forward(self, *args, **kwargs)
        finally:
            scope.path = outer

    def reduce(self: nn.Module, protocol: Any) -> tuple:
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__.copy()
        return _rebuild, (base,), state

    namespace: dict[str, Any] = {
        "forward": forward,
        "__reduce_ex__": reduce,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_rbue_base": base,
    }
    return type(base.__name__, (base,), namespace)


def in_backward() -> bool:
    """Whether this thread is inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


def _rebuild(base: type[nn.Module]) -> nn.Module:
    followed = followed_class(base)
    return followed.__new__(followed)


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The class the module had before it was followed."""
    return getattr(type(module), "_rbue_base", type(module))


_NEVER_APPLY_RELU: tuple[type[nn.Module], ...] = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, nn.Identity, nn.Flatten,
    nn.Unflatten, nn.Linear, nn.Bilinear, nn.Embedding, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase,
    nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.modules.dropout._DropoutNd, nn.Upsample,
    nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd, nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd, nn.Softmax, nn.LogSoftmax,
)  # fmt: skip


def _may_apply_relu(module: nn.Module) -> bool:
    # Only torch's own classes are known; a user's subclass of nn.Sequential may well call F.relu.
    return plain_class(module) not in _torch_leaves() or not isinstance(module, _NEVER_APPLY_RELU)


@cache
def _torch_leaves() -> frozenset[type]:
    return frozenset(
        value for value in vars(nn).values() if isinstance(value, type) and issubclass(value, _NEVER_APPLY_RELU)
    )


def follow(network: nn.Module, token: str) -> None:
    """Let every module of ``network`` that may apply a ReLU note its path under ``token``."""
    for path, module in network.named_modules():
        if module is network or _may_apply_relu(module):
            module.__dict__.setdefault(PATHS, {})[token] = path
            if "_rbue_base" not in vars(type(module)):
                module.__class__ = followed_class(type(module))


def unfollow(network: nn.Module, token: str) -> None:
    """Undo :func:`follow`."""
    for module in network.modules():
        paths = module.__dict__.get(PATHS)
        if paths is None:
            continue
        paths.pop(token, None)
        if not paths:
            del module.__dict__[PATHS]
            if "_rbue_base" in vars(type(module)):
                module.__class__ = plain_class(module)


def first_tensor(values: Any) -> torch.Tensor | None:
    """The first tensor with a batch dimension in nested arguments."""
    if isinstance(values, torch.Tensor):
        return values if values.dim() else None
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        for value in values:
            found = first_tensor(value)
            if found is not None:
                return found
    return None
