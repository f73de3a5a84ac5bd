"""A decoded set on disk: ``ROOT/NAME/`` with ``SPLIT-images.npy``, ``SPLIT-labels.npy`` and ``set.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from rbue._version import __version__
from rbue.lab.data.images import Bytes, Checksums, ImageSet, Labels, compact_labels
from rbue.lab.data.incoming import Incoming, as_image_set
from rbue.lab.data.problems import DataError
from rbue.lab.data.progress import Progress, silent
from rbue.lab.data.registry import DataSet
from rbue.lab.data.staging import append, lasting, staged, write_file

FORMAT = 1
META = "set.json"
MAPPED_FROM = 32 << 20  # bytes: larger arrays are memory-mapped


@dataclass(frozen=True)
class StoredSplit:
    """What is recorded of a split beside its arrays."""

    count: int
    variant: str
    sha256: Checksums
    origin: str
    verified_by: str


@dataclass(frozen=True)
class Stored:
    """A decoded set found on disk."""

    folder: Path
    splits: dict[str, StoredSplit]


def find(root: Path, name: str) -> Stored | None:
    """The set below a root, or None.

    Raises:
        DataError: Its record cannot be understood.
    """
    folder = root / name
    path = folder / META
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}.") from error
    try:
        meta = json.loads(text)
        if meta["format"] != FORMAT:
            raise DataError(
                f"{path} has format {meta['format']}, this version reads {FORMAT}; remove {folder} and fetch again."
            )
        splits = {
            split: StoredSplit(**{**entry, "sha256": Checksums(**entry["sha256"])})
            for split, entry in meta["splits"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error}); remove {folder} and fetch or import the set again.") from error
    return Stored(folder, splits)


def open_split(stored: Stored, dataset: DataSet, split: str) -> ImageSet:
    """The arrays of a split: read, or memory-mapped when large. Checksums are left to :func:`rbue.lab.data.check`."""
    entry = stored.splits[split]
    images = _open_array(stored.folder / f"{split}-images.npy", (entry.count, *dataset.shape))
    labels = _open_array(stored.folder / f"{split}-labels.npy", (entry.count,))
    return as_image_set(dataset, split, entry.variant, images, labels.astype(np.int64))


def write(root: Path, splits: Iterable[Incoming], progress: Progress = silent) -> Stored:
    """Write a set as a whole: it appears when every split is written and verified, or not at all.

    Raises:
        DataError: Bad data, no room, no permission, or a stored split that would be lost.
    """
    splits = list(splits)
    name = splits[0].dataset.name
    target = root / name
    before = find(root, name)
    lost = set(before.splits) - {one.split for one in splits} if before else set()
    if lost:
        raise DataError(
            f"{target} already holds the split {sorted(lost)[0]!r}, which these files lack; "
            f"remove {target} first or give all files together."
        )
    with staged(target) as folder:
        entries = {one.split: _write_split(folder, one, progress) for one in splits}
        meta = {
            "format": FORMAT,
            "name": name,
            "written_by": f"rbue {__version__}",
            "splits": {split: asdict(entry) for split, entry in entries.items()},
        }
        write_file(folder / META, json.dumps(meta, indent=1).encode())
    return Stored(target, entries)


def _write_split(folder: Path, incoming: Incoming, progress: Progress) -> StoredSplit:
    classes = len(incoming.dataset.classes)
    digest = hashlib.sha256()
    collected: list[Labels] = []
    with lasting(folder / f"{incoming.split}-images.npy") as file:
        _write_header(file, np.dtype(np.uint8), (incoming.count, *incoming.dataset.shape))
        for images, labels in incoming.checked(progress):
            data = np.ascontiguousarray(images).data.cast("B")
            digest.update(data)
            append(file, data)
            collected.append(labels)
    compact = compact_labels(np.concatenate(collected), classes)
    with lasting(folder / f"{incoming.split}-labels.npy") as file:
        _write_header(file, compact.dtype, compact.shape)
        append(file, compact.tobytes())
    found = Checksums(digest.hexdigest(), hashlib.sha256(compact.tobytes()).hexdigest())
    return StoredSplit(incoming.count, incoming.variant, found, incoming.origin, incoming.verify(found))


def _write_header(file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _open_array(path: Path, shape: tuple[int, ...]) -> Bytes | NDArray[Any]:
    try:
        large = path.stat().st_size >= MAPPED_FROM
        # Copy-on-write: torch can share the memory without a warning, and the file can never be changed through it.
        array = np.load(path, mmap_mode="c" if large else None, allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DataError(
            f"{path} is missing or damaged ({error}); remove {path.parent} and fetch or import the set again."
        ) from error
    single = isinstance(array, np.ndarray)
    if not single or array.shape != shape or array.dtype.kind != "u":
        what = f"{array.dtype} {array.shape}" if single else "several arrays"
        raise DataError(
            f"{path} holds {what} instead of unsigned {shape}; remove {path.parent} and fetch or import the set again."
        )
    return array
