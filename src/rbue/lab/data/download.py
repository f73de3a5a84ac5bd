"""Get one file from its publisher: resumed where it stopped, checked, and never half there under its own name."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path

from rbue.lab.data.problems import DataError, writing_to
from rbue.lab.data.progress import Progress, silent
from rbue.lab.data.registry import Download
from rbue.lab.data.sources import md5_of
from rbue.lab.data.staging import append

_BLOCK = 1 << 20


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
                    append(file, block)
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
