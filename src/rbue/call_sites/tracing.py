"""Find the ReLU call sites of a network by running it once on an example."""

from __future__ import annotations

import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rbue.activations import DropReLU, Randomness, RandomSlope, SiteCall
from rbue.activations.calls import ATEN_FORMS, OTHER_ACTIVATIONS, is_tensor_bounded_relu
from rbue.call_sites import following
from rbue.call_sites.batch import Batch
from rbue.call_sites.draws import first_tensor
from rbue.call_sites.inputs import example_call
from rbue.call_sites.interception import Scope, SiteMode, current_scope, suspended
from rbue.call_sites.table import Site, SiteTable
from rbue.call_sites.untouched import evaluating, unchanged
from rbue.errors import ConversionError, InvalidInput, RbueError, warn
from rbue.torch_internals import compiled_network, stance_lock, uncompiled_call


def sites(model: nn.Module, example: Any, activation: Randomness | None = None) -> SiteTable:
    """List the ReLU call sites of a network, or those of another kind of randomness, in the order they run.

    The network runs once in evaluation mode without gradients. It, the example and torch's random numbers are left as
    they were.

    Args:
        model: the network; it need not be converted.
        example: an input: a tensor or array, a tuple of positional arguments, a dict of keyword arguments, or a
            ``Dataset`` or loader, of which the first batch is taken.
        activation: what is to be made random there; ``DropActivation()`` lists every known activation.

    Returns:
        A table with one row per application: index, module path, form, and the shape of its input.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> sites(net, torch.zeros(2, 4))
    index  site  form    shape
    0      1     F.relu  2x8
    """
    return find_sites(innermost(model), example, DropReLU() if activation is None else activation)[0]


def check_activation(activation: Any) -> None:
    """Refuse what is no randomness."""
    if not isinstance(activation, Randomness):
        raise InvalidInput(
            f"activation must be DropReLU(q), RReLU(lower, upper), DropActivation(q) or Dropout(p), not {activation!r}."
        )


def find_sites(network: nn.Module, example: Any, activation: Randomness) -> tuple[SiteTable, dict[str, int]]:
    """The call sites of one kind, or an error if there is none; and how often other activations were met."""
    check_activation(activation)
    refuse_unseen_parts(network)
    call = example_call(example, network)
    with batch_explained(call, network, activation):
        found, others, _ = record(network, call, activation)
    if not found:
        raise ConversionError(_no_site_message(network, activation, others))
    return found, others


@contextmanager
def batch_explained(call: Batch, network: nn.Module, activation: Randomness) -> Iterator[None]:
    """Say what does not fit where a network fails: a type, rows that are no images, or a list taken for inputs."""

    def rows_of(given: Batch) -> int | None:
        """How many rows come out; None if it fails."""
        with suppress(Exception):
            out = first_tensor([record(network, given, activation).output])
            return 0 if out is None else len(out)
        return None

    try:
        with _types_named(call, network):
            yield
    except (RbueError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        images = len(call) if any(call.has_rows) else 0
        if images and rows_of(call[:1]) is None:
            if images > 1 and rows_of(call) == images:
                name = following.plain_class(network).__name__
                raise InvalidInput(
                    f"{name} takes {images} rows together and not one alone, so they are not images, as nodes of a "
                    "graph are not; average plain calls: torch.stack([net(x) for _ in range(100)])."
                ) from error
            if len(call.leaves) == 1 and rows_of(Batch((call.first.unsqueeze(0),))) is not None:
                raise InvalidInput(
                    f"x has shape {tuple(call.first.shape)}, which the network takes only as one of a batch; give "
                    "x.unsqueeze(0), or torch.stack(...) of several."
                ) from error
        if call.positional > 1:
            error.add_note(
                f"rbue called {following.plain_class(network).__name__} with {call.positional} arguments, one for each "
                "entry of the example; if the list is one argument, give (list,)."
            )
        raise


def nothing_met(network: nn.Module, call: Batch, activation: Randomness) -> str:
    """The sentence about a call of a network without any site; a second call shows what it has instead."""
    if torch.compiler.is_compiling():  # a graph cannot hold that call
        name, noun = type(network).__name__, activation.noun
        return (
            f"{name} ran without meeting a {noun}; rbue.sites(model, x, rbue.DropActivation()) lists its activations."
        )
    return _no_site_message(network, activation, record(network, call, activation).others)


def innermost(model: nn.Module) -> nn.Module:
    """The network inside ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel`` wrappers."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"the network must be a torch.nn.Module, not {type(model).__name__}.")
    while True:
        inner = compiled_network(model)
        if inner is not None:
            model = inner
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model


def refuse_unseen_parts(network: nn.Module) -> None:
    """Raise if part of the network runs where its ReLUs cannot be seen."""
    for path, module in network.named_modules():
        name = path or "the network"
        if isinstance(module, torch.jit.ScriptModule):
            raise ConversionError(
                f"{name} is a scripted or traced module whose ReLUs cannot be reached; convert the network "
                "before torch.jit, or use the original Python module."
            )
        if "forward" in vars(module) and module is network:
            raise ConversionError(
                f"{type(network).__name__} has a forward set on the instance, which goes around the conversion; "
                "define it in the class instead."
            )
        if _is_fused_relu(module):
            raise ConversionError(
                f"{name} is an nn.{type(module).__name__} with nonlinearity='relu', whose ReLUs run inside one fused "
                "call and cannot be reached; use nonlinearity='tanh' or write the recurrence with F.relu."
            )
        if _is_quantized_relu(module):
            raise ConversionError(
                f"{name} is a quantized {following.plain_class(module).__name__}, whose ReLUs run inside one fused "
                "call and cannot be reached; give the network as it was before it was quantized."
            )
        if isinstance(module, nn.DataParallel) and module is not network:
            raise ConversionError(
                f"{name} is a DataParallel inside the network, which runs in threads of its own; wrap the whole "
                "network in DataParallel instead."
            )
        if isinstance(module, torch.fx.GraphModule) and any(node.target in ATEN_FORMS for node in module.graph.nodes):
            raise ConversionError(
                f"{name} is an exported program whose ReLUs cannot be reached; convert the network before torch.export."
            )
        for label in _scripted_functions(module):
            raise ConversionError(
                f"{name} calls the scripted function {label}, whose activations cannot be reached; use the Python "
                "function without torch.jit.script, or set PYTORCH_JIT=0 before torch is imported."
            )


def _is_fused_relu(module: nn.Module) -> bool:
    if isinstance(module, nn.RNNBase):
        return module.mode == "RNN_RELU"
    return isinstance(module, nn.RNNCell) and module.nonlinearity == "relu"


def _is_quantized_relu(module: nn.Module) -> bool:
    kind = following.plain_class(module)
    return kind.__module__.startswith("torch.ao.nn.intrinsic.quantized") and "ReLU" in kind.__name__


def _scripted_functions(module: nn.Module) -> Iterator[str]:
    """The names of scripted functions with an activation or a layer; others compute sizes, say, and are left alone."""
    forward = following.plain_class(module).forward
    code, namespace = getattr(forward, "__code__", None), getattr(forward, "__globals__", {})
    called = [(label, namespace.get(label)) for label in (code.co_names if code else ())]
    for label, value in [*vars(module).items(), *called]:
        if isinstance(value, torch.jit.ScriptFunction) and _has_activation(value):
            yield label


def _has_activation(function: torch.jit.ScriptFunction) -> bool:
    graph: Any = function.inlined_graph
    return any(graph.findAllNodes(f"aten::{name}", recurse=True) for name in _ATEN_NAMES)


_ATEN_NAMES = {form._schema.name.removeprefix("aten::") for form in ATEN_FORMS}
_ATEN_NAMES |= {function.__name__ for function in OTHER_ACTIVATIONS}
_ATEN_NAMES |= {"linear", "addmm", "matmul", "maximum", "conv1d", "conv2d", "conv3d", "_convolution"}  # layers, too


class Recorded(NamedTuple):
    """The call sites of a run, how often other activations were met, by name, and what came out."""

    sites: SiteTable
    others: dict[str, int]
    output: Any


def record(network: nn.Module, example: Batch, activation: Randomness) -> Recorded:
    """Run the example and note what it meets."""
    found: list[Site] = []
    others: Counter[str] = Counter()
    bounded: set[str] = set()

    def note(call: SiteCall, path: str, number: int, proceed: Callable[..., Any]) -> Any:
        found.append(Site(len(found), path, number, call.form, tuple(call.x.shape)))
        return proceed()

    class Recorder(SiteMode):
        def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            if func in OTHER_ACTIVATIONS and func not in activation.calls and not self.scope.suspended:
                others[OTHER_ACTIVATIONS[func]] += 1
            elif is_tensor_bounded_relu(func, args, kwargs or {}):
                bounded.add(self.scope.path or "the network")
            return super().__torch_function__(func, types, args, kwargs)

    device = next((x.device for x in example.leaves if isinstance(x, Tensor)), torch.device("cpu"))
    if device.type != "meta" and any(one.is_meta for one in network.parameters()):
        raise InvalidInput(
            f"the network is on meta, without weights, and the example on {device}; give example=x.to('meta'), or load "
            "the weights first."
        )
    recording = _Recording(lambda scope: Recorder(scope, activation, note))
    with stance_lock:  # a network has room for one recording
        network.__dict__[following.RECORDING] = recording
        try:
            following.follow(network, recording.token, activation)
            with evaluating(network), unchanged(network, device):
                output = example.clone().call(uncompiled_call(network))  # with tensors of its own, which it may work in
        finally:
            following.unfollow(network, recording.token)
            del network.__dict__[following.RECORDING]
    if bounded:
        warn(
            f"a clamp in {', '.join(sorted(bounded))} has a tensor that is 0 as its lower bound and stays plain, since "
            "only its numbers say that it is a ReLU; write clamp(min=0) to make it random."
        )
    return Recorded(SiteTable(found), dict(sorted(others.items())), output)


class _Recording:
    """Stands in for a conversion while the example runs, in the thread that runs it."""

    def __init__(self, make_mode: Callable[[Scope], SiteMode]) -> None:
        self.token = uuid.uuid4().hex
        self.thread = threading.get_ident()
        self.make_mode = make_mode

    def run(self, network: nn.Module, forward: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        scope = Scope(network, self.token)
        with suspended(current_scope()), self.make_mode(scope):
            return following.run_forward(forward, network, args, kwargs)


OF_MORE_KINDS, OF_ANY_LAYERS = "rbue.DropActivation(q)", "rbue.Dropout(p)"
"""What the sentence below advises; methods have short texts for these."""
_WAY_OUT = f"give it ReLUs, or use {OF_ANY_LAYERS}, which needs none."
_OTHER_WAY_OUT = f"use {OF_MORE_KINDS}, which makes most of these random, or {OF_ANY_LAYERS}, which needs none."


def _no_site_message(network: nn.Module, activation: Randomness, others: dict[str, int]) -> str:
    name = type(network).__name__
    part = following.converted_part(network)
    if part is not None:
        noun = activation.noun
        return f"{name} has no {noun} of its own beside those of the converted network at {part!r}; give that one."
    if activation.in_every_module:
        return f"{name} has no {activation.noun} whose input could be random."
    if not isinstance(activation, RandomSlope):
        return f"{name} has no activation that {type(activation).__name__} knows; {_WAY_OUT}"
    if others:
        return f"{name} has no ReLU call site to make random; it uses {', '.join(others)} instead; {_OTHER_WAY_OUT}"
    return f"{name} has no ReLU call site to make random, and no other known activation either; {_WAY_OUT}"


@contextmanager
def _types_named(batch: Batch, network: nn.Module) -> Iterator[None]:
    """Say which types do not fit where torch refuses them; a network may also convert its input by itself."""
    try:
        yield
    except RuntimeError as error:
        wanted = next((one.dtype for one in network.parameters() if one.is_floating_point()), None)
        for name, x in zip(batch.names, batch.leaves, strict=True):
            other = isinstance(x, Tensor) and wanted not in (None, x.dtype)
            if other and not isinstance(error, RbueError) and _names_type(str(error), x.dtype):
                # Bytes would run as floats, and be images of another brightness than any in training.
                bytes_ = f"images as in training, such as x.to({wanted}) / 255, normalised"
                way = bytes_ if x.dtype is torch.uint8 else f"x.to({wanted})"
                raise InvalidInput(
                    f"{name} is {x.dtype} but the network is {wanted}, and it cannot take that; give {way}."
                ) from error
        raise


def _names_type(message: str, dtype: torch.dtype) -> bool:
    """Whether an error of torch is about tensors of this type, such as ``Long`` for int64."""
    name = _NAMES_IN_ERRORS.get(dtype, "")
    return "type" in message and re.search(rf"(\b|CPU|CUDA){name}(Tensor|Type|\b)", message, re.IGNORECASE) is not None


_NAMES_IN_ERRORS = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.int64: "long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "(char|signed char)",
    torch.uint8: "(byte|unsigned char)",
    torch.bool: "bool",
}
