"""Many images in one lossless picture: a grid, or one image a row."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rbue.lab.data.images import Bytes
from rbue.lab.data.problems import DataError
from rbue.lab.data.registry import Chunk, DataSet
from rbue.lab.data.sources import Source

Reader = Callable[[Source, DataSet, str, int], Iterator[Chunk]]
ACROSS = 100
_LARGEST = 200_000_000  # pixels a sheet may have; Pillow's own limit does not apply to a known kind of file


def grid_sheets(sheets: Mapping[str, tuple[str, ...]], labels: str, keys: Mapping[str, str]) -> Reader:
    """Grids of 100 images across, row by row, and an ``.npz`` with the labels of each split under its key."""

    def read(source: Source, dataset: DataSet, split: str, count: int) -> Iterator[Chunk]:
        all_labels = read_npz(source, labels, (keys[split],))[keys[split]]
        height, width, channels = dataset.shape
        at = 0
        for file in sheets[split]:
            pixels = _picture(source, file)
            if pixels.shape[0] % height or pixels.shape[1] != ACROSS * width:
                raise DataError(
                    f"{source.place(file)} is {pixels.shape[1]}x{pixels.shape[0]}; a sheet is {ACROSS} images "
                    f"of {width}x{height} across."
                )
            grid = pixels.reshape(-1, height, ACROSS, width, channels).transpose(0, 2, 1, 3, 4)
            images = grid.reshape(-1, height, width, channels)
            yield images, all_labels[at : at + len(images)]
            at += len(images)

    return read


def row_sheets(sheets: Mapping[str, tuple[str, ...]], labels: Mapping[str, str]) -> Reader:
    """One image a row, its pixels in HWC order, and a JSON list of labels a split."""

    def read(source: Source, dataset: DataSet, split: str, count: int) -> Iterator[Chunk]:
        all_labels = _json_labels(source, labels[split])
        height, width, channels = dataset.shape
        at = 0
        for file in sheets[split]:
            pixels = _picture(source, file)
            if pixels.shape[1] != height * width:
                raise DataError(
                    f"{source.place(file)} is {pixels.shape[1]} pixels wide; a row is one image of {height * width}."
                )
            images = pixels.reshape(-1, height, width, channels)
            yield images, all_labels[at : at + len(images)]
            at += len(images)

    return read


def read_npz(source: Source, file: str, keys: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Named integer arrays of one dimension from an ``.npz``."""
    place = source.place(file)
    try:
        with np.load(io.BytesIO(source.read(file)), allow_pickle=False) as arrays:
            found = {key: arrays[key] for key in keys}
    except DataError:
        raise
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError, AttributeError) as error:
        raise DataError(f"{place} is not a whole .npz with {', '.join(keys)} ({error}); get it again.") from error
    for key, array in found.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(f"{place}: {key} is {array.dtype} {array.shape} instead of a list of whole numbers.")
    return found


def _json_labels(source: Source, file: str) -> NDArray[np.int64]:
    place = source.place(file)
    try:
        values = json.loads(source.read(file))
    except ValueError as error:
        raise DataError(f"{place} is not whole JSON ({error}); get it again.") from error
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise DataError(f"{place} is not a list of whole numbers; it is another file under this name.")
    return np.array(values, dtype=np.int64)


def _picture(source: Source, file: str) -> Bytes:
    place = source.place(file)
    try:
        with Image.open(io.BytesIO(source.read(file)), formats=("PNG", "WEBP")) as image:
            if image.width * image.height > _LARGEST:
                raise DataError(f"{place} is {image.width}x{image.height}, too large for a sheet.")
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{place} is not a whole picture ({error}); get it again.") from error
