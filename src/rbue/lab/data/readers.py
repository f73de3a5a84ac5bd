"""Readers of the files that publishers ship, and of compact sheets: CIFAR, idx, MATLAB, TinyImageNet, PNG and WebP.

A reader takes the files of a split and gives chunks of images (uint8, NHWC) and labels. It refuses a file that is
damaged, truncated or another one under this name, and says which; nothing in a file is ever run.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rbue.errors import reason
from rbue.files import load_arrays
from rbue.lab.data.images import Bytes
from rbue.lab.data.pickles import read_pickle
from rbue.lab.data.registry import Chunk, DataError, DataSet, Reader, SplitFiles
from rbue.lab.data.source_files import Source

ACROSS = 100
_LARGEST = 200_000_000  # pixels a sheet may have; Pillow's own limit does not apply to a known kind of file
_DECODED_AT_ONCE = 1000
_JPEG_END = b"\xff\xd9"


def cifar_binary(label_bytes: int, label_at: int) -> Reader:
    """Records of ``label_bytes`` label bytes (the one to use at ``label_at``) and the pixels as colour planes."""

    def read(given: SplitFiles) -> Iterator[Chunk]:
        record = label_bytes + int(np.prod(given.dataset.shape))
        each = given.count // len(given.files)
        for file in given.files:
            data = given.source.read(file)
            if len(data) != each * record:
                raise DataError(
                    f"{given.source.place(file)} has {len(data)} bytes instead of {each * record} "
                    f"({each} records of {record}); it is truncated or another file; get it again."
                )
            rows = np.frombuffer(data, dtype=np.uint8).reshape(each, record)
            yield _from_planes(rows[:, label_bytes:], given.dataset), rows[:, label_at]

    return read


def cifar_pickled(labels_key: str) -> Reader:
    """Dictionaries with ``data`` (a uint8 row an image, as colour planes) and a list of labels."""

    def read(given: SplitFiles) -> Iterator[Chunk]:
        each = given.count // len(given.files)
        wanted = (each, int(np.prod(given.dataset.shape)))
        for file in given.files:
            place = given.source.place(file)
            content = read_pickle(given.source.read(file), place)
            data, labels = _entry(content, "data", place), _entry(content, labels_key, place)
            if not isinstance(data, np.ndarray) or data.shape != wanted:
                found = f"uint8 {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
                raise DataError(f"{place}: 'data' is {found} instead of uint8 {wanted}; get the file again.")
            if not _is_whole_numbers(labels) or len(labels) != each:
                raise DataError(f"{place}: {labels_key!r} is not a list of {each} whole numbers; get the file again.")
            yield _from_planes(data, given.dataset), np.array(labels, dtype=np.int64)

    return read


def _from_planes(rows: Bytes, dataset: DataSet) -> Bytes:
    height, width, channels = dataset.shape
    return rows.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)


def _entry(content: dict[Any, Any], key: str, place: str) -> Any:
    for form in (key.encode(), key):  # Python 2 wrote bytes, Python 3 would write text
        if form in content:
            return content[form]
    raise DataError(f"{place} has no {key!r} in it; it is another file under this name.")


def idx(given: SplitFiles) -> Iterator[Chunk]:
    """The idx files of MNIST and its relatives, plain or gzip-compressed: one of images, one of labels."""
    image_file, label_file = given.files
    height, width, _ = given.dataset.shape
    images = _read_idx(given.source, image_file, (given.count, height, width))
    yield images[..., None], _read_idx(given.source, label_file, (given.count,))


def _read_idx(source: Source, file: str, shape: tuple[int, ...]) -> Bytes:
    place = source.place(file)
    header = 4 + 4 * len(shape)
    size = int(np.prod(shape))
    data = source.read(file)
    if file.endswith(".gz"):
        try:
            with gzip.open(io.BytesIO(data)) as stream:
                data = stream.read(header + size + 1)  # never more than what can be right
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{place} is damaged or truncated ({reason(error)}); get it again.") from error
    if data[:4] != bytes((0, 0, 8, len(shape))):
        raise DataError(f"{place} begins with {data[:4].hex()}, not as an idx file of {len(shape)} dimensions does.")
    found = struct.unpack(f">{len(shape)}I", data[4:header]) if len(data) >= header else ()
    if found != shape:
        raise DataError(f"{place} says it holds {found}, expected is {shape}; it is another file under this name.")
    if len(data) != header + size:
        raise DataError(f"{place} has {len(data)} bytes instead of {header + size}; it is truncated; get it again.")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)


def svhn_mat(given: SplitFiles) -> Iterator[Chunk]:
    """SVHN's cropped digits: a MATLAB 5 file with ``X`` (H, W, C, N) and ``y`` (N, 1), where 10 means zero."""
    from scipy.io import loadmat  # type: ignore[import-untyped]

    (file,) = given.files
    place, shape, count = given.source.place(file), given.dataset.shape, given.count
    try:
        # Version 5 holds arrays, never code, and only the two named ones are decoded.
        content = loadmat(io.BytesIO(given.source.read(file)), variable_names=("X", "y"))
        images, labels = content["X"], content["y"].ravel()
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{place} is not a whole MATLAB 5 file with X and y ({reason(error)}); get it again."
        ) from error
    if images.dtype != np.uint8 or images.shape != (*shape, count) or labels.shape != (count,):
        raise DataError(
            f"{place} holds X {images.dtype} {images.shape} and y {labels.shape} instead of uint8 "
            f"{(*shape, count)} and ({count},); it is another file under this name."
        )
    digits = labels.astype(np.int64)
    digits[digits == 10] = 0
    yield images.transpose(3, 0, 1, 2), digits


def grid_sheets(labels: str, keys: Mapping[str, str]) -> Reader:
    """Lossless pictures, grids of 100 images across, row by row; an ``.npz`` has each split's labels under its key."""

    def read(given: SplitFiles) -> Iterator[Chunk]:
        all_labels = _read_npz(given.source, labels, (keys[given.split],))[keys[given.split]]
        height, width, channels = given.dataset.shape
        at = 0
        for file in given.files:
            pixels = _read_picture(given.source, file)
            if pixels.shape[0] % height or pixels.shape[1] != ACROSS * width:
                raise DataError(
                    f"{given.source.place(file)} is {pixels.shape[1]}x{pixels.shape[0]}; a sheet is {ACROSS} images "
                    f"of {width}x{height} across."
                )
            grid = pixels.reshape(-1, height, ACROSS, width, channels).transpose(0, 2, 1, 3, 4)
            images = grid.reshape(-1, height, width, channels)
            yield images, all_labels[at : at + len(images)]
            at += len(images)

    return read


def row_sheets(given: SplitFiles) -> Iterator[Chunk]:
    """Lossless pictures with one image a row, its pixels in HWC order; the last file is a JSON list of labels."""
    *sheets, label_file = given.files
    all_labels = _read_json(given.source, label_file)
    if not _is_whole_numbers(all_labels):
        raise DataError(
            f"{given.source.place(label_file)} is not a list of whole numbers; it is another file under this name."
        )
    height, width, channels = given.dataset.shape
    at = 0
    for file in sheets:
        pixels = _read_picture(given.source, file)
        if pixels.shape[1] != height * width:
            raise DataError(
                f"{given.source.place(file)} is {pixels.shape[1]} pixels wide; a row is one image of {height * width}."
            )
        images = pixels.reshape(-1, height, width, channels)
        yield images, np.array(all_labels[at : at + len(images)], dtype=np.int64)
        at += len(images)


def _read_picture(source: Source, file: str) -> Bytes:
    place = source.place(file)
    try:
        with Image.open(io.BytesIO(source.read(file)), formats=("PNG", "WEBP")) as image:
            if image.width * image.height > _LARGEST:
                raise DataError(f"{place} is {image.width}x{image.height}, too large for a sheet.")
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{place} is not a whole picture ({reason(error)}); get it again.") from error


def _read_npz(source: Source, file: str, keys: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Named integer arrays of one dimension."""
    place = source.place(file)
    try:
        found = load_arrays(io.BytesIO(source.read(file)), keys)
    except (ValueError, OSError) as error:
        raise DataError(
            f"{place} is not a whole .npz with {', '.join(keys)} ({reason(error)}); get it again."
        ) from error
    for key, array in found.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(f"{place}: {key} is {array.dtype} {array.shape} instead of a list of whole numbers.")
    return found


def _read_json(source: Source, file: str) -> Any:
    try:
        return json.loads(source.read(file))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source.place(file)} is not whole JSON ({reason(error)}); get it again.") from error


def _is_whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and abs(value) < 1 << 31 for value in values)


# TinyImageNet. Decoders may differ in the last bit of a JPEG, so no checksum of the decoded arrays is published; the
# archive's is. The labels of its test images are unpublished, so its validation images are the test images here.


def tiny_imagenet_tree(given: SplitFiles) -> Iterator[Chunk]:
    """``train/CODE/images/*.JPEG`` by class, or ``val/images/*.JPEG`` by number with ``val/val_annotations.txt``."""
    source = given.source
    listed = (_training_files if given.split == "train" else _validation_files)(source, given.dataset.codes)
    return _decode_jpegs(((source.place(file), source.read(file), label) for file, label in listed), given.dataset)


def tiny_imagenet_parts(given: SplitFiles) -> Iterator[Chunk]:
    """JPEG i is ``header-H.bin``, its bytes from ``train-K.bin`` or ``val-0.bin``, and the end marker."""
    part = "train" if given.split == "train" else "val"
    return _decode_jpegs(_join_parts(given.source, given.dataset.codes, part), given.dataset)


def _training_files(source: Source, codes: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    found = [name for name in source.children("train/") if name in codes or source.has(f"train/{name}/")]
    for unknown in sorted(set(found) - set(codes)):
        raise DataError(f"{source.place(f'train/{unknown}')} is not one of the {len(codes)} classes.")
    for label, code in enumerate(codes):
        folder = f"train/{code}/images/"
        if not source.has(folder):
            raise DataError(f"{source.place(folder)} is missing; get the whole set.")
        for name in source.children(folder):
            yield folder + name, label


def _validation_files(source: Source, codes: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    labels = {code: label for label, code in enumerate(codes)}
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


def _join_parts(source: Source, codes: tuple[str, ...], part: str) -> Iterator[tuple[str, bytes, int]]:
    listed = _listed_codes(_read_json(source, "index.json"), source.place("index.json"))
    try:
        labels_of = [codes.index(code) for code in listed]
    except ValueError as error:
        raise DataError(
            f"{source.place('index.json')} names a class the set does not have ({reason(error)})."
        ) from error
    headers: dict[int, bytes] = {}
    number = 0
    while source.has(f"{part}-{number}.bin"):
        file = f"{part}-{number}.bin"
        table = _read_npz(source, f"{part}-{number}.npz", ("length", "header", "label"))
        body, at = source.read(file), 0
        if not len(table["length"]) == len(table["header"]) == len(table["label"]):
            raise DataError(f"{source.place(f'{part}-{number}.npz')} has lists of different lengths; get it again.")
        for length, header, label in zip(*(table[key].tolist() for key in ("length", "header", "label")), strict=True):
            if header not in headers:
                headers[header] = source.read(f"header-{header}.bin")
            if length < 0 or at + length > len(body) or not 0 <= label < len(labels_of):
                raise DataError(f"{source.place(file)} is truncated or does not fit its .npz; get it again.")
            jpeg = headers[header] + body[at : at + length] + _JPEG_END
            yield f"{source.place(file)} at byte {at}", jpeg, labels_of[label]
            at += length
        if at != len(body):
            raise DataError(f"{source.place(file)} has {len(body)} bytes, its .npz lists {at}; get it again.")
        number += 1


def _listed_codes(index: Any, place: str) -> list[str]:
    """Class codes in label order, from a list or ``{"classes": [...]}``.

    Entries are codes, texts that begin with one, or lists or objects that have one among their values.
    """
    entries = index.get("classes", index) if isinstance(index, dict) else index
    if not isinstance(entries, list):
        raise DataError(f"{place} holds no list of classes; it is another file under this name.")
    codes = []
    for entry in entries:
        values = list(entry.values()) if isinstance(entry, dict) else entry if isinstance(entry, list) else [entry]
        match = next((m for v in values if isinstance(v, str) and (m := re.match(r"n\d{8}\b", v))), None)
        if match is None:
            raise DataError(f"{place} has no class code in the entry {str(entry)[:100]!r}.")
        codes.append(match.group())
    return codes


def _decode_jpegs(files: Iterable[tuple[str, bytes, int]], dataset: DataSet) -> Iterator[Chunk]:
    images = np.empty((_DECODED_AT_ONCE, *dataset.shape), dtype=np.uint8)
    labels: list[int] = []
    for place, data, label in files:
        images[len(labels)] = read_jpeg(io.BytesIO(data), (dataset.shape[1], dataset.shape[0]), place)
        labels.append(label)
        if len(labels) == _DECODED_AT_ONCE:
            yield images.copy(), np.array(labels)
            labels = []
    if labels:
        yield images[: len(labels)].copy(), np.array(labels)


def read_jpeg(file: Any, size: tuple[int, int], place: object) -> Bytes:
    """The RGB pixels of a JPEG that must have a width and height.

    Args:
        file: A path or a binary stream.
        size: Width and height.
        place: What to call it in messages.

    Raises:
        DataError: Damaged, or of another size.
    """
    try:
        with Image.open(file, formats=("JPEG",)) as image:
            if image.size != size:
                raise DataError(f"{place} is {image.size[0]}x{image.size[1]} instead of {size[0]}x{size[1]}.")
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{place} is not a whole JPEG ({reason(error)}); get it again.") from error
