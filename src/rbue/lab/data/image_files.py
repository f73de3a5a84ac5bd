"""Image files of a user: which files of a folder they are.

A file is meant to be an image if its name ends like one (``ENDINGS``), or else if its content begins like one.
"""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image

from rbue.image_decoding import FORMATS

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".jp2", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
_NAMED = 3


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


def image_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """All image files below a folder, sorted, and the files that are no images.

    Names that start with a dot are neither. A folder inside that cannot be read stands among the images, so that
    opening it says so. Links to folders are not followed.
    """
    images: list[Path] = []
    others: list[Path] = []
    for place, folders, files in os.walk(folder, onerror=lambda error: images.append(Path(error.filename))):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in files if not name.startswith(".")):
            (images if is_meant_as_image(path) else others).append(path)
    return sorted(images), sorted(others)


def first_names(paths: list[Path], base: Path) -> str:
    """The first few of some files below a folder, for a sentence."""
    names = [path.relative_to(base).as_posix() for path in paths[:_NAMED]]
    return ", ".join(names) + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")


def left_out(others: list[Path], base: Path) -> str:
    """A sentence about files below a folder that are no images.

    >>> left_out([Path("photos/Thumbs.db")], Path("photos"))
    'photos has 1 file that is no image, left out: Thumbs.db.'
    """
    kind = "file that is no image" if len(others) == 1 else "files that are no images"
    return f"{base} has {len(others)} {kind}, left out: {first_names(others, base)}."
