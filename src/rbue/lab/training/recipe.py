"""The training recipe of the paper (§4.1.2), every part of it an option; and checks of settings given in Python.

NumPy's numbers become Python's, which files can hold; what is no number is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import numpy as np

from rbue.errors import InvalidInput


def whole_number(name: str, value: Any, lowest: int) -> int:
    """A setting as Python's integer, which NumPy's and 2.0 may be too, if it is at least ``lowest``."""
    is_whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole:
        raise InvalidInput(f"{name} must be a whole number of at least {lowest}, not {value!r}.")
    if value < lowest:
        raise InvalidInput(f"{name} must be at least {lowest}, not {value}.")
    return int(value)


def real_number(value: Any) -> float | None:
    """A setting as Python's float, or None if it is no number or a larger one than a float can be."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def yes_or_no(name: str, value: Any) -> bool:
    """A setting as Python's bool, which NumPy's and the numbers 0 and 1 may be too."""
    if not isinstance(value, (bool, np.bool_, Integral)) or value not in (0, 1):
        raise InvalidInput(f"{name} must be True or False, not {value!r}.")
    return bool(value)


_NUMBERS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("learning_rate", lambda learning_rate: learning_rate > 0, "a positive number"),
    ("factor", lambda factor: 0 < factor <= 1, "a number above 0 and at most 1"),
    ("momentum", lambda momentum: 0 <= momentum < 1, "a number from 0 to below 1"),
    ("weight_decay", lambda weight_decay: weight_decay >= 0, "a number of at least 0"),
)
"""Which numbers a recipe may have, as a test and in words."""


@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum and a learning rate that drops by a factor at fractions of the epochs.

    The defaults are the paper's for CIFAR: batch 128, 200 epochs, learning rate 0.1 divided by ten at 45 %, 67.5 % and
    90 % of the epochs, momentum 0.9, weight decay 1e-4, random crops after padding by 4, random horizontal flips.
    """

    epochs: int = 200
    batch: int = 128
    learning_rate: float = 0.1
    milestones: tuple[float, ...] = (0.45, 0.675, 0.9)
    factor: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-4
    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        for name, lowest in (("epochs", 1), ("batch", 1), ("padding", 0)):
            self._set(name, whole_number(name, getattr(self, name), lowest))
        for name in ("nesterov", "flip"):
            self._set(name, yes_or_no(name, getattr(self, name)))
        for name, fits, allowed in _NUMBERS:
            number = real_number(getattr(self, name))
            if number is None or not (fits(number) and math.isfinite(number)):
                raise InvalidInput(f"{name} must be {allowed}, not {getattr(self, name)!r}.")
            self._set(name, number)
        self._set("milestones", _growing_fractions(self.milestones))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def learning_rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [round(Recipe().learning_rate_at(epoch), 6) for epoch in (0, 89, 90, 135, 180)]
        [0.1, 0.1, 0.01, 0.001, 0.0001]
        """
        # As written in decimals: 0.675 * 360 is a little more than 243 in floating point.
        passed = sum(epoch >= Fraction(str(milestone)) * self.epochs for milestone in self.milestones)
        return self.learning_rate * self.factor**passed

    def as_json(self) -> dict[str, Any]:
        """The settings under the names they are stored by, in run ids too: the learning rate is ``rate``."""
        return {"rate" if name == "learning_rate" else name: value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Recipe:
        """The inverse of :meth:`as_json`."""
        settings = {"learning_rate" if name == "rate" else name: value for name, value in {**content}.items()}
        return cls(**settings)


def _growing_fractions(milestones: Any) -> tuple[float, ...]:
    found = [real_number(one) for one in milestones] if isinstance(milestones, Iterable) else [None]
    fractions = tuple(one for one in found if one is not None and 0 < one < 1)
    if len(fractions) < len(found) or list(fractions) != sorted(fractions):
        raise InvalidInput(f"milestones must be growing fractions of the epochs in (0, 1), not {milestones!r}.")
    return fractions


_PAPER = Recipe()
_DIGITS = Recipe(epochs=20, batch=32, learning_rate=0.05, padding=1, flip=False)
RECIPES = {
    "cifar10": _PAPER,
    "cifar100": _PAPER,
    # The paper does not say how TinyImageNet is augmented; crops and flips as for CIFAR are assumed.
    "tiny-imagenet": Recipe(epochs=150, batch=100, learning_rate=0.01, milestones=(0.6, 0.9)),
    "svhn": replace(_PAPER, flip=False),
    "fashion-mnist": replace(_PAPER, epochs=60, padding=2),
    "digits": _DIGITS,
    "colour-digits": _DIGITS,
    "colour-digits-few": _DIGITS,
}
"""The recipe of each data set; those the paper does not train on have one of our own."""


def recipe_for(data: str, **changes: Any) -> Recipe:
    """The recipe for a data set, with some parts changed; the paper's for a data set of one's own."""
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(RECIPES.get(data, _PAPER), **given)
