"""Where in a network the running call is.

Every module that may apply a ReLU itself is given a subclass of its own class, with the same name, whose
``forward`` notes the module's path while it runs. A class, and not a hook or a bound method, because it is
innermost (the user's hooks run outside it), survives ``deepcopy``, pickling and ``DataParallel`` replicas, and
is ordinary code to a compiler. The instances keep their parameters, buffers and hooks untouched.

A :class:`Scope` follows one forward pass of one network, in one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, wraps
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from rbue.errors import ConversionError

PATHS = "_rbue_paths"
"""Instance attribute of a followed module: ``{owner token: module path}``."""

CONVERSION = "_rbue_conversion"
"""Instance attribute of a converted network: see :mod:`rbue.call_sites.conversion`."""


class Scope:
    """The place of one forward pass: the current module path and how many ReLUs each path has applied.

    ``owner`` tells the pass of a network from that of its copies, which share the token.
    """

    def __init__(self, owner: nn.Module, token: str, counts: dict[str, int] | None = None, path: str = "") -> None:
        self.owner = owner
        self.token = token
        self.path = path
        self.counts: dict[str, int] = {} if counts is None else counts
        self.suspended = False  # while another converted network runs inside
        self.holds_converted = False  # whether one ever did

    def next_call(self) -> int:
        """Count one more ReLU at the current path; return how many came before."""
        number = self.counts.get(self.path, 0)
        self.counts[self.path] = number + 1
        return number

    def copy(self) -> Scope:
        """The same place, to be continued apart."""
        return Scope(self.owner, self.token, dict(self.counts), self.path)


class ScopeMode(TorchFunctionMode):
    """A torch-function mode for one scope. It is also the record of which scope runs in this thread."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope


def current_scope() -> Scope | None:
    """The scope of the innermost network running in this thread, unless it is suspended.

    Read from torch's own stack of modes and not from a thread-local: a compiler knows it on both sides of a graph
    break.
    """
    for position in reversed(range(torch._C._len_torch_function_stack())):
        mode = torch._C._get_function_stack_at(position)
        if isinstance(mode, ScopeMode):
            return None if mode.scope.suspended else mode.scope
    return None


@contextmanager
def suspended(scope: Scope | None) -> Iterator[None]:
    """Nothing that runs inside belongs to ``scope``."""
    if scope is None:
        yield
        return
    scope.suspended = True
    try:
        yield
    finally:
        scope.suspended = False


class _Running:
    """What a thread's sampler and checkpointed blocks hand to the networks that they run."""

    def __init__(self) -> None:
        # Not a subclass of threading.local: torch.compile reads and writes the wrong attributes of one.
        self._local = threading.local()

    @property
    def draws(self) -> Any:
        """``(token, Draw)`` of a sampler."""
        return getattr(self._local, "draws", None)

    @draws.setter
    def draws(self, value: Any) -> None:
        self._local.draws = value

    @property
    def memories(self) -> tuple:
        """What checkpointed blocks remember: see :mod:`rbue.call_sites.checkpointing`."""
        return getattr(self._local, "memories", ())

    @memories.setter
    def memories(self, value: tuple) -> None:
        self._local.memories = value


running = _Running()


def followed_class(base: type[nn.Module]) -> type[nn.Module]:
    """The one subclass of ``base`` whose instances note their path, and run their conversion if they have one."""
    if base not in _followed_classes:
        _followed_classes[base] = _make_followed_class(base)
    return _followed_classes[base]


_followed_classes: dict[type[nn.Module], type[nn.Module]] = {}


def _make_followed_class(base: type[nn.Module]) -> type[nn.Module]:
    @wraps(base.forward, updated=())  # its signature, not the marks a compiler has left on it
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        conversion = self.__dict__.get(CONVERSION)
        scope = current_scope()
        if conversion is not None and (scope is None or scope.owner is not self):
            return conversion.run(self, base.forward, args, kwargs)
        path = None if scope is None else self.__dict__.get(PATHS, {}).get(scope.token)
        if scope is None or path is None:
            if scope is None and not torch.compiler.is_compiling() and in_backward() and not running.memories:
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
    if issubclass(base, nn.TransformerEncoderLayer):
        namespace["activation_relu_or_gelu"] = property(_kind_for_fused_kernel)
    if issubclass(base, torch.fx.GraphModule):
        namespace |= _graph_module_methods(base)
    return type(base.__name__, (base,), namespace)


def _kind_for_fused_kernel(layer: nn.TransformerEncoderLayer) -> int:
    """0, which keeps torch from running the layer as one fused kernel, while its ReLU is to be seen."""
    return layer.__dict__["activation_relu_or_gelu"] if current_scope() is None else 0


def _graph_module_methods(base: type[torch.fx.GraphModule]) -> dict[str, Callable]:
    """What a GraphModule does in its own way: it copies by rebuilding, and writes its code into its class."""

    def deepcopy_(self: torch.fx.GraphModule, memo: dict) -> nn.Module:
        return _adopt(base.__deepcopy__(self, memo), *deepcopy(_ours(self), memo))

    def reduce(self: torch.fx.GraphModule, protocol: Any) -> tuple:
        return _rebuild_graph_module, (*base.__reduce__(self), _ours(self))

    def recompile(self: torch.fx.GraphModule) -> Any:
        self.__class__, followed = base, type(self)
        try:
            return base.recompile(self)
        finally:
            self.__class__ = followed

    return {"__deepcopy__": deepcopy_, "__reduce_ex__": reduce, "recompile": recompile}


def _ours(module: nn.Module) -> tuple[dict[str, Any], dict[str, torch.Tensor | None]]:
    attributes = {name: value for name, value in module.__dict__.items() if name.startswith("_rbue_")}
    buffers = {name: value for name, value in module._buffers.items() if name.startswith("_rbue_")}
    return attributes, buffers


def _adopt(module: nn.Module, attributes: dict[str, Any], buffers: dict[str, torch.Tensor | None]) -> nn.Module:
    module.__dict__.update(attributes)
    for name, value in buffers.items():
        module.register_buffer(name, value, persistent=False)
    module.__class__ = followed_class(type(module))
    return module


def _rebuild_graph_module(rebuild: Callable, args: tuple, ours: tuple) -> nn.Module:
    return _adopt(rebuild(*args), *ours)


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
    # Told by the function that runs: a parametrised nn.Linear is still quiet, a user's own nn.Sequential may not be.
    return plain_class(module).forward not in _quiet_forwards()


@cache
def _quiet_forwards() -> frozenset[Callable]:
    classes = (value for value in vars(nn).values() if isinstance(value, type))
    return frozenset(value.forward for value in classes if issubclass(value, _NEVER_APPLY_RELU))


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
