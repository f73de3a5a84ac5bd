"""What a method is: how to prepare a network, what to minimise, how many networks, how to draw samples.

A method is a frozen dataclass whose fields are its hyperparameters. It is chosen everywhere by a short text, its name
and its fields in order: ``single``, ``mc-dropout:0.2``, ``deep-ensemble:4``, ``mc-droprelu:0.95``,
``mc-droprelu:0.8,last``. A new method is one new file in this folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints, runtime_checkable

from torch import Tensor, nn
from torch.nn import functional as F

from rbue.errors import InvalidInput, did_you_mean
from rbue.sampling.collect import SampleStream
from rbue.sampling.outputs import class_scores


@dataclass(frozen=True)
class TrainingProgress:
    """How far training has come, for losses that change on the way.

    Attributes:
        fraction: share of all training steps done, from 0 to 1; a tensor, so that captured steps see it change.
        images: number of training images.
    """

    fraction: Tensor
    images: int


Loss = tuple[Tensor, Tensor]
"""What to minimise, and the class scores it came from."""


def cross_entropy(network: nn.Module, x: Tensor, y: Tensor) -> Loss:
    """The loss of a plain network."""
    logits = class_scores(network(x))
    return F.cross_entropy(logits, y), logits


@runtime_checkable
class Method(Protocol):
    """The same few names in every method."""

    name: ClassVar[str]
    shown: ClassVar[int]
    """How many of the settings are always written in the method's short text."""

    @property
    def networks(self) -> int:
        """How many networks have to be trained."""

    trains_alone: ClassVar[bool]
    """Whether its training draws from torch's one generator, which networks trained side by side would share."""

    undecayed: ClassVar[tuple[str, ...]]
    """Names of its own parameters, such as ``weight_rho`` of any layer, that weight decay has nothing to say about."""

    @property
    def limit(self) -> int | None:
        """How many different samples there are; None if there is no end to them."""

    def prepare(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Change a fresh network, in place, into the one to train."""

    def loss(self, network: nn.Module, x: Tensor, y: Tensor, progress: TrainingProgress) -> Loss:
        """What one training step minimises."""

    def stream(self, networks: Sequence[nn.Module], x: Tensor, seed: int, memory: int | None = None) -> SampleStream:
        """Draw samples from the trained networks, for inputs shaped like ``x``."""


_methods: dict[str, type] = {}
_Class = TypeVar("_Class", bound=type)


def register(name: str, shown: int = 0) -> Callable[[_Class], _Class]:
    """Make a method available under a name, with that many settings always shown in its short text."""

    def add(method: _Class) -> _Class:
        method.name, method.shown = name, shown  # type: ignore[attr-defined]
        for attribute, default in (("trains_alone", False), ("undecayed", ())):
            if not hasattr(method, attribute):
                setattr(method, attribute, default)
        _methods[name] = method
        return method

    return add


def list_methods() -> list[str]:
    """The names of all methods."""
    return sorted(_methods)


def parse(spec: str) -> Method:
    """The method that a short text names.

    >>> parse("mc-droprelu:0.95")
    MCDropReLU(q=0.95, where='all')
    """
    name, _, rest = spec.strip().partition(":")
    kind = _methods.get(name)
    if kind is None:
        hint = did_you_mean(name, _methods)
        raise InvalidInput(f"there is no method {name!r}{hint}; there are {', '.join(list_methods())}.")
    fields, hints = dataclasses.fields(kind), get_type_hints(kind)
    texts = [text.strip() for text in rest.split(",")] if rest else []
    if len(texts) > len(fields):
        names = ", ".join(field.name for field in fields) or "no settings"
        raise InvalidInput(f"{spec!r} has {len(texts)} settings, but {name} takes {names}.")
    values = {
        field.name: _read(spec, field.name, hints[field.name], text) for field, text in zip(fields, texts, strict=False)
    }
    found: Method = kind(**values)
    return found


def _read(spec: str, name: str, kind: Any, text: str) -> Any:
    if not text:
        raise InvalidInput(f"{name} in {spec!r} is empty; give it a value, or leave out the comma.")
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InvalidInput(f"{name} in {spec!r} must be true or false, not {text!r}.")
        return text.lower() == "true"
    convert = kind if kind in (int, float) else str
    try:
        return convert(text)
    except ValueError:
        raise InvalidInput(f"{name} in {spec!r} must be a number ({kind.__name__}), not {text!r}.") from None


def spec_of(method: Method) -> str:
    """A short text that :func:`parse` reads as this method; trailing settings at their default are left out.

    >>> spec_of(parse("mc-droprelu")), spec_of(parse("mc-rrelu"))
    ('mc-droprelu:0.9', 'mc-rrelu')
    """
    fields = dataclasses.fields(method)  # type: ignore[arg-type]
    values = [getattr(method, field.name) for field in fields]
    while len(values) > method.shown and values[-1] == fields[len(values) - 1].default:
        values.pop()
    return f"{method.name}:{','.join(str(value) for value in values)}" if values else method.name
