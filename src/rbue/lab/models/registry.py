"""Networks by name, those registered here and a user's own as ``package.module:factory``; and how large they are."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import nn

from rbue.errors import InvalidInput, a_kind, did_you_mean, whole_number
from rbue.lab.own_code import find_own

Factory = Callable[..., nn.Module]
_F = TypeVar("_F", bound=Factory)

_factories: dict[str, Factory] = {}
_handed_out: WeakSet[nn.Module] = WeakSet()
"""Networks of users' factories: two runs that shared one would train and measure each other's weights."""
_FORM = "give a registered name or package.module:factory"


def register(name: str) -> Callable[[_F], _F]:
    """Make a network available under ``name``; for a class or function taking ``classes, channels, width``.

    Examples:
        >>> @register("linear-example")
        ... def linear(classes=10, channels=3, width=1.0):
        ...     return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        >>> create("linear-example", classes=4)[-1].out_features
        4
        >>> _ = _factories.pop("linear-example")
    """
    if not isinstance(name, str) or not name or ":" in name:
        raise InvalidInput(f"a network cannot be registered as {name!r}; give a word without a colon.")

    def keep(factory: _F) -> _F:
        known = _factories.get(name)
        if known is not None and _origin(known) != _origin(factory):
            raise InvalidInput(f"there is already a network called {name!r} ({_origin(known)}); choose another name.")
        _factories[name] = factory
        return factory

    return keep


def list_models() -> list[str]:
    """The registered names in alphabetical order."""
    return sorted(_factories)


def create(name: str, classes: int = 10, channels: int = 3, width: float = 1.0) -> nn.Module:
    """A fresh network with random weights.

    Args:
        name: a name from :func:`list_models`, or ``package.module:factory`` for a function or class of your own.
            Such a factory is called with those of the arguments below that its signature names.
        classes: number of class scores.
        channels: channels of the images.
        width: factor on the number of channels inside; ``0.25`` is the same network at a small size.

    Examples:
        >>> from rbue.lab.models import create, parameters
        >>> parameters(create("small_cnn", classes=10, channels=1))
        24058
    """
    wanted = {"classes": classes, "channels": channels, "width": width}
    whole_number(classes, "classes")
    whole_number(channels, "channels")
    if not isinstance(name, str):
        raise InvalidInput(f"a network's name cannot be {name!r}; {_FORM}.")
    if ":" in name:
        return _create_own(name, wanted)
    if name not in _factories:
        known = list_models()
        raise InvalidInput(
            f"there is no network called {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}, or give "
            "package.module:factory for one of your own."
        )
    return _factories[name](**wanted)


def _create_own(spec: str, wanted: dict[str, Any]) -> nn.Module:
    place, _, attribute = spec.partition(":")
    if not all(part.isidentifier() for part in [*place.split("."), attribute]):
        raise InvalidInput(f"{spec!r} does not name a network; {_FORM}, such as my_networks:make.")
    factory = find_own(place, attribute, spec)
    if isinstance(factory, nn.Module) or not callable(factory):
        raise InvalidInput(
            f"{spec!r} is {a_kind(factory)}; it must name a function or class that makes a new network when called."
        )
    arguments = _accepted(factory, wanted, spec)
    try:
        network = factory(**arguments)
    except Exception as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise InvalidInput(
            f"{spec} called with ({shown}) raised {type(error).__name__}: {error}; mend it, or name a factory that "
            "accepts these arguments."
        ) from error
    if not isinstance(network, nn.Module):
        raise InvalidInput(f"{spec} returned {a_kind(network)}; it must return a torch.nn.Module.")
    if network in _handed_out:
        raise InvalidInput(f"{spec} returned the same network twice; it must make a new one at each call.")
    _handed_out.add(network)
    return network


def _accepted(factory: Callable[..., Any], wanted: dict[str, Any], spec: str) -> dict[str, Any]:
    """The arguments that the signature takes by name, refusing one that would silently have no effect."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{spec!r} has no readable signature; wrap it in def make(classes, channels).") from error
    takers = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {key for key, parameter in signature.parameters.items() if parameter.kind in takers}
    everything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    arguments = {key: value for key, value in wanted.items() if everything or key in named}
    if "width" not in arguments and wanted["width"] != 1:
        raise InvalidInput(f"{spec!r} takes no width, so width={wanted['width']!r} has no effect; leave it at 1.")
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InvalidInput(
            f"{spec!r} with the signature {signature} cannot be called with {', '.join(arguments) or 'no arguments'} "
            f"({error}); give its other parameters a default."
        ) from error
    return arguments


def _origin(factory: Factory) -> str:
    return f"{factory.__module__}.{getattr(factory, '__qualname__', type(factory).__qualname__)}"


def parameters(network: nn.Module) -> int:
    """How many numbers are trained; a parameter shared by two modules counts once.

    Examples:
        >>> parameters(nn.Linear(4, 3))
        15
    """
    return sum(parameter.numel() for parameter in network.parameters())


def multiply_adds(network: nn.Module, input_shape: Sequence[int]) -> int:
    """How many multiplications, each with its addition, the convolutions and matrix products of one image take.

    Biases, BatchNorm, ReLU and pooling are not counted, as is usual. A copy of the network runs once, in evaluation
    mode, on a black image; the network itself is not touched. What runs is counted, so functional calls count like
    modules. A network built under ``torch.device("meta")`` is counted without computing anything.

    Args:
        network: what to count.
        input_shape: shape of one image without the batch dimension, ``(C, H, W)``.

    Examples:
        >>> multiply_adds(nn.Conv2d(3, 8, 3, padding=1), (3, 32, 32)) == 32 * 32 * 8 * 3 * 9
        True
    """
    from torch.utils.flop_counter import FlopCounterMode  # brings Triton with it

    shape = tuple(input_shape)
    if not shape or not all(isinstance(side, Integral) and side > 0 for side in shape):
        raise InvalidInput(f"input_shape is {input_shape!r}; give the shape of one image, such as (3, 32, 32).")
    first = next((p for p in network.parameters() if p.is_floating_point()), torch.zeros(0))
    image = torch.zeros(1, *shape, device=first.device, dtype=first.dtype)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        copy.deepcopy(network).eval()(image)
    return counter.get_total_flops() // 2  # torch counts a multiply-add as two operations
