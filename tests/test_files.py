"""Files that are damaged, nested without end, or for which there is no room."""

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save

from rbue import files
from rbue.errors import RbueError, RbueWarning
from rbue.files import DiskFull, append_text, read_json, read_safetensors, safetensors_bytes, write_bytes


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


def test_lists_of_whole_numbers_can_be_one_line_each():
    content = {"picked": [[1, -20], []], "mean": [0.5], "text": "[\n  1\n]", "none": [None, 3]}
    text = files.json_bytes(content, numbers_in_line=True).decode()
    assert json.loads(text) == content
    assert "    [1, -20],\n" in text
    assert files.json_bytes(content).count(b"\n") == text.count("\n") + 3


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
    path.write_bytes(safetensors_bytes({"a": torch.ones(2)}))
    assert read_safetensors(path)[1] == {}
    path.write_bytes(save({"a": torch.ones(2)}))
    assert read_safetensors(path)[1] == {}
    header = b'{"__metadata__":null}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert read_safetensors(path) == ({}, {})


def test_tensors_are_read_whole_while_newer_ones_take_their_place(tmp_path):
    path, ended = tmp_path / "file.safetensors", threading.Event()
    versions = [safetensors_bytes({"a": torch.full((9,), float(epoch))}, {"epoch": epoch}) for epoch in range(2)]
    write_bytes(path, versions[0])

    def replace():
        while not ended.is_set():
            for version in versions:
                other = path.with_suffix(".new")
                other.write_bytes(version)
                other.replace(path)

    with ThreadPoolExecutor() as threads:
        replacing = threads.submit(replace)
        try:
            for _ in range(2000):
                tensors, note = read_safetensors(path)
                assert (tensors["a"] == note["epoch"]).all()
        finally:
            ended.set()
    replacing.result()


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_a_process_elsewhere_is_writing_stays(tmp_path, monkeypatch):
    """Of a container or host whose processes are not to be seen here."""
    path = tmp_path / "file"
    theirs, left = (tmp_path / f"file.{number}.4194999.partial" for number in range(2))
    left.touch()
    with theirs.open("wb") as file:
        files.fcntl.flock(file.fileno(), files.fcntl.LOCK_EX)
        write_bytes(path, b"mine")
        assert set(tmp_path.iterdir()) == {path, theirs}
    write_bytes(path, b"mine")
    assert list(tmp_path.iterdir()) == [path]


def test_what_this_process_is_about_to_lock_stays(tmp_path, monkeypatch):
    path, usual = tmp_path / "new" / "folder" / "file", files._try_flock

    def late(file):
        monkeypatch.setattr(files, "_try_flock", usual)
        files._remove_orphans(path)  # as another thread may do now
        return usual(file)

    monkeypatch.setattr(files, "_try_flock", late)
    write_bytes(path, b"mine")
    assert [one.read_bytes() for one in path.parent.iterdir()] == [b"mine"]


def test_files_are_written_where_there_are_no_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    write_bytes(tmp_path / "file", b"mine")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("file", b"mine")]


def test_a_full_disk_is_waited_for(tmp_path, monkeypatch):
    path, attempts = tmp_path / "file", []
    path.write_text("old")

    def once_full(file, usual=os.fsync):
        attempts.append(path.read_text())
        if len(attempts) < 3:
            full()
        usual(file)

    monkeypatch.setattr(os, "fsync", once_full)
    monkeypatch.setattr(files, "PAUSE", 0.0)
    with pytest.warns(RbueWarning, match=r"file could not be written \(No space left on device\); make room: it is tr"):
        write_bytes(path, b"new", wait=60)
    assert (attempts, path.read_text()) == (["old"] * 3, "new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_stays_full_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        DiskFull, match=r"file could not be written \(No space left on device\); nothing was changed\.$"
    ):
        write_bytes(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_a_full_disk_is_waited_for(tmp_path, monkeypatch):
    def refused(_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(RbueError, match=r"\(Read-only file system\); nothing was changed") as refusal:
        write_bytes(tmp_path / "file", b"new", wait=60)
    assert not isinstance(refusal.value, DiskFull)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no disk that is always full")
def test_lines_for_which_there_is_no_room(tmp_path):
    (tmp_path / "log").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match="log could not be written"):
        append_text(tmp_path / "log", "a line\n")
