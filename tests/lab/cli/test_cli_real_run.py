"""Every method from files to answers: CIFAR-format data with learnable classes, two epochs, then all the verbs."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rbue.lab import data
from rbue.lab.data import registry
from rbue.lab.data.images import checksums

sys.path.append(str(Path(__file__).parents[1] / "data"))
from data_files import cifar10_binary

METHODS = ["mc-droprelu:0.9"]
METHODS += [pytest.param(method, marks=pytest.mark.slow) for method in ("svi", "mc-dropout:0.2", "mc-rrelu")]
CHANCE, MARGIN = 0.1, 0.3
"""Ten classes; two epochs must bring at least 40 %."""
SETTINGS = ("--data", "cifar10", "--epochs", 2, "--batch", 32, "--rate", 0.05, "--width", 0.5, "--runs", "runs")


def learnable(count, seed):
    """Each class is a colour pattern of its own, under noise."""
    patterns = np.random.RandomState(0).randint(0, 256, (10, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
    random = np.random.RandomState(seed)
    labels = np.arange(count) % 10
    noisy = 0.6 * patterns[labels] + random.normal(50, 40, (count, 32, 32, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8), labels


@pytest.fixture
def made_on_the_spot(monkeypatch, tmp_path):
    """Files as CIFAR-10's publisher ships them, with other pictures in them."""
    arrays = {"train": learnable(600, 1), "test": learnable(200, 2)}
    splits = {}
    for split, (images, labels) in arrays.items():
        sums = checksums(images, labels, 10)
        splits[split] = {"official": registry.Published(len(images), sums.images, sums.labels)}
    monkeypatch.setitem(registry._SETS, "cifar10", replace(registry.get("cifar10"), splits=splits))
    cifar10_binary(tmp_path / "data" / "cifar10" / "cifar-10-batches-bin", arrays)
    return arrays


def check_answers(method, run, result, as_json, tmp_path):
    assert result["accuracy"] > CHANCE + MARGIN
    image = tmp_path / "image.png"
    Image.fromarray(np.asarray(data.load("cifar10", "test").images[3])).save(image)
    (answer,) = as_json("predict", run, image, "--samples", 6)["predictions"]
    assert abs(sum(answer["probabilities"].values()) - 1) < 1e-5
    if method == "single":
        assert result["mutual_information"] == pytest.approx(0, abs=1e-6)
        assert result["mean_jsd"] is None
    else:
        assert result["mutual_information"] > 1e-5
        assert answer["mutual_information"] > 0
        assert result["mean_jsd"] > 0


@pytest.mark.parametrize("method", METHODS)
def test_a_method_from_files_to_answers(method, made_on_the_spot, as_json, tmp_path):
    run = as_json("train", *SETTINGS, "--method", method)["run"]
    check_answers(method, run, as_json("evaluate", run, "--samples", 6)["result"], as_json, tmp_path)


def test_the_first_member_of_an_ensemble_is_the_single_network(made_on_the_spot, as_json, tmp_path):
    """And without its weights the ensemble is combined from stored probabilities."""
    single = as_json("train", *SETTINGS, "--method", "single")
    alone = as_json("evaluate", single["run"], "--samples", 6)["result"]
    check_answers("single", single["run"], alone, as_json, tmp_path)
    ensemble = as_json("train", *SETTINGS, "--method", "deep-ensemble:2")
    first, second = ensemble["networks"]
    assert first["run"] == single["run"]
    assert (first["outcome"], second["outcome"]) == ("done already", "trained")
    as_json("evaluate", second["run"])
    whole = as_json("evaluate", ensemble["run"], "--samples", 6, "--sample-seed", 1)["result"]
    assert whole["parameters"] == 2 * single["networks"][0]["parameters"]
    check_answers("deep-ensemble:2", ensemble["run"], whole, as_json, tmp_path)
    for member in ensemble["networks"]:
        (Path(member["run"]) / "weights.safetensors").unlink()
    stored = as_json("evaluate", ensemble["run"])["result"]
    assert (whole["combined_from"], stored["combined_from"]) == ("networks", "stored probabilities")
    for name in ("nll", "brier", "mean_jsd"):
        assert stored[name] == pytest.approx(whole[name], abs=2e-3)
    for name in ("accuracy", "ece", "mean_dis"):  # rounding to half precision may decide an image or two
        assert stored[name] == pytest.approx(whole[name], abs=2.5 / 200)
