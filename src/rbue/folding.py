"""Make BatchNorm part of the layer before it, so that inference has one step less for each.

In evaluation mode BatchNorm is a fixed scale and shift of every channel, ``(x - mean) * s + beta`` with
``s = gamma / sqrt(var + eps)``. Where ``x`` is the output of a convolution or linear layer and nothing else reads it,
the layer can do both: ``weight' = weight * s`` and ``bias' = (bias - mean) * s + beta``, per output channel. Which
layers these are is not guessed from names or from the order of the modules, but seen in one pass of an example.
"""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from rbue.call_sites import evaluating, innermost, mode
from rbue.call_sites.following import CONVERSION, plain_class
from rbue.call_sites.nested import tensors_in
from rbue.errors import InvalidInput, RbueError, warn
from rbue.sampling.outputs import class_scores, largest_score

_LAYERS: dict[type[nn.Module], int] = {nn.Linear: 2, nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5}
"""How many dimensions the output must have for its channels to be dimension 1, the one that BatchNorm normalises."""
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""How far the outputs may move, as a share of the largest: rounding grows with the depth of a network."""


def fold_batchnorm(network: nn.Module, example: Tensor) -> nn.Module:
    """Return a copy of a network for inference, with BatchNorm folded into the layers before it.

    The copy gives the outputs of the network in evaluation mode, up to rounding. Every BatchNorm whose
    input is exactly the output of one convolution or linear layer becomes ``nn.Identity``, and the layer gets
    ``weight * s`` and ``(bias - mean) * s + beta`` with ``s = gamma / sqrt(var + eps)``. A converted network gives a
    converted copy with the same sites, seed and masks: ``predict`` agrees on both. Fold before ``torch.compile`` or
    ``DataParallel`` and wrap the copy.

    A BatchNorm stays where something else sees the output of the layer (a skip connection, say), where the layer or
    BatchNorm runs twice, shares parameters, has hooks or parametrizations or is a subclass, and where BatchNorm has
    no running statistics or normalises another dimension than the layer's channels.

    The copy is in evaluation mode and cannot be trained further as the network could: its statistics are part of the
    weights. Its state dict has other keys, so save the network's and fold again. The network is not changed.

    Args:
        network: the network, converted or not.
        example: an input batch that takes the same way through the network as those to come.

    Raises:
        InvalidInput: the network is wrapped or compiled or has lazy modules that never ran, or the example is on
            another device or not finite.
        RbueError: the copy does not give the network's outputs on the example.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()).eval()
    >>> x = torch.randn(2, 3, 8, 8)
    >>> folded = fold_batchnorm(net, x)
    >>> folded[1], torch.allclose(folded(x), net(x), atol=1e-5)
    (Identity(), True)
    """
    _check_network(network)
    _check_example(example, network)
    paths = {module: path for path, module in network.named_modules()}
    with torch.inference_mode(False), torch.no_grad():  # the copy may be used outside it
        watch = _Watch(network)
        with watch.watching():
            expected = _plain_output(network, example)
        pairs = watch.pairs()
        folded = _settled(copy.deepcopy(network))
        for layer, norm in pairs:
            _fold(folded.get_submodule(paths[layer]), folded.get_submodule(paths[norm]))
            _replace(folded, folded.get_submodule(paths[norm]))
        _check_outputs(network, folded, example, expected)
    if not pairs:
        warn(
            f"no BatchNorm of {type(network).__name__} has the output of a convolution or linear layer to itself, so "
            "nothing was folded; the copy runs as the network does."
        )
    return folded


def _check_network(network: nn.Module) -> None:
    innermost(network)  # refuses what is not a module
    for path, module in network.named_modules():
        name = path or "the network"
        if innermost(module) is not module or module._compiled_call_impl is not None:
            raise InvalidInput(
                f"{name} is compiled or wrapped ({type(module).__name__}); fold the network inside before "
                "torch.compile or DataParallel, and wrap the copy."
            )
        tensors = (*module._parameters.values(), *module._buffers.values())
        if any(value is not None and is_lazy(value) for value in tensors):
            raise InvalidInput(f"{name} is a lazy module without weights yet; run the network once before folding it.")


def _check_example(example: Tensor, network: nn.Module) -> None:
    if not isinstance(example, Tensor):
        raise InvalidInput(f"example must be a tensor, a batch of inputs, not {type(example).__name__}.")
    if example.dim() == 0 or example.numel() == 0:
        raise InvalidInput(f"example must hold at least one input, but its shape is {tuple(example.shape)}.")
    parameter = next(network.parameters(), None)
    if parameter is not None and parameter.device != example.device:
        raise InvalidInput(
            f"example is on {example.device} but the network is on {parameter.device}; move one to the other."
        )
    if example.is_floating_point() and not bool(torch.isfinite(example).all()):
        raise InvalidInput("example holds NaN or infinity, which no output could be checked with; clean the input.")


def _candidates(network: nn.Module) -> tuple[list[nn.Module], list[nn.Module]]:
    """The layers and BatchNorms that do what their class says and nothing more, with parameters of their own."""
    holders = Counter(id(value) for module in network.modules() for value in module._parameters.values())
    layers, norms = [], []
    for module in network.modules():
        hooks = (
            module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks,
        )  # fmt: skip
        changed = "forward" in vars(module) or parametrize.is_parametrized(module) or any(hooks)
        own = all(value is None or holders[id(value)] == 1 for value in module._parameters.values())
        if changed or not own:
            continue
        if plain_class(module) in _LAYERS and module._parameters.get("weight") is not None:
            layers.append(module)
        elif plain_class(module) in _NORMS and module.running_mean is not None and module.running_var is not None:
            norms.append(module)
    return layers, norms


class _Watch:
    """What one pass does with the outputs of the layers, and with the tensors of layers and BatchNorms."""

    def __init__(self, network: nn.Module) -> None:
        self.layers, self.norms = _candidates(network)
        self.owners = {id(x): module for module in self._watched for x in (*module.parameters(), *module.buffers())}
        self.calls: Counter[nn.Module] = Counter()
        self.running: nn.Module | None = None
        self.returned: dict[int, nn.Module] = {}
        self.outputs: dict[nn.Module, weakref.ref[Tensor]] = {}
        self.norm_of: dict[nn.Module, nn.Module] = {}
        self.strayed: set[nn.Module] = set()

    @property
    def _watched(self) -> list[nn.Module]:
        return self.layers + self.norms

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the pass that is made inside."""
        with ExitStack() as stack:
            for module in self._watched:
                stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(self._leave).remove)
            stack.enter_context(_Calls(self))
            stack.enter_context(_Kernels(self))
            yield

    def pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Each layer that can take over its BatchNorm; to be asked while the output of the pass is still held."""
        return [
            (layer, norm)
            for layer, norm in self.norm_of.items()
            if self.calls[layer] == self.calls[norm] == 1
            and not {layer, norm} & self.strayed
            and self.outputs[layer]() is None  # else it is an output of the network, or was kept for later
        ]

    def note(self, values: Any) -> None:
        """See the tensors that a call reads or writes."""
        for x in tensors_in(values):
            owner = self.owners.get(id(x), self._layer_behind(x))
            if owner is None:
                continue
            if self.running is None or self.running not in (owner, self.norm_of.get(owner)):
                self.strayed.add(owner)

    def _enter(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        self.calls[module] += 1
        self.running = module
        layer = self._layer_behind(args[0] if args else kwargs.get("input"))
        if layer is not None and plain_class(module) in _NORMS:
            self.norm_of.setdefault(layer, module)

    def _leave(self, module: nn.Module, args: tuple, output: Any) -> None:
        self.running = None
        if output.dim() == _LAYERS.get(plain_class(module)):
            self.returned[id(output)] = module
            self.outputs[module] = weakref.ref(output)

    def _layer_behind(self, x: Any) -> nn.Module | None:
        """The layer that returned this very tensor."""
        layer = self.returned.get(id(x))
        return layer if layer is not None and self.outputs[layer]() is x else None


_SHAPE_READERS: set[Callable] = {
    Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.is_contiguous, Tensor.is_floating_point,
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "layout", "is_cuda")),
}  # fmt: skip
"""Calls that learn nothing about a tensor that folding would change."""


class _Calls(TorchFunctionMode):
    """Shows a watch the calls in Python, also those that return their input, such as dropout in evaluation mode."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func not in _SHAPE_READERS:
            self.watch.note((args, kwargs))
        return func(*args, **(kwargs or {}))


class _Kernels(TorchDispatchMode):
    """Shows a watch the operators that run, also those that no call in Python leads to, as in scripted code."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        self.watch.note((args, kwargs))
        return func(*args, **(kwargs or {}))


def _plain_output(network: nn.Module, example: Tensor) -> Any:
    """One pass in evaluation mode with plain ReLUs; two such passes see the same random numbers."""
    devices = [example.device] if example.device.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(evaluating(network))
        stack.enter_context(torch.random.fork_rng(devices))
        for module in network.modules():
            if CONVERSION in vars(module):
                stack.enter_context(mode(module, "plain"))
        return network(example.clone())


def _settled(network: nn.Module) -> nn.Module:
    """A fresh copy as it is to be used: evaluation mode, and nothing known about the cost of its passes."""
    for module in network.modules():
        module.training = False
        conversion = vars(module).get(CONVERSION)
        if conversion is not None:
            conversion.plans.clear()
    return network


def _fold(layer: Any, norm: Any) -> None:
    """``weight * s`` and ``(bias - mean) * s + beta``, rounded once where the weights are half precision."""
    wide = torch.promote_types(layer.weight.dtype, torch.float32)
    scale = (norm.running_var.to(wide) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.to(wide)
    shift = -norm.running_mean.to(wide)
    if layer.bias is not None:
        shift = shift + layer.bias.to(wide)
    bias = shift * scale
    if norm.bias is not None:
        bias = bias + norm.bias.to(wide)
    shape = (-1,) + (1,) * (layer.weight.dim() - 1)
    layer.weight.copy_(layer.weight.to(wide) * scale.reshape(shape))  # in place: the memory format stays
    layer.bias = nn.Parameter(bias.to(layer.weight.dtype), requires_grad=layer.weight.requires_grad)


def _replace(network: nn.Module, norm: nn.Module) -> None:
    """Put ``nn.Identity`` wherever the network holds the BatchNorm, which may have two names."""
    identity = nn.Identity().train(False)
    for parent in network.modules():
        for name, child in parent._modules.items():
            if child is norm:
                parent._modules[name] = identity


def _check_outputs(network: nn.Module, folded: nn.Module, example: Tensor, expected: Any) -> None:
    """Raise unless the copy gives what the network gave on the example."""
    name = type(network).__name__
    try:
        found = _plain_output(folded, example)
    except Exception as error:
        raise RbueError(
            f"{name} does not run without its BatchNorm ({type(error).__name__}: {error}); use it unfolded."
        ) from error
    tolerance = _tolerance(network, example, expected)
    if not all(_agree(*pair, tolerance) for pair in zip(_scores(found), _scores(expected), strict=True)):
        raise RbueError(
            f"{name} gives other outputs with its BatchNorm folded, by more than {tolerance:g} of the largest on the "
            "example, so it depends on more than its input or on parts that are not modules; use it unfolded."
        )


def _scores(output: Any) -> list[Tensor]:
    return [x for x in tensors_in(output) if x.is_floating_point()] or [class_scores(output)]


def _agree(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    if found.shape != expected.shape:
        return False
    finite = torch.isfinite(expected)
    largest = largest_score(found[finite], expected[finite]) if finite.any() else 0.0
    return torch.allclose(found.double(), expected.double(), rtol=0, atol=tolerance * largest, equal_nan=True)


def _tolerance(network: nn.Module, example: Tensor, expected: Any) -> float:
    dtypes = {x.dtype for x in (*network.parameters(), *_scores(expected)) if x.is_floating_point()}
    kind = example.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        dtypes.add(torch.get_autocast_dtype(kind))
    if kind != "cpu":
        dtypes.add(torch.float16)  # float32 may run as TF32 there, which keeps as many bits
    return max((_TOLERANCE.get(dtype, 1e-1) for dtype in dtypes), default=1e-3)
