"""Files in a folder or inside an archive, behind one small interface; archives are never unpacked to disk."""

from __future__ import annotations

import hashlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol

from rbue.lab.data.problems import DataError

_DAMAGED = (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError)


class Source(Protocol):
    """Files addressed by ``/``-separated names; a name that ends in ``/`` is a folder."""

    path: Path

    def has(self, name: str) -> bool:
        """Whether there is such a file (or folder)."""

    def read(self, name: str) -> bytes:
        """The whole file."""

    def children(self, name: str) -> list[str]:
        """Names directly inside a folder, sorted, shorter ones first (so 9 comes before 10)."""

    def place(self, name: str) -> str:
        """Where a file is, for messages."""


class FolderSource:
    """Files of a folder on disk."""

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
        """Names directly inside a folder."""
        try:
            return _natural(child.name for child in (self.path / name).iterdir() if not child.name.startswith("."))
        except OSError as error:
            raise DataError(f"cannot read {self.place(name)}: {error.strerror or error}.") from error

    def place(self, name: str) -> str:
        """The path of the file."""
        return str(self.path / name)


class ArchiveSource:
    """Files of a tar or zip archive, below a folder inside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._prefix = ""
        try:
            self._archive: tarfile.TarFile | zipfile.ZipFile
            if zipfile.is_zipfile(path):
                self._archive = zipfile.ZipFile(path)
                self._files: dict[str, tarfile.TarInfo | zipfile.ZipInfo] = {
                    _plain(info.filename): info for info in self._archive.infolist() if not info.is_dir()
                }
            else:
                self._archive = tarfile.open(path)  # noqa: SIM115 (lives as long as the source)
                self._files = {_plain(info.name): info for info in self._archive.getmembers() if info.isfile()}
        except _DAMAGED as error:
            raise DataError(
                f"{path} is not a whole archive ({error or type(error).__name__}); delete it and fetch it again."
            ) from error

    def below(self, marker: str) -> None:
        """Address files relative to the folder that holds ``marker``, wherever it is inside the archive."""
        wanted = marker.rstrip("/")
        for name in sorted(self._files, key=len):
            parts = f"/{name}"
            if marker.endswith("/"):
                at = parts.find(f"/{wanted}/")
            else:
                at = len(parts) - len(wanted) - 1 if parts.endswith(f"/{wanted}") else -1
            if at >= 0:
                self._prefix = parts[1 : at + 1]
                return

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
        try:
            if isinstance(self._archive, zipfile.ZipFile):
                return self._archive.read(info)  # type: ignore[arg-type]
            stream = self._archive.extractfile(info)  # type: ignore[arg-type]
            data = stream.read() if stream is not None else b""
        except _DAMAGED as error:
            raise DataError(f"{self.place(name)} is damaged or truncated ({error or type(error).__name__}).") from error
        return data

    def children(self, name: str) -> list[str]:
        """Names directly inside a folder."""
        return _natural(self._folders.get(self._prefix + name, ()))

    def place(self, name: str) -> str:
        """The archive and the name inside it."""
        return f"{self.path}:{self._prefix}{name}"


def md5_of(path: Path) -> str:
    """MD5 of a file, which is what most publishers print beside theirs."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    return digest.hexdigest()


def _plain(name: str) -> str:
    return name.removeprefix("./")


def _natural(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (len(name), name))
