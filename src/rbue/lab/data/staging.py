"""Folders that appear whole or not at all, files that last, and a sentence when the system refuses to write."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rbue.lab.data.registry import CannotWrite

_DAY = 86_400.0


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


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A fresh folder beside ``target`` that takes its place when the block ends well and vanishes otherwise.

    A folder already at ``target`` is replaced by two renames; if the second fails, or never comes because the process
    was killed, the first is undone. What a killed process left here more than a day ago is cleared away.
    """
    made: Path | None = None
    with writing_to(target):
        created = make_folder(target.parent)
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
            remove_empty(target.parent, created)


@contextmanager
def lasting(path: Path) -> Iterator[BinaryIO]:
    """A file to write; it has reached the disk when the block ends well."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def make_folder(folder: Path) -> list[Path]:
    """Make a folder with its parents; returns those that were not there before, the innermost first."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def remove_empty(folder: Path, created: Iterable[Path]) -> None:
    """Remove a folder and its parents, as far as they are among those created here and nothing was put into them."""
    created = set(created)
    for place in (folder, *folder.parents):
        try:
            if place not in created:
                return
            place.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return


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
