"""Image files of a user: which files of a folder they are.

A file is meant to be an image if its name ends like one (``ENDINGS``), or else if its content begins like one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from PIL import Image

from rbue.image_decoding import FORMATS

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".jp2", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
NAMED = 3
"""Files that a sentence names."""


def is_meant_as_image(path: Path) -> bool:
    """Whether a file is an image by its name, or else by its content; a pipe or a link to nothing is none."""
    if not path.is_file():
        return False
    if path.suffix.lower() in ENDINGS:
        return True
    try:
        with Image.open(path, formats=FORMATS):
            return True
    except Exception:  # whatever a decoder makes of bytes that are none of its own
        return False


def files_below(folder: Path, without: Collection[Path] = ()) -> Iterator[Path]:
    """All files below a folder, one at a time, sorted as paths are.

    Names that start with a dot, and what is in ``without``, are left out. A folder that cannot be read is given itself.
    Links to folders are not followed.
    """
    try:
        with os.scandir(folder) as entries:
            names = sorted((one.name, _is_folder(one)) for one in entries if not one.name.startswith("."))
    except OSError:
        yield folder
        return
    for name, is_folder in names:
        path = folder / name
        if path in without or (is_folder and path.is_symlink()):
            continue
        if is_folder:
            yield from files_below(path, without)
        else:
            yield path


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as a link to itself
        return False


def image_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """All image files below a folder, sorted, and the files that are no images.

    A folder inside that cannot be read stands among the images, so that opening it says so.
    """
    images: list[Path] = []
    others: list[Path] = []
    for path in files_below(folder):
        (images if path.is_dir() or is_meant_as_image(path) else others).append(path)
    return images, others


def first_names(paths: list[Path], base: Path, total: int | None = None) -> str:
    """The first few of some files below a folder, for a sentence; ``total`` is how many there are, if not all these."""
    names = [path.relative_to(base).as_posix() for path in paths[:NAMED]]
    total = len(paths) if total is None else total
    return ", ".join(names) + (f" and {total - NAMED} more" if total > NAMED else "")


def left_out(others: list[Path], base: Path, total: int | None = None) -> str:
    """A sentence about files below a folder that are no images.

    >>> left_out([Path("photos/Thumbs.db")], Path("photos"))
    'photos has 1 file that is no image, left out: Thumbs.db.'
    """
    total = len(others) if total is None else total
    kind = "file that is no image" if total == 1 else "files that are no images"
    return f"{base} has {total} {kind}, left out: {first_names(others, base, total)}."
