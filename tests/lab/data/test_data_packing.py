"""Packs: small parts, bit-exact, verified."""

from __future__ import annotations

import errno
import json

import data_files as files
import numpy as np
import pytest

from rbue.errors import InvalidInput
from rbue.lab import data
from rbue.lab.data.lossless import decode_bytes, decode_images, encode_bytes, encode_images


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 8, 8, 1), (5, 7, 4, 3), (2, 3, 5, 2)])
def test_coding_is_lossless(shape):
    for images in (
        np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8),
        np.full(shape, 255, np.uint8),
        np.zeros(shape, np.uint8),
    ):
        before = images.copy()
        assert np.array_equal(decode_images(encode_images(images), len(images), shape[1:]), before)
        assert np.array_equal(images, before)


def test_smooth_images_become_small():
    ramp = np.add.outer(np.arange(32), np.arange(32)).astype(np.uint8)
    images = np.stack([ramp] * 30, axis=0)[..., None].repeat(3, axis=3)
    assert len(encode_images(images)) < images.nbytes / 50


def test_coded_bytes_have_one_size():
    coded = encode_bytes(b"hello" * 100)
    assert decode_bytes(coded, 500) == b"hello" * 100
    for data_, size in ((coded, 499), (coded, 501), (coded[:-3], 500), (b"nonsense", 5)):
        with pytest.raises(ValueError):
            decode_bytes(data_, size)


@pytest.fixture
def stored(shrink, tmp_path):
    arrays = shrink("cifar10", 100, 30)
    data.import_("cifar10", files.cifar10_binary(tmp_path / "in", arrays), tmp_path / "root")
    return tmp_path / "root"


def test_a_pack_comes_back_bit_for_bit(stored, tmp_path):
    told = []
    made = data.pack("cifar10", tmp_path / "pack", part_mib=0.0625, root=stored, progress=lambda *w: told.append(w))
    assert sorted(path.name for path in made) == sorted(path.name for path in (tmp_path / "pack").iterdir())
    assert len(made) > 3
    assert all(path.stat().st_size <= 64 * 1024 for path in made if path.suffix == ".bin")
    assert told[-1] == ("cifar10 test", 30, 30)
    place = data.unpack(tmp_path / "pack", tmp_path / "there")
    assert place == tmp_path / "there" / "cifar10"
    for path in (stored / "cifar10").glob("*.npy"):
        assert path.read_bytes() == (place / path.name).read_bytes()
    assert all(entry.ok for entry in data.check("cifar10", tmp_path / "there"))


def test_a_damaged_pack_is_refused(stored, tmp_path, nothing_left):
    data.pack("cifar10", tmp_path / "pack", part_mib=0.0625, root=stored)
    part = tmp_path / "pack" / "part-002.bin"
    whole = part.read_bytes()
    for content in (whole[:-1], whole[:-1] + bytes((whole[-1] ^ 1,))):
        part.write_bytes(content)
        with pytest.raises(data.DataError, match=r"part-002.bin has the SHA-256 \w{64} instead of \w{64}"):
            data.unpack(tmp_path / "pack", tmp_path / "there")
    part.unlink()
    with pytest.raises(data.DataError, match=r"part-002.bin cannot be read"):
        data.unpack(tmp_path / "pack", tmp_path / "there")
    part.write_bytes(whole)
    manifest = json.loads((tmp_path / "pack" / "pack.json").read_text())
    manifest["splits"]["test"]["sha256"]["images"] = "0" * 64
    (tmp_path / "pack" / "pack.json").write_text(json.dumps(manifest))
    with pytest.raises(data.DataError, match=r"instead of the recorded 0{64}"):
        data.unpack(tmp_path / "pack", tmp_path / "there")
    del manifest["splits"]["test"]["blocks"][0]["labels"]
    (tmp_path / "pack" / "pack.json").write_text(json.dumps(manifest))
    with pytest.raises(data.DataError, match="does not fit its manifest"):
        data.unpack(tmp_path / "pack", tmp_path / "there")
    for text in ("{", "[]", '{"format": 9, "name": "cifar10", "splits": {}, "parts": []}'):
        (tmp_path / "pack" / "pack.json").write_text(text)
        with pytest.raises(data.DataError, match=r"pack.json is (damaged|not the manifest)"):
            data.unpack(tmp_path / "pack", tmp_path / "there")
    with pytest.raises(data.DataError, match="is not a pack"):
        data.unpack(tmp_path, tmp_path / "there")
    nothing_left(tmp_path / "there")


SUMS = {"images": "0", "labels": "0"}


@pytest.mark.parametrize(
    "changes",
    [
        {"name": 3},
        {"splits": {}},
        {"splits": []},
        {"splits": {"test": {}}},
        {"splits": {"test": 3}},
        {"splits": {"test": {"variant": ["official"], "sha256": SUMS}}},
        {"splits": {"test": {"variant": "official", "sha256": {}}}},
        {"splits": {"test": {"variant": "official", "sha256": {**SUMS, "more": "0"}}}},
        {"parts": None},
        {"parts": [{}]},
        {"parts": [{"file": 3, "sha256": "0"}]},
        {"parts": ["part-000.bin"]},
    ],
)
def test_a_manifest_of_another_form_is_refused(stored, tmp_path, changes, nothing_left):
    data.pack("cifar10", tmp_path / "pack", root=stored)
    path = tmp_path / "pack" / "pack.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(
        data.DataError, match=r"pack\.json is not the manifest of a pack of format 1; pack the set again"
    ):
        data.unpack(tmp_path / "pack", tmp_path / "there")
    nothing_left(tmp_path / "there")


def test_a_full_disk_leaves_nothing(stored, tmp_path, monkeypatch):
    def full(file, block):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rbue.lab.data.packing.append", full)
    with pytest.raises(data.CannotWrite, match="the disk is full"):
        data.pack("cifar10", tmp_path / "new" / "pack", root=stored)
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_packed_is_refused(stored, tmp_path):
    with pytest.raises(InvalidInput, match="too small"):
        data.pack("cifar10", tmp_path / "pack", part_mib=0.01, root=stored)
    with pytest.raises(data.DataError, match="not empty"):
        data.pack("cifar10", stored, root=stored)
    with pytest.raises(data.DataError, match="not on this machine"):
        data.pack("svhn", tmp_path / "pack", root=stored)
    with pytest.raises(InvalidInput, match="needs no packing"):
        data.pack("folder:x", tmp_path / "pack", root=stored)
