"""Image files of a user: which files of a folder they are, and opening one without trusting it.

A file is meant to be an image if its name ends like one (``ENDINGS``), or else if its content begins like one. Only
``FORMATS`` are opened: others start a program (PostScript) or are recognised in almost anything. An image with more
than ``PIL.Image.MAX_IMAGE_PIXELS`` pixels is refused before it is decoded, because a small file may unfold into all of
the memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from rbue.errors import InvalidInput
from rbue.lab.data.images import Bytes

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".jp2", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
GREY = ("L", "1")
COLOUR = ("RGB", "P")
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


@contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """An image file with 8 bits a channel and no transparency.

    Raises:
        InvalidInput: what is wrong with it, in one sentence, also if decoding fails inside the block.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            most = Image.MAX_IMAGE_PIXELS
            if most is not None and image.width * image.height > most:
                raise Image.DecompressionBombError
            if image.mode not in (*GREY, *COLOUR) or "transparency" in image.info:
                kind = f"{image.mode} with transparency" if image.mode in (*GREY, *COLOUR) else image.mode
                raise InvalidInput(
                    f"{path} is an image of mode {kind}; save it as 8-bit grey or RGB without transparency."
                )
            yield image
    except InvalidInput:
        raise
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}.") from None
    except Image.DecompressionBombError:
        raise InvalidInput(
            f"{path} has more pixels than the {Image.MAX_IMAGE_PIXELS:,} that are decoded; make it smaller."
        ) from None
    except Exception as error:  # a decoder may raise anything at damaged bytes
        unknown = "cannot identify" in str(error)
        reason = "unknown format" if unknown else getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InvalidInput(f"{path} is not an image that can be read ({reason}).") from error


def middle_square(image: Image.Image, mode: str, side: int) -> Image.Image:
    """The middle of an image, the way up it was taken, scaled to ``side`` by ``side`` pixels."""
    upright = ImageOps.exif_transpose(image).convert(mode)
    return ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC)


def pixels_of(image: Image.Image, mode: str, side: int | None) -> Bytes:
    """The pixels ``(H, W, C)`` of an open image, those of its middle square if it is to be scaled to a ``side``."""
    pixels = np.asarray(image.convert(mode) if side is None else middle_square(image, mode, side), dtype=np.uint8)
    return pixels if pixels.ndim == 3 else pixels[..., None]


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
