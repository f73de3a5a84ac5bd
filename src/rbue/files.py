"""Files that outlast crashes, other processes and bad disks.

They are written whole or not at all, read with a sentence about what is wrong with them, carry a checksum where a
flipped byte would otherwise go unnoticed, and can be kept to one process at a time.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import itertools
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from rbue.errors import RbueError, reason

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


def _remove_orphans(path: Path) -> None:
    """Remove what killed processes left of this file; one of them may have had this one's number."""
    if not Path("/proc").exists():
        return
    for orphan in list(path.parent.glob(f"{glob.escape(path.name)}.*.partial")):
        process = orphan.name.split(".")[-2]
        alive = orphan.name in _being_written if process == str(os.getpid()) else Path(f"/proc/{process}").exists()
        if process.isdigit() and not alive:
            orphan.unlink(missing_ok=True)


def append_text(path: Path, text: str) -> None:
    """Add lines to a file whose reader knows that the last one may be cut off."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise RbueError(f"{path} could not be written ({error.strerror}).") from error


def write_json(path: Path, content: Any) -> None:
    """Write readable JSON, whole or not at all."""
    write_bytes(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    """The file of some content as JSON."""
    return (json.dumps(content, indent=2) + "\n").encode()


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


_NOTE, _KEY, _BLANK = "rbue", "sha256", "0" * 64


def safetensors_bytes(tensors: dict[str, Tensor], note: Mapping[str, Any] | None = None) -> bytes:
    """A safetensors file of tensors and a note, ready for JSON, in which it carries its own checksum.

    That is the one of the file with zeros in its place.
    """
    from safetensors.torch import save

    content = save(tensors, {_NOTE: json.dumps({_KEY: _BLANK, **(note or {})})})
    return content.replace(_BLANK.encode(), checksum(content).encode(), 1)


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the note of a safetensors file; nothing in it is ever executed.

    Raises:
        ValueError: it has another checksum than it notes (a file that notes none is believed), or a damaged note.
        SafetensorError: it is no safetensors file.
        OSError: it cannot be read.
    """
    from safetensors import safe_open
    from safetensors.torch import load

    with safe_open(path, "pt") as file:
        note = parse_json((file.metadata() or {}).get(_NOTE, "{}"))
    content = path.read_bytes()
    if isinstance(note, dict) and _KEY in note:
        noted = str(note.pop(_KEY)).encode()
        place = content.find(noted)
        found = hashlib.sha256(content[:place])
        found.update(_BLANK.encode())
        found.update(memoryview(content)[place + len(_BLANK) :])
        if noted != found.hexdigest().encode():
            raise ValueError("it is damaged: it does not have the checksum that it notes")
    return load(content), note


class InUse(RbueError):
    """Something that another process is writing."""


@contextlib.contextmanager
def locked(path: Path, wait: float = 0.0) -> Iterator[None]:
    """Have a file, and what it stands for, to oneself; it is there for as long as that.

    The system's lock on it (flock) ends with the process, however that ends. Where there is none (Windows, some network
    file systems), the file alone is the lock, and that of a process which is no more is taken over if it can be seen to
    be gone.

    Args:
        path: the file, which names its process.
        wait: seconds to wait for another process.

    Raises:
        InUse: another process has it.
    """
    deadline = time.monotonic() + wait
    while True:
        try:
            file = _take(path)
            break
        except InUse:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)
        except OSError as error:
            raise RbueError(f"{path.parent} could not be written ({error.strerror}); nothing was changed.") from error
    try:
        yield
    finally:
        if fcntl is None:
            os.close(file)  # an open file cannot be removed there
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        if fcntl is not None:
            os.close(file)  # only now may others have it


def _take(path: Path) -> int:
    """The open file of a lock that is now this process's own."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file, is_new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileExistsError:
            try:
                file, is_new = os.open(path, os.O_RDWR), False
            except FileNotFoundError:
                continue  # it has just been given up
        try:
            in_use = _holder(path, file, is_new)
            # Its last owner may have removed it after it was opened here, and another one may have made it anew.
            if in_use is None and _is_at(path, file):
                os.lseek(file, 0, os.SEEK_SET)
                os.ftruncate(file, 0)
                os.write(file, f"{os.getpid()} {platform.node()}\n".encode())
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        if in_use is not None:
            raise InUse(f"{path.parent} is in use by {in_use}.")


def _holder(path: Path, file: int, is_new: bool) -> str | None:
    """Who has a lock and what to do, in words; None if it is this process now, or a dead one left the file."""
    pid, _, host = os.read(file, 1000).decode(errors="replace").strip().partition(" ")
    place = f" on {host}" if host not in ("", platform.node()) else ""
    process = f"process {pid}{place}" if pid.isdecimal() else "another process"
    try:
        if fcntl is None:
            raise OSError(errno.ENOSYS, "there are no such locks here")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return f"{process}; wait until that has ended"
    except OSError:
        if is_new:
            return None
        if fcntl is not None and pid.isdecimal() and not place and not _is_alive(int(pid)):
            path.unlink(missing_ok=True)  # the next attempt makes it anew
            return None
        return f"{process}; wait until that has ended, or remove {path} if it has"


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        pass
    return True
