"""One sweep of samples gives what separate predictions give, and a run is measured by it."""

from __future__ import annotations

import pytest
import torch

from rbue import data
from rbue.experiment import evaluate_run, train_run
from rbue.measuring import diversity, measure, predict_images, predict_images_at
from rbue.networks import load_networks
from rbue.runs import RunConfig
from rbue.training import recipe_for

CPU = torch.device("cpu")
METHODS = ("mc-droprelu:0.8", "mc-dropout:0.2", "svi", "single", "deep-ensemble:2")
FIELDS = ("probs", "variance", "votes", "expected_entropy", "samples_used")


def config(method):
    return RunConfig(method=method, width=0.5, recipe=recipe_for("digits", epochs=1, batch=64))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        train_run(config(method), root, CPU)
    return root


@pytest.mark.parametrize("method", METHODS)
def test_predictions_on_the_way_are_those_of_fewer_samples(root, method):
    run = config(method)
    networks, images = load_networks(run, root, CPU), data.load("digits", "test")
    limit = run.parsed.limit
    counts = sorted({count if limit is None else min(count, limit) for count in (1, 2, 5, 9)})
    swept = predict_images_at(run, networks, images, [1, 2, 5, 9], 3, CPU, keep=4)
    assert [int(one.samples_used[0]) for one in swept] == counts
    for count, one in zip(counts, swept, strict=True):
        alone = predict_images(run, networks, images, count, 3, CPU, return_samples=True)
        for name in FIELDS:
            torch.testing.assert_close(getattr(one, name), getattr(alone, name), rtol=1e-6, atol=1e-8)
    assert [one.samples for one in swept[:-1]] == [None] * (len(counts) - 1)
    assert torch.equal(swept[-1].samples, alone.samples[:4])


@pytest.mark.parametrize("samples", [2, 12])
def test_a_run_is_measured_on_the_way(root, samples):
    run = config("mc-droprelu:0.8")
    result = evaluate_run(run, root, CPU, samples=samples, seed=1)
    networks, images = load_networks(run, root, CPU), data.load("digits", "test")
    labels = torch.from_numpy(images.labels)
    assert [row["samples"] for row in result["by_samples"]] == [count for count in (1, 4, 10) if count < samples]
    for row in [*result["by_samples"], result]:
        alone = measure(predict_images(run, networks, images, row["samples"], 1, CPU), labels)
        assert {name: row[name] for name in alone} == pytest.approx(alone, rel=1e-5)
    first = predict_images(run, networks, images, 4, 1, CPU, return_samples=True)
    assert {name: result[name] for name in diversity(first)} == diversity(first)


def test_an_ensemble_has_no_curve_of_samples(root):
    result = evaluate_run(config("deep-ensemble:2"), root, CPU, samples=100)
    assert (result["by_samples"], result["samples"]) == ([], 2)
