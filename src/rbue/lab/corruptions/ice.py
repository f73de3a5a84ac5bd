"""Ice on a window pane, drawn: the textures of ``frost`` where the published photographs are not at hand.

Crystals grow from random points; every pixel belongs to the nearest one. A crystal is a feather: a bright spine with
barbs that branch off it at 60 degrees, paler away from the spine; a few are facets, bright all over. The seams between
crystals are bright, some patches stay clear. Behind the crystals the pane is dark, which the published photographs
mostly are not: drawn frost brightens an image less and streaks it more than photographed frost, and at equal weights
the mean squared error it causes is smaller.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.random import Generator, Philox

from rbue.lab.corruptions.batch import Floats
from rbue.lab.data.images import Bytes

VERSION = 1
_SIZE = (360, 540)
# Crystals, distance between barbs in pixels, share of the pane left clear, tint.
_PANES = (
    (36, 34.0, 0.30, (0.86, 0.95, 1.00)),
    (60, 26.0, 0.25, (0.92, 0.97, 1.00)),
    (90, 22.0, 0.30, (0.95, 0.98, 1.00)),
    (30, 40.0, 0.35, (0.80, 0.92, 1.00)),
    (75, 30.0, 0.25, (0.90, 0.95, 0.98)),
)


@lru_cache(maxsize=1)
def ice() -> tuple[Bytes, ...]:
    """Five textures, uint8, ``(360, 540, 3)``; always the same."""
    return tuple(_pane(number, *pane) for number, pane in enumerate(_PANES))


def _pane(number: int, crystals: int, spacing: float, clear: float, tint: tuple[float, float, float]) -> Bytes:
    from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]  # slow to load
    from scipy.spatial import cKDTree  # type: ignore[import-untyped]

    random = Generator(Philox(key=number))
    seeds = random.random((crystals, 2)) * _SIZE
    directions = random.random(crystals) * 2 * np.pi
    brilliance = 0.4 + 0.6 * random.random(crystals)
    facet = random.random(crystals) ** 8

    rows, columns = np.meshgrid(*map(np.arange, _SIZE), indexing="ij")
    wobble = [gaussian_filter(random.standard_normal(_SIZE), 6.0, mode="wrap") * 25.0 for _ in range(2)]
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
    light *= 0.85 + 0.3 * random.random(_SIZE)
    return (np.clip(light[..., None] * np.array(tint), 0.0, 1.0) * 255).astype(np.uint8)


def _patches(random: Generator, clear: float) -> Floats:
    """1 where ice has grown, 0 on about a share ``clear`` of the pane, with soft borders."""
    from scipy.ndimage import gaussian_filter

    field = gaussian_filter(random.standard_normal(_SIZE), 25.0, mode="wrap")
    low, high = np.quantile(field, [clear * 0.6, min(1.0, clear * 1.6)])
    smooth: Floats = np.clip((field - low) / (high - low), 0.0, 1.0)
    return smooth
