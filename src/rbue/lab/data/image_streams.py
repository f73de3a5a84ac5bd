"""Any number of images, one at a time: those of files and folders, and those in the rows of Parquet files.

:func:`write_listing` goes through what a user names and writes one line of JSON for each: ``["photos/a.png"]``, or
``["photos.parquet", ROWS, COLUMN, BYTES]``. :func:`read_listed` reads the images of a part of it, anywhere. Neither
has more in memory than the names of one folder and some images.

A column of a Parquet file holds images in one of three ways:

- ``binary``: the content of image files;
- ``struct<bytes: binary, ...>``: the same, as Hugging Face ``datasets`` write an ``Image``;
- a list of ``uint8``, or ``binary`` of fixed size: the pixels themselves, ``H x W x C`` of them, channels last.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rbue.errors import InvalidInput, RbueError, reason, shown
from rbue.files import unwritten
from rbue.lab.data.folder import read_image
from rbue.lab.data.image_files import NAMED, files_below, is_meant_as_image
from rbue.lab.data.images import Bytes, ImageSet

if TYPE_CHECKING:
    import pyarrow

PARQUET = ".parquet"
MOST_IMAGES = 2**31 - 1
"""Numbers of images in the random stream have 32 bits."""

_ROWS_AT_ONCE = 64
_BUFFER = 1 << 20


def parquet() -> Any:
    """The module that reads and writes Parquet files."""
    try:
        from pyarrow import parquet as module
    except ImportError:
        raise RbueError("Parquet files need pyarrow; `pip install 'rbue[parquet]'` brings it.") from None
    return module


@dataclass
class Listing:
    """What a listing came to.

    Attributes:
        images: how many there are.
        sha256: checksum of the file.
        left_out: how many files were no images, by the folder that was named; the first of them are ``examples``.
    """

    images: int = 0
    sha256: str = ""
    left_out: dict[Path, int] = field(default_factory=dict)
    examples: dict[Path, list[Path]] = field(default_factory=dict)


def write_listing(inputs: Sequence[Path], file: Path, column: str | None = None) -> Listing:
    """List the images of files, folders and Parquet files, each file once, in a file that is written whole.

    Args:
        inputs: what the user named; of a folder, everything below it, sorted by path.
        file: where to write.
        column: of the Parquet files; left out, the one that can hold images.

    Raises:
        InvalidInput: there are no images, or a Parquet file has no column for them.
    """
    listing, digest = Listing(), hashlib.sha256()

    def lines() -> Iterator[bytes]:
        for path, is_image in _found(inputs, listing):
            entry: list[Any] = [str(path)]
            if not is_image:
                entry += _rows_of(path, column)
            listing.images += 1 if is_image else entry[1]
            if listing.images > MOST_IMAGES:
                raise InvalidInput(f"there are more than {MOST_IMAGES:,} images; give them in parts.")
            line = f"{json.dumps(entry)}\n".encode()
            digest.update(line)
            yield line
        if not listing.images:
            raise InvalidInput(f"there is no image in {', '.join(map(str, inputs))}.")

    partial = file.with_name(f"{file.name}.partial")
    try:
        with partial.open("wb") as listed:
            listed.writelines(lines())
        partial.replace(file)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # of writing; what cannot be listed has a name
            raise unwritten(file, error) from error
        raise
    listing.sha256 = digest.hexdigest()
    return listing


def _found(inputs: Sequence[Path], listing: Listing) -> Iterator[tuple[Path, bool]]:
    """Files with images and whether they are images themselves; what was named before is not gone through again."""
    before: set[Path] = set()
    for given in inputs:
        if given in before or any(_holds(folder, given) for folder in before):
            continue
        if not given.is_dir():
            yield given, given.suffix.lower() != PARQUET
        else:
            for path in files_below(given, before):
                if path.suffix.lower() == PARQUET:
                    yield path, False
                elif is_meant_as_image(path) or path.is_dir():  # a folder that cannot be read says so when it is opened
                    yield path, True
                else:
                    listing.left_out[given] = listing.left_out.get(given, 0) + 1
                    if listing.left_out[given] <= NAMED:
                        listing.examples.setdefault(given, []).append(path)
        before.add(given)


def _holds(folder: Path, path: Path) -> bool:
    """Whether going through a folder gives a path, or all that is in it."""
    if folder not in path.parents:
        return False
    inside = [path, *path.parents][: len(path.relative_to(folder).parts)]
    if any(one.name.startswith(".") or (one.is_dir() and one.is_symlink()) for one in inside):
        return False
    return path.is_dir() or path.suffix.lower() == PARQUET or is_meant_as_image(path)


def _rows_of(path: Path, column: str | None) -> list[Any]:
    """Rows, column and bytes of a Parquet file."""
    with _opened(path) as found:
        schema, rows = found.schema_arrow, found.metadata.num_rows
    fit = [one.name for one in schema if _kind(one.type)]
    if column is None and len(fit) > 1 and "image" in fit:
        fit = ["image"]
    if column is not None and column in fit:
        fit = [column]
    elif column is not None or not fit:
        which = "" if column is None else f" {column!r}"
        there = shown(", ".join(f"{one.name} ({one.type})" for one in schema), 300)
        raise InvalidInput(f"{path} has no column{which} of images ({_IMAGES}); it has {there}.")
    if len(fit) > 1:
        columns = shown(", ".join(fit), 300)
        raise InvalidInput(f"{path} has {len(fit)} columns that can hold images; name one with --column: {columns}.")
    return [rows, fit[0], path.stat().st_size]


_IMAGES = "image files as binary or as a struct with bytes, or pixels as lists of uint8"
"""The columns that hold images, for a message."""


def _opened(path: Path) -> Any:
    # Without a buffer of this size, or with reading ahead, a whole row group is held in memory: often a million rows.
    try:
        return parquet().ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}.") from None
    except (OSError, ValueError) as error:  # Arrow's errors are of these kinds
        raise InvalidInput(f"{path} is not a Parquet file that can be read ({reason(error)}).") from error


def _kind(type_: pyarrow.DataType) -> str | None:
    """How a column of a type holds images: ``encoded``, ``struct`` or ``pixels``; None if it holds none."""
    from pyarrow import types

    if types.is_struct(type_):
        place = type_.get_field_index("bytes")
        return "struct" if place >= 0 and _kind(type_.field(place).type) == "encoded" else None
    if types.is_fixed_size_binary(type_):
        return "pixels"
    if types.is_binary(type_) or types.is_large_binary(type_):
        return "encoded"
    listed = types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    return "pixels" if listed and types.is_uint8(type_.value_type) else None


class ListedImage(NamedTuple):
    """One image: what it is called, its pixels ``(H, W, C)``, or what is wrong with it."""

    name: str
    pixels: Bytes | None
    error: str | None


class ListingPlace(NamedTuple):
    """Where in a listing to begin: bytes to skip in the file, and the number of the first image there."""

    offset: int = 0
    image: int = 0


def block_places(file: Path, block: int) -> Iterator[ListingPlace]:
    """For each block of so many images, the line of a listing that its first image is in."""
    wanted, image, offset = 0, 0, 0
    with file.open("rb") as lines:
        for line in lines:
            following = image + _count(json.loads(line))
            while wanted < following:
                yield ListingPlace(offset, image)
                wanted += block
            image, offset = following, offset + len(line)


def _count(entry: list[Any]) -> int:
    return 1 if len(entry) == 1 else int(entry[1])


def read_listed(file: Path, place: ListingPlace, start: int, stop: int, like: ImageSet) -> Iterator[ListedImage]:
    """The images ``start`` to ``stop`` of a listing, as a data set has them; ``place`` lies at or before the first.

    Raises:
        RbueError: a Parquet file is damaged, or another than the one that was listed.
    """
    image = place.image
    with file.open("rb") as lines:
        lines.seek(place.offset)
        for line in lines:
            if image >= stop:
                return
            entry = json.loads(line)
            count = _count(entry)
            if image + count <= start:
                pass
            elif len(entry) == 1:
                yield _read(Path(entry[0]), like, entry[0])
            else:
                yield from _read_rows(entry, max(0, start - image), min(count, stop - image), like)
            image += count


def _read(file: Path | io.BytesIO, like: ImageSet, name: str) -> ListedImage:
    try:
        return ListedImage(name, read_image(file, like, name), None)
    except InvalidInput as error:
        return ListedImage(name, None, str(error))


def _read_rows(entry: list[Any], start: int, stop: int, like: ImageSet) -> Iterator[ListedImage]:
    path, rows, column, size = entry
    reader = _reader(path, rows, column, size)
    for row, value in reader.read(start, stop):
        name = f"{path}#{row}"
        if value is None:
            yield ListedImage(name, None, f"{name} holds no image.")
        elif reader.kind != "pixels":
            yield _read(io.BytesIO(value), like, name)
        else:
            yield _arranged(np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value, like, name)


def _arranged(values: Bytes, like: ImageSet, name: str) -> ListedImage:
    shape = like.images.shape[1:]
    if values.dtype != np.uint8:  # Arrow gives numbers some of which are missing as floats
        return ListedImage(name, None, f"{name} lacks the values of some pixels.")
    if values.size != np.prod(shape):
        height, width, channels = shape
        sentence = (
            f"{name} has {values.size} pixel values, but the images of {like.name} have {height}x{width}x{channels}."
        )
        return ListedImage(name, None, sentence)
    return ListedImage(name, values.reshape(shape), None)


class _ParquetRows:
    """The values of a column, read in order of the rows; going on is cheap, and so is beginning at a row group."""

    def __init__(self, path: str, rows: int, column: str, size: int) -> None:
        self.file, self.path, self.column = _opened(Path(path)), path, column
        if self.file.metadata.num_rows != rows or os.path.getsize(path) != size:
            raise RbueError(f"{path} has changed since it was listed; give another -o to begin anew.")
        kind = _kind(self.file.schema_arrow.field(column).type)
        assert kind is not None
        self.kind = kind
        groups = [self.file.metadata.row_group(number).num_rows for number in range(self.file.num_row_groups)]
        self.starts = np.cumsum([0, *groups])
        self._row = rows + 1  # nothing is open yet
        self._batches: Iterator[Any] = iter(())
        self._rest: Any = None

    def read(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Rows and their values: bytes, pixels or None."""
        try:
            for first, values in self._slices(start, stop):
                for place, value in enumerate(self._values(values)):
                    yield first + place, value
        except (OSError, ValueError) as error:
            raise RbueError(f"{self.path} cannot be read at rows {start} to {stop} ({reason(error)}).") from error

    def _slices(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Arrays of consecutive rows, each with the number of its first."""
        group = int(np.searchsorted(self.starts, start, side="right")) - 1
        if self._row > start or self._row < self.starts[group]:
            numbers = list(range(group, self.file.num_row_groups))
            self._batches = self.file.iter_batches(_ROWS_AT_ONCE, row_groups=numbers, columns=[self.column])
            self._row, self._rest = int(self.starts[group]), None
        while self._row < stop:
            values = self._rest if self._rest is not None else next(self._batches, None)
            if values is None:
                raise OSError(f"it ends at row {self._row}")
            values = values if self._rest is not None else values.column(0)
            first, count = self._row, len(values)
            begin, end = max(0, start - first), min(count, stop - first)
            self._rest = values.slice(end) if end < count else None
            self._row = first + end
            if begin < end:
                yield first + begin, values.slice(begin, end - begin)

    def _values(self, values: Any) -> list[Any]:
        from pyarrow import types

        if self.kind == "struct":
            missing, inside = values.is_null().to_pylist(), values.field("bytes").to_pylist()
            return [None if gone else value for gone, value in zip(missing, inside, strict=True)]
        if self.kind == "encoded" or types.is_fixed_size_binary(values.type):
            return list(values.to_pylist())
        return [None if not one.is_valid else one.values.to_numpy(zero_copy_only=False) for one in values]


_reader = lru_cache(maxsize=1)(_ParquetRows)
"""The file that was read last. Blocks follow one another: where one file is one huge row group, whoever reads every
second block reads it once from its beginning to its end, not from its beginning for each block."""
