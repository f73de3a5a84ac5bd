"""Code of a user's own, ``package.module:name``: imported because the user names it, never because a file does.

A run folder holds the names of its network and method. A stranger's may hold any, so code that only a file names
(:func:`named_by`) is refused before anything is imported or called. The user has named it if

- it was given in this process, as ``--model`` or in Python,
- it stands in ``$RBUE_TRUST``, where ``rbue --trust`` puts it, or
- a run was trained with it by this user, from the same place. That is noted outside of the run folders, in
  ``$XDG_STATE_HOME/rbue/named`` or ``~/.local/state/rbue/named``.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import sha256
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from rbue.errors import InvalidInput, RbueError, did_you_mean
from rbue.files import write_bytes

TRUST = "RBUE_TRUST"
_FORM = re.compile(r"\w+(\.\w+)*:\w+")

_file: ContextVar[str | None] = ContextVar("file", default=None)
_named: set[str] = set()
_trusted: set[str] = set()
_folder: str | None = None
"""Where modules are looked for besides: the folder that the command runs in."""


class NotNamed(RbueError):
    """Code that a file names, and the user does not."""


def look_in(folder: str) -> None:
    """Find the user's modules in this folder too; it is on the path of no other import until one of them was found."""
    global _folder
    _folder = folder


def trust(names: Iterable[str] | str) -> None:
    """Let files name this code, ``package.module:name``, for the rest of the process."""
    for name in [names] if isinstance(names, str) else names:
        if not isinstance(name, str) or not _FORM.fullmatch(name):
            raise InvalidInput(f"trust is {name!r}; give names of the form package.module:name.")
        _trusted.add(name)


def named() -> list[str]:
    """What the user has named so far, for other processes that work on the same."""
    return sorted(name for name in _named | _trusted | _in_variable() if _FORM.fullmatch(name))


def _in_variable() -> set[str]:
    return {*re.split(r"[,\s]+", os.environ.get(TRUST, ""))}


@contextmanager
def named_by(file: object) -> Iterator[None]:
    """What is looked up inside is named by a file, not by the user."""
    before = _file.set(str(file))
    try:
        yield
    finally:
        _file.reset(before)


def refuse_unnamed(name: str) -> None:
    """Raise :class:`NotNamed` for code that the user has not named; outside of :func:`named_by` that is done here."""
    file = _file.get()
    if file is None:
        _named.add(name)
    elif name not in _named | _trusted | _in_variable() and not _is_noted(name):
        raise NotNamed(
            f"{file} asks for code of its own, {name!r}, and none is run because a file says so; if you know it, "
            f"add --trust {name} to the command, or trust={name!r} to load_run."
        )


def note_named() -> None:
    """Keep for later processes what the user has named; where nothing can be kept, they ask again.

    What was only trusted, for one command, is not kept.
    """
    for name in sorted(_named - _trusted - _in_variable()):
        place = _noted(name)
        if place is not None and not place.exists():
            with suppress(OSError, RbueError):
                write_bytes(place, f"{name}\n".encode())


def _is_noted(name: str) -> bool:
    place = _noted(name)
    with suppress(OSError):
        return place is not None and place.is_file()
    return False


def _noted(name: str) -> Path | None:
    """The file that stands for code of this name from where it is now; another module of the same name has another."""
    origin = _origin(name.partition(":")[0].partition(".")[0])
    if origin is None:
        return None
    try:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:  # no home
        return None
    return Path(base) / "rbue" / "named" / sha256(f"{name}\n{origin}".encode()).hexdigest()


def _origin(package: str) -> str | None:
    """The file or folder of a package; none of its code is run to find it."""
    try:
        found = find_spec(package)
    except (ImportError, ValueError):
        found = None  # __main__, say
    if found is None and _folder is not None:
        found = PathFinder.find_spec(package, [_folder])
    if found is None:
        place = getattr(sys.modules.get(package), "__file__", None)
    else:
        place = found.origin or next(iter(found.submodule_search_locations or ()), None)
    return None if place is None else os.path.realpath(place)


def _module(place: str, spec: str) -> ModuleType:
    if _folder is not None and _folder not in sys.path:
        sys.path.append(_folder)  # and left there, for what the module imports when it runs
    try:
        return import_module(place)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (place == missing or place.startswith(f"{missing}.")):
            raise InvalidInput(
                f"there is no module {missing!r} to import for {spec!r}; install it, or set PYTHONPATH to the folder "
                "it lies in."
            ) from error
        raise InvalidInput(
            f"importing {place!r} for {spec!r} failed with {type(error).__name__}: {error}; "
            f"`python -c 'import {place}'` shows where."
        ) from error


def find_own(place: str, attribute: str, spec: str) -> Any:
    """What a user's ``package.module:attribute``, a part of the text ``spec``, names.

    Raises:
        NotNamed: only a file names it.
        InvalidInput: there is no such thing.
    """
    refuse_unnamed(f"{place}:{attribute}")
    module = _module(place, spec)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        hint = did_you_mean(attribute, (key for key in dir(module) if not key.startswith("_")))
        raise InvalidInput(
            f"module {module.__name__!r} has no {attribute!r}{hint}; {spec!r} must name something defined in "
            f"{module.__file__ or 'it'}."
        ) from error


def source_checksum(name: str) -> str | None:
    """A checksum of the file that a network or method of one's own comes from, if there is such a file."""
    if ":" not in name:
        return None
    try:
        source = inspect.getsource(_module(name.partition(":")[0], name))
    except (OSError, TypeError):
        return None
    return sha256(source.encode()).hexdigest()
