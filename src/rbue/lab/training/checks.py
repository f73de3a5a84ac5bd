"""Settings given in Python as plain numbers: NumPy's become Python's, which files can hold; others are refused."""

from __future__ import annotations

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
