"""What one process has to itself: a lock that ends with its process, and says whose it is.

A lock is a file. It names its process, the host and the time, so that others can say for whom they wait, and can see
where the system knows no locks whether that process is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rbue.errors import RbueError, warn
from rbue.files import NO_ROOM, PAUSE, unwritten

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class InUse(RbueError):
    """Something that another process is writing."""


class Lock(NamedTuple):
    """A file that this process has to itself."""

    path: Path
    file: int

    def check(self) -> None:
        """Raise if what it stands for was removed meanwhile, or is another process's by now."""
        if not _is_at(self.path, self.file):
            raise RbueError(
                f"{self.path.parent} was removed while this process was writing there; nothing more is written, and "
                "the same command starts again."
            )


_TOLD = 2.0
"""Seconds to wait for another process before that is said."""


@contextlib.contextmanager
def locked(path: Path, wait: float = 0.0) -> Iterator[Lock]:
    """Have a file, and what it stands for, to oneself; it is there for as long as that.

    The system's lock on it (flock) ends with the process, however that ends. Where there is none (Windows, some network
    file systems), the file alone is the lock, and that of a process which is no more is taken over if it can be seen to
    be gone: on this host.

    Args:
        path: the file, which names its process, host and time.
        wait: seconds to wait for another process.

    Raises:
        InUse: another process has it.
    """
    start, told = time.monotonic(), False
    while True:
        try:
            file = _take(path)
            break
        except InUse as error:
            waited = time.monotonic() - start
            if waited >= wait:
                raise
            if waited >= _TOLD and not told:
                warn(f"{error} It is waited for, for {wait:.0f} s at most.")
                told = True
            time.sleep(0.05)
        except OSError as error:
            if error.errno not in NO_ROOM or time.monotonic() - start >= wait:
                raise unwritten(path.parent, error, "; nothing was changed") from error
            warn(f"{path.parent} could not be written ({error.strerror}); make room: it is tried for {wait:.0f} s.")
            time.sleep(min(PAUSE, wait))
    lock = Lock(path, file)
    try:
        yield lock
    finally:
        if fcntl is None:
            os.close(file)  # an open file cannot be removed there
        with contextlib.suppress(OSError):
            if fcntl is None or _is_at(path, file):  # not that of another process, after this folder was removed
                path.unlink(missing_ok=True)
        if fcntl is not None:
            os.close(file)  # only now may others have it


def _take(path: Path) -> int:
    """The open file of a lock that is now this process's own."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file, is_new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileNotFoundError:
            continue  # the folder has just been removed, by its last user
        except FileExistsError:
            try:
                file, is_new = os.open(path, os.O_RDWR), False
            except FileNotFoundError:
                continue  # it has just been given up
        try:
            in_use = _obstacle(path, file, is_new)
            # Its last owner may have removed it after it was opened here, and another one may have made it anew.
            if in_use is None and _is_at(path, file):
                _sign(file)
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        if in_use is not None:
            raise InUse(f"{path.parent} is in use by {in_use}.")


def _sign(file: int) -> None:
    """Name this process in the file of its lock, which it is without that too, where the disk is full."""
    os.lseek(file, 0, os.SEEK_SET)
    os.ftruncate(file, 0)
    try:
        os.write(file, str(_Holder.here()).encode())
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def _obstacle(path: Path, file: int, is_new: bool) -> str | None:
    """Who has a lock and what to do, in words; None if it is this process now, or a dead one left the file."""
    holder = _Holder.read(os.read(file, 1000).decode(errors="replace"))
    try:
        if fcntl is None:
            raise OSError(errno.ENOSYS, "there are no such locks here")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"{holder.in_words()}; wait until that has ended"
    except OSError:
        if is_new:
            return None
        if holder.is_gone() and _is_at(path, file):
            path.unlink(missing_ok=True)  # the next attempt makes it anew
            return None
        return f"{holder.in_words()}; wait until that has ended, or remove {path} if it has"
    if holder.host not in ("", _host()):
        # Some file systems grant a lock to one process of each host.
        warn(f"{path.parent} was left by {holder.in_words()}, which did not end it; if it still runs there, stop it.")
    return None


class _Holder(NamedTuple):
    """The process that a lock file names; files from before there was more name a process and a host."""

    pid: str
    host: str = ""
    since: str = ""
    mark: str = ""

    @classmethod
    def here(cls) -> _Holder:
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        return cls(str(os.getpid()), _host(), now, _mark(os.getpid()))

    @classmethod
    def read(cls, text: str) -> _Holder:
        pid, *rest = text.split()[:4] or [""]
        return cls(pid, *rest) if pid.isdecimal() else cls("")

    def __str__(self) -> str:
        return " ".join(self) + "\n"

    def in_words(self) -> str:
        """Which process, where, since when; a file that was cut off does not say."""
        if not self.host:
            return "another process"
        since = f" since {self.since.replace('T', ' ')}" if self.since else ""
        return f"process {self.pid} on {self.host}{since}"

    def is_gone(self) -> bool:
        """Whether the process can be seen to be no more; of other hosts and containers nothing can be seen."""
        if fcntl is None or not self.pid.isdecimal() or self.host != _host():
            return False
        theirs, own = self.mark.split("/"), _mark(os.getpid()).split("/")
        if min(len(theirs), len(own)) == 1:  # there is no /proc, or the file is of an earlier version
            return not _is_alive(int(self.pid))
        if theirs[:2] != own[:2]:  # the machine was started anew, unless it is another one of the same name
            return theirs[0] == own[0] != ""
        return theirs[2:3] == own[2:3] and _mark(int(self.pid)) != self.mark


def _host() -> str:
    return "-".join(platform.node().split())


def _mark(pid: int) -> str:
    """What tells a process from others that had its number or will have it; empty if it is no more, or without /proc.

    That is the machine, when it was started, the container, whose processes have numbers of their own, and when the
    process was started.
    """
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    machine = ""
    with contextlib.suppress(OSError):
        machine = Path("/etc/machine-id").read_text().strip()
    return "" if state in "ZX" else f"{machine}/{boot}/{space}/{numbers[18]}"  # a zombie only waits to be noticed


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError as error:
        if error.errno not in (errno.ENOENT, getattr(errno, "ESTALE", errno.ENOENT)):  # the latter of a network's files
            raise
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        pass
    return True
