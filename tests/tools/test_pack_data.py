"""Packs of data sets: small parts, bit-exact, verified."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rbue.lab import data
from rbue.lab.data import registry
from rbue.lab.data.images import checksums
from rbue.lab.data.source_files import Incoming
from rbue.lab.data.store import write_set

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from pack_data import decode_images, encode_images, main


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A CIFAR-10 of 130 images below a root; the test images have no published checksum."""
    random = np.random.RandomState(7)
    arrays = {
        split: (random.randint(0, 256, (count, 32, 32, 3)).astype(np.uint8), random.randint(0, 10, count))
        for split, count in (("train", 100), ("test", 30))
    }
    sums = checksums(*arrays["train"], 10)
    splits = registry.official(registry.Published(100, sums.images, sums.labels), registry.Published(30))
    entry = replace(data.get("cifar10"), splits=splits)
    monkeypatch.setitem(registry._SETS, "cifar10", entry)
    write_set(tmp_path / "root", [Incoming(entry, split, [chunk], "here") for split, chunk in arrays.items()])
    return tmp_path / "root"


@pytest.fixture
def packed(stored, tmp_path):
    assert main(["pack", "cifar10", str(tmp_path / "pack"), "--part-mib", "0.0625", "--root", str(stored)]) == 0
    return tmp_path / "pack"


@pytest.fixture
def refused(tmp_path, capsys):
    """Calls the script, which must end in an error, and gives what it says; nothing is left behind."""

    def call(*words):
        assert main([*map(str, words), "--root", str(tmp_path / "there")]) == 1
        assert not (tmp_path / "there").exists()
        return capsys.readouterr().err

    return call


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 7, 4, 3), (2, 3, 5, 2)])
def test_coding_is_lossless(shape):
    for images in (np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8), np.full(shape, 255, np.uint8)):
        before = images.copy()
        assert np.array_equal(decode_images(encode_images(images), len(images), shape[1:]), before)
        assert np.array_equal(images, before)


def test_smooth_images_become_small():
    ramp = np.add.outer(np.arange(32), np.arange(32)).astype(np.uint8)
    images = np.stack([ramp] * 30, axis=0)[..., None].repeat(3, axis=3)
    assert len(encode_images(images)) < images.nbytes / 50


def test_a_pack_comes_back_bit_for_bit(stored, packed, tmp_path, capsys):
    parts = list(packed.glob("part-*.bin"))
    assert len(parts) > 3
    assert max(part.stat().st_size for part in parts) <= 64 * 1024
    capsys.readouterr()
    assert main(["unpack", str(packed), "--root", str(tmp_path / "there")]) == 0
    place = tmp_path / "there" / "cifar10"
    assert capsys.readouterr().out.strip() == str(place)
    for path in (stored / "cifar10").glob("*.npy"):
        assert path.read_bytes() == (place / path.name).read_bytes()
    assert all(entry.ok for entry in data.check("cifar10", tmp_path / "there"))
    assert "recorded when packed" in (place / "set.json").read_text()


def test_damaged_parts_are_refused(packed, refused):
    part = packed / "part-002.bin"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes((whole[-1] ^ 1,)))
    assert "part-002.bin has the SHA-256" in refused("unpack", packed)
    part.unlink()
    assert "part-002.bin cannot be read" in refused("unpack", packed)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["splits"]["test"]["sha256"].update(images="0" * 64), "instead of the recorded"),
        (lambda m: m["splits"]["test"]["blocks"][0].pop("labels"), "does not fit its manifest"),
        (lambda m: m["splits"]["test"].update(variant="x"), "holds test x, which cifar10 does not have"),
        (lambda m: m.update(format=9), "not the manifest of a pack"),
        (lambda m: m.update(splits={}), "not the manifest of a pack"),
        (lambda m: m.update(parts=[{}]), "not the manifest of a pack"),
        (lambda m: m["splits"].update(test=3), "not the manifest of a pack"),
    ],
)
def test_a_wrong_manifest_is_refused(packed, refused, change, said):
    path = packed / "pack.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    assert said in refused("unpack", packed)


def test_what_cannot_be_packed_is_refused(stored, packed, refused, tmp_path):
    assert "too small" in refused("pack", "cifar10", tmp_path / "new", "--part-mib", 0.01)
    assert "not empty" in refused("pack", "cifar10", packed)
    assert "not on this machine" in refused("pack", "svhn", tmp_path / "new")
    assert "needs no packing" in refused("pack", "digits", tmp_path / "new")
    assert "is not a pack" in refused("unpack", tmp_path)
    assert not (tmp_path / "new").exists()
