"""Snapshot Ensemble: the cycles of the learning rate, and members that are the network at their ends."""

import math
from dataclasses import replace

import pytest
import torch
from tiny_training import RECIPE, X, batches, fresh, samples, trained

from rbue.errors import InvalidInput
from rbue.lab.methods import parse
from rbue.lab.training.step import TrainingStep


def test_members_are_the_network_at_the_ends_of_cycles(monkeypatch):
    found, ends = trained("snapshot-ensemble:3", monkeypatch=monkeypatch)
    expected = torch.stack([ends[epoch].network.eval()(X).softmax(1) for epoch in (1, 3, 5)])
    torch.testing.assert_close(samples("snapshot-ensemble:3", found, 3), expected)
    assert (expected[0] - expected[2]).abs().max() > 1e-3
    assert sum(one.numel() for one in found.parameters()) == 3 * sum(one.numel() for one in found.network.parameters())


def test_the_learning_rate_falls_to_zero_in_each_cycle_step_by_step():
    """Six epochs of three steps in two cycles; the rate of a step is set before it is taken."""
    method = parse("snapshot-ensemble:2")
    step, found = TrainingStep(fresh("snapshot-ensemble:2"), method, batches(), RECIPE, 0), []
    for epoch in range(6):
        step.start_epoch(epoch)
        assert step.optimiser.param_groups[0]["lr"] == step.learning_rate_at(epoch)
        for rows in step.batch_sizes():
            step(rows)
            found.append(step.optimiser.param_groups[0]["lr"])
    cycle = [0.05 * (math.cos(math.pi * number / 9) + 1) for number in range(9)]
    assert found == pytest.approx(cycle + cycle)


def test_a_member_that_is_kept_does_not_change():
    """Nothing but keeping writes into the copies: no gradient, no decay, no statistics."""
    found = fresh("snapshot-ensemble:2")
    before = {name: value.clone() for name, value in found.kept.state_dict().items()}
    step = TrainingStep(found, parse("snapshot-ensemble:2"), batches(), RECIPE, 0)
    step.start_epoch(0)
    step(16)
    assert all(value.equal(before[name]) for name, value in found.kept.state_dict().items())
    assert not found.network[0].weight.equal(before["0.0.weight"])


def test_there_is_no_sample_beyond_the_members():
    with pytest.raises(InvalidInput, match="there is no sample 2: there are 2, one a member"):
        samples("snapshot-ensemble:2", fresh("snapshot-ensemble:2"), 3)


def test_a_recipe_of_odd_length_has_cycles_too(monkeypatch):
    found, ends = trained("snapshot-ensemble:3", replace(RECIPE, epochs=4), monkeypatch)
    assert found.kept[0][0].weight.equal(ends[0].network[0].weight)
    assert found.kept[1][0].weight.equal(ends[1].network[0].weight)


def test_a_cycle_of_one_epoch_will_do():
    parse("snapshot-ensemble:4").check_training(4, None)
