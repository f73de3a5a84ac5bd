"""What every kind of randomness in a network says of itself.

An activation is one class in one file. It owns its formula, its mean and variance, and the torch calls it replaces;
with that alone it works everywhere: eager, compiled, exported and vmapped, in training, on every device. Kernels
(:mod:`rbue.kernels`) are registered for a class and make it fast, nothing else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import Any, ClassVar

from torch import Tensor

from rbue.activations.calls import SiteCall
from rbue.errors import InvalidInput
from rbue.random_stream import INDEPENDENT, Cycle


class Randomness(ABC):
    """Something that can be random in a pass, and the calls of torch where it is."""

    noun: ClassVar[str]
    """What a call site is called in messages."""

    in_every_module: ClassVar[bool] = False
    """Whether a call site may stand in modules that apply no activation, such as ``nn.Linear``."""

    calls: ClassVar[Collection[Callable]] = ()
    """The functions of torch that :meth:`read` knows; compiled code is told of them."""

    mask: str = "element"
    """What has a draw of its own: each ``"element"``, or each ``"channel"`` of an image, all of it alike."""

    cycle: Cycle = INDEPENDENT
    """What balanced draws make of its words; by default nothing, and they are independent."""

    def __repr__(self) -> str:
        """Its settings; a mask by element, which is usual, goes without saying."""
        names: list[str] = [field.name for field in fields(self)] if is_dataclass(self) else []
        settings = [(name, getattr(self, name)) for name in names]
        shown = (f"{name}={value!r}" for name, value in settings if (name, value) != ("mask", "element"))
        return f"{type(self).__name__}({', '.join(shown)})"

    @abstractmethod
    def read(self, func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> SiteCall | None:
        """The call site that a call of torch is, or None."""

    def at(self, call: SiteCall) -> Randomness:
        """What is random at one call site; one kind may stand for several."""
        return self


class Activation(Randomness):
    """A random activation ``y(x, u)`` with a random word ``u`` for every element of ``x``."""

    noun = "activation"

    @abstractmethod
    def formula(self, x: Tensor, words: Tensor, call: SiteCall) -> Tensor:
        """The activation of ``x`` under given random words (:mod:`rbue.random_stream`), out of place and traceable.

        Differentiated as it stands; an eager backward draws the words again instead of keeping a mask.

        Args:
            x: the input of the call, or ``x`` once for each sample that shares it.
            words: ``int32``, one for each element of ``x``.
            call: what the network wrote: ``call.function(x, *call.operands)`` is the plain activation.
        """

    @abstractmethod
    def mean(self, x: Tensor, call: SiteCall) -> Tensor:
        """The expected output, element by element."""

    @abstractmethod
    def variance(self, x: Tensor, call: SiteCall) -> Tensor:
        """The variance of the output, element by element."""


def check_number(owner: object, name: str) -> None:
    """Refuse a field that is not a finite number, and make NumPy's one Python's."""
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidInput(f"{name} must be a finite number, not {value!r}.")
    if not isinstance(value, int):  # np.float64 is a float, too
        object.__setattr__(owner, name, float(value))


def check_probability_kept(owner: object, noun: str) -> None:
    """Refuse a ``q`` that is no probability."""
    check_number(owner, "q")
    q = owner.q  # type: ignore[attr-defined]
    if not 0 <= q <= 1:
        raise InvalidInput(f"q is the probability that {noun} is kept and must lie in [0, 1], not {q}.")


def check_mask(owner: Randomness) -> None:
    """Refuse a ``mask`` that there is none of."""
    if owner.mask not in ("element", "channel"):
        raise InvalidInput(f"mask must be 'element' or 'channel', not {owner.mask!r}.")
