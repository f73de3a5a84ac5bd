"""The idx files of MNIST and its relatives, plain or gzip-compressed."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from rbue.lab.data.images import Bytes
from rbue.lab.data.problems import DataError
from rbue.lab.data.registry import Chunk, DataSet
from rbue.lab.data.sources import Source


def idx(files: Mapping[str, tuple[str, str]]) -> Callable[[Source, DataSet, str, int], Iterator[Chunk]]:
    """One file of images and one of labels a split."""

    def read(source: Source, dataset: DataSet, split: str, count: int) -> Iterator[Chunk]:
        image_file, label_file = files[split]
        height, width, _ = dataset.shape
        images = _read(source, image_file, (count, height, width))
        labels = _read(source, label_file, (count,))
        yield images[..., None], labels

    return read


def _read(source: Source, file: str, shape: tuple[int, ...]) -> Bytes:
    place = source.place(file)
    header = 4 + 4 * len(shape)
    size = int(np.prod(shape))
    data = source.read(file)
    if file.endswith(".gz"):
        try:
            with gzip.open(io.BytesIO(data)) as stream:
                data = stream.read(header + size + 1)  # never more than what can be right
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{place} is damaged or truncated ({error}); get it again.") from error
    if data[:4] != bytes((0, 0, 8, len(shape))):
        raise DataError(f"{place} begins with {data[:4].hex()}, not as an idx file of {len(shape)} dimensions does.")
    found = struct.unpack(f">{len(shape)}I", data[4:header]) if len(data) >= header else ()
    if found != shape:
        raise DataError(f"{place} says it holds {found}, expected is {shape}; it is another file under this name.")
    if len(data) != header + size:
        raise DataError(f"{place} has {len(data)} bytes instead of {header + size}; it is truncated; get it again.")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)
