"""CIFAR's two forms: fixed-length binary records, and pickled batches (read without unpickling anything else)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rbue.lab.data.formats.pickles import read_pickle
from rbue.lab.data.images import Bytes
from rbue.lab.data.problems import DataError
from rbue.lab.data.registry import Chunk, DataSet
from rbue.lab.data.sources import Source

Reader = Callable[[Source, DataSet, str, int], Iterator[Chunk]]


def binary(files: Mapping[str, tuple[str, ...]], label_bytes: int, label_at: int) -> Reader:
    """Records of ``label_bytes`` label bytes (the one to use at ``label_at``) and the pixels as colour planes."""

    def read(source: Source, dataset: DataSet, split: str, count: int) -> Iterator[Chunk]:
        record = label_bytes + int(np.prod(dataset.shape))
        each = count // len(files[split])
        for file in files[split]:
            data = source.read(file)
            if len(data) != each * record:
                raise DataError(
                    f"{source.place(file)} has {len(data)} bytes instead of {each * record} "
                    f"({each} records of {record}); it is truncated or another file; get it again."
                )
            rows = np.frombuffer(data, dtype=np.uint8).reshape(each, record)
            yield _from_planes(rows[:, label_bytes:], dataset), rows[:, label_at]

    return read


def pickled(files: Mapping[str, tuple[str, ...]], labels_key: str) -> Reader:
    """Dictionaries with ``data`` (a uint8 row an image, as colour planes) and a list of labels."""

    def read(source: Source, dataset: DataSet, split: str, count: int) -> Iterator[Chunk]:
        each = count // len(files[split])
        for file in files[split]:
            place = source.place(file)
            content = read_pickle(source.read(file), place)
            data, labels = _entry(content, "data", place), _entry(content, labels_key, place)
            wanted = (each, int(np.prod(dataset.shape)))
            if not isinstance(data, np.ndarray) or data.shape != wanted:
                raise DataError(f"{place}: 'data' is {_shape(data)} instead of uint8 {wanted}; get the file again.")
            if not isinstance(labels, list) or not all(type(label) is int for label in labels) or len(labels) != each:
                raise DataError(f"{place}: {labels_key!r} is not a list of {each} whole numbers; get the file again.")
            yield _from_planes(data, dataset), np.array(labels, dtype=np.int64)

    return read


def _from_planes(rows: Bytes, dataset: DataSet) -> Bytes:
    height, width, channels = dataset.shape
    return rows.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)


def _entry(content: dict[Any, Any], key: str, place: str) -> Any:
    for form in (key.encode(), key):  # Python 2 wrote bytes, Python 3 would write text
        if form in content:
            return content[form]
    raise DataError(f"{place} has no {key!r} in it; it is another file under this name.")


def _shape(value: Any) -> str:
    return f"uint8 {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
