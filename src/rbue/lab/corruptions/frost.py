"""Frost: the image under a piece of a frozen window, photographed where possible and drawn otherwise."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from rbue.lab.corruptions import ice
from rbue.lab.corruptions.batch import Batch, Floats
from rbue.lab.corruptions.registry import corruption
from rbue.lab.data.images import Bytes
from rbue.lab.data.problems import DataError

VARIABLE = "RBUE_FROST"
# The published sets draw from the first five of six photographs.
PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
_PACKAGE = "imagecorruptions"


@dataclass(frozen=True)
class FrostSource:
    """Which textures ``frost`` uses; the text of it belongs beside every result.

    Attributes:
        folder: Where the photographs are; None for drawn ice.
        fingerprint: The first 16 digits of the photographs' SHA-256, or the version of the drawing.
    """

    folder: Path | None
    fingerprint: str

    def __str__(self) -> str:
        return f"{'drawn ice, version' if self.folder is None else 'photographs, sha256'} {self.fingerprint}"


def frost_source(folder: str | os.PathLike[str] | None = None) -> FrostSource:
    """The textures that ``frost`` uses on this machine.

    In order: the given folder, the folder in ``$RBUE_FROST``, the installed PyPI package ``imagecorruptions`` (which is
    not imported), and otherwise ice drawn by :mod:`rbue.lab.corruptions.ice`.

    Args:
        folder: Holds ``frost1.png`` to ``frost3.png``, ``frost4.jpg`` and ``frost5.jpg`` as published.

    Raises:
        DataError: The given folder, or the one in ``$RBUE_FROST``, lacks a photograph.
    """
    named = folder if folder is not None else os.environ.get(VARIABLE)
    if named:
        place = Path(named).expanduser()
        missing = next((name for name in PHOTOGRAPHS if not (place / name).is_file()), None)
        if missing is not None:
            where = "the given frost folder" if folder is not None else f"${VARIABLE}"
            raise DataError(
                f"{place / missing} is not there, though {where} names {place}; "
                f"put the published {', '.join(PHOTOGRAPHS)} there, or leave it out to have ice drawn."
            )
        return _photographs(place)
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        place = Path(location) / "frost"
        if all((place / name).is_file() for name in PHOTOGRAPHS):
            return _photographs(place)
    return FrostSource(None, str(ice.VERSION))


@corruption(
    cifar=((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
    tiny_imagenet=((1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)),
)
def frost(batch: Batch, image_weight: float, frost_weight: float, scale: float) -> Bytes:
    """``image_weight·x + frost_weight·f`` with a random piece ``f`` of a texture shrunk to ``scale``."""
    height, width = batch.size
    folder = frost_source(batch.frost_folder).folder
    textures = _scaled(folder, scale, height, width)
    which, place = batch.integers(0, len(textures)), batch.uniform(0.0, 1.0, 2)
    pieces = np.empty(batch.images.shape)
    for piece, number, (down, right) in zip(pieces, which.tolist(), place.tolist(), strict=True):
        texture = textures[number]
        top, left = int(down * (texture.shape[0] - height)), int(right * (texture.shape[1] - width))
        piece[:] = texture[top : top + height, left : left + width]
    pieces *= frost_weight
    pieces += image_weight * batch.images
    return np.clip(pieces, 0.0, 255.0, out=pieces).astype(np.uint8)


@lru_cache(maxsize=4)
def _photographs(folder: Path) -> FrostSource:
    digest = hashlib.sha256()
    for name in PHOTOGRAPHS:
        digest.update((folder / name).read_bytes())
    return FrostSource(folder, digest.hexdigest()[:16])


@lru_cache(maxsize=8)
def _scaled(folder: Path | None, scale: float, height: int, width: int) -> tuple[Bytes, ...]:
    """The textures shrunk to ``scale``, or as little beyond it as leaves room to choose a piece."""
    textures = ice.ice() if folder is None else tuple(_read(folder / name) for name in PHOTOGRAPHS)
    return tuple(
        shrink(texture, max(scale, 1.1 * height / texture.shape[0], 1.1 * width / texture.shape[1]))
        for texture in textures
    )


def _read(path: Path) -> Bytes:
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path} is not a whole image ({error}); get it again.") from error


def shrink(texture: Bytes, scale: float) -> Bytes:
    """Read at the middles of the new pixels, linearly and without averaging: what makes frost look crisp."""
    sampled: Floats = texture.astype(np.float64)
    for axis in (0, 1):
        length = sampled.shape[axis]
        places = np.clip((np.arange(round(length * scale)) + 0.5) / scale - 0.5, 0, length - 1)
        near = np.minimum(places.astype(np.int64), length - 2)
        share = (places - near).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        sampled = sampled.take(near, axis) * (1 - share) + sampled.take(near + 1, axis) * share
    return np.round(sampled).astype(np.uint8)
