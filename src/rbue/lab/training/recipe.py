"""Training recipes: the paper's (§4.1.2), a strong one, every part an option; and checks of settings given in Python.

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

from rbue.errors import InvalidInput, did_you_mean


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
    ("label_smoothing", lambda smoothing: 0 <= smoothing < 1, "a number from 0 to below 1"),
    ("mixup", lambda alpha: alpha >= 0, "a number of at least 0"),
    ("noise", lambda largest: 0 <= largest <= 1, "a number from 0 to 1"),
    ("augmix", lambda part: 0 <= part <= 1, "a number from 0 to 1"),
)
"""Which numbers a recipe may have, as a test and in words."""

_AVERAGE_NUMBERS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("average_start", lambda start: 0 <= start < 1 or (start >= 1 and start.is_integer()), "a fraction or an epoch"),
    ("average_learning_rate", lambda learning_rate: learning_rate > 0, "a positive number"),
    ("average_decay", lambda decay: 0 < decay < 1, "a number between 0 and 1"),
)

_AVERAGES: dict[str, dict[str, Callable[[Recipe], float]]] = {
    "swa": {"average_start": lambda _: 0.8, "average_learning_rate": lambda recipe: recipe.learning_rate / 2},
    "ema": {"average_start": lambda _: 0.0, "average_decay": lambda _: 0.999},
}
"""The kinds of averages, each with its settings and what they are if they are left out."""

_LATER = ("label_smoothing", "cutout", "mixup", "noise", "augmix", "sync_batchnorm")
"""What recipes did not have at first; stored only where it is on."""


@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum and a learning rate that drops by a factor at fractions of the epochs.

    The defaults are the paper's for CIFAR: batch 128, 200 epochs, learning rate 0.1 divided by ten at 45 %, 67.5 % and
    90 % of the epochs, momentum 0.9, weight decay 1e-4, random crops after padding by 4, random horizontal flips.

    With an ``average`` the trained network has averaged weights, and BatchNorm statistics estimated again for them. SWA
    (Izmailov et al., 2018) averages the weights at the end of each epoch from the start of averaging on; its learning
    rate falls by a cosine from ``learning_rate`` to ``average_learning_rate`` until then and stays there, in place of
    ``milestones`` and ``factor``. EMA moves ``1 - average_decay`` of the way to the weights after every step.

    The settings below those of the average are off by default. Statistics for an average are estimated without mixup.

    Attributes:
        batch: images in a step, over all processes that train together.
        average: ``"swa"``, ``"ema"`` or None.
        average_start: where averaging starts: a fraction of the epochs if it is below 1, else how many epochs come
            before. 0.8 for SWA and 0 for EMA if left out.
        average_learning_rate: of SWA while it averages; half of ``learning_rate`` if left out.
        average_decay: of EMA, a step; 0.999 if left out.
        label_smoothing: part of each label that is spread evenly over all classes.
        cutout: side of a square of the mean colour around a random pixel of each image (DeVries and Taylor, 2017).
        mixup: ``alpha`` of Beta(alpha, alpha), from which each batch draws the parts in which its images and labels are
            mixed in pairs (Zhang et al., 2018).
        noise: the largest standard deviation of Gaussian noise, in pixel values from 0 to 1. Half of the images get
            noise; each has a standard deviation of its own, uniform from 0 to the largest.
        augmix: the part of the images that get AugMix without its consistency loss (Hendrycks et al., 2020), at
            severity 3; others in every epoch.
        sync_batchnorm: whether BatchNorm in training has the mean and variance of the whole batch where several
            processes train, and not of each process's part of it; GPUs only, as torch has it for them alone.
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
    average: str | None = None
    average_start: float | None = None
    average_learning_rate: float | None = None
    average_decay: float | None = None
    label_smoothing: float = 0.0
    cutout: int = 0
    mixup: float = 0.0
    noise: float = 0.0
    augmix: float = 0.0
    sync_batchnorm: bool = False

    def __post_init__(self) -> None:
        for name, lowest in (("epochs", 1), ("batch", 1), ("padding", 0), ("cutout", 0)):
            self._set(name, whole_number(name, getattr(self, name), lowest))
        for name in ("nesterov", "flip", "sync_batchnorm"):
            self._set(name, yes_or_no(name, getattr(self, name)))
        self._check_numbers(_NUMBERS)
        self._set("milestones", _growing_fractions(self.milestones))
        self._check_average()

    def _check_numbers(self, numbers: Iterable[tuple[str, Callable[[float], bool], str]]) -> None:
        for name, fits, allowed in numbers:
            number = real_number(getattr(self, name))
            if number is None or not (math.isfinite(number) and fits(number)):
                raise InvalidInput(f"{name} must be {allowed}, not {getattr(self, name)!r}.")
            self._set(name, number)

    def _check_average(self) -> None:
        """Fill in what is left out of an average, so that a stored recipe says all of it; refuse what is not its."""
        if self.average == "none":
            self._set("average", None)
        if self.average is not None and not (isinstance(self.average, str) and self.average in _AVERAGES):
            hint = did_you_mean(str(self.average), _AVERAGES)
            raise InvalidInput(f"average must be {', '.join(_AVERAGES)} or none, not {self.average!r}{hint}.")
        own = {} if self.average is None else _AVERAGES[self.average]
        for name, *_ in _AVERAGE_NUMBERS:
            if name in own and getattr(self, name) is None:
                self._set(name, own[name](self))
            elif name not in own and getattr(self, name) is not None:
                kinds = " or ".join(kind for kind, settings in _AVERAGES.items() if name in settings)
                raise InvalidInput(
                    f"{name} is a setting of average {kinds}, but average is {self.average or 'none'}; leave it out."
                )
        self._check_numbers(one for one in _AVERAGE_NUMBERS if one[0] in own)
        if self.average_start is not None and self.average_start >= self.epochs:
            raise InvalidInput(
                f"average_start must be below the number of epochs, {self.epochs}, not {self.average_start:g}."
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def average_from(self) -> int:
        """The first epoch, counted from 0, whose weights are averaged; there is always one.

        >>> [Recipe(epochs=200, average="swa", average_start=start).average_from for start in (0, 0.6, 150)]
        [0, 120, 150]
        """
        start = self.average_start or 0.0
        return int(start) if start >= 1 else min(math.ceil(Fraction(str(start)) * self.epochs), self.epochs - 1)

    def learning_rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [round(Recipe().learning_rate_at(epoch), 6) for epoch in (0, 89, 90, 135, 180)]
        [0.1, 0.1, 0.01, 0.001, 0.0001]
        >>> [round(Recipe(average="swa").learning_rate_at(epoch), 6) for epoch in (0, 80, 160, 199)]
        [0.1, 0.075, 0.05, 0.05]
        """
        if self.average_learning_rate is not None:
            part = min(1.0, epoch / self.average_from) if self.average_from else 1.0
            swing = (1 + math.cos(math.pi * part)) / 2
            return self.average_learning_rate + (self.learning_rate - self.average_learning_rate) * swing
        # As written in decimals: 0.675 * 360 is a little more than 243 in floating point.
        passed = sum(epoch >= Fraction(str(milestone)) * self.epochs for milestone in self.milestones)
        return self.learning_rate * self.factor**passed

    def as_json(self) -> dict[str, Any]:
        """The settings under the names they are stored by, in run ids too: the learning rate is ``rate``.

        Those of an average and what is off by default are there only where they are on, as ids from before must stay.
        """
        stored = {"rate" if name == "learning_rate" else name: value for name, value in asdict(self).items()}
        return {name: value for name, value in stored.items() if value is not None and (value or name not in _LATER)}

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


NAMED: dict[str, dict[str, Any]] = {"paper": {}, "strong": {"nesterov": True, "weight_decay": 5e-4, "average": "swa"}}
"""What a named recipe changes in that of a data set."""


def recipe_for(data: str, name: str = "paper", **changes: Any) -> Recipe:
    """The recipe of a name for a data set, with some parts changed; a data set of one's own begins as CIFAR.

    ``"paper"`` is the paper's. ``"strong"`` has a weight decay of 5e-4 and SWA from 80 % of the epochs on, at half the
    learning rate. A change that is None is none; ``average="none"`` takes the average away.

    >>> strong = recipe_for("cifar10", "strong")
    >>> strong.weight_decay, strong.average, strong.average_from, strong.average_learning_rate
    (0.0005, 'swa', 160, 0.05)
    """
    if name not in NAMED:
        raise InvalidInput(f"there is no recipe {name!r}{did_you_mean(name, NAMED)}; there are {', '.join(NAMED)}.")
    given = {part: value for part, value in changes.items() if value is not None}
    recipe = Recipe(**{**asdict(RECIPES.get(data, _PAPER)), **NAMED[name], **given})
    for part in ("milestones", "factor"):
        if part in given and recipe.average == "swa":
            raise InvalidInput(f"{part} has no effect with average swa, which has a schedule of its own; leave it out.")
    return recipe
