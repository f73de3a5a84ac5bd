"""Temperature scaling of runs from their stored probabilities: what is kept, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch

from rbue import metrics
from rbue.calibration import Temperature
from rbue.errors import RbueError
from rbue.lab import data
from rbue.lab.report import run_answers as answers
from rbue.lab.report.run_records import read_records
from rbue.lab.runs import temperatures
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import evaluate_run
from rbue.lab.runs.probabilities import read_probs, write_probs
from rbue.lab.runs.temperatures import at_a_bound, calibrate_run, lacks_calibration
from rbue.lab.runs.training import train_run
from rbue.lab.training import recipe_for

CPU = torch.device("cpu")
KEY = "samples=6,seed=0"
SCORES = ("accuracy", "ece", "nll", "brier")


def config(method):
    recipe = recipe_for("digits", epochs=2, batch=64)
    return RunConfig(method=method, width=0.5, recipe=recipe)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    """Measured runs, and an ensemble that has only its members' probabilities; not to be changed."""
    root = tmp_path_factory.mktemp("runs")
    for method in ("mc-droprelu:0.9", "deep-ensemble:2"):
        train_run(config(method), root, CPU)
    for member in config("deep-ensemble:2").members():
        evaluate_run(member, root, CPU, samples=6)
        (RunFolder.of(member, root).path / "weights.safetensors").unlink()
    for method in ("mc-droprelu:0.9", "deep-ensemble:2"):
        evaluate_run(config(method), root, CPU, samples=6)
    return root


@pytest.fixture
def root(made_once, tmp_path):
    return shutil.copytree(made_once, tmp_path / "runs")


def test_answers_of_networks_that_were_trained_again_since_are_not_calibrated(root):
    run = config("deep-ensemble:2")
    calibrate_run(run, root)
    folder = RunFolder.of(run.members()[1], root)
    training = folder.read("training")
    folder.write("training", {**training, "seconds": training["seconds"] + 1})
    with pytest.raises(RbueError, match="was measured before its networks were trained again; run `rbue evaluate"):
        calibrate_run(run, root)


@pytest.mark.parametrize("method", ["mc-droprelu:0.9", "single", "deep-ensemble:2"])
def test_what_is_kept(root, method):
    folder = RunFolder.of(config(method), root)
    result = folder.read("results")[KEY]
    key, entry = calibrate_run(config(method), root)
    assert key == KEY
    assert json.loads((folder.path / "calibration.json").read_text()) == {KEY: entry}
    assert entry["probs"] == {"file": "probs.npy", "sha256": hashlib.sha256(folder.probs.read_bytes()).hexdigest()}
    assert (entry["folds"], entry["fold_seed"], entry["bins"]) == (2, 0, 30)
    assert (entry["samples"], entry["seed"], entry["data"]) == (result["samples"], 0, result["data"])
    assert entry["environment"]["torch"] == torch.__version__

    # The same by hand: halves by the seeded permutation, p^(1/T), the temperature of the other half.
    probs = torch.from_numpy(read_probs(folder.probs)).double()
    labels = torch.from_numpy(data.load("digits", "test").labels)
    half = torch.randperm(len(probs), generator=torch.Generator().manual_seed(0)) % 2
    powers = torch.empty_like(probs)
    for k in (0, 1):
        temperature = Temperature.fit(probs[half != k], labels[half != k]).value
        assert entry["temperatures"][k] == pytest.approx(temperature, rel=1e-9)
        powers[half == k] = probs[half == k] ** (1 / temperature)
    scaled = powers / powers.sum(1, keepdim=True)
    for name in SCORES:
        assert entry["before"][name] == pytest.approx(float(getattr(metrics, name)(probs, labels)), abs=1e-9)
        assert entry["after"][name] == pytest.approx(float(getattr(metrics, name)(scaled, labels)), abs=1e-9)
        assert entry["before"][name] == pytest.approx(result[name], abs=6e-3)  # rounding may decide one image or two
    assert entry["after"]["accuracy"] == entry["before"]["accuracy"]
    assert entry["after"]["nll"] < entry["before"]["nll"]
    assert not at_a_bound(entry)


def test_the_last_measurement_is_the_one(root):
    run = config("mc-droprelu:0.9")
    folder = RunFolder.of(run, root)
    assert lacks_calibration(folder, KEY)
    calibrate_run(run, root)
    assert not lacks_calibration(folder, KEY)
    evaluate_run(run, root, CPU, samples=9)
    assert lacks_calibration(folder, "samples=9,seed=0")
    assert calibrate_run(run, root)[0] == "samples=9,seed=0"
    entries = folder.read("calibration")
    assert list(entries) == [KEY, "samples=9,seed=0"]
    assert entries[KEY]["probs"] != entries["samples=9,seed=0"]["probs"]
    (folder.path / "calibration.json").unlink()
    assert not lacks_calibration(folder, KEY)  # its probabilities are gone


def test_the_same_probabilities_are_calibrated_once(root):
    run = config("mc-droprelu:0.9")
    folder = RunFolder.of(run, root)
    calibrate_run(run, root)
    entries = folder.read("calibration")
    entries[KEY]["environment"]["cpu"] = "another machine"
    folder.write("calibration", entries)
    assert calibrate_run(run, root)[1]["environment"]["cpu"] == "another machine"
    results = folder.read("results")
    results[KEY]["probs_sha256"] = write_probs(folder.probs, read_probs(folder.probs) * 0.999 + 1e-4)
    folder.write("results", results)
    assert lacks_calibration(folder, KEY)
    assert calibrate_run(run, root)[1]["environment"]["cpu"] != "another machine"
    assert not lacks_calibration(folder, KEY)


def test_what_another_process_adds_meanwhile_is_kept(root, monkeypatch):
    run = config("mc-droprelu:0.9")
    folder = RunFolder.of(run, root)

    def cross_fitted(*args, usual=temperatures.cross_fitted):
        scores = {"ece": 0.0, "nll": 0.0}
        entry = {"before": scores, "after": scores, "temperatures": [1.0], "bounds": [0.01, 100.0]}
        folder.write("calibration", {"samples=1,seed=0": entry})
        return usual(*args)

    monkeypatch.setattr(temperatures, "cross_fitted", cross_fitted)
    calibrate_run(run, root)
    assert list(folder.read("calibration")) == ["samples=1,seed=0", KEY]


def test_probabilities_of_a_measurement_that_was_stopped_before_its_result(root, monkeypatch):
    """They are so much like those of the last one that their Brier scores agree."""
    run = config("mc-droprelu:0.9")
    folder = RunFolder.of(run, root)
    write = RunFolder.write

    def stop(self, name, content):
        if name == "results":
            raise KeyboardInterrupt
        write(self, name, content)

    monkeypatch.setattr(RunFolder, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        evaluate_run(run, root, CPU, samples=7)
    monkeypatch.undo()
    assert list(folder.read("results")) == [KEY]
    with pytest.raises(RbueError, match=r"of another measurement; remove .*results.json and run `rbue evaluate "):
        calibrate_run(run, root)
    (record,) = read_records([folder])
    with pytest.raises(RbueError, match="of another measurement"):
        answers.TestImages().answers(record)


def test_a_run_that_is_measured_meanwhile(root, monkeypatch):
    run, load = config("mc-droprelu:0.9"), data.load

    def measured_first(*args):
        monkeypatch.setattr(data, "load", load)
        evaluate_run(run, root, CPU, samples=7)
        return load(*args)

    monkeypatch.setattr(data, "load", measured_first)
    key, entry = calibrate_run(run, root)
    assert (key, entry["samples"]) == ("samples=7,seed=0", 7)
    assert entry["probs"]["sha256"] == RunFolder.of(run, root).read("results")[key]["probs_sha256"]


def test_what_is_refused(root):
    run = config("mc-droprelu:0.9")
    folder = RunFolder.of(run, root)
    whole, results = folder.probs.read_bytes(), folder.read("results")

    def refused(said):
        with pytest.raises(RbueError, match=said):
            calibrate_run(run, root)
        assert folder.read("calibration") is None

    write_probs(folder.probs, np.roll(read_probs(folder.probs), 1, axis=0))
    refused("checksum .* it is of another measurement; remove .*results.json and run `rbue evaluate ")
    folder.write("results", {KEY: {name: one for name, one in results[KEY].items() if name != "probs_sha256"}})
    refused("Brier score of .* it is of another measurement; remove .*results.json and run `rbue evaluate ")
    write_probs(folder.probs, read_probs(folder.probs)[:-1])
    refused(r"has shape \(354, 10\)")
    np.save(folder.probs, np.ones(3, np.float16))
    refused(r"has shape \(3,\) instead of \(images, classes\)")
    folder.probs.write_bytes(b"no array")
    refused("cannot be read")
    folder.probs.unlink()
    refused("probs.npy is not there; `rbue evaluate .*` makes it again where the weights are")
    folder.probs.write_bytes(whole)
    other = {**results[KEY], "data": {**results[KEY]["data"], "sha256": {"images": "0", "labels": "0"}}}
    folder.write("results", {KEY: other})
    refused("other test images of digits")
    for form in ([3], {KEY: 3}):
        folder.write("results", form)
        refused(r"results\.json has another form.*; remove it")
    (folder.path / "results.json").unlink()
    refused("is not measured yet; run `rbue evaluate ")
    folder.write("results", results)
    assert calibrate_run(run, root)[0] == KEY


@pytest.mark.parametrize("form", [[3], {KEY: 3}])
def test_a_calibration_of_another_form(root, form):
    run = config("mc-droprelu:0.9")
    folder = RunFolder.of(run, root)
    folder.write("calibration", form)
    for ask in (lambda: calibrate_run(run, root), lambda: lacks_calibration(folder, KEY)):
        with pytest.raises(RbueError, match=r"calibration\.json has another form.*; remove it"):
            ask()


def test_a_bound_is_told_and_no_warning(root):
    """Every answer right: sharper is always better."""
    run = config("single")
    folder = RunFolder.of(run, root)
    labels = data.load("digits", "test").labels
    probs = np.full((len(labels), 10), 0.01, np.float32)
    probs[np.arange(len(labels)), labels] = 0.91
    noted = {"brier": 0.09**2 + 9 * 0.01**2, "probs_sha256": write_probs(folder.probs, probs)}
    result = {**folder.read("results")[KEY], **noted}
    folder.write("results", {KEY: result})
    entry = calibrate_run(run, root)[1]
    assert entry["temperatures"] == [Temperature.LOWEST, Temperature.LOWEST] == [entry["bounds"][0]] * 2
    assert at_a_bound(entry)
    assert at_a_bound({**entry, "temperatures": [1.0, Temperature.LOWEST]})
    assert not at_a_bound({**entry, "temperatures": [1.0, 2.0]})
