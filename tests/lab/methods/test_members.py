"""Every ensemble that lies in one network: trained, stored, read back and measured like any other run."""

import pytest
import torch
from tiny_training import CPU, X, fresh, samples

from rbue.lab import data
from rbue.lab.methods import parse
from rbue.lab.runs.folders import RunConfig
from rbue.lab.runs.measuring import evaluate_run, predict_images
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.training import train_run
from rbue.lab.training import recipe_for

SPECS = ["snapshot-ensemble:2", "swag:2,3", "batch-ensemble:2", "packed-ensemble:2", "treenet:2", "sgld:2,2"]
MODELS = ["resnet18", "vgg13", "small_cnn"]


@pytest.mark.parametrize("spec", ["snapshot-ensemble:3", "batch-ensemble:3"])
def test_a_sample_does_not_depend_on_those_drawn_with_it(spec):
    """As augmented passes draw one at a time."""
    ensemble = fresh(spec)
    for tensor in ensemble.parameters():
        tensor.data += 0.2 * torch.rand(tensor.shape)
    whole = samples(spec, ensemble, 3)
    ((_, _, some),) = parse(spec).stream([ensemble], X, 5)(X, torch.tensor([2, 0]), torch.arange(5))
    torch.testing.assert_close(some.softmax(2), whole[[2, 0]])
    assert (whole[2] - whole[0]).abs().max() > 1e-3


def test_only_samples_of_a_distribution_are_measured_as_draws():
    found = [spec for spec in (*SPECS, "deep-ensemble:2[swag:2,3]", "deep-ensemble:2") if parse(spec).draws_samples]
    assert found == ["swag:2,3", "deep-ensemble:2[swag:2,3]"]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("spec", [*SPECS, "deep-ensemble:2[snapshot-ensemble:2]", "deep-ensemble:2[swag:2,3]"])
def test_every_network_is_trained_stored_and_measured(spec, model, tmp_path):
    recipe = recipe_for("digits", epochs=5, batch=256)
    config = RunConfig(model=model, method=spec, width=0.125, recipe=recipe)
    train_run(config, tmp_path, CPU)
    limit = parse(spec).limit
    found = evaluate_run(config, tmp_path, CPU, samples=100)
    assert found["samples"] == limit
    assert found["mean_jsd"] > 0
    assert evaluate_run(config, tmp_path, CPU, samples=limit + 1, augment="shift:1")["samples"] == limit + 1
    images = data.load("digits", "test")
    first, again = (
        predict_images(
            config, load_networks(config, tmp_path, CPU), images, Passes(count), CPU, return_samples=True
        ).samples
        for count in (limit, limit - 1)
    )
    torch.testing.assert_close(first[: limit - 1], again)  # sample k does not depend on how many there are
