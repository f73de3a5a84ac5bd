"""``rbue corrupt``: a picture of what the corruptions do to one image."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from rbue.errors import InvalidInput
from rbue.files import write_bytes
from rbue.lab import data
from rbue.lab.cli.output import say
from rbue.lab.cli.progress import working
from rbue.lab.corruptions import contact_sheet, severity_strip
from rbue.lab.corruptions.registry import find
from rbue.lab.data.images import Bytes
from rbue.lab.shift.corrupted_sets import check_size

EXAMPLE = (
    "Example: rbue corrupt 7 --data cifar10 -o sheet.png\n\n"
    "Example: rbue corrupt cat.png --corruption shot_noise -o strip.png"
)
SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
MODES = ("1", "L", "P", "RGB")
LONGEST_SIDE = 512


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EXAMPLE)(corrupt)


def corrupt(
    image: Annotated[str, typer.Argument(help="An image file, or the number of a test image of --data.")],
    data_name: Annotated[str, typer.Option("--data", help="Data set of a numbered image.")] = "cifar10",
    corruption: Annotated[
        str | None, typer.Option(help="One corruption, in a row.", show_default="all, on a sheet")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the damage; test sets have 0.")] = 0,
    tile: Annotated[int, typer.Option(min=16, max=1024, help="Pixels an image gets in the picture.")] = 96,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .png, .jpg or .webp.")] = Path(
        "corruptions.png"
    ),
) -> None:
    """Show one image under all 19 corruptions at severities 1 to 5, or under one at severities 0 to 5."""
    if output.suffix.lower() not in SUFFIXES:
        raise InvalidInput(f"the picture cannot be written to {output}; end its name in {', '.join(SUFFIXES)}.")
    if corruption is not None:
        find(corruption)
    pixels, index = (numbered_image(data_name, int(image)), int(image)) if image.isdecimal() else (read(Path(image)), 0)
    with working("corrupting"):
        if corruption is None:
            picture = contact_sheet(pixels, seed=seed, index=index, tile=tile)
        else:
            picture = severity_strip(pixels, corruption, seed=seed, index=index, tile=tile)
    content = io.BytesIO()
    picture.save(content, SUFFIXES[output.suffix.lower()])
    write_bytes(output, content.getvalue())
    say(str(output))


def numbered_image(name: str, index: int) -> Bytes:
    """The pixels of a test image."""
    images = data.load(name, "test")
    check_size(images)
    if index >= len(images):
        raise InvalidInput(f"there is no test image {index} of {name}; its {len(images):,} are numbered from 0.")
    return np.asarray(images.images[index])


def read(path: Path) -> Bytes:
    """The pixels of an image file, RGB."""
    try:
        with Image.open(path) as image:
            if image.mode not in MODES or "transparency" in image.info:
                raise InvalidInput(
                    f"{path} is an image of mode {image.mode} or has transparency; save it as 8-bit grey or RGB."
                )
            if max(image.size) > LONGEST_SIDE:
                raise InvalidInput(
                    f"{path} has {image.size[0]}x{image.size[1]} pixels; the corruptions are those of small images, "
                    f"make it at most {LONGEST_SIDE} pixels high and wide first."
                )
            return np.asarray(image.convert("RGB"))
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}; give one, or the number of a test image.") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path} is not an image that can be read ({error}).") from error
