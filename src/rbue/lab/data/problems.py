"""What can go wrong with data, said in one sentence with the offending value and a way out."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rbue.errors import RbueError


class DataError(RbueError, RuntimeError):
    """Data that is missing, damaged or not what it claims to be, or a place it cannot be written to."""


class CannotWrite(DataError):
    """A place that data cannot be written to: no room, no permission, something in the way."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`` (did you mean 'cifar10'?)`` when a known word is close to the given one, otherwise nothing."""
    by_plain = {word.lower().replace("-", "").replace("_", ""): word for word in known}
    plain = given.lower().replace("-", "").replace("_", "")
    close = difflib.get_close_matches(plain, by_plain, n=1, cutoff=0.5)
    return f" (did you mean {by_plain[close[0]]!r}?)" if close else ""


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """Turns the system's refusal to write below ``place`` into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "the disk is full; free some space or choose another root"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = "no permission to write there; choose another root or set RBUE_DATA to a folder of your own"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            reason = "a file is in the way; remove it or choose another root"
        else:
            reason = f"the system says: {error.strerror or error}"
        raise CannotWrite(f"cannot write to {place}: {reason}. Nothing half-written was left behind.") from error
