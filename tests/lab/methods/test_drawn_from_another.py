"""Methods in brackets: random ReLUs, at test time alone, in the network that another method trained."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rbue
from rbue.errors import InvalidInput, RbueError, RbueWarning
from rbue.lab import data
from rbue.lab.active import loop, picking
from rbue.lab.cli import compare
from rbue.lab.cli.runs import _state, _summary
from rbue.lab.methods import parse, spec_of
from rbue.lab.methods.base import RandomSites
from rbue.lab.report.run_compared import compare_answers
from rbue.lab.report.run_records import group_records, missing, read_records
from rbue.lab.report.run_sections import training_blocks
from rbue.lab.runs import RunConfig, RunFolder, evaluate_run, load_networks, train_run, training
from rbue.lab.runs.loading import load_run
from rbue.lab.runs.measuring import predict_images
from rbue.lab.runs.networks import NoWeights
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.scoring import Scoring
from rbue.lab.shift import shift_run
from rbue.lab.training import Normalise, recipe_for

DATA = "colour-digits-few"
CPU = torch.device("cpu")
DRAWN = "mc-droprelu:0.8,all,channel[single]"
PASSES = Passes(6, seed=3, draws="balanced")


def config(method, seed=0):
    recipe = recipe_for(DATA, epochs=8, batch=64)
    return RunConfig(data=DATA, method=method, seed=seed, width=0.25, recipe=recipe)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        train_run(config("single", seed), root, CPU)
    return root


@pytest.fixture
def root(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "runs")


def probabilities(method, root, seed=0):
    run = config(method, seed)
    return predict_images(run, load_networks(run, root, CPU), data.load(DATA, "test"), PASSES, CPU).probs


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("mc-droprelu:0.95[single]", "mc-droprelu:0.95,all,element[single]"),
        ("mc-droprelu[mc-droprelu:0.90]", "mc-droprelu:0.9,all,element[mc-droprelu:0.9]"),
        ("mc-rrelu[single]", "mc-rrelu:0.125,0.3333333333333333,all[single]"),
        ("mc-dropout:0.2[mc-droprelu:0.8,last]", "mc-dropout:0.2,last[mc-droprelu:0.8,last]"),
        ("deep-ensemble:2[mc-droprelu:0.8,all,channel[single]]", f"deep-ensemble:2[{DRAWN}]"),
    ],
)
def test_what_trains_stands_in_brackets(spec, canonical):
    method = parse(spec)
    assert spec_of(method) == canonical
    assert parse(canonical) == method


@pytest.mark.parametrize("inner", ["svi", "deep-ensemble:2", "swag", DRAWN])
def test_only_one_network_without_draws_of_another_kind_can_be_drawn_from(inner):
    with pytest.raises(InvalidInput, match="mc-droprelu draws from a network that single or another method"):
        parse(f"mc-droprelu:0.9[{inner}]")


def test_a_method_of_ones_own_needs_no_such_setting():
    @dataclass(frozen=True)
    class Own(RandomSites):
        where: str = "all"

        def activation(self):
            return rbue.DropReLU(0.5)

    assert Own().trained is not None
    assert Own().trained == Own()


def test_it_trains_the_other_and_no_network_of_its_own(tmp_path):
    (folder,) = train_run(config(DRAWN), tmp_path, CPU)
    assert folder == RunFolder.of(config("single"), tmp_path)
    own = RunFolder.of(config(DRAWN), tmp_path)
    assert not own.has_weights
    assert own.config() == config(DRAWN)
    assert _state(own) == "weights of another run"
    assert "trained but not measured" in missing(read_records([own]))[0]
    before = folder.read("training")
    train_run(config(DRAWN), tmp_path, CPU)
    assert folder.read("training") == before  # nothing is trained twice


def test_its_samples_are_those_of_the_trained_network_converted(root):
    plain, images = load_run(RunFolder.of(config("single"), root).path), data.load(DATA, "test")
    x = Normalise(images.mean, images.std, CPU)(torch.from_numpy(images.images))
    network = rbue.convert(plain.networks[0], rbue.DropReLU(0.8, mask="channel"), example=x[:2])
    expected = rbue.predict(network, x, samples=6, seed=3).probs
    found = probabilities(DRAWN, root)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert (found - probabilities("single", root)).abs().max() > 0.05


def test_an_ensemble_of_them_is_the_mean_of_its_members(root):
    members = [probabilities(DRAWN, root)]  # the second draws with the next seed, as members do
    run = config(DRAWN, 1)
    networks, images = load_networks(run, root, CPU), data.load(DATA, "test")
    members.append(predict_images(run, networks, images, replace(PASSES, seed=4), CPU).probs)
    ensemble = config(f"deep-ensemble:2[{DRAWN}]")
    assert ensemble.members() == [config(DRAWN, seed) for seed in (0, 1)]
    assert ensemble.trainings() == [config("single", seed) for seed in (0, 1)]
    twice = replace(PASSES, samples=12)
    found = predict_images(ensemble, load_networks(ensemble, root, CPU), images, twice, CPU).probs
    torch.testing.assert_close(found, torch.stack(members).mean(0), rtol=1e-5, atol=1e-6)


def test_its_measurements_are_its_own(root):
    single, drawn = (evaluate_run(config(method), root, CPU, samples=8) for method in ("single", DRAWN))
    assert (single["samples"], drawn["samples"]) == (1, 8)
    assert drawn["nll"] != single["nll"]
    assert drawn["mean_jsd"] > 0
    for name in ("parameters", "training_seconds", "stored_bytes"):
        assert drawn[name] == single[name]
    folder = RunFolder.of(config(DRAWN), root)
    folder.probs.unlink()
    evaluate_run(config(DRAWN), root, CPU, samples=8)
    assert folder.probs.exists()  # its networks are here, so that it was measured again
    assert _summary(folder)["weights"]
    load = load_run(RunFolder.of(config(DRAWN), root).path)
    assert rbue.conversion(load.networks[0]).activation == rbue.DropReLU(0.8, mask="channel")
    how = {"corruptions": ["contrast"], "severities": [5], "samples": 4, "cache": False}
    (plain,), (row,) = (shift_run(config(method), root, CPU, **how) for method in ("single", DRAWN))
    assert row["nll"] != plain["nll"]


def test_without_weights_an_ensemble_of_them_takes_what_they_came_to_and_no_plain_answers(root):
    ensemble = config(f"deep-ensemble:2[{DRAWN}]")
    for seed in (0, 1):
        evaluate_run(config("single", seed), root, CPU)
        for file in RunFolder.of(config("single", seed), root).path.glob("weights*"):
            file.unlink()
    with pytest.raises(NoWeights, match="are not kept in this folder"):
        evaluate_run(ensemble, root, CPU, samples=8)
    with pytest.raises(RbueError, match="are not kept in this folder"):
        evaluate_run(config(DRAWN), root, CPU, samples=8)


def test_what_is_said_of_its_network_is_said_of_the_one_that_was_trained(root, monkeypatch):
    run, single = config(DRAWN), RunFolder.of(config("single"), root)
    evaluate_run(run, root, CPU, samples=4)
    records = read_records([RunFolder.of(run, root), single])
    assert not missing(records)  # the network is part of the run that draws from it
    (group,) = group_records(records)
    loss, *_ = training_blocks(compare_answers(group, None))[1].figures
    assert f"At the end: {run.method} {single.read('training')['loss']:.4f}" in loss.alt
    error = RbueError("no room")

    def each(task, following):  # trainings fail
        return [(one, None, error if one.method == "single" else None) for one in iter(following, None)]

    executor = SimpleNamespace(device=CPU, each=each)
    monkeypatch.setattr(training, "missing_networks", lambda configs, root: [config("single")])
    assert compare._spread([run], root, executor, {}) == {run: error}
    scoring = Scoring(run, root, root / "answers", PASSES, CPU, 10)
    before = scoring.settings()["weights"]
    (single.path / "weights.safetensors").write_bytes(b"others")
    assert scoring.settings()["weights"] != before


def test_it_is_not_trained_or_measured_on_other_images_than_its_network(root, monkeypatch):
    images = data.load(DATA, "train")
    run = replace(config(DRAWN), data="folder:photos")
    folder = RunFolder.of(replace(run, method="single"), root)
    folder.path.mkdir(parents=True)
    folder.write("training", {"seconds": 1.0, "data": images.record()})
    monkeypatch.setattr(training, "training_images", lambda config: replace(images, images=255 - images.images))
    with pytest.raises(RbueError, match="was trained on other images than folder:photos holds now"):
        training.refuse_other_images(run, root)


def test_an_ensemble_of_them_is_combined_from_what_they_came_to(root):
    for seed in (0, 1):
        evaluate_run(config(DRAWN, seed), root, CPU, samples=4)
        for file in RunFolder.of(config("single", seed), root).path.glob("weights*"):
            file.unlink()
    found = evaluate_run(config(f"deep-ensemble:2[{DRAWN}]"), root, CPU, samples=8)
    assert (found["combined_from"], found["samples"]) == ("stored probabilities", 8)


def test_an_ensemble_of_them_whose_trainings_were_removed_is_refused_in_a_sentence(root):
    for seed in (0, 1):
        evaluate_run(config(DRAWN, seed), root, CPU, samples=4)
        shutil.rmtree(RunFolder.of(config("single", seed), root).path)
    with pytest.raises(RbueError, match=r"single-seed0-.* holds no finished training; run `rbue train`"):
        evaluate_run(config(f"deep-ensemble:2[{DRAWN}]"), root, CPU, samples=8)


OWN = """
from dataclasses import dataclass

import torch
from torch import nn

from rbue.lab.methods import Method


class Scaled(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network, self.scale = network, nn.Parameter(torch.ones(10))

    def forward(self, x):
        return self.scale * self.network(x)


@dataclass(frozen=True)
class Own(Method):
    def prepare(self, network, example):
        return Scaled(network)
"""


def test_what_a_method_of_ones_own_made_of_the_network_is_drawn_from(tmp_path, monkeypatch):
    (tmp_path / "own_scaled.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    run = replace(config("mc-droprelu:0.8[own_scaled:Own]"), recipe=recipe_for(DATA, epochs=1))
    train_run(run, tmp_path, CPU)
    for networks in (
        load_networks(run, tmp_path, CPU),
        loop._trained(run, data.load(DATA, "train"), CPU, "auto", 1)[0],
    ):
        (network,) = networks
        assert network.scale.shape == (10,)
        assert not hasattr(network.network, "scale")
        assert rbue.conversion(network).activation == rbue.DropReLU(0.8)
    (tmp_path / "own_scaled.py").write_text(f"{OWN}\n# changed")
    with pytest.warns(RbueWarning, match="the file of own_scaled:Own has changed since"):
        training.warn_of_changed_code(run, tmp_path)


def test_active_learning_draws_from_the_network_of_a_round():
    run, images = config(f"deep-ensemble:2[{DRAWN}]"), data.load(DATA, "train")
    networks, _ = loop._trained(run, images, CPU, "auto", 1)
    assert [rbue.conversion(one).activation.q for one in networks] == [0.8, 0.8]
    features = picking._features(run, networks, images, np.arange(9), PASSES, CPU)
    again = picking._features(run, networks, images, np.arange(9), PASSES, CPU)
    fewer = picking._features(run, networks, images, np.arange(9), Passes(1, seed=3), CPU)
    assert torch.equal(features, again)
    assert not torch.allclose(features, fewer)
