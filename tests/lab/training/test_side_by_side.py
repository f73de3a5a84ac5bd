"""Networks trained side by side end in the weights of training alone, whatever they draw and whatever others do."""

import gc
import weakref

import pytest
import torch

from rbue.lab.cli import output
from rbue.lab.cli.output import data_lines, training_lines, training_progress
from rbue.lab.runs import training as experiment
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.training import train_runs
from rbue.lab.training import Diverged, EpochReport, recipe_for

CPU = torch.device("cpu")
NETWORKS = """
from torch import nn
from torch.nn import functional as F

def plain(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))

class Dropped(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = plain(classes)

    def forward(self, x):
        return self.layers(F.dropout(x, 0.5, self.training))
"""


def trained(model, root, together):
    recipe = recipe_for("digits", epochs=2, batch=128)
    configs = [RunConfig(model=model, method="single", seed=seed, recipe=recipe) for seed in (0, 1)]
    train_runs(configs, root, CPU, together=together)
    weights = [load_networks(config, root, CPU)[0].state_dict() for config in configs]
    return weights, {RunFolder.of(config, root).read("training")["side_by_side"] for config in configs}


@pytest.mark.parametrize(("name", "side_by_side"), [("plain", 2), ("Dropped", 1)])
def test_weights_are_those_of_training_alone(name, side_by_side, tmp_path, monkeypatch):
    (tmp_path / "networks_beside.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    alone, _ = trained(f"networks_beside:{name}", tmp_path / "alone", 1)
    beside, count = trained(f"networks_beside:{name}", tmp_path / "beside", 2)
    assert count == {side_by_side}
    for one, other in zip(alone, beside, strict=True):
        assert all(torch.equal(value, other[key]) for key, value in one.items())


def test_networks_that_have_to_train_alone_are_in_memory_alone(tmp_path, monkeypatch):
    made, there = [], []

    def fresh_network(*args, usual=experiment.fresh_network):
        network = usual(*args)
        made.append(weakref.ref(network))
        return network

    def train_together(jobs, engine, usual=experiment.train_together):
        gc.collect()
        there.append(sum(network() is not None for network in made))
        return usual(jobs, engine)

    monkeypatch.setattr(experiment, "fresh_network", fresh_network)
    monkeypatch.setattr(experiment, "train_together", train_together)
    (tmp_path / "networks_apart.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    trained("networks_apart:Dropped", tmp_path / "runs", 2)
    assert there == [1, 1]


@pytest.fixture(scope="module")
def two_alone(tmp_path_factory):
    """Two networks that are trained one after the other, and their root."""
    root, recipe = tmp_path_factory.mktemp("alone"), recipe_for("digits", epochs=2, batch=128)
    configs = [RunConfig(seed=seed, width=0.25, recipe=recipe) for seed in (0, 2)]
    train_runs(configs, root, CPU)
    return configs, root


@pytest.mark.parametrize("together", [1, 3])
def test_one_that_diverges_does_not_end_the_others(together, two_alone, tmp_path):
    others, alone = two_alone
    steep = recipe_for("digits", epochs=2, batch=128, learning_rate=1e30)
    bad = RunConfig(seed=1, width=0.25, recipe=steep)
    with pytest.raises(Diverged, match=r"^single seed 1: training diverged in epoch 1: .* lower the learning rate"):
        train_runs([others[0], bad, others[1]], tmp_path, CPU, together=together)
    assert RunFolder.of(bad, tmp_path).read("training") is None
    assert not RunFolder.of(bad, tmp_path).has_weights
    for config in others:
        one, other = (load_networks(config, root, CPU)[0].state_dict() for root in (tmp_path, alone))
        assert all(torch.equal(value, other[key]) for key, value in one.items())


def test_each_epoch_says_how_many_networks_shared_its_time(tmp_path, capsys):
    recipe = recipe_for("digits", epochs=2, batch=128)
    configs = [RunConfig(method="single", seed=seed, width=0.25, recipe=recipe) for seed in (0, 1, 2)]
    reports = []
    train_runs(configs, tmp_path, CPU, report=lambda config, epoch: reports.append(epoch), together=2)
    assert [report.side_by_side for report in reports] == [2, 2, 2, 2, 1, 1]
    with training_progress() as tell:
        for shared in (1, 2):
            tell(configs[0], EpochReport(0, 1.0, accuracy=0.5, learning_rate=0.1, seconds=40.0, side_by_side=shared))
    assert [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()] == ["40.0 s left", "1:20 left"]


def test_of_several_processes_each_tells_what_it_is_about_and_not_too_often(capsys, monkeypatch):
    recipe, now = recipe_for("digits", epochs=9, batch=128), 100.0
    configs = [RunConfig(model="small_cnn", method="single", seed=seed, recipe=recipe) for seed in (0, 1)]
    monkeypatch.setattr(output.time, "monotonic", lambda: now)
    with training_lines() as tell, data_lines("measure this") as count:
        for epoch in range(9):
            for config in configs:
                tell(config, EpochReport(epoch, 1.0, accuracy=0.5, learning_rate=0.1, seconds=2.0))
            count("anything", epoch, 8)
            now += 2.0
    lines = capsys.readouterr().err.splitlines()
    for seed in (0, 1):
        own = [line.split(",")[0] for line in lines if line.startswith(f"digits small_cnn single seed {seed}: ")]
        assert [line.partition(": ")[2] for line in own] == ["epoch 1/9", "epoch 4/9", "epoch 7/9", "epoch 9/9"]
    counted = [f"measure this: {done} of 8" for done in (0, 3, 6, 8)]
    assert [line for line in lines if "seed" not in line] == counted
