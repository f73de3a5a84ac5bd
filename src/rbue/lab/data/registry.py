"""The data sets that can be named, and what their entries are made of: one file in ``sets/`` for each set."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from rbue.errors import InvalidInput, RbueError, did_you_mean
from rbue.lab.data.images import OFFICIAL, Bytes

if TYPE_CHECKING:
    from rbue.lab.data.source_files import Source

FOLDER_PREFIX = "folder:"
Chunk = tuple[Bytes, NDArray[Any]]

# What is being done, how much of it is done, and how much there is (None where that is not known).
Progress = Callable[[str, int, "int | None"], None]


def silent(what: str, done: int, total: int | None) -> None:
    """A progress that says nothing."""


class DataError(RbueError, RuntimeError):
    """Data that is missing, damaged or not what it claims to be, or a place it cannot be written to."""


class CannotWrite(DataError):
    """A place that data cannot be written to: no room, no permission, something in the way."""


@dataclass(frozen=True)
class Published:
    """What is known of one split beforehand: the number of images and, where known, the SHA-256 of the arrays."""

    count: int
    images: str | None = None
    labels: str | None = None


@dataclass(frozen=True)
class SplitFiles:
    """What a reader is given: the files of one split, and what they must hold."""

    source: Source
    dataset: DataSet
    split: str
    files: tuple[str, ...]
    count: int


Reader = Callable[[SplitFiles], Iterator[Chunk]]


@dataclass(frozen=True)
class Layout:
    """One way a set comes as files.

    Attributes:
        name: For messages, such as ``binary batches``.
        files: By split, the files that must be there (a trailing ``/`` marks a folder).
        read: Gives a split as chunks of images (uint8, NHWC) and labels.
        shared: Files every split needs too.
        folders: Names of folders the publisher puts the files in.
        archives: Names of archives the publisher puts them in.
        variant: Which published variant of the set this is.
    """

    name: str
    files: Mapping[str, tuple[str, ...]]
    read: Reader
    shared: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    variant: str = OFFICIAL


@dataclass(frozen=True)
class Download:
    """A file at its publisher's address, with the MD5 it must have."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        """Its name, the last part of the address."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Mirror:
    """Another way to get a set: ``get`` puts files into a folder that one of the layouts can read."""

    name: str
    get: Callable[[Path, Progress], None]


@dataclass(frozen=True)
class DataSet:
    """A registry entry.

    Attributes:
        name: How users call it.
        title: One line on what it is.
        classes: Class names in label order.
        shape: ``(height, width, channels)``.
        mean: Channel means of the training images, as fractions of 255.
        std: Channel standard deviations, likewise.
        splits: By split and variant, what is published about the arrays.
        codes: The publisher's own class codes in label order, where they differ from the names.
        layouts: How its files may look, preferred ones first.
        downloads: The publisher's files that together make a whole set.
        mirror: Where to turn when the publisher cannot be reached.
        embedded: For a set that needs no files, gives a split.
        terms: Restrictions worth knowing.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    splits: Mapping[str, Mapping[str, Published]]
    codes: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = ()
    downloads: tuple[Download, ...] = ()
    mirror: Mirror | None = None
    embedded: Callable[[str], Chunk] | None = None
    terms: str = ""

    def published(self, split: str, variant: str) -> Published:
        """What is known of a split of a variant."""
        return self.splits[split][variant]


def official(train: Published, test: Published) -> dict[str, dict[str, Published]]:
    """The ``splits`` of a set that has one variant only."""
    return {"train": {OFFICIAL: train}, "test": {OFFICIAL: test}}


_SETS: dict[str, DataSet] = {}


def register(dataset: DataSet) -> DataSet:
    """Add an entry; the name must be new."""
    if dataset.name in _SETS:
        raise InvalidInput(f"a data set called {dataset.name!r} is registered already; choose another name.")
    _SETS[dataset.name] = dataset
    return dataset


def names() -> tuple[str, ...]:
    """Every registered name, sorted; ``folder:PATH`` works besides."""
    _discover()
    return tuple(sorted(_SETS))


def get(name: str) -> DataSet:
    """The entry of a name.

    Raises:
        InvalidInput: No such set; the message suggests the nearest name.
    """
    _discover()
    if name not in _SETS:
        raise InvalidInput(
            f"there is no data set called {name!r}{did_you_mean(name, _SETS)}; "
            f"known are {', '.join(names())} and folder:PATH."
        )
    return _SETS[name]


def check_split(name: str, split: str, known: Iterable[str]) -> None:
    """Refuse a split that the set does not have."""
    known = tuple(known)
    if split not in known:
        hint = "; a validation set comes from rbue.lab.data.holdout" if split.startswith("val") else ""
        raise InvalidInput(
            f"{name} has no split {split!r}{did_you_mean(split, known)}; it has {' and '.join(known)}{hint}."
        )


@cache
def _discover() -> None:
    package = importlib.import_module("rbue.lab.data.sets")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"rbue.lab.data.sets.{module.name}")
