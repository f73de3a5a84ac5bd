"""The set that quick runs use."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from rbue.lab import data
from rbue.lab.data.images import channel_statistics


@pytest.mark.parametrize(("name", "train", "test"), [("colour-digits", 1442, 355), ("colour-digits-few", 200, 100)])
def test_sizes_and_checksums(name, train, test):
    for split, count in (("train", train), ("test", test)):
        images = data.load(name, split)
        assert images.images.shape == (count, 16, 16, 3)
    assert all(check.ok and check.reference == "registry" for check in data.check(name))


def test_split_and_order_are_those_of_digits():
    for split in ("train", "test"):
        assert (data.load("colour-digits", split).labels == data.load("digits", split).labels).all()
    train = data.load("colour-digits", "train")
    assert channel_statistics(train.images) == (train.mean, train.std)


def test_few_has_every_class_equally_often():
    assert set(np.bincount(data.load("colour-digits-few", "train").labels)) == {20}
    assert set(np.bincount(data.load("colour-digits-few", "test").labels)) == {10}


def test_the_shape_says_the_class_and_the_colours_do_not():
    train, test = data.load("colour-digits", "train"), data.load("colour-digits", "test")

    def accuracy(features):
        model = LogisticRegression(max_iter=200).fit(features(train.images), train.labels)
        return model.score(features(test.images), test.labels)

    assert accuracy(lambda images: images.mean(3).reshape(len(images), -1) / 255) > 0.85
    assert accuracy(lambda images: np.concatenate([images.max((1, 2)), images.min((1, 2))], 1) / 255) < 0.25
