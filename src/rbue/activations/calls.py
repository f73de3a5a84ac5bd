"""The calls of torch that can be a call site: which spellings are a ReLU, which a layer, and how to read them.

``clamp``, ``threshold`` and ``hardtanh`` count only with the bounds that make them a ReLU: zero below and
nothing, or a cap, above. A ReLU of a single number has no rows to be random in, and one that writes to ``out=`` names
a tensor of the caller's: both are left as they are. So is one of a sparse, nested or quantized tensor, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from rbue.errors import warn
from rbue.torch_internals import outside_graphs


@dataclass(frozen=True)
class SiteCall:
    """One call of torch that is a call site: an application of an activation, or of a layer.

    Attributes:
        form: its spelling.
        x: its input.
        inplace: whether it writes its result into the input.
        cap: upper bound of the output (6 for ReLU6).
        keeps_input: its plain form keeps its input for backward, so that a network may change what it returns in place.
        function: the plain activation, out of place; None for a ReLU.
        operands: further tensors that the function takes, such as the weight of PReLU.
    """

    form: str
    x: Tensor
    inplace: bool = False
    cap: float | None = None
    keeps_input: bool = False
    function: Callable[..., Tensor] | None = None
    operands: tuple[Tensor, ...] = ()

    def plain(self, x: Tensor) -> Tensor:
        """What the network would compute of ``x``."""
        if self.function is not None:
            return self.function(x, *self.operands)
        return F.relu(x) if self.cap is None else F.hardtanh(x, 0.0, self.cap)


_Arguments = Mapping[str, Any]
_Reader = Callable[[_Arguments], "tuple[float | None] | None"]


def _is_zero(value: object) -> bool:
    return isinstance(value, (int, float)) and value == 0


def _relu(_: _Arguments) -> tuple[float | None] | None:
    return (None,)


def _clamp(arguments: _Arguments) -> tuple[float | None] | None:
    low, high = arguments.get("min"), arguments.get("max")
    if not _is_zero(low):
        return None
    if high is None:
        return (None,)
    return (float(high),) if isinstance(high, (int, float)) and high > 0 else None


def _threshold(arguments: _Arguments) -> tuple[float | None] | None:
    return (None,) if _is_zero(arguments.get("threshold")) and _is_zero(arguments.get("value")) else None


def _hardtanh(arguments: _Arguments) -> tuple[float | None] | None:
    low, high = arguments.get("min_val", -1.0), arguments.get("max_val", 1.0)
    return (float(high),) if _is_zero(low) and high > 0 else None


_X = ("input",)
_INPLACE = ("input", "inplace")
_MIN_MAX = ("input", "min", "max")
_THRESHOLD = ("input", "threshold", "value", "inplace")
_HARDTANH = ("input", "min_val", "max_val", "inplace")

FORMS: dict[Callable, tuple[str, Sequence[str], _Reader]] = {
    F.relu: ("F.relu", _INPLACE, _relu),
    F.relu_: ("F.relu_", _X, _relu),
    torch.relu: ("torch.relu", _X, _relu),
    torch.relu_: ("torch.relu_", _X, _relu),
    Tensor.relu: ("Tensor.relu", _X, _relu),
    Tensor.relu_: ("Tensor.relu_", _X, _relu),
    torch.clamp: ("torch.clamp", _MIN_MAX, _clamp),
    torch.clamp_: ("torch.clamp_", _MIN_MAX, _clamp),
    torch.clip: ("torch.clip", _MIN_MAX, _clamp),
    torch.clip_: ("torch.clip_", _MIN_MAX, _clamp),
    torch.clamp_min: ("torch.clamp_min", _MIN_MAX, _clamp),
    torch.clamp_min_: ("torch.clamp_min_", _MIN_MAX, _clamp),
    Tensor.clamp: ("Tensor.clamp", _MIN_MAX, _clamp),
    Tensor.clamp_: ("Tensor.clamp_", _MIN_MAX, _clamp),
    Tensor.clip: ("Tensor.clip", _MIN_MAX, _clamp),
    Tensor.clip_: ("Tensor.clip_", _MIN_MAX, _clamp),
    Tensor.clamp_min: ("Tensor.clamp_min", _MIN_MAX, _clamp),
    Tensor.clamp_min_: ("Tensor.clamp_min_", _MIN_MAX, _clamp),
    F.threshold: ("F.threshold", _THRESHOLD, _threshold),
    F.threshold_: ("F.threshold_", _THRESHOLD, _threshold),  # type: ignore[attr-defined]
    torch.threshold: ("torch.threshold", _THRESHOLD, _threshold),
    torch.threshold_: ("torch.threshold_", _THRESHOLD, _threshold),
    F.relu6: ("F.relu6", _INPLACE, lambda _: (6.0,)),
    F.hardtanh: ("F.hardtanh", _HARDTANH, _hardtanh),
    F.hardtanh_: ("F.hardtanh_", _HARDTANH, _hardtanh),
}
"""Each spelling: a name, which ends in ``_`` if it always writes into its input, its positional arguments, its cap."""

_KEEP_OUTPUT = {F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}
"""What torch keeps the output of for backward; of the other spellings it keeps the input."""


def read_relu(func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> SiteCall | None:
    """The ReLU that this torch call is, or None if it is something else."""
    entry = FORMS.get(func)
    if entry is None:
        return None
    form, names, reader = entry
    arguments = arguments_of(names, args, kwargs)
    found = reader(arguments)
    x = None if found is None else dense_input(form, arguments)
    if found is None or x is None:
        return None
    inplace = form.endswith("_") or bool(arguments.get("inplace", False))
    return SiteCall(form, x, inplace, *found, keeps_input=func not in _KEEP_OUTPUT)


def arguments_of(names: Sequence[str], args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name; torch takes its input by NumPy's names, too."""
    arguments = {"input" if name in ("x", "a", "x1") else name: value for name, value in kwargs.items()}
    for name, value in zip(names, args, strict=False):
        arguments[name] = value
    return arguments


def dense_input(form: str, arguments: _Arguments) -> Tensor | None:
    """The input of a call if it has rows to be random in."""
    x = arguments.get("input")
    if isinstance(x, Tensor) and x.is_quantized:
        _warn_of_layout(form, "quantized", "dequantize()")
        return None
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() == 0 or arguments.get("out") is not None:
        return None
    if isinstance(x, Parameter):  # positive weights, say: they have no images, and one draw would serve a whole batch
        return None
    if x.is_nested or x.layout is not torch.strided:
        _warn_of_layout(form, "nested" if x.is_nested else str(x.layout).removeprefix("torch."))
        return None
    return x


@outside_graphs
def _warn_of_layout(form: str, layout: str, way: str = "to_dense()") -> None:
    warn(
        f"a {form} of a {layout} tensor stays as it is: only dense ones are made random, so use {way} before it if it "
        "should be."
    )


LAYERS: dict[Callable, str] = {
    function: f"F.{function.__name__}"
    for function in (
        F.linear, F.bilinear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
    )
}  # fmt: skip


def read_layer(func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> SiteCall | None:
    """The layer with weights that this torch call is, or None if it is something else."""
    form = LAYERS.get(func)
    if form is None:
        return None
    x = args[0] if args else kwargs.get("input")
    return SiteCall(form, x) if isinstance(x, Tensor) and x.dim() > 1 and x.is_floating_point() else None


def with_input(args: tuple, kwargs: Mapping[str, Any], x: Tensor) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a layer's call with another input."""
    return ((x, *args[1:]), dict(kwargs)) if args else ((), {**kwargs, "input": x})


def is_tensor_bounded_relu(func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is a clamp at 0 whose bound is a tensor: reading it in every pass would stop a GPU."""
    _, names, reader = FORMS.get(func, ("", (), None))
    if reader is not _clamp:
        return False
    arguments = arguments_of(names, args, kwargs)
    low = arguments.get("min")
    return isinstance(low, Tensor) and not low.is_meta and not bool(low.any())


OTHER_ACTIVATIONS: dict[Callable, str] = {
    F.gelu: "GELU",
    F.silu: "SiLU",
    F.hardswish: "Hardswish",
    F.mish: "Mish",
    F.leaky_relu: "LeakyReLU",
    F.leaky_relu_: "LeakyReLU",
    F.prelu: "PReLU",
    F.elu: "ELU",
    F.elu_: "ELU",
    F.selu: "SELU",
    F.celu: "CELU",
    F.rrelu: "RReLU",
    F.softplus: "Softplus",
    F.hardsigmoid: "Hardsigmoid",
    F.logsigmoid: "LogSigmoid",
    F.glu: "GLU",
    **dict.fromkeys((F.tanh, torch.tanh, torch.tanh_, Tensor.tanh, Tensor.tanh_), "Tanh"),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, torch.sigmoid_, Tensor.sigmoid, Tensor.sigmoid_), "Sigmoid"),
}
"""Activations that are not ReLU, to say which a network has besides, or instead."""

ATEN_FORMS: frozenset[Any] = frozenset(
    getattr(torch.ops.aten, name + ending).default
    for name in ("relu", "relu6", "clamp", "clamp_min", "clip", "hardtanh", "threshold")
    for ending in ("", "_")
)
"""ReLUs as exported programs write them. Compiled code runs the same operators, so they cannot be call sites."""
