"""The errors and warnings a user can meet: one sentence, the offending value, and the way out."""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from numbers import Integral

_BETWEEN = ("rbue", "torch", "contextlib", "importlib")
"""Packages whose lines may lie between the user's and the one that warns."""

_LONGEST = 300
_ALIKE = 0.6
"""Words less alike than this, from 0 to 1, are no suggestion."""


class RbueError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidInput(RbueError, ValueError):
    """A value from the caller that cannot be used; the message names it and says what would be accepted."""


class ConversionError(RbueError, RuntimeError):
    """A network whose ReLU call sites cannot be found or made random."""


class OutOfMemory(RbueError):
    """Work for which memory is short, in the smallest pieces that it can be cut into."""


class RbueWarning(UserWarning):
    """Something worth knowing that does not stop the work."""


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Say which extra brings a package that an import inside lacks."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rbue"):
            raise
        message = f"{what} needs the package {error.name}; run pip install 'rbue[{extra}]'."
        raise ModuleNotFoundError(message, name=error.name) from error


def warn(message: str, category: type[Warning] = RbueWarning) -> None:
    """Warn of something at the line of the user's code that led to it.

    Python shows a warning once a line: at one of this package's it would be shown for the first network only.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        importing = "importlib._bootstrap" in frame.f_code.co_filename  # which Python does not count
        frame, level = frame.f_back, level + (not importing)
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


def one_name_each(names: Sized, classes: int, what: object = "classes") -> None:
    """Refuse more or fewer names than there are classes; ``what`` has them."""
    if len(names) != classes:
        s = "s" * (len(names) != 1)
        raise InvalidInput(f"{what} has {len(names)} name{s} for {classes} classes; give classes= with one each.")


def shown(value: object, longest: int = 100) -> str:
    r"""Something that a file says, for a sentence: on one line, not too long, with nothing that a terminal obeys.

    >>> shown("a\x1b[2J\n"), shown([1, 2])
    ('a\\x1b[2J\\n', '[1, 2]')
    """
    text = str(value)
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= longest else f"{text[:longest]}..."


def reason(error: BaseException) -> str:
    r"""What another library's error says, likewise; its name if it says nothing.

    >>> reason(ValueError("a bad\n number")), reason(MemoryError())
    ('a bad number', 'MemoryError')
    """
    return shown(" ".join(str(error).split()), _LONGEST) or type(error).__name__


def a_kind(value: object) -> str:
    """What a value is, for a sentence.

    >>> a_kind(None), a_kind(1), a_kind((1, 2))
    ('None', 'an int', 'a tuple of 2')
    """
    if value is None:
        return "None"
    kind = type(value).__name__
    many = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}{many}"


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`` (did you mean 'cifar10'?)`` if a known word is much like the given one, or begins so, or holds it; or nothing.

    >>> did_you_mean("cifr10", ["digits", "cifar10", "cifar100"])
    " (did you mean 'cifar10'?)"
    """
    closest = max(known, key=lambda word: _likeness(given, word), default="")
    return f" (did you mean {closest!r}?)" if closest and _likeness(given, closest)[0] >= _ALIKE else ""


def _likeness(given: str, known: str) -> tuple[float, float]:
    """How alike a word is to another or a part of it, from 0 to 1; then to all of it."""
    from difflib import SequenceMatcher  # only for this

    one, other = (word.lower().replace("-", "").replace("_", "") for word in (given, known))
    lengths = (len(one) - 1, len(one), len(one) + 1, len(other))
    ratios = [SequenceMatcher(None, one, other[:length]).ratio() for length in lengths if length > 0]
    held = float(len(one) > 2 and one in other)
    return max(held, *ratios), SequenceMatcher(None, one, other).ratio()
