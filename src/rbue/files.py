"""Files that outlast crashes, other processes and bad disks.

They are written whole or not at all, read with a sentence about what is wrong with them, and carry a checksum where a
flipped byte would otherwise go unnoticed. :mod:`rbue.locks` keeps them to one process at a time.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from rbue.errors import RbueError, reason, warn

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_numbers = itertools.count()
_being_written: set[str] = set()
"""Names of the unfinished files of this process. A number is never given twice, while that of a thread is, after its
end."""


NO_ROOM = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
"""The system's errors of a full disk."""

PAUSE = 5.0
"""Seconds between two attempts to write to a full disk."""


class DiskFull(RbueError):
    """A file for which there is no room; what was there before is unchanged."""


def write_bytes(path: Path, content: bytes, wait: float = 0.0) -> None:
    """Write a file so that a reader, or the next start after a crash, sees the old one or the new one whole.

    Args:
        path: the file; its folder is made.
        content: what to write.
        wait: seconds to wait for room on a full disk, if what is written would otherwise be lost.

    Raises:
        DiskFull: there is no room.
        RbueError: it cannot be written for another reason.
    """
    deadline = time.monotonic() + wait
    while True:
        try:
            _write_whole(path, content)
            return
        except OSError as error:
            if error.errno not in NO_ROOM or time.monotonic() >= deadline:
                raise unwritten(path, error, "; nothing was changed") from error
            warn(f"{path} could not be written ({error.strerror}); make room: it is tried again for {wait:.0f} s.")
        time.sleep(min(PAUSE, wait))


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before the work that would end in it."""
    folder = next(one for one in path.absolute().parents if os.path.exists(one))
    trouble = 0
    if os.path.isdir(path):
        trouble = errno.EISDIR
    elif not os.path.isdir(folder):
        trouble = errno.ENOTDIR
    elif not os.access(folder, os.W_OK | os.X_OK):
        trouble = errno.EACCES
    if trouble:
        raise unwritten(path, OSError(trouble, os.strerror(trouble)))


def unwritten(path: Path, error: OSError, more: str = "") -> RbueError:
    """The error to raise for a file that could not be written, in one sentence."""
    kind = DiskFull if error.errno in NO_ROOM else RbueError
    return kind(f"{path} could not be written ({error.strerror}){more}.")


def _write_whole(path: Path, content: bytes) -> None:
    # Two processes, or two threads of one, may write the same file.
    partial = path.with_name(f"{path.name}.{next(_numbers)}.{os.getpid()}.partial")
    _being_written.add(partial.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            _try_flock(file.fileno())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:
                partial.replace(path)  # still locked, so that nobody takes it for an orphan
        if fcntl is None:
            partial.replace(path)  # there, an open file cannot be
        _remove_orphans(path)
    except BaseException:  # Ctrl-C too
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)
        raise
    finally:
        _being_written.discard(partial.name)


def _try_flock(file: int) -> bool:
    """Have the system's lock on a file, or False: another process has it, or there are no locks here."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_orphans(path: Path) -> None:
    """Remove what killed processes left of this file; one of them may have had this one's number.

    A process of another host or container, whose numbers say nothing here, holds a lock on what it is writing.
    """
    if not Path("/proc").exists():
        return
    for orphan in list(path.parent.glob(f"{glob.escape(path.name)}.*.partial")):
        process = orphan.name.split(".")[-2]
        alive = orphan.name in _being_written if process == str(os.getpid()) else Path(f"/proc/{process}").exists()
        if process.isdigit() and not alive:
            # To write, as some network file systems lock no other. One that cannot be removed does no harm.
            with contextlib.suppress(OSError), orphan.open("r+b") as file:
                if _try_flock(file.fileno()):
                    orphan.unlink(missing_ok=True)


def append_text(path: Path, text: str) -> None:
    """Add lines to a file whose reader knows that the last one may be cut off."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise unwritten(path, error) from error


def write_json(path: Path, content: Any, wait: float = 0.0) -> None:
    """Write readable JSON, whole or not at all; ``wait`` as in :func:`write_bytes`."""
    write_bytes(path, json_bytes(content), wait)


_NUMBERS = re.compile(r"\[\n\s+(-?\d+(?:,\n\s+-?\d+)*)\n\s*\]")
"""A list of whole numbers as JSON, one on each line; no text can hold it, as there are no line breaks in texts."""


def json_bytes(content: Any, numbers_in_line: bool = False) -> bytes:
    """The file of some content as JSON; long lists of whole numbers can be one line each."""
    text = json.dumps(content, indent=2)
    if numbers_in_line:
        text = _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
    return (text + "\n").encode()


def read_json(path: Path, way_out: str = "remove it to have it made again") -> Any:
    """Read JSON, or say which file is broken and what to do about it."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RbueError(f"{path} cannot be read ({reason(error)}); {way_out}.") from error


_DEEPEST = 100
"""Levels of nested JSON: a file of ours has fewer than ten, and Python gives up at some hundreds, at the latest when it
is used."""


def parse_json(text: str) -> Any:
    """The content of a JSON text from a file, with a ValueError for all that can be wrong with it."""
    too_deep = ValueError(f"it is nested more than {_DEEPEST} levels deep")
    try:
        content = json.loads(text)
    except RecursionError:
        raise too_deep from None
    level = [content]
    for _ in range(_DEEPEST + 1):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [item for items in inside for item in items]
        if not level:
            return content
    raise too_deep


def load_array(file: Path | IO[bytes], mmap_mode: Literal["c", "r"] | None = None) -> NDArray[Any]:
    """The array in a .npy file; no pickle is read.

    Raises:
        ValueError: whatever is wrong with it: NumPy reads headers by Python's parser, and believes what they promise.
        OSError: it cannot be read.
    """
    import numpy as np

    with _any_fault():
        found = np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    if not isinstance(found, np.ndarray):
        raise ValueError("it holds several arrays")
    return found


def load_arrays(file: Path | IO[bytes], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Named arrays in an .npz file, with the same errors."""
    import numpy as np

    with _any_fault():
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise ValueError("it holds one array without a name")
        with found:
            arrays = {name: found[name] for name in names}
    wrong = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    if wrong:
        raise ValueError(f"{wrong[0]} is no array")
    return arrays


@contextlib.contextmanager
def _any_fault() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError):
        raise
    except Exception as error:  # a bad zip file, zlib's, no memory for what a header promises, too deep a header
        raise ValueError(reason(error)) from error


def checksum(content: bytes) -> str:
    """The checksum of a file's content."""
    return hashlib.sha256(content).hexdigest()


def checksum_of(path: Path) -> str:
    """The checksum of a file."""
    return checksum(path.read_bytes())


_NOTE, _KEY, BLANK = "rbue", "sha256", "0" * 64


def seal(content: bytes, place: int) -> bytes:
    """A file with its checksum written over the :data:`BLANK` at a place: that of the file with the zeros there."""
    return content[:place] + checksum(content).encode() + content[place + len(BLANK) :]


def refuse_damage(content: bytes, place: int) -> None:
    """Raise a ValueError for a file that does not have the checksum that stands at a place in it."""
    end = place + len(BLANK)
    found = hashlib.sha256(memoryview(content)[:place])
    found.update(BLANK.encode())
    found.update(memoryview(content)[end:])
    if content[place:end] != found.hexdigest().encode():
        raise ValueError("it is damaged: it does not have the checksum that it notes")


def safetensors_bytes(tensors: dict[str, Tensor], note: Mapping[str, Any] | None = None) -> bytes:
    """A safetensors file of tensors and a note, ready for JSON, in which it carries its own checksum.

    That is the one of the file with zeros in its place.
    """
    from safetensors.torch import save

    content = save(tensors, {_NOTE: json.dumps({_KEY: BLANK, **(note or {})})})
    return seal(content, content.index(BLANK.encode()))


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the note of a safetensors file; nothing in it is ever executed.

    Raises:
        ValueError: it has another checksum than it notes (a file that notes none is believed), or a damaged note.
        SafetensorError: it is no safetensors file.
        OSError: it cannot be read.
    """
    from safetensors.torch import load

    content = path.read_bytes()  # once: a training may put a newer file in its place at any time
    tensors = load(content)
    header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")].decode())
    note = parse_json((header.get("__metadata__") or {}).get(_NOTE, "{}"))
    if isinstance(note, dict) and _KEY in note:
        refuse_damage(content, content.find(str(note.pop(_KEY)).encode()))
    return tensors, note
