"""Opening an image file without trusting it; needs Pillow.

Only ``FORMATS`` are opened: others start a program (PostScript) or are recognised in almost anything. An image with too
many pixels is refused before it is decoded, because a small file may unfold into all of the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from rbue.errors import InvalidInput

FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
GREY = ("L", "1")
COLOUR = ("RGB", "P")


def _too_many(name: str, most: int) -> InvalidInput:
    return InvalidInput(f"{name} has more pixels than the {most:,} that are decoded; make it smaller.")


@contextmanager
def open_image(file: Path | IO[bytes], name: str | None = None, most: int | None = None) -> Iterator[Image.Image]:
    """An image file of one picture with 8 bits a channel and no transparency, the way up it was taken.

    Args:
        file: its path, or the open file.
        name: what to call it in an error; its path if left out.
        most: pixels that are decoded; left out: ``PIL.Image.MAX_IMAGE_PIXELS``.

    Raises:
        InvalidInput: what is wrong with it, in one sentence, also if decoding fails inside the block.
    """
    name, most = str(file) if name is None else name, Image.MAX_IMAGE_PIXELS if most is None else most
    try:
        with Image.open(file, formats=FORMATS) as image:
            if most is not None and image.width * image.height > most:
                raise _too_many(name, most)
            if image.mode not in (*GREY, *COLOUR) or "transparency" in image.info:
                kind = f"{image.mode} with transparency" if image.mode in (*GREY, *COLOUR) else image.mode
                raise InvalidInput(
                    f"{name} is an image of mode {kind}; save it as 8-bit grey or RGB without transparency."
                )
            # What cameras put behind a photograph (a preview, a depth map) is no frame of it.
            frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
            if frames != 1:
                raise InvalidInput(f"{name} has {frames} frames; save one image a file.")
            yield _upright(image)
    except InvalidInput:
        raise
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {name}.") from None
    except Image.DecompressionBombError:  # Pillow's own limit
        raise _too_many(name, min(most or 0, 2 * (Image.MAX_IMAGE_PIXELS or 0))) from None
    except Exception as error:  # a decoder may raise anything at damaged bytes
        unknown = "cannot identify" in str(error)
        reason = "unknown format" if unknown else getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InvalidInput(f"{name} is not an image that can be read ({reason}).") from error


def _upright(image: Image.Image) -> Image.Image:
    """The image turned as its camera noted; looking for that note decodes nothing."""
    if image.format == "PNG" and "exif" not in image.info:  # Pillow would decode it to find one
        return image
    turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
    return ImageOps.exif_transpose(image) if turned else image


def pixels_of(image: Image.Image, mode: str, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """The pixels ``(H, W, C)`` of an open image.

    With a ``size``, width and height, they are those of its middle, scaled to that.
    """
    image = image.convert(mode)
    if size is not None:
        image = ImageOps.fit(image, size, Image.Resampling.BICUBIC)
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels if pixels.ndim == 3 else pixels[..., None]
