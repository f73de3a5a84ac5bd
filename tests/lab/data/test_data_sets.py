"""The registry, the image set, holdouts and the embedded digits."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from rbue.errors import InvalidInput
from rbue.lab import data
from rbue.lab.data import registry
from rbue.lab.data.images import channel_statistics, compact_labels


def test_every_set_has_what_training_needs():
    assert data.names() == (
        "cifar10",
        "cifar100",
        "colour-digits",
        "colour-digits-few",
        "digits",
        "fashion-mnist",
        "svhn",
        "tiny-imagenet",
    )
    for name, classes in zip(data.names(), (10, 100, 10, 10, 10, 10, 10, 200), strict=True):
        entry = data.get(name)
        assert len(set(entry.classes)) == classes
        assert len(entry.mean) == len(entry.std) == entry.shape[2]
        assert set(entry.splits) == {"train", "test"}
        assert entry.embedded or (entry.layouts and entry.downloads)
    assert len(set(data.get("tiny-imagenet").codes)) == 200
    assert data.get("tiny-imagenet").codes == tuple(sorted(data.get("tiny-imagenet").codes))


@pytest.mark.parametrize(
    ("given", "meant"), [("cifar-10", "cifar10"), ("CIFAR100", "cifar100"), ("fashion_mnist", "fashion-mnist")]
)
def test_an_unknown_name_suggests_the_nearest(given, meant):
    with pytest.raises(InvalidInput, match=f"{given}.*did you mean '{meant}'"):
        data.load(given, "train")


def test_an_unknown_split_points_to_the_holdout():
    with pytest.raises(InvalidInput, match=r"no split 'validation'.*train and test.*holdout"):
        data.load("digits", "validation")


def test_a_name_is_registered_once():
    with pytest.raises(InvalidInput, match="registered already"):
        registry.register(data.get("digits"))


def test_digits_are_embedded_split_and_checked():
    train, test = data.load("digits", "train"), data.load("digits", "test")
    assert (len(train), len(test)) == (1442, 355)
    assert train.images.dtype == np.uint8
    assert train.images.max() == 255
    assert train.labels.dtype == np.int64
    assert np.bincount(test.labels).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    assert channel_statistics(train.images) == (train.mean, train.std)
    assert all(entry.ok and entry.reference == "registry" for entry in data.check("digits"))
    for call in (data.fetch, lambda name: data.import_(name, ".")):
        with pytest.raises(InvalidInput, match="digits"):
            call("digits")


def test_holdout_is_stratified_deterministic_and_recorded():
    whole = data.load("digits", "train")
    train, validation = data.holdout(whole, 203, seed=3)
    again = data.holdout(whole, 203, seed=3)[1]
    other = data.holdout(whole, 203, seed=4)[1]
    assert (len(train), len(validation)) == (1442 - 203, 203)
    assert validation.checksums() == again.checksums() != other.checksums()
    expected = np.bincount(whole.labels) * 203 / 1442
    assert np.abs(np.bincount(validation.labels) - expected).max() < 1
    rows = {image.tobytes() for image in train.images}
    assert sum(image.tobytes() in rows for image in validation.images) == 0
    assert (validation.split, train.split) == ("validation", "train")
    record = json.loads(json.dumps(validation.record()))
    assert record["holdout"]["count"] == 203
    assert record["holdout"]["seed"] == 3
    assert "stratified" in record["holdout"]["method"]
    assert train.record()["holdout"]["part"] == "train"


def test_holdout_stays_what_it_was():
    assert data.holdout(data.load("digits", "train"), 100, seed=0)[1].checksums().labels == (
        "1373b8100238a67151b58450e3764c271776a1a3992de8eef12a46cc9d97e3e5"
    )


@pytest.mark.parametrize(("count", "seed"), [(0, 0), (1442, 0), (10, -1), (10, 2**32)])
def test_holdout_refuses_what_is_impossible(count, seed):
    with pytest.raises(InvalidInput, match=str(seed if count == 10 else count)):
        data.holdout(data.load("digits", "train"), count, seed)


def test_holdout_of_a_holdout_is_refused():
    with pytest.raises(InvalidInput, match="already"):
        data.holdout(data.holdout(data.load("digits", "train"), 10, 0)[0], 10, 0)


def test_labels_are_hashed_as_bytes_or_pairs_of_bytes():
    assert compact_labels(np.arange(3), 256).tobytes() == b"\0\1\2"
    assert compact_labels(np.arange(3), 257).tobytes() == b"\0\0\1\0\2\0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((2, 8, 8, 1), np.float32)}, "uint8"),
        ({"labels": np.zeros(3, np.int64)}, "int64"),
        ({"labels": np.array([0, 9])}, "0..1"),
        ({"mean": (0.5, 0.5)}, "channel"),
    ],
)
def test_an_image_set_checks_its_arrays(change, message):
    good = dict(images=np.zeros((2, 8, 8, 1), np.uint8), labels=np.zeros(2, np.int64), classes=("a", "b"))
    good |= dict(name="x", split="train", mean=(0.5,), std=(0.5,))
    data.ImageSet(**good)
    with pytest.raises(InvalidInput, match=message):
        data.ImageSet(**good | change)


def test_torch_shares_the_memory_without_a_warning():
    images = data.load("digits", "train").images
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.from_numpy(images).data_ptr() == images.ctypes.data
