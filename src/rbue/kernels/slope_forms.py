"""How kernels see a random ReLU: a few numbers, registered for its class.

A class without an entry runs by its formula. To give one kernels, register a function that makes a :class:`SlopeForm`
of it; the C, Triton and torch kernels take any.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from rbue.activations import DropReLU, RandomSlope, RReLU
from rbue.random_stream import threshold


class SlopeForm(NamedTuple):
    """The slope ``a`` of an element with random word ``w``.

    Attributes:
        drop: whether ``a`` is 1 where ``w < threshold`` and 0 elsewhere; otherwise it is drawn from an interval. Its
            balanced draws are rotated, those of an interval mirrored (:class:`rbue.random_stream.Cycle`).
        threshold: see ``drop``.
        scale: the slope is ``odd(w) * scale + middle`` (:func:`rbue.random_stream.odd_words`).
        middle: see ``scale``.
        steepness: the same slope is ``mantissa(w) * steepness + intercept``, in one instruction
            (:func:`rbue.random_stream.as_mantissas`).
        intercept: see ``steepness``.
    """

    drop: bool
    threshold: int = 0
    scale: float = 0.0
    middle: float = 0.0
    steepness: float = 0.0
    intercept: float = 0.0


FORMS: dict[type, Callable[[Any], SlopeForm]] = {
    DropReLU: lambda one: SlopeForm(True, threshold(1 - one.q)),
    RReLU: lambda one: SlopeForm(False, 0, (one.upper - one.lower) / (1 << 24), one.mean_slope, *one.slope_line()),
}


@lru_cache(maxsize=256)
def form_of(activation: RandomSlope) -> SlopeForm | None:
    """The numbers of an activation, or None if no kernel knows its class."""
    make = FORMS.get(type(activation))
    return None if make is None else make(activation)
