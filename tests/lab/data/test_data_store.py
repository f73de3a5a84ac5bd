"""Sets on this machine: found, checked, and stored whole or not at all, also when a process is killed on the way."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import data_files as files
import numpy as np
import pytest

from rbue.lab import data
from rbue.lab.data import registry, store
from rbue.lab.data.source_files import md5_of
from rbue.lab.data.staging import clear_leftovers, staged


def test_standard_files_are_found_along_the_search_path(shrink, tmp_path, monkeypatch):
    arrays = shrink("cifar10")
    files.cifar10_binary(tmp_path / "second" / "cifar-10-batches-bin", arrays)
    monkeypatch.setenv("RBUE_DATA", os.pathsep.join([str(tmp_path / "first"), str(tmp_path / "second")]))
    assert np.array_equal(data.load("cifar10", "train").images, arrays["train"][0])
    assert data.splits_here("cifar10") == ["train", "test"]
    assert [entry.ok for entry in data.check("cifar10")] == [True] * 4
    assert data.target_root() == tmp_path / "first"
    monkeypatch.delenv("RBUE_DATA")
    assert [str(place) for place in data.search_path()] == ["data", str(tmp_path / "cache" / "rbue" / "data")]
    files.cifar10_binary(tmp_path / "cwd" / "data" / "cifar10", arrays)
    assert len(data.load("cifar10", "test")) == 10


def test_missing_data_says_how_to_get_it(tmp_path):
    with pytest.raises(data.DataError, match=r"cifar10 is not on this machine.*nowhere.*rbue data fetch cifar10"):
        data.load("cifar10", "train", tmp_path / "nowhere")
    with pytest.raises(data.DataError, match="not on this machine"):
        data.check("cifar10", tmp_path / "nowhere")
    with pytest.raises(data.DataError, match=r"there is no .*nowhere"):
        data.import_("cifar10", tmp_path / "nowhere", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(data.DataError, match=r"holds no files of cifar10.*cifar-10-binary.tar.gz"):
        data.import_("cifar10", tmp_path / "empty", tmp_path)


def test_a_wrong_checksum_names_both(shrink, tmp_path, nothing_left):
    arrays = shrink("cifar10")
    expected = data.get("cifar10").splits["test"]["official"].images
    arrays["test"][0][3, 5, 7, 1] ^= 1
    folder = files.cifar10_binary(tmp_path / "in", arrays)
    with pytest.raises(data.DataError, match=rf"images of cifar10 test .* SHA-256 \w{{64}} instead .* {expected}"):
        data.import_("cifar10", folder, tmp_path / "root")
    nothing_left(tmp_path / "root")
    with pytest.raises(data.DataError, match=expected):
        data.load("cifar10", "test", _as_root(folder, tmp_path / "standard"))


def test_a_wrong_label_is_noticed_by_its_checksum_too(shrink, tmp_path, nothing_left):
    arrays = shrink("cifar10")
    arrays["test"][1][3] = (arrays["test"][1][3] + 1) % 10
    with pytest.raises(data.DataError, match=r"labels of cifar10 test .* instead of the registry's"):
        data.import_("cifar10", files.cifar10_binary(tmp_path / "in", arrays), tmp_path / "root")
    nothing_left(tmp_path / "root")


def _as_root(folder, root):
    root.mkdir()
    folder.rename(root / "cifar10")
    return root


def test_a_label_out_of_range_is_named(shrink, tmp_path):
    arrays = shrink("cifar10", known=False)
    arrays["train"][1][4] = 77
    with pytest.raises(data.DataError, match=r"label 77; cifar10 has the classes 0 to 9"):
        data.import_("cifar10", files.cifar10_binary(tmp_path / "in", arrays), tmp_path / "root")


def test_where_arrays_have_no_checksum_the_file_is_checked(shrink, tmp_path):
    arrays = shrink("svhn", known=False)
    folder = files.svhn_mats(tmp_path / "in", arrays)
    with pytest.raises(data.DataError, match=r"MD5 \w{32} instead of the publisher's e26dedcc"):
        data.import_("svhn", folder, tmp_path / "root")
    downloads = tuple(
        registry.Download(f"http://x/{split}_32x32.mat", md5_of(folder / f"{split}_32x32.mat")) for split in arrays
    )
    shrink("svhn", known=False, downloads=downloads)
    data.import_("svhn", folder, tmp_path / "root")
    assert store.find_stored(tmp_path / "root", "svhn").splits["train"].verified_by == "publisher's MD5 of the files"
    assert {entry.reference for entry in data.check("svhn", tmp_path / "root")} == {"recorded when stored"}


def test_a_full_disk_leaves_nothing(shrink, tmp_path, monkeypatch, nothing_left):
    folder = files.cifar10_binary(tmp_path / "in", shrink("cifar10"))
    for fail_at in range(1, 9):
        written = iter(range(1, 100))

        @contextmanager
        def full(path, fail_at=fail_at, written=written):
            def write(block):
                if next(written) == fail_at:
                    file.write(block[: len(block) // 2])
                    raise OSError(errno.ENOSPC, "No space left on device")
                file.write(block)

            with path.open("wb") as file:
                yield SimpleNamespace(write=write)

        monkeypatch.setattr("rbue.lab.data.store.lasting", full)
        with pytest.raises(data.CannotWrite, match=r"root.cifar10: the disk is full"):
            data.import_("cifar10", folder, tmp_path / "root")
        nothing_left(tmp_path / "root")


def test_an_unwritable_folder_is_named(shrink, tmp_path, monkeypatch):
    folder = files.cifar10_binary(tmp_path / "in", shrink("cifar10"))

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", refuse)
        with pytest.raises(data.CannotWrite, match=r"cannot write to .*root.cifar10: no permission"):
            data.import_("cifar10", folder, tmp_path / "root")
    assert not (tmp_path / "root").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(data.DataError, match="a file is in the way"):
        data.import_("cifar10", folder, tmp_path / "file")


def test_importing_again_replaces_but_never_loses_a_split(shrink, tmp_path):
    arrays = shrink("cifar10")
    folder = files.cifar10_binary(tmp_path / "in", arrays)
    data.import_("cifar10", folder, tmp_path / "root")
    held = data.load("cifar10", "test", tmp_path / "root").images
    data.import_("cifar10", folder, tmp_path / "root")
    assert np.array_equal(held, arrays["test"][0])
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["cifar10"]
    for age, name in ((0, ".cifar10.new.partial"), (2, ".cifar10.old.partial")):
        (tmp_path / "root" / name).mkdir()
        os.utime(tmp_path / "root" / name, (time.time() - 86_400 * age,) * 2)
    data.import_("cifar10", folder, tmp_path / "root")
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == [".cifar10.new.partial", "cifar10"]
    (folder / "test_batch.bin").unlink()
    with pytest.raises(data.DataError, match="already holds the split 'test'"):
        data.import_("cifar10", folder, tmp_path / "root")
    assert len(data.load("cifar10", "test", tmp_path / "root")) == 10


def test_damage_to_a_stored_set_is_seen(shrink, tmp_path, monkeypatch):
    arrays = shrink("cifar10")
    place = data.import_("cifar10", files.cifar10_binary(tmp_path / "in", arrays), tmp_path / "root")
    monkeypatch.setattr(store, "MAPPED_FROM", 1)
    mapped = data.load("cifar10", "test", tmp_path / "root").images
    assert isinstance(mapped, np.memmap)
    mapped[:] = 0  # a private copy: the file stays as it is
    assert all(entry.ok for entry in data.check("cifar10", tmp_path / "root"))
    path = place / "test-images.npy"
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    wrong = [entry for entry in data.check("cifar10", tmp_path / "root") if not entry.ok]
    assert [(entry.split, entry.array) for entry in wrong] == [("test", "images")]
    assert wrong[0].found != wrong[0].expected == data.get("cifar10").splits["test"]["official"].images
    path.write_bytes(whole[:-50])
    with pytest.raises(data.DataError, match=r"test-images.npy is missing or damaged"):
        data.load("cifar10", "test", tmp_path / "root")
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    monkeypatch.setattr(store, "MAPPED_FROM", 1 << 30)
    with pytest.raises(data.DataError, match=r"test-images.npy is missing or damaged.*allow_pickle"):
        data.load("cifar10", "test", tmp_path / "root")
    np.save(path, np.zeros((3, 3), np.uint8))
    with pytest.raises(data.DataError, match=r"\(3, 3\) instead of"):
        data.load("cifar10", "test", tmp_path / "root")
    with path.open("wb") as file:
        np.savez(file, np.zeros(3, np.uint8))
    with pytest.raises(data.DataError, match=r"test-images.npy is .* damaged \(it holds several arrays\)"):
        data.load("cifar10", "test", tmp_path / "root")
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(data.DataError, match=r"test-images.npy is missing or damaged"):
        data.load("cifar10", "test", tmp_path / "root")
    meta = json.loads((place / "set.json").read_text())
    (place / "set.json").write_text(json.dumps(meta | {"format": 99}))
    with pytest.raises(data.DataError, match="format 99"):
        data.load("cifar10", "test", tmp_path / "root")
    for text in ("{", "[" * 100_000):
        (place / "set.json").write_text(text)
        with pytest.raises(data.DataError, match=r"set.json is damaged"):
            data.load("cifar10", "test", tmp_path / "root")


def fill(target, content, fail=False):
    with staged(target) as made:
        (made / "file").write_text(content)
        if fail:
            raise RuntimeError


def left_by_a_kill_between_the_renames(target):
    old = target.with_name(f".{target.name}.x1.old")
    old.mkdir()
    target.rename(old / target.name)
    return old


def test_a_folder_is_replaced_whole(tmp_path):
    fill(tmp_path / "set", "first")
    fill(tmp_path / "set", "second")
    assert (tmp_path / "set" / "file").read_text() == "second"
    assert not list(tmp_path.glob(".set.*"))


def test_a_failure_leaves_what_was_there(tmp_path):
    fill(tmp_path / "set", "first")
    with pytest.raises(RuntimeError):
        fill(tmp_path / "set", "half", fail=True)
    assert (tmp_path / "set" / "file").read_text() == "first"


def test_what_was_there_is_moved_away_and_comes_back_if_the_new_cannot_take_its_place(tmp_path, monkeypatch):
    fill(tmp_path / "set", "first")
    rename = Path.rename

    def refuse_the_new(self, target):
        if self.suffix == ".partial":
            assert list(tmp_path.glob(".set.*.old/set/file"))  # a process killed here loses nothing
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new)
    with pytest.raises(data.DataError):
        fill(tmp_path / "set", "second")
    assert (tmp_path / "set" / "file").read_text() == "first"
    assert not list(tmp_path.glob(".set.*"))


def test_what_a_killed_process_moved_away_comes_back(tmp_path):
    fill(tmp_path / "set", "first")
    left_by_a_kill_between_the_renames(tmp_path / "set")
    with pytest.raises(RuntimeError):
        fill(tmp_path / "set", "half", fail=True)
    assert (tmp_path / "set" / "file").read_text() == "first"


def test_only_old_leftovers_are_cleared(tmp_path):
    names = (".set.a.partial", ".set.b.old", ".other.c.partial", "set.partial")
    for name in names[:2]:
        (tmp_path / name).mkdir()
    for name in names[2:]:
        (tmp_path / name).write_text("")
    clear_leftovers(tmp_path, ".set.")
    assert all((tmp_path / name).exists() for name in names)
    yesterday = time.time() - 100_000
    for name in names:
        os.utime(tmp_path / name, (yesterday, yesterday))
    clear_leftovers(tmp_path, ".set.")
    assert [(tmp_path / name).exists() for name in names] == [False, False, True, True]
    clear_leftovers(tmp_path)
    assert [(tmp_path / name).exists() for name in names] == [False, False, False, True]
