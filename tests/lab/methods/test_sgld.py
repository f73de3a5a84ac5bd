"""Cyclical SGLD: noise of the stated size in the stated epochs, and samples that are the network at their ends."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tiny_training import RECIPE, X, batches, samples, trained
from torch import nn

from rbue.errors import InvalidInput
from rbue.lab.methods import parse
from rbue.lab.training.step import TrainingStep


class Still(nn.Module):
    """Many weights without a gradient: what moves them is noise."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(20_000))

    def forward(self, x):
        return x.flatten(1)[:, :3] + 0 * self.weight.sum()


def test_the_noise_of_a_step_is_that_of_langevin_dynamics():
    """Three steps an epoch, two cycles of three epochs, of which the last two epochs of each are sampled."""
    method, recipe = parse("sgld:2,2,0.5"), replace(RECIPE, weight_decay=0.0)
    network = method.prepare(Still(), X)
    step, weights = TrainingStep(network, method, batches(), recipe, 0), [torch.zeros(20_000)]
    for epoch in range(6):
        step.start_epoch(epoch)
        for rows in step.batch_sizes():
            step(rows)
            weights.append(network.network.weight.detach().clone())
    rates = [0.05 * (math.cos(math.pi * number / 9) + 1) for number in range(9)]
    expected = [0 if number < 3 else math.sqrt(2 * rates[number] * 0.5 / (0.1 * 48)) for number in range(9)] * 2
    steps = [after - before for before, after in pairwise(weights)]
    assert [one.std().item() for one in steps] == pytest.approx(expected, rel=0.03)
    assert abs(torch.corrcoef(torch.stack([steps[3], steps[4]]))[0, 1]) < 0.05


def test_samples_are_the_network_at_the_last_epochs_of_cycles(monkeypatch):
    found, ends = trained("sgld:2,2", monkeypatch=monkeypatch)
    expected = torch.stack([ends[epoch].network.eval()(X).softmax(1) for epoch in (1, 2, 4, 5)])
    torch.testing.assert_close(samples("sgld:2,2", found, 4), expected)


def test_where_noise_is_on():
    """In the last tenth of 50 epochs, or in the epochs of the samples."""

    def on(spec, at):
        return parse(spec).weight_noise(0.1, 0.9, 100, 200, at) > 0

    assert [on("sgld", at) for at in (0.0, 44.9, 45.0, 49.9, 50.0, 194.9, 195.0)] == [0, 0, 1, 1, 0, 0, 1]
    assert [on("sgld:4,10", at) for at in (39.9, 40.0)] == [0, 1]
    assert not on("sgld:4,3,0", 49.0)


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(InvalidInput, match="sgld trains in one process"):
        parse("sgld").prepare(Still(), X)
