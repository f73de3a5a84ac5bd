"""What can go wrong with data, said in one sentence with the offending value and a way out."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rbue.errors import RbueError


class DataError(RbueError, RuntimeError):
    """Data that is missing, damaged or not what it claims to be, or a place it cannot be written to."""


class CannotWrite(DataError):
    """A place that data cannot be written to: no room, no permission, something in the way."""


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
