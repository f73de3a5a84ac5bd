"""The errors and warnings a user can meet: one sentence, the offending value, and the way out."""

import sys
import warnings
from numbers import Integral

_BETWEEN = ("rbue", "torch", "contextlib", "importlib")
"""Packages whose lines may lie between the user's and the one that warns."""


class RbueError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidInput(RbueError, ValueError):
    """A value from the caller that cannot be used; the message names it and says what would be accepted."""


class ConversionError(RbueError, RuntimeError):
    """A network whose ReLU call sites cannot be found or made random."""


class RbueWarning(UserWarning):
    """Something worth knowing that does not stop the work."""


def warn(message: str, category: type[Warning] = RbueWarning) -> None:
    """Warn of something at the line of the user's code that led to it.

    Python shows a warning once a line: at one of this package's it would be shown for the first network only.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def whole_number(value: object, name: str, *, least: int = 1, most: int | None = None) -> int:
    """``value`` as Python's integer, which NumPy's may be too, if it lies between ``least`` and ``most``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidInput(f"{name} is {value!r}; give a whole number of at least {least}.")
    number = int(value)
    if number < least or (most is not None and number > most):
        upper = "" if most is None else f" and at most {most}"
        raise InvalidInput(f"{name} is {number}; give a whole number of at least {least}{upper}.")
    return number
