"""Folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rbue.lab.data.problems import writing_to

_DAY = 86_400.0


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A fresh folder beside ``target`` that takes its place when the block ends well and vanishes otherwise.

    A folder already at ``target`` is replaced by two renames; if the second fails, or never comes because the process
    was killed, the first is undone. What a killed process left here more than a day ago is cleared away.
    """
    made: Path | None = None
    with writing_to(target):
        top_made = _make_parents(target.parent)
        _put_back(target)
        clear_leftovers(target.parent, f".{target.name}.")
        try:
            made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
            made.chmod(0o755)
            yield made
            _swap(made, target)
            made = None
        finally:
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)
            _remove_empty(target.parent, top_made)


def append(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write bytes: the one place through which arrays and parts reach the disk."""
    file.write(data)


@contextmanager
def lasting(path: Path) -> Iterator[BinaryIO]:
    """A file to write; it has reached the disk when the block ends well."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_file(path: Path, data: bytes) -> None:
    """Write a small file and make sure that it has reached the disk."""
    with lasting(path) as file:
        append(file, data)


def _make_parents(folder: Path) -> Path | None:
    """Makes a folder with its parents; returns the topmost one that was not there before."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing[-1] if missing else None


def clear_leftovers(folder: Path, start: str = ".") -> None:
    """Remove the unfinished files and folders, named ``START...partial`` or ``.old``, that are more than a day old."""
    for place in (*folder.glob(f"{glob.escape(start)}*.partial"), *folder.glob(f"{glob.escape(start)}*.old")):
        with contextlib.suppress(OSError):  # another process may be clearing too
            if time.time() - place.stat().st_mtime <= _DAY:
                continue
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink()


def _put_back(target: Path) -> None:
    """Undo the first rename of a process that was killed before its second."""
    if not target.exists():
        for old in target.parent.glob(f".{glob.escape(target.name)}.*.old/{glob.escape(target.name)}"):
            with contextlib.suppress(OSError):
                old.rename(target)
                return


def _remove_empty(folder: Path, top: Path | None) -> None:
    if top is None:
        return
    for place in (folder, *folder.parents):
        try:
            place.rmdir()
        except OSError:
            return
        if place == top:
            return


def _swap(made: Path, target: Path) -> None:
    if not target.exists():
        made.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    target.rename(old / target.name)
    try:
        made.rename(target)
    except OSError:
        (old / target.name).rename(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
