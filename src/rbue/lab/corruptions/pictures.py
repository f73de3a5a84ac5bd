"""Pictures of one image under the corruptions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageDraw, ImageFont

from rbue.errors import InvalidInput
from rbue.lab.corruptions.corrupting import CORRUPTIONS, SEVERITIES, corrupt
from rbue.lab.data.images import Bytes

_GAP = 4
_LINE = 16
_LABEL = 106
_INK = (40, 40, 40)
_PAPER = (255, 255, 255)


def contact_sheet(image: ArrayLike, *, seed: int = 0, index: int = 0, tile: int = 64, blocks: int = 2) -> Image.Image:
    """One image under every corruption (rows) at severities 1 to 5 (columns), after the clean image.

    Args:
        image: ``(H, W, 3)`` or ``(H, W, 1)``, as :func:`corrupt` takes them.
        seed: Of the corruptions.
        index: The image's number.
        tile: The side of an image in the picture; it is enlarged by whole pixels, as far as fits.
        blocks: Into how many blocks side by side the rows are divided.
    """
    pixels = _one(image)
    rows = -(-len(CORRUPTIONS) // blocks)
    step = tile + _GAP
    block_width = _LABEL + (1 + len(SEVERITIES)) * step + 2 * _GAP
    sheet = Image.new("RGB", (blocks * block_width, _LINE + rows * step + _GAP), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for block in range(blocks):
        left = block * block_width + _LABEL
        for column, title in enumerate(("clean", *map(str, SEVERITIES))):
            draw.text((left + column * step + tile / 2, _LINE / 2), title, _INK, font, anchor="mm")
    for number, name in enumerate(CORRUPTIONS):
        left, top = number // rows * block_width + _LABEL, _LINE + number % rows * step
        draw.text((left - 2 * _GAP, top + tile / 2), name.replace("_", " "), _INK, font, anchor="rm")
        for column, version in enumerate(_versions(pixels, name, seed, index)):
            sheet.paste(_tile(version, tile), (left + column * step, top))
    return sheet


def severity_strip(
    image: ArrayLike, name: str = "shot_noise", *, seed: int = 0, index: int = 0, tile: int = 96
) -> Image.Image:
    """One image at severities 0 (clean) to 5 of a corruption, in a row with the severities below."""
    pixels = _one(image)
    step = tile + _GAP
    strip = Image.new("RGB", ((1 + len(SEVERITIES)) * step + _GAP, tile + _GAP + _LINE), _PAPER)
    draw, font = ImageDraw.Draw(strip), ImageFont.load_default()
    for severity, version in enumerate(_versions(pixels, name, seed, index)):
        strip.paste(_tile(version, tile), (_GAP + severity * step, _GAP))
        place = _GAP + severity * step + tile / 2, tile + _GAP + _LINE / 2
        draw.text(place, str(severity), _INK, font, anchor="mm")
    return strip


def _one(image: ArrayLike) -> Bytes:
    array = np.asarray(image)
    if array.ndim != 3:
        raise InvalidInput(f"the picture shows one image of shape (H, W, C), got {array.shape}.")
    return array[None]


def _versions(pixels: Bytes, name: str, seed: int, index: int) -> list[Bytes]:
    damaged = [corrupt(pixels, name, severity, seed, [index])[0] for severity in SEVERITIES]
    clean = pixels[0] if pixels.dtype == np.uint8 else np.round(pixels[0] * 255).astype(np.uint8)
    return [np.broadcast_to(clean, damaged[0].shape), *damaged]


def _tile(pixels: Bytes, side: int) -> Image.Image:
    """The image enlarged by the largest whole number that fits, or shrunk, in the middle of a square."""
    height, width = pixels.shape[:2]
    times = side // max(height, width)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if times >= 1:
        image = image.resize((width * times, height * times), Image.Resampling.NEAREST)
    else:
        image.thumbnail((side, side))
    square = Image.new("RGB", (side, side), _PAPER)
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square
