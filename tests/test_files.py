"""Files that are damaged, nested without end, or wanted by two processes."""

import errno
import json
import os
import platform
import subprocess
import sys
import threading
import time

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save

from rbue import files
from rbue.errors import RbueError
from rbue.files import InUse, locked, read_json, read_safetensors, safetensors_bytes

HOLD = """
import sys, time
from pathlib import Path
from rbue.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300])
def test_json_without_end_is_one_sentence(text, tmp_path):
    path = tmp_path / "deep.json"
    path.write_text(text)
    with pytest.raises(RbueError, match=r"deep.json cannot be read \(it is nested more than 100 levels deep\); rem"):
        read_json(path)


def test_json_of_usual_depth_is_read(tmp_path):
    path = tmp_path / "file.json"
    content = json.loads("[" * 100 + "1" + "]" * 100)
    files.write_json(path, content)
    assert read_json(path) == content


def test_a_flipped_byte_of_tensors_is_noticed(tmp_path):
    path = tmp_path / "file.safetensors"
    tensors, note = {"a": torch.arange(6.0), "0" * 64: torch.zeros(2)}, {"epoch": 3, "zeros": "0" * 64}
    whole = safetensors_bytes(tensors, note)
    path.write_bytes(whole)
    found, noted = read_safetensors(path)
    assert noted == note
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    digest = whole.index(b'"epoch') - 40  # in the checksum itself
    for place in (3, digest, whole.index(b"epoch") + 10, whole.index(b"dtype"), len(whole) - 30, len(whole) - 1):
        content = bytearray(whole)
        content[place] ^= 1
        path.write_bytes(content)
        with pytest.raises((ValueError, SafetensorError)):
            read_safetensors(path)


def test_tensors_without_a_checksum_are_believed(tmp_path):
    path = tmp_path / "file.safetensors"
    path.write_bytes(save({"a": torch.ones(2)}, {"rbue": '{"epoch": 1}'}))
    assert read_safetensors(path)[1] == {"epoch": 1}
    path.write_bytes(save({"a": torch.ones(2)}))
    assert read_safetensors(path)[1] == {}


@pytest.fixture(params=["flock", "the file alone"])
def path(request, tmp_path, monkeypatch):
    """That of a lock, on a file system with and without locks of the system."""
    if request.param != "flock":

        def flock(*_):
            raise OSError(errno.ENOLCK, "no locks available")

        monkeypatch.setattr(files.fcntl, "flock", flock)
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
    monkeypatch.setattr(files.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))
    with locked(path):  # its process can be seen to be gone
        pass
    path.write_text(f"{process.pid} another-machine\n")
    with (
        pytest.raises(InUse, match=rf"process {process.pid} on another-machine; .* or remove .*lock if it has"),
        locked(path),
    ):
        pass


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(RbueError, match=r"file could not be written \(.*\); nothing was changed"),
        locked(tmp_path / "file" / ".lock"),
    ):
        pass
