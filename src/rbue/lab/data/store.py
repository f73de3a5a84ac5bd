r"""Data sets on this machine: where they lie, how decoded ones are stored, loaded and checked.

A root is a folder with one folder for each set. Sets are looked for in

1. the root given by the caller (then nowhere else),
2. the folders of ``$RBUE_DATA``, separated like ``$PATH``,
3. ``./data``,
4. the user's cache: ``$XDG_CACHE_HOME/rbue/data`` or ``~/.cache/rbue/data`` (``~/Library/Caches/rbue/data`` on a
   Mac, ``%LOCALAPPDATA%\rbue\data`` on Windows).

New ones are put into the given root, else the first folder of ``$RBUE_DATA``, else the user's cache. A decoded set is
``ROOT/NAME/`` with ``SPLIT-images.npy``, ``SPLIT-labels.npy`` and ``set.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rbue._version import __version__
from rbue.errors import InvalidInput, reason, shown
from rbue.files import load_array
from rbue.lab.data.folder import load_folder, splits_of
from rbue.lab.data.images import Bytes, Checksums, ImageSet, Labels, compact_labels
from rbue.lab.data.registry import FOLDER_PREFIX, DataError, DataSet, Progress, check_split, get, silent
from rbue.lab.data.source_files import Incoming, as_image_set, find_in_root
from rbue.lab.data.staging import lasting, staged

VARIABLE = "RBUE_DATA"
FORMAT = 1
META = "set.json"
MAPPED_FROM = 32 << 20  # bytes: larger arrays are memory-mapped

Root = str | os.PathLike[str] | None


# Where


def search_path(root: Root = None) -> list[Path]:
    """The roots to look in, in order."""
    if root is not None:
        return [Path(root).expanduser()]
    return [*_from_environment(), Path("data"), _user_cache()]


def target_root(root: Root = None) -> Path:
    """The root to write to."""
    if root is not None:
        return Path(root).expanduser()
    return next(iter(_from_environment()), _user_cache())


def _user_cache() -> Path:
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "rbue" / "data"


def _from_environment() -> list[Path]:
    return [Path(part).expanduser() for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part.strip()]


# Decoded sets


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


def find_stored(root: Path, name: str) -> Stored | None:
    """The decoded set below a root, or None.

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
                f"{path} has format {shown(meta['format'])}, this version reads {FORMAT}; remove {folder} and fetch "
                "again."
            )
        splits = {
            split: StoredSplit(**{**entry, "sha256": Checksums(**entry["sha256"])})
            for split, entry in meta["splits"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged ({reason(error)}); remove {folder} and fetch or import the set again."
        ) from error
    return Stored(folder, splits)


def write_set(root: Path, splits: Iterable[Incoming], progress: Progress = silent) -> Path:
    """Write a set as a whole: it appears when every split is written and verified, or not at all.

    Returns:
        The folder of the set.

    Raises:
        DataError: Bad data, no room, no permission, or a stored split that would be lost.
    """
    splits = list(splits)
    name = splits[0].dataset.name
    target = root / name
    before = find_stored(root, name)
    lost = set(before.splits) - {one.split for one in splits} if before else set()
    if lost:
        raise DataError(
            f"{target} already holds the split {sorted(lost)[0]!r}, which these files lack; "
            f"remove {target} first or give all files together."
        )
    with staged(target) as folder:
        entries = {one.split: asdict(_write_split(folder, one, progress)) for one in splits}
        meta = {"format": FORMAT, "name": name, "written_by": f"rbue {__version__}", "splits": entries}
        with lasting(folder / META) as file:
            file.write(json.dumps(meta, indent=1).encode())
    return target


def _write_split(folder: Path, incoming: Incoming, progress: Progress) -> StoredSplit:
    collected: list[Labels] = []

    def images() -> Iterator[Bytes]:
        for some_images, labels in incoming.checked(progress):
            collected.append(labels)
            yield some_images

    with lasting(folder / f"{incoming.split}-images.npy") as file:
        images_sha256 = write_bytes_array(file, (incoming.count, *incoming.dataset.shape), images())
    compact = compact_labels(np.concatenate(collected), len(incoming.dataset.classes))
    with lasting(folder / f"{incoming.split}-labels.npy") as file:
        np.save(file, compact)
    found = Checksums(images_sha256, hashlib.sha256(compact.tobytes()).hexdigest())
    return StoredSplit(incoming.count, incoming.variant, found, incoming.origin, incoming.verify(found))


def write_bytes_array(file: BinaryIO, shape: tuple[int, ...], blocks: Iterable[Bytes]) -> str:
    """Write a uint8 array as ``.npy``, some rows at a time; returns the SHA-256 of its bytes."""
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    digest = hashlib.sha256()
    for block in blocks:
        data = np.ascontiguousarray(block).data.cast("B")
        digest.update(data)
        file.write(data)
    return digest.hexdigest()


def _open_split(stored: Stored, dataset: DataSet, split: str) -> ImageSet:
    entry = stored.splits[split]
    images = _open_array(stored.folder / f"{split}-images.npy", (entry.count, *dataset.shape))
    labels = _open_array(stored.folder / f"{split}-labels.npy", (entry.count,))
    try:
        return as_image_set(dataset, split, entry.variant, images, labels.astype(np.int64))
    except InvalidInput as error:
        raise DataError(
            f"{stored.folder} is damaged: {error}; remove it and fetch or import the set again.".replace(".;", ";")
        ) from error


def _open_array(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        large = path.stat().st_size >= MAPPED_FROM
        # Copy-on-write: torch can share the memory without a warning, and the file can never be changed through it.
        array = load_array(path, "c" if large else None)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is missing or damaged ({reason(error)}); remove {path.parent} and fetch or import the set again."
        ) from error
    if array.shape != shape or array.dtype.kind != "u":
        raise DataError(
            f"{path} holds {array.dtype} {array.shape} instead of unsigned {shape}; remove {path.parent} and fetch or "
            "import the set again."
        )
    return array


# Loading and checking


def load(name: str, split: str = "train", root: str | os.PathLike[str] | None = None) -> ImageSet:
    """A split of a data set.

    Looks through the search path (:mod:`rbue.lab.data.store`) for the decoded set that ``fetch`` and ``import_`` write,
    then for the publisher's standard files, which are decoded and checked anew each time. Of a decoded set only sizes
    and types are checked here; :func:`rbue.lab.data.check` recomputes its checksums.

    Args:
        name: A registered name (:func:`rbue.lab.data.names`), or ``folder:PATH``.
        split: ``train`` or ``test``.
        root: Look only here.

    Returns:
        The images, labels and what is known about them.

    Raises:
        InvalidInput: No such set or split.
        DataError: The set is not on this machine (the message says how to get it), or is damaged.
    """
    if name.startswith(FOLDER_PREFIX):
        return load_folder(name, split)
    dataset = get(name)
    check_split(name, split, dataset.splits)
    if dataset.embedded is not None:
        origin = f"the installed package ({dataset.title})"
        return Incoming(dataset, split, [dataset.embedded(split)], origin).collect()
    found = _locate(dataset, root)
    if split not in found:
        where = next(iter(found.values()))
        place = where.folder if isinstance(where, Stored) else where.origin
        raise DataError(
            f"{place} holds {name} without its split {split!r}; remove it, then run `rbue data fetch {name}` or "
            f"`rbue data import {name} DIR` with all files."
        )
    where = found[split]
    return _open_split(where, dataset, split) if isinstance(where, Stored) else where.collect()


def splits_here(name: str, root: str | os.PathLike[str] | None = None) -> list[str]:
    """The splits of a set that :func:`load` would find on this machine.

    Raises:
        DataError: None.
    """
    if name.startswith(FOLDER_PREFIX):
        return splits_of(name)
    dataset = get(name)
    found = dataset.splits if dataset.embedded is not None else _locate(dataset, root)
    return [split for split in dataset.splits if split in found]


def _locate(dataset: DataSet, root: Root) -> Mapping[str, Stored | Incoming]:
    """The first place on the search path that has the set, decoded or as standard files, and its splits there."""
    places = search_path(root)
    for place in places:
        stored = find_stored(place, dataset.name)
        if stored is not None and stored.splits:
            return dict.fromkeys(stored.splits, stored)
        incoming = find_in_root(dataset, place)
        if incoming:
            return {one.split: one for one in incoming}
    raise DataError(
        f"{dataset.name} is not on this machine (looked in {', '.join(map(str, places))}); run `rbue data fetch "
        f"{dataset.name}`, or `rbue data import {dataset.name} DIR` with its files, or set RBUE_DATA to where it is."
    )


@dataclass(frozen=True)
class Check:
    """One array's checksum.

    Attributes:
        split: Which split.
        array: ``images`` or ``labels``.
        found: The SHA-256 of the array as it is now.
        expected: What it should be; None where nothing is known.
        reference: Where the expectation comes from: ``registry``, ``recorded when stored`` or ``nothing``.
    """

    split: str
    array: str
    found: str
    expected: str | None
    reference: str

    @property
    def ok(self) -> bool:
        """Whether it is as it should be, as far as is known."""
        return self.expected is None or self.found == self.expected


def check(name: str, root: str | os.PathLike[str] | None = None) -> list[Check]:
    """Recompute the checksums of every split that is on this machine.

    Args:
        name: A registered name, or ``folder:PATH`` (whose checksums are computed, with nothing to compare).
        root: Look only here.

    Returns:
        One entry an array; a wrong checksum is an entry whose ``ok`` is false.

    Raises:
        InvalidInput: No such set.
        DataError: The set is not on this machine, or an array cannot be read at all.
    """
    results: list[Check] = []
    for split in splits_here(name, root):
        image_set = load(name, split, root)
        found = image_set.checksums()
        published = recorded = None
        if not name.startswith(FOLDER_PREFIX):
            dataset = get(name)
            published = dataset.published(split, image_set.variant)
            where = None if dataset.embedded is not None else _locate(dataset, root)[split]
            recorded = where.splits[split].sha256 if isinstance(where, Stored) else None
        for array in ("images", "labels"):
            references = (("registry", published), ("recorded when stored", recorded))
            known = [(getattr(one, array), word) for word, one in references if getattr(one, array, None)]
            results.append(Check(split, array, getattr(found, array), *(known or [(None, "nothing")])[0]))
    return results
