"""What two processes want at once, what killed ones leave, and what can be seen of others."""

import contextlib
import errno
import os
import platform
import subprocess
import sys
import threading
import time

import pytest

from rbue import locks
from rbue.errors import RbueError, RbueWarning
from rbue.files import DiskFull
from rbue.locks import InUse, locked

HOLD = """
import sys, time
from pathlib import Path
from rbue.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(params=["flock", "the file alone"])
def path(request, tmp_path, monkeypatch):
    """That of a lock, on a file system with and without locks of the system."""
    if request.param != "flock":

        def flock(*_):
            raise OSError(errno.ENOLCK, "no locks available")

        monkeypatch.setattr(locks.fcntl, "flock", flock)
    return tmp_path / "folder" / ".lock"


def test_one_at_a_time(path):
    with locked(path):
        with (
            pytest.raises(
                InUse,
                match=rf"folder is in use by process {os.getpid()} on {platform.node()} since 2\d{{3}}-\d\d-\d\d "
                r"\d\d:\d\d:\d\d\S+; wait until that has ended",
            ),
            locked(path),
        ):
            pass
        assert path.exists()
    assert not path.exists()
    with locked(path):
        pass


def test_it_is_waited_for(path):
    held, end = threading.Event(), threading.Event()

    def hold():
        with locked(path):
            held.set()
            end.wait(10)
            time.sleep(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    end.set()
    with locked(path, wait=10):
        assert path.exists()
    thread.join()


def test_what_is_raised_inside_ends_it(path):
    with pytest.raises(ZeroDivisionError), locked(path):
        1 / 0
    assert not path.exists()


def test_a_killed_process_has_nothing(tmp_path, monkeypatch):
    path = tmp_path / ".lock"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, env=environment, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InUse, match=rf"in use by process {process.pid} on \S+ since \S+ \S+; wait"), locked(path):
            pass
    finally:
        process.kill()
        process.communicate()
    assert path.read_text().startswith(f"{process.pid} ")
    left = path.read_bytes()
    with locked(path):
        assert path.read_text().split()[:2] == [str(os.getpid()), platform.node()]
    path.write_bytes(left)
    monkeypatch.setattr(locks.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))
    with locked(path):  # its process can be seen to be gone
        pass
    monkeypatch.setattr(locks, "_mark", lambda pid: "")  # as without /proc
    for since in ("", " 2026-01-01T00:00:00+00:00"):
        path.write_text(f"{process.pid} {platform.node()}{since}\n")
        with locked(path), pytest.raises(InUse), locked(path):
            pass
    path.write_text(f"{process.pid} another-machine\n")
    with (
        pytest.raises(InUse, match=rf"process {process.pid} on another-machine; .* or remove .*lock if it has"),
        locked(path),
    ):
        pass


@pytest.fixture
def no_flock(monkeypatch):
    """A file system on which the file alone is the lock."""
    monkeypatch.setattr(locks.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))


HERE = locks._mark(os.getpid())
MACHINE, BOOT, SPACE, START = HERE.split("/") if HERE else [""] * 4
with_proc = pytest.mark.skipif(not HERE, reason="there is no /proc to tell processes of one number apart")


@with_proc
def test_a_number_that_another_process_has_now_is_no_sign_of_life(tmp_path, no_flock):
    path = tmp_path / ".lock"
    path.write_text(f"{os.getpid()} {platform.node()} 2026-01-01T00:00:00+00:00 {MACHINE}/{BOOT}/{SPACE}/17\n")
    with locked(path):
        assert path.read_text().split()[-1] == HERE


@with_proc
@pytest.mark.parametrize("machine", ["this", "another", ""])
def test_of_before_the_machine_was_started_anew(tmp_path, no_flock, monkeypatch, machine):
    monkeypatch.setattr(locks, "_mark", lambda pid: f"this/{BOOT}/{SPACE}/{START}")
    path = tmp_path / ".lock"
    path.write_text(f"{os.getpid()} {platform.node()} 2026-01-01T00:00:00+00:00 {machine}/earlier/{SPACE}/{START}\n")
    taken = (
        contextlib.nullcontext() if machine == "this" else pytest.raises(InUse, match=r"or remove .*\.lock if it has")
    )
    with taken, locked(path):
        pass


@with_proc
def test_a_zombie_is_gone(tmp_path, no_flock):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = locks._mark(child.pid)
    try:
        (tmp_path / ".lock").write_text(f"{child.pid} {platform.node()} 2026-01-01T00:00:00+00:00 {mark}\n")
        with pytest.raises(InUse, match=f"process {child.pid} on"), locked(tmp_path / ".lock"):
            pass
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its end is there to be noticed
        with locked(tmp_path / ".lock"):
            pass
    finally:
        child.kill()
        child.communicate()


@with_proc
def test_of_another_container_nothing_can_be_seen(tmp_path, no_flock):
    path = tmp_path / ".lock"
    path.write_text(f"1234567 {platform.node()} 2026-01-01T00:00:00+00:00 {MACHINE}/{BOOT}/1/{START}\n")
    said = rf"process 1234567 on {platform.node()} since 2026-01-01 00:00:00\+00:00; .* or remove .*lock if it has"
    with pytest.raises(InUse, match=said), locked(path):
        pass


def test_what_another_host_left_is_taken_over_with_a_word(tmp_path):
    path = tmp_path / ".lock"
    path.write_text("17 node3 2026-01-01T00:00:00+00:00\n")
    with pytest.warns(RbueWarning, match="was left by process 17 on node3 since 2026-01-01 00:00:00"), locked(path):
        assert path.read_text().startswith(f"{os.getpid()} ")


@pytest.mark.parametrize("text", ["", "17", "\0\0\0", "a b c d e"])
def test_a_lock_file_that_says_little_is_no_obstacle(path, text, request):
    path.parent.mkdir()
    path.write_text(text)
    if "flock" not in request.node.callspec.params["path"]:  # nothing says that its process is gone
        with pytest.raises(InUse, match=r"in use by .*remove"), locked(path):
            pass
        return
    with locked(path):
        pass


def test_that_it_is_waited_for_is_said(path, monkeypatch):
    monkeypatch.setattr(locks, "_TOLD", 0.0)
    with (
        locked(path),
        pytest.warns(RbueWarning, match=rf"by process {os.getpid()} on .* It is waited for, for 0 s at most") as said,
        pytest.raises(InUse),
        locked(path, wait=0.1),
    ):
        pass
    assert len(said) == 1


def test_a_removed_folder_is_noticed_and_its_successor_left_alone(path):
    with locked(path) as lock:
        lock.check()
        path.unlink()
        path.parent.rmdir()
        with pytest.raises(RbueError, match=r"folder was removed while this process was writing there; nothing more"):
            lock.check()
        successor = locked(path)
        successor.__enter__()
        with pytest.raises(RbueError, match="was removed"):
            lock.check()
    assert path.exists()
    successor.__exit__(None, None, None)
    assert not path.exists()


def test_a_lock_needs_no_room(path, monkeypatch):
    monkeypatch.setattr(os, "write", full)
    with locked(path):
        assert path.read_text() == ""
        with pytest.raises(InUse, match="in use by another process"), locked(path):
            pass


def test_that_it_cannot_be_signed_is_said(path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(RbueError, match=r"could not be written \(Input/output error\)"), locked(path):
        pass


def test_room_for_a_lock_is_waited_for(path, monkeypatch):
    usual, attempts = os.open, []

    def at_first_full(file, *more, **settings):
        attempts.append(file)
        return full() if len(attempts) < 3 else usual(file, *more, **settings)

    monkeypatch.setattr(os, "open", at_first_full)
    monkeypatch.setattr(locks, "PAUSE", 0.0)
    with pytest.raises(DiskFull), locked(path):
        pass
    with pytest.warns(RbueWarning, match="make room: it is tried for 60 s"), locked(path, wait=60):
        assert path.exists()


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(RbueError, match=r"file could not be written \(.*\); nothing was changed"),
        locked(tmp_path / "file" / ".lock", wait=60),
    ):
        pass
