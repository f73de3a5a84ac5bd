"""A trained run as an engine of the server."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rbue.errors import InvalidInput
from rbue.lab import data
from rbue.lab.runs import RunConfig, RunFolder, evaluate_run, train_run
from rbue.lab.runs.serving import RunEngine
from rbue.lab.training import recipe_for
from rbue.serving import Sampling

CPU = torch.device("cpu")
FIVE = Sampling(5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    recipe = recipe_for("digits", epochs=1, batch=128)
    config = RunConfig(method="mc-droprelu:0.8", width=0.25, holdout=40, recipe=recipe)
    train_run(config, root, CPU)
    return config, root


@pytest.fixture
def engine(trained):
    config, root = trained
    return RunEngine(RunFolder.of(config, root).path, CPU, samples=5)


def test_images_count_as_they_are_told(engine):
    images = data.load("digits", "test").images[:3]
    together = engine.predict(images, np.array([0, 0, 7]), FIVE)
    alone = engine.predict(images[2:], np.array([7]), FIVE)
    assert np.allclose(together.probs[2:], alone.probs, atol=1e-6)
    assert not np.allclose(alone.probs, engine.predict(images[2:], np.array([0]), FIVE).probs, atol=1e-6)
    direct = engine.run.predict(images, samples=5)
    assert np.array_equal(engine.predict(images, np.arange(3), FIVE).probs, direct.probs)
    kept = engine.predict(images, np.arange(3), Sampling(5, keep=True))
    assert np.array_equal(kept.probs, direct.probs)
    assert kept.samples.shape == (3, 5, 10)


def test_sets_come_from_held_out_images(engine, trained, monkeypatch):
    config, root = trained
    found = engine.conformal(0.8)
    assert (found.images, found.coverage) == (40, 0.8)
    evaluate_run(config, root, CPU, samples=5, split="validation", draws="balanced")
    monkeypatch.setattr(engine, "_prediction", None)
    assert engine.conformal(0.8).threshold == pytest.approx(found.threshold, abs=1e-3)  # from what was kept
    with pytest.raises(TypeError):
        engine.conformal(0.8, seed=1)  # that was not measured
    with pytest.raises(InvalidInput, match="too few"):
        engine.conformal(0.99)
    plain = replace(config, method="single")
    train_run(plain, root, CPU)
    evaluate_run(plain, root, CPU, samples=100, split="validation")
    once = RunEngine(RunFolder.of(plain, root).path, CPU)
    monkeypatch.setattr(once, "_prediction", None)
    assert once.conformal(0.8).images == 40  # one pass is what any number of samples comes to
    folder = RunFolder.of(config, root)
    training = folder.read("training")
    folder.write("training", {**training, "seconds": training["seconds"] + 1})
    with pytest.raises(TypeError):
        engine.conformal(0.8)  # what was kept is of networks before this training
