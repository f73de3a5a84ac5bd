"""TinyImageNet: the publisher's tree of JPEG files, and the same JPEGs with their common headers taken off.

Pixels come from the JPEG decoder that Pillow was built with. Decoders may differ in the last bit, so no checksum of the
decoded arrays is published here; the archive's is.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from PIL import Image

from rbue.lab.data.formats.sheets import read_npz
from rbue.lab.data.problems import DataError
from rbue.lab.data.registry import Chunk, DataSet
from rbue.lab.data.sources import Source

_AT_ONCE = 1000
_END = b"\xff\xd9"
_PART = {"train": "train", "test": "val"}  # test labels are unpublished; the validation images are the test images


def read_tree(source: Source, dataset: DataSet, split: str, count: int) -> Iterator[Chunk]:
    """``train/CODE/images/*.JPEG`` by class, or ``val/images/*.JPEG`` by number with ``val/val_annotations.txt``."""
    listed = _training_files(source, dataset) if split == "train" else _validation_files(source, dataset)
    return _decode(((source.place(file), source.read(file), label) for file, label in listed), dataset)


def read_parts(source: Source, dataset: DataSet, split: str, count: int) -> Iterator[Chunk]:
    """JPEG i is ``header-H.bin``, its bytes from ``train-K.bin`` or ``val-0.bin``, and the end marker."""
    return _decode(_join(source, dataset, _PART[split]), dataset)


def _training_files(source: Source, dataset: DataSet) -> Iterator[tuple[str, int]]:
    found = [name for name in source.children("train/") if name in dataset.codes or source.has(f"train/{name}/")]
    for unknown in sorted(set(found) - set(dataset.codes)):
        raise DataError(f"{source.place(f'train/{unknown}')} is not one of the {len(dataset.codes)} classes.")
    for label, code in enumerate(dataset.codes):
        folder = f"train/{code}/images/"
        if not source.has(folder):
            raise DataError(f"{source.place(folder)} is missing; get the whole set.")
        for name in source.children(folder):
            yield folder + name, label


def _validation_files(source: Source, dataset: DataSet) -> Iterator[tuple[str, int]]:
    labels = {code: label for label, code in enumerate(dataset.codes)}
    place = source.place("val/val_annotations.txt")
    annotations: dict[str, int] = {}
    for number, line in enumerate(source.read("val/val_annotations.txt").decode("utf-8", "replace").splitlines(), 1):
        file, code = (*line.split("\t"), "", "")[:2]
        if code not in labels:
            raise DataError(f"{place}, line {number}: {code!r} is not one of the {len(labels)} classes.")
        annotations[file] = labels[code]
    for name in source.children("val/images/"):
        if name not in annotations:
            raise DataError(f"{source.place(f'val/images/{name}')} has no line in {place}.")
        yield f"val/images/{name}", annotations[name]


def _join(source: Source, dataset: DataSet, part: str) -> Iterator[tuple[str, bytes, int]]:
    codes = _codes(json_of(source, "index.json"), source.place("index.json"))
    try:
        labels_of = [dataset.codes.index(code) for code in codes]
    except ValueError as error:
        raise DataError(f"{source.place('index.json')} names a class the set does not have ({error}).") from error
    headers: dict[int, bytes] = {}
    number = 0
    while source.has(f"{part}-{number}.bin"):
        file = f"{part}-{number}.bin"
        table = read_npz(source, f"{part}-{number}.npz", ("length", "header", "label"))
        body, at = source.read(file), 0
        if not len(table["length"]) == len(table["header"]) == len(table["label"]):
            raise DataError(f"{source.place(f'{part}-{number}.npz')} has lists of different lengths; get it again.")
        for length, header, label in zip(*(table[key].tolist() for key in ("length", "header", "label")), strict=True):
            if header not in headers:
                headers[header] = source.read(f"header-{header}.bin")
            if length < 0 or at + length > len(body) or not 0 <= label < len(labels_of):
                raise DataError(f"{source.place(file)} is truncated or does not fit its .npz; get it again.")
            yield (
                f"{source.place(file)} at byte {at}",
                headers[header] + body[at : at + length] + _END,
                labels_of[label],
            )
            at += length
        if at != len(body):
            raise DataError(f"{source.place(file)} has {len(body)} bytes, its .npz lists {at}; get it again.")
        number += 1


def json_of(source: Source, file: str) -> Any:
    """A JSON file."""
    try:
        return json.loads(source.read(file))
    except ValueError as error:
        raise DataError(f"{source.place(file)} is not whole JSON ({error}); get it again.") from error


def _codes(index: Any, place: str) -> list[str]:
    """Class codes in label order, from a list or ``{"classes": [...]}``.

    Entries are codes, texts that begin with one, or lists or objects that have one among their values.
    """
    entries = index.get("classes", index) if isinstance(index, dict) else index
    codes = []
    for entry in list(entries):
        values = list(entry.values()) if isinstance(entry, dict) else entry if isinstance(entry, list) else [entry]
        match = next((m for v in values if isinstance(v, str) and (m := re.match(r"n\d{8}\b", v))), None)
        if match is None:
            raise DataError(f"{place} has no class code in the entry {entry!r}.")
        codes.append(match.group())
    return codes


def _decode(files: Iterable[tuple[str, bytes, int]], dataset: DataSet) -> Iterator[Chunk]:
    images = np.empty((_AT_ONCE, *dataset.shape), dtype=np.uint8)
    labels: list[int] = []
    for place, data, label in files:
        try:
            with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
                if image.size != (dataset.shape[1], dataset.shape[0]):
                    raise DataError(f"{place} is {image.size[0]}x{image.size[1]} instead of 64x64.")
                images[len(labels)] = np.asarray(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError, EOFError) as error:
            raise DataError(f"{place} is not a whole JPEG ({error}); get the set again.") from error
        labels.append(label)
        if len(labels) == _AT_ONCE:
            yield images.copy(), np.array(labels)
            labels = []
    if labels:
        yield images[: len(labels)].copy(), np.array(labels)
