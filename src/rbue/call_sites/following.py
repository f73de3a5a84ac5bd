"""Let the modules of a network say where they are while they run.

Every module that may hold a call site itself is given a subclass of its own class, with the same name, whose
``forward`` notes the module's path while it runs. A class, and not a hook or a bound method, because it is
innermost (the user's hooks run outside it), survives ``deepcopy``, pickling and ``DataParallel`` replicas, and
is ordinary code to a compiler. The instances keep their parameters, buffers and hooks untouched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy
from functools import cache, wraps
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from rbue.activations import Randomness
from rbue.call_sites.draws import running
from rbue.call_sites.interception import current_scope
from rbue.errors import ConversionError
from rbue.torch_internals import in_backward

PATHS = "_rbue_paths"
"""Instance attribute of a followed module: ``{owner token: module path}``."""

CONVERSION = "_rbue_conversion"
"""Instance attribute of a converted network: see :mod:`rbue.call_sites.conversion`."""

RECORDING = "_rbue_recording"
"""Instance attribute of a network whose sites a thread is finding: see :mod:`rbue.call_sites.tracing`."""


def followed_class(base: type[nn.Module]) -> type[nn.Module]:
    """The one subclass of ``base`` whose instances note their path, and run their conversion if they have one."""
    with _making:
        found = _followed_classes.get(base)
        if found is None:
            found = _followed_classes[base] = _make_followed_class(base)
        return found


# Weak, as every GraphModule and every parametrised module has a class of its own.
_followed_classes: WeakValueDictionary[type[nn.Module], type[nn.Module]] = WeakValueDictionary()
_making = threading.RLock()


def _make_followed_class(base: type[nn.Module]) -> type[nn.Module]:
    @wraps(base.forward, updated=())  # its signature, not the marks a compiler has left on it
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        conversion = _conversion_here(self)
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

    def apply(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:  # a network's own may take the function alone
        conversion, before = self.__dict__.get(CONVERSION), dict(self._buffers)
        base._apply(self, *args, **kwargs)
        if conversion is not None:
            conversion.moved(self, before)
        return self

    def extra_repr(self: nn.Module) -> str:
        conversion, own = self.__dict__.get(CONVERSION), base.extra_repr(self)
        if conversion is None:
            return own
        return "\n".join(line for line in (f"rbue: {conversion.summary(self).line}", own) if line)

    def reduce(self: nn.Module, protocol: Any) -> tuple:
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__.copy()
        return _rebuild, (base,), state

    def copy(self: nn.Module) -> nn.Module:
        if CONVERSION in self.__dict__:
            raise ConversionError(
                f"copy.copy of {base.__name__}, which is converted, would share its modules with it, and reverting one "
                "would break the other; use copy.deepcopy."
            )
        if hasattr(base, "__copy__"):
            return base.__copy__(self)
        rebuild, args, state = reduce(self, 4)
        made = rebuild(*args)
        made.__setstate__(state)
        return made

    namespace: dict[str, Any] = {
        "forward": forward,
        "_apply": apply,
        "extra_repr": extra_repr,
        "__reduce_ex__": reduce,
        "__copy__": copy,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_rbue_base": base,
    }
    if issubclass(base, nn.TransformerEncoderLayer):
        namespace["activation_relu_or_gelu"] = property(_kind_for_fused_kernel)
    if issubclass(base, torch.fx.GraphModule):
        namespace |= _graph_module_methods(base)
    return _unannounced(base.__name__, base, namespace)


def run_forward(forward: Callable, network: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run a network's own forward, and explain endless recursion.

    ``super(self.__class__, self)`` finds the class itself again in any subclass of it, which a followed class is.
    """
    if torch.compiler.is_compiling():  # a compiler cannot end a graph inside of try
        return forward(network, *args, **kwargs)
    try:
        return forward(network, *args, **kwargs)
    except RecursionError as error:
        raise ConversionError(
            f"{type(network).__name__} calls itself without end once it is converted; if one of its modules writes "
            "super(self.__class__, self), which no subclass can inherit, make that super()."
        ) from error


def _conversion_here(module: nn.Module) -> Any:
    """What runs a module's forward: in the thread that finds its sites what notes them, else its conversion, if any."""
    recording = module.__dict__.get(RECORDING)
    if recording is not None and recording.thread == threading.get_ident():
        return recording
    return module.__dict__.get(CONVERSION)


def _unannounced(name: str, base: type[nn.Module], namespace: dict[str, Any]) -> type[nn.Module]:
    """A subclass that the base's ``__init_subclass__`` hears nothing of: a register of networks has no use for it."""
    if not any("__init_subclass__" in vars(ancestor) for ancestor in base.__mro__ if ancestor is not object):
        return type(name, (base,), namespace)
    made = type(name, (nn.Module,), namespace)
    made.__bases__ = (base,)
    return made


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


def _rebuild(base: type[nn.Module]) -> nn.Module:
    followed = followed_class(base)
    return followed.__new__(followed)


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The class the module had before it was followed."""
    return getattr(type(module), "_rbue_base", type(module))


_NO_ACTIVATION_INSIDE: tuple[type[nn.Module], ...] = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, nn.Identity, nn.Flatten,
    nn.Unflatten, nn.Linear, nn.Bilinear, nn.Embedding, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase,
    nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.modules.dropout._DropoutNd, nn.Upsample,
    nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd, nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd, nn.Softmax, nn.LogSoftmax,
)  # fmt: skip


def _may_apply_activation(module: nn.Module) -> bool:
    # Told by the function that runs: a parametrised nn.Linear is still quiet, a user's own nn.Sequential may not be.
    return plain_class(module).forward not in _quiet_forwards()


@cache
def _quiet_forwards() -> frozenset[Callable]:
    classes = (value for value in vars(nn).values() if isinstance(value, type))
    return frozenset(value.forward for value in classes if issubclass(value, _NO_ACTIVATION_INSIDE))


def follow(network: nn.Module, token: str, activation: Randomness) -> None:
    """Let every module of ``network`` that may hold a call site note its path under ``token``."""
    for path, module in network.named_modules():
        if module is network or activation.in_every_module or _may_apply_activation(module):
            module.__dict__.setdefault(PATHS, {})[token] = path
            if "_rbue_base" not in vars(type(module)):
                _set_class(module, followed_class(type(module)))


def _set_class(module: nn.Module, found: type[nn.Module]) -> None:
    """Not by a ``__setattr__`` of the module's own: that of a wrapper may set it on the network inside, too."""
    object.__setattr__(module, "__class__", found)


def converted_part(network: nn.Module) -> str | None:
    """The path of the first converted network inside ``network``, if there is one."""
    return next((path for path, module in network.named_modules() if path and CONVERSION in module.__dict__), None)


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
                _set_class(module, plain_class(module))
