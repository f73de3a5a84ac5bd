"""Frost: the image under a piece of a frozen window, photographed where possible and drawn otherwise.

Drawn ice: crystals grow from random points; every pixel belongs to the nearest one. A crystal is a feather: a bright
spine with barbs that branch off it at 60 degrees, paler away from the spine; a few are facets, bright all over. The
seams between crystals are bright, some patches stay clear. Behind the crystals the pane is dark, which the published
photographs mostly are not: drawn frost brightens an image less and streaks it more than photographed frost, and at
equal weights the mean squared error it causes is smaller.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.random import Generator, Philox
from PIL import Image

from rbue.errors import reason
from rbue.lab.corruptions.corrupting import Batch, Floats, corruption
from rbue.lab.data.images import Bytes
from rbue.lab.data.registry import DataError

VARIABLE = "RBUE_FROST"
# The published sets draw from the first five of six photographs.
PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
_PACKAGE = "imagecorruptions"
_ICE_VERSION = 1
_ICE_SIZE = (360, 540)
# Crystals, distance between barbs in pixels, share of the pane left clear, tint.
_PANES = (
    (36, 34.0, 0.30, (0.86, 0.95, 1.00)),
    (60, 26.0, 0.25, (0.92, 0.97, 1.00)),
    (90, 22.0, 0.30, (0.95, 0.98, 1.00)),
    (30, 40.0, 0.35, (0.80, 0.92, 1.00)),
    (75, 30.0, 0.25, (0.90, 0.95, 0.98)),
)

_one_at_a_time = Lock()  # or every thread of the first batch would draw the ice


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
    not imported), and otherwise ice drawn here.

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
    return FrostSource(None, str(_ICE_VERSION))


@corruption(
    cifar=((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
    tiny_imagenet=((1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)),
)
def frost(batch: Batch, image_weight: float, frost_weight: float, scale: float) -> Bytes:
    """``image_weight·x + frost_weight·f`` with a random piece ``f`` of a texture shrunk to ``scale``."""
    height, width = batch.size
    folder = frost_source(batch.frost_folder).folder
    with _one_at_a_time:
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
    textures = ice() if folder is None else tuple(_read(folder / name) for name in PHOTOGRAPHS)
    return tuple(
        shrink(texture, max(scale, 1.1 * height / texture.shape[0], 1.1 * width / texture.shape[1]))
        for texture in textures
    )


def _read(path: Path) -> Bytes:
    try:
        with Image.open(path, formats=("JPEG", "PNG")) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is not a whole image ({reason(error)}); get it again.") from error


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


@lru_cache(maxsize=1)
def ice() -> tuple[Bytes, ...]:
    """Five textures, uint8, ``(360, 540, 3)``; always the same."""
    return tuple(_pane(number, *pane) for number, pane in enumerate(_PANES))


def _pane(number: int, crystals: int, spacing: float, clear: float, tint: tuple[float, float, float]) -> Bytes:
    from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]  # slow to load
    from scipy.spatial import cKDTree  # type: ignore[import-untyped]

    random = Generator(Philox(key=number))
    seeds = random.random((crystals, 2)) * _ICE_SIZE
    directions = random.random(crystals) * 2 * np.pi
    brilliance = 0.4 + 0.6 * random.random(crystals)
    facet = random.random(crystals) ** 8

    rows, columns = np.meshgrid(*map(np.arange, _ICE_SIZE), indexing="ij")
    wobble = [gaussian_filter(random.standard_normal(_ICE_SIZE), 6.0, mode="wrap") * 25.0 for _ in range(2)]
    places = np.stack([rows + wobble[0], columns + wobble[1]], axis=-1)
    distance, nearest = cKDTree(seeds).query(places, k=2)
    owner = nearest[..., 0]
    offset = places - seeds[owner]
    sine, cosine = np.sin(directions)[owner], np.cos(directions)[owner]
    along = offset[..., 0] * sine + offset[..., 1] * cosine
    aside = np.abs(offset[..., 0] * cosine - offset[..., 1] * sine)

    barbs = np.abs((along - aside / np.tan(np.pi / 3)) / spacing % 1.0 - 0.5) * 2
    feather = np.maximum(barbs**4 * np.exp(-aside / (1.5 * spacing)), np.exp(-((aside / (0.12 * spacing)) ** 2)))
    seam = np.exp(-(distance[..., 1] - distance[..., 0]) / (0.1 * spacing))
    grown = _patches(random, clear)
    light = grown * (feather * brilliance[owner] + 0.45 * seam + 0.4 * facet[owner]) + 0.02
    light *= 0.85 + 0.3 * random.random(_ICE_SIZE)
    return (np.clip(light[..., None] * np.array(tint), 0.0, 1.0) * 255).astype(np.uint8)


def _patches(random: Generator, clear: float) -> Floats:
    """1 where ice has grown, 0 on about a share ``clear`` of the pane, with soft borders."""
    from scipy.ndimage import gaussian_filter

    field = gaussian_filter(random.standard_normal(_ICE_SIZE), 25.0, mode="wrap")
    low, high = np.quantile(field, [clear * 0.6, min(1.0, clear * 1.6)])
    return np.clip((field - low) / (high - low), 0.0, 1.0)
