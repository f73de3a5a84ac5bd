"""A trained run in Python."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import rbue
from rbue import lab
from rbue.errors import InvalidInput, RbueError
from rbue.lab import data
from rbue.lab.runs import RunConfig, RunFolder, predict_images, train_run
from rbue.lab.runs.passes import Passes
from rbue.lab.training import recipe_for

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The settings and the folder of a tiny run of two networks."""
    root = tmp_path_factory.mktemp("runs")
    recipe = recipe_for("digits", epochs=1, batch=128)
    config = RunConfig(method="deep-ensemble:2[mc-droprelu:0.8]", width=0.25, recipe=recipe)
    train_run(config, root, CPU)
    RunFolder.of(config, root).open(config, {})
    return config, RunFolder.of(config, root).path


def test_a_run_predicts_as_it_was_trained(trained, tmp_path):
    config, path = trained
    test = data.load("digits", "test")
    run = lab.load_run(str(path), device="cpu")
    assert (run.config, run.path, run.classes, run.shape) == (config, path, test.classes, (8, 8, 1))
    assert (run.mean, run.std) == (test.mean, test.std)
    assert len(run.networks) == 2
    assert not any(network.training for network in run.networks)
    assert repr(run) == "TrainedRun('deep-ensemble:2[mc-droprelu:0.8]', 'small_cnn' on 'digits', 2 networks)"
    draws = "balanced" if config.parsed.balances else "independent"
    first = np.arange(4)
    wanted = predict_images(config, run.networks, test, Passes(6, 3, draws=draws), CPU, chosen=first).probs
    assert torch.equal(run.predict(test.images[:4], samples=6, seed=3).probs, wanted)
    assert torch.equal(run.predict(torch.from_numpy(test.images[:4].copy()), samples=6, seed=3).probs, wanted)
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for pixels, file in zip(test.images, paths, strict=False):
        Image.fromarray(np.asarray(pixels[..., 0])).save(file)
    assert torch.equal(run.predict(paths, samples=6, seed=3).probs, wanted)
    torch.testing.assert_close(run.predict(str(paths[0]), samples=6, seed=3).probs, wanted[:1])
    plain = run.predict(test.images[:4], samples=6, seed=3, draws="independent")
    assert plain.draws == "independent"
    x = (torch.from_numpy(test.images[:4] / 255.0).float().permute(0, 3, 1, 2) - run.mean[0]) / run.std[0]
    alone = rbue.predict(run.networks[0], x, samples=6)
    assert alone.mutual_information.max() > 0


@pytest.mark.parametrize(
    "images",
    [np.zeros((2, 8, 8, 1), np.float32), np.zeros((8, 8, 1), np.uint8), np.zeros((0, 8, 8, 1), np.uint8), []],
    ids=["numbers", "no batch", "no images", "empty list"],
)
def test_images_of_another_form_are_refused(trained, images):
    with pytest.raises(InvalidInput, match=r"must be bytes \(uint8\) of shape \(N, 8, 8, 1\) or paths"):
        lab.load_run(trained[1]).predict(images)


def test_what_is_no_trained_run_is_said(trained, tmp_path):
    with pytest.raises(InvalidInput, match="is no run folder; give the one that `rbue train` printed"):
        lab.load_run(tmp_path)
    other = RunFolder.of(RunConfig(), tmp_path)
    other.path.mkdir(parents=True)
    (other.path / "config.json").write_text(json.dumps(RunConfig().as_json()))
    with pytest.raises(RbueError, match="holds no finished training"):
        lab.load_run(other.path)
    with pytest.raises(InvalidInput, match=r"there is no file nowhere\.png"):
        lab.load_run(trained[1]).predict("nowhere.png")
    with pytest.raises(AttributeError, match=r"'rbue\.lab' has no attribute 'load_runs'"):
        _ = lab.load_runs
