"""A reader for pickles of plain data: dict, list, bytes, str, int and numpy uint8 arrays; anything else is refused.

A pickle is a program: it names functions and calls them. Here the few names that a uint8 array needs lead to inert
stand-ins of our own, so that no function of numpy or of any other module is ever called by a file, and every other
name is an error before anything happens.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

from rbue.errors import reason
from rbue.lab.data.registry import DataError


class _Refused(Exception):
    pass


class _Inert:
    """Cannot be given state or attributes by a file."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise _Refused("gives state to something that has none")


class _ArrayClass(_Inert):
    """Stands for ``numpy.ndarray``, which is only ever passed on."""

    __slots__ = ()


class _ByteType(_Inert):
    """Stands for ``numpy.dtype('u1')``."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        """A data type's state is byte order and layout; a byte has neither."""


class _DtypeFunction(_Inert):
    __slots__ = ()

    def __call__(self, code: object = None, *rest: object) -> _ByteType:
        if code not in ("u1", b"u1", "|u1", b"|u1", "uint8", b"uint8"):
            raise _Refused(f"holds an array of type {code!r} instead of uint8")
        return _ByteType()


class _Array:
    """An array whose shape and bytes arrive in its state: (version, shape, type, Fortran order, bytes)."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise _Refused("holds an array in an unknown form")
        _, shape, kind, fortran, data = state
        if not isinstance(kind, _ByteType) or not isinstance(data, bytes) or not isinstance(shape, tuple):
            raise _Refused("holds an array that is not of uint8")
        if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) != len(data):
            raise _Refused("holds an array whose shape and bytes do not agree")
        self.value = np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


class _Reconstruct(_Inert):
    __slots__ = ()

    def __call__(self, *arguments: object) -> _Array:
        return _Array()


class _Encode(_Inert):
    """Stands for ``_codecs.encode``, with which Python 3 writes bytes in old pickles."""

    __slots__ = ()

    def __call__(self, text: object = None, encoding: object = None) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise _Refused("encodes something other than Latin-1 text")
        return text.encode("latin-1")


_ALLOWED: dict[tuple[str, str], _Inert] = {
    ("numpy", "ndarray"): _ArrayClass(),
    ("numpy", "dtype"): _DtypeFunction(),
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("_codecs", "encode"): _Encode(),
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Give a stand-in for the few names that are needed, refuse every other."""
        if (module, name) not in _ALLOWED:
            raise _Refused(f"asks for {module}.{name}")
        return _ALLOWED[module, name]


def read_pickle(data: bytes, place: str) -> dict[Any, Any]:
    """The dictionary in a pickle of plain data.

    Args:
        data: The pickle.
        place: Where it comes from, for messages.

    Raises:
        DataError: Damaged, or anything in it that is not plain data.
    """
    try:
        _check_sizes(data)
        content = _Plain()(_Reader(io.BytesIO(data), encoding="bytes").load())
    except _Refused as refusal:
        raise DataError(
            f"{place} {refusal}; only plain data is read from pickles, so this file was refused and nothing in it was "
            "run. Get the publisher's file, or its binary version."
        ) from None
    except RecursionError:
        raise DataError(f"{place} is nested too deeply to be plain data; get the file again.") from None
    except Exception as error:
        raise DataError(f"{place} is not a whole pickle ({reason(error)}); get it again.") from error
    if not isinstance(content, dict):
        raise DataError(f"{place} holds a {type(content).__name__} instead of a dictionary; get the file again.")
    return content


def _check_sizes(data: bytes) -> None:
    """Refuse a place in the memo beyond the file's own length: all places before it would be given memory."""
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= len(data):
            raise _Refused(f"numbers something {argument} among {len(data)} bytes")


class _Plain:
    """Puts arrays in place of their stand-ins and refuses types that are not plain.

    One list may stand in another a hundred times, and that in a third: what is visited is counted, not what is there.
    """

    def __init__(self) -> None:
        self.left = 500_000

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if depth > 8:
            raise _Refused("is nested too deeply")
        if type(value) in (bytes, str, int):
            return value
        if type(value) in (list, dict):
            self.left -= len(value)
            if self.left < 0:
                raise _Refused("holds more than half a million things")
        if type(value) is list:
            return [item if type(item) in (bytes, str, int) else self(item, depth + 1) for item in value]
        if type(value) is dict:
            return {self(key, depth + 1): self(item, depth + 1) for key, item in value.items()}
        if type(value) is _Array and value.value is not None:
            return value.value
        raise _Refused(f"holds a {type(value).__name__.lstrip('_')}")
