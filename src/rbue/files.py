"""Files that are written whole or not at all, and logs that grow line by line."""

from __future__ import annotations

import glob
import itertools
import json
import os
from pathlib import Path
from typing import Any

from rbue.errors import RbueError

_numbers = itertools.count()
_being_written: set[str] = set()
"""Names of the unfinished files of this process. A number is never given twice, while that of a thread is, after its
end."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or the next start after a crash, sees the old one or the new one whole."""
    # Two processes, or two threads of one, may write the same file.
    partial = path.with_name(f"{path.name}.{next(_numbers)}.{os.getpid()}.partial")
    _being_written.add(partial.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _remove_orphans(path)
    except BaseException as error:  # Ctrl-C too
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise RbueError(f"{path} could not be written ({error.strerror}); nothing was changed.") from error
    finally:
        _being_written.discard(partial.name)


def append_text(path: Path, text: str) -> None:
    """Add lines to a file whose reader knows that the last one may be cut off."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise RbueError(f"{path} could not be written ({error.strerror}).") from error


def _remove_orphans(path: Path) -> None:
    """Remove what killed processes left of this file; one of them may have had this one's number."""
    if not Path("/proc").exists():
        return
    for orphan in list(path.parent.glob(f"{glob.escape(path.name)}.*.partial")):
        process = orphan.name.split(".")[-2]
        alive = orphan.name in _being_written if process == str(os.getpid()) else Path(f"/proc/{process}").exists()
        if process.isdigit() and not alive:
            orphan.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write readable JSON, whole or not at all."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path, way_out: str = "remove it to have it made again") -> Any:
    """Read JSON, or say which file is broken and what to do about it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RbueError(f"{path} cannot be read ({error}); {way_out}.") from error
