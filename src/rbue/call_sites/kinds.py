"""What a call site is: an application of ReLU, or a layer with weights, whose input dropout acts on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from torch import Tensor
from torch.nn import functional as F

from rbue.activations import Dropout, Randomness
from rbue.call_sites.forms import ReluCall, read_relu


@dataclass(frozen=True)
class LayerCall:
    """One application of a convolution or linear layer, whatever module it stands in."""

    form: str
    x: Tensor


_LAYER_FORMS: dict[Callable, str] = {
    function: f"F.{function.__name__}"
    for function in (
        F.linear, F.bilinear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
    )
}  # fmt: skip


def read_layer(func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> LayerCall | None:
    """The layer that this torch call is, or None if it is something else."""
    form = _LAYER_FORMS.get(func)
    if form is None:
        return None
    x = args[0] if args else kwargs.get("input")
    return LayerCall(form, x) if isinstance(x, Tensor) and x.dim() > 1 and x.is_floating_point() else None


def with_input(args: tuple, kwargs: Mapping[str, Any], x: Tensor) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a layer's call with another input."""
    return ((x, *args[1:]), dict(kwargs)) if args else ((), {**kwargs, "input": x})


SiteCall = Union[ReluCall, LayerCall]  # noqa: UP007 (isinstance reads it at run time)


@dataclass(frozen=True)
class SiteKind:
    """One sort of call site: what it is called, and which torch calls are one."""

    noun: str
    read: Callable[[Callable, tuple, Mapping[str, Any]], SiteCall | None]


RELUS = SiteKind("ReLU", read_relu)
LAYERS = SiteKind("weight layer", read_layer)


def kind_for(randomness: Randomness) -> SiteKind:
    """Where this randomness acts."""
    return LAYERS if isinstance(randomness, Dropout) else RELUS
