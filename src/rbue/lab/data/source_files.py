"""The files a publisher ships, in a folder or an archive: found, opened, and checked as they are read.

Archives are never unpacked to disk. ``find_in_root`` and ``find_in_folder`` look for one of a set's layouts and give an
:class:`Incoming` for every split; its images pass one chunk at a time, compared with what the registry knows of them.
"""

from __future__ import annotations

import hashlib
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from rbue.errors import reason
from rbue.lab.data.images import OFFICIAL, Bytes, Checksums, ImageSet, Labels, checksums
from rbue.lab.data.registry import Chunk, DataError, DataSet, Layout, Progress, SplitFiles, silent

_DAMAGED = (
    *(OSError, EOFError, ValueError, OverflowError, NotImplementedError),
    *(struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    RuntimeError,  # encrypted
)
_LARGEST = 1 << 30
"""Bytes of a file in an archive, whose name says how large it is once unpacked; CIFAR's largest has 31 million."""
_MOST = 1_000_000
"""Files in an archive; TinyImageNet has 120,000."""


class FolderSource:
    """Files of a folder on disk, addressed by ``/``-separated names; a name that ends in ``/`` is a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, name: str) -> bool:
        """Whether there is such a file (or folder)."""
        target = self.path / name
        return target.is_dir() if name.endswith("/") else target.is_file()

    def read(self, name: str) -> bytes:
        """The whole file."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {self.place(name)}: {error.strerror or error}.") from error

    def children(self, name: str) -> list[str]:
        """Names directly inside a folder, sorted, shorter ones first (so 9 comes before 10)."""
        try:
            return _natural(child.name for child in (self.path / name).iterdir() if not child.name.startswith("."))
        except OSError as error:
            raise DataError(f"cannot read {self.place(name)}: {error.strerror or error}.") from error

    def place(self, name: str) -> str:
        """Where a file is, for messages."""
        return str(self.path / name)


class ArchiveSource:
    """Files of a tar or zip archive, below the folder inside it that holds ``marker``; like :class:`FolderSource`."""

    def __init__(self, path: Path, marker: str) -> None:
        self.path = path
        try:
            self._archive: tarfile.TarFile | zipfile.ZipFile
            if zipfile.is_zipfile(path):
                self._archive = zipfile.ZipFile(path)
                self._files: dict[str, tarfile.TarInfo | zipfile.ZipInfo] = {
                    info.filename.removeprefix("./"): info for info in self._archive.infolist() if not info.is_dir()
                }
            else:
                self._archive = tarfile.open(path)  # noqa: SIM115 (lives as long as the source)
                self._files = {
                    info.name.removeprefix("./"): info for info in self._archive.getmembers() if info.isfile()
                }
        except _DAMAGED as error:
            raise DataError(
                f"{path} is not a whole archive ({reason(error)}); delete it and fetch it again."
            ) from error
        if len(self._files) > _MOST:
            raise DataError(f"{path} holds more than {_MOST:,} files; it is another archive under this name.")
        self._prefix = self._folder_of(marker)

    def _folder_of(self, marker: str) -> str:
        wanted = f"/{marker}"
        for name in sorted(self._files, key=len):
            full = f"/{name}"
            if marker.endswith("/") and wanted in full:
                return full[1 : full.find(wanted) + 1]
            if full.endswith(wanted):
                return name.removesuffix(marker)
        return ""

    @cached_property
    def _folders(self) -> dict[str, set[str]]:
        folders: dict[str, set[str]] = {}
        for name in self._files:
            path = PurePosixPath(name)
            for parent in path.parents:
                folders.setdefault("" if str(parent) == "." else f"{parent}/", set()).add(path.name)
                path = parent
        return folders

    def has(self, name: str) -> bool:
        """Whether there is such a file (or folder)."""
        full = self._prefix + name
        return full in self._folders if name.endswith("/") else full in self._files

    def read(self, name: str) -> bytes:
        """The whole file."""
        info = self._files.get(self._prefix + name)
        if info is None:
            raise DataError(f"{self.path} holds no {name}; it may be another archive under this name.")
        size = info.size if isinstance(info, tarfile.TarInfo) else info.file_size
        if size > _LARGEST:
            raise DataError(f"{self.place(name)} would have {size:,} bytes, which is no file of a data set.")
        try:
            if isinstance(self._archive, zipfile.ZipFile):
                return self._archive.read(info)  # type: ignore[arg-type]
            stream = self._archive.extractfile(info)  # type: ignore[arg-type]
            return stream.read() if stream is not None else b""
        except _DAMAGED as error:
            raise DataError(f"{self.place(name)} is damaged or truncated ({reason(error)}).") from error

    def children(self, name: str) -> list[str]:
        """Names directly inside a folder, sorted, shorter ones first."""
        return _natural(self._folders.get(self._prefix + name, ()))

    def place(self, name: str) -> str:
        """The archive and the name inside it, for messages."""
        return f"{self.path}:{self._prefix}{name}"


Source = FolderSource | ArchiveSource


def _natural(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (len(name), name))


@dataclass(frozen=True)
class Incoming:
    """One split on its way in from one place.

    Attributes:
        dataset: The registry entry.
        split: Its split.
        chunks: What the reader gives, once.
        origin: Where it comes from, for messages and the record.
        variant: Which of the published variants it claims to be.
        evidence: What already vouches for it, such as the publisher's checksum of the file.
    """

    dataset: DataSet
    split: str
    chunks: Iterable[Chunk]
    origin: str
    variant: str = OFFICIAL
    evidence: str = ""

    @property
    def count(self) -> int:
        """How many images there must be."""
        return self.dataset.published(self.split, self.variant).count

    def checked(self, progress: Progress = silent) -> Iterator[tuple[Bytes, Labels]]:
        """The chunks, each with the right shape and labels in range, and exactly as many images as there must be."""
        seen, classes = 0, len(self.dataset.classes)
        for images, labels in self.chunks:
            if images.dtype != np.uint8 or images.shape[1:] != self.dataset.shape or len(images) != len(labels):
                raise DataError(
                    f"{self.origin} gives {len(labels)} labels and images {images.dtype} {images.shape}; "
                    f"{self.dataset.name} has uint8 images of {self.dataset.shape}."
                )
            integers = np.asarray(labels).astype(np.int64)
            if len(integers) and not 0 <= integers.min() <= integers.max() < classes:
                wrong = integers[(integers < 0) | (integers >= classes)][0]
                raise DataError(
                    f"{self.origin} holds the label {wrong}; {self.dataset.name} has the classes 0 to {classes - 1}."
                )
            seen += len(images)
            if seen > self.count:
                break
            yield images, integers
            progress(f"{self.dataset.name} {self.split}", seen, self.count)
        if seen != self.count:
            more = "more than " if seen > self.count else ""
            raise DataError(
                f"{self.origin} holds {more}{min(seen, self.count)} images for {self.dataset.name} {self.split} "
                f"instead of {self.count}; the files are truncated or of another set."
            )

    def verify(self, found: Checksums) -> str:
        """Compare checksums of what came in with the registry's; returns what vouches for it.

        Raises:
            DataError: A checksum differs; the message names both.
        """
        published = self.dataset.published(self.split, self.variant)
        for kind in ("images", "labels"):
            wanted, got = getattr(published, kind), getattr(found, kind)
            if wanted is not None and wanted != got:
                raise DataError(
                    f"the {kind} of {self.dataset.name} {self.split} from {self.origin} have the SHA-256 {got} "
                    f"instead of the registry's {wanted}; get the files again."
                )
        if published.images and published.labels:
            return "registry's SHA-256 of the arrays"
        return self.evidence or "nothing: no checksum is published for files in this form"

    def collect(self) -> ImageSet:
        """Read the whole split into memory and verify it."""
        images = np.empty((self.count, *self.dataset.shape), dtype=np.uint8)
        labels = np.empty(self.count, dtype=np.int64)
        at = 0
        for some_images, some_labels in self.checked():
            images[at : at + len(some_images)] = some_images
            labels[at : at + len(some_labels)] = some_labels
            at += len(some_images)
        self.verify(checksums(images, labels, len(self.dataset.classes)))
        return as_image_set(self.dataset, self.split, self.variant, images, labels)


def as_image_set(dataset: DataSet, split: str, variant: str, images: Bytes, labels: Labels) -> ImageSet:
    """Arrays together with what the registry knows."""
    return ImageSet(images, labels, dataset.classes, dataset.name, split, dataset.mean, dataset.std, variant)


def find_in_root(dataset: DataSet, root: Path) -> list[Incoming]:
    """Standard files in ``ROOT/NAME``, or in ``ROOT`` inside a folder or archive with the publisher's name."""
    return _first_whole(dataset, [*_candidates(dataset, root / dataset.name, True), *_candidates(dataset, root, False)])


def find_in_folder(dataset: DataSet, folder: Path) -> list[Incoming]:
    """Standard files in a folder or archive that the user points at.

    Raises:
        DataError: No known files there.
    """
    if not folder.exists():
        raise DataError(f"there is no {folder}; give the folder or archive that holds the files of {dataset.name}.")
    if folder.is_file():
        found = _first_whole(dataset, ((layout, folder) for layout in dataset.layouts))
    else:
        found = _first_whole(dataset, _candidates(dataset, folder, True))
    if not found:
        wanted = "; or ".join(
            f"{layout.name} ({', '.join(layout.archives) or ', '.join(next(iter(layout.files.values())))})"
            for layout in dataset.layouts
        )
        raise DataError(f"{folder} holds no files of {dataset.name}; expected are {wanted}.")
    return found


def _candidates(dataset: DataSet, base: Path, bare: bool) -> Iterator[tuple[Layout, Path]]:
    for layout in dataset.layouts:
        for place in (*([base] if bare else []), *(base / folder for folder in layout.folders)):
            if place.is_dir():
                yield layout, place
        for archive in layout.archives:
            if (base / archive).is_file():
                yield layout, base / archive


def _first_whole(dataset: DataSet, candidates: Iterable[tuple[Layout, Path]]) -> list[Incoming]:
    complaint: DataError | None = None
    for layout, place in candidates:
        marker = next(iter(layout.files.values()))[0]
        source = ArchiveSource(place, marker) if place.is_file() else FolderSource(place)
        try:
            splits = _splits_in(layout, source)
        except DataError as error:
            complaint = complaint or error
            continue
        if splits:
            return [_open(dataset, layout, source, split) for split in splits]
    if complaint is not None:
        raise complaint
    return []


def _splits_in(layout: Layout, source: Source) -> list[str]:
    """The splits whose files are all there; a split with only some of its files is an error."""
    found = []
    for split, files in layout.files.items():
        missing = [file for file in files if not source.has(file)]
        if not missing:
            found.append(split)
        elif len(missing) < len(files):
            present = next(file for file in files if file not in missing)
            raise DataError(f"{source.place(present)} is there but {missing[0]} is missing; get the whole set.")
    for file in layout.shared if found else ():
        if not source.has(file):
            raise DataError(f"{source.place(file)} is missing, which the {layout.name} need; get the whole set.")
    return found


def _open(dataset: DataSet, layout: Layout, source: Source, split: str) -> Incoming:
    published = dataset.published(split, layout.variant)
    evidence = "" if published.images else _publishers_md5(dataset, layout, source, split)
    chunks = layout.read(SplitFiles(source, dataset, split, layout.files[split], published.count))
    return Incoming(dataset, split, chunks, f"{source.path} ({layout.name})", layout.variant, evidence)


def _publishers_md5(dataset: DataSet, layout: Layout, source: Source, split: str) -> str:
    """Where the decoded arrays have no published checksum, compare the files with the publisher's MD5."""
    known = {download.file: download.md5 for download in dataset.downloads}
    files = [source.path] if source.path.is_file() else [source.path / file for file in layout.files[split]]
    if not all(file.name in known for file in files):
        return ""
    for file in files:
        found = md5_of(file)
        if found != known[file.name]:
            raise DataError(
                f"{file} has the MD5 {found} instead of the publisher's {known[file.name]}; "
                "it is truncated or another file; get it again."
            )
    return "publisher's MD5 of the files"


def md5_of(path: Path) -> str:
    """MD5 of a file, which is what most publishers print beside theirs."""
    try:
        with path.open("rb") as file:
            digest = hashlib.md5(usedforsecurity=False)
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    return digest.hexdigest()
