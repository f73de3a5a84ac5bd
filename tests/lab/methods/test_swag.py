"""SWAG: mean and covariance of its samples are those of the iterates, and each sample has its own statistics."""

import pytest
import torch
from tiny_training import CPU, RECIPE, X, batches, fresh, samples, trained
from torch import nn
from torch.func import functional_call

from rbue.batchnorm import update_bn
from rbue.lab.methods import parse, swag
from rbue.lab.methods.swag import CollectedWeights
from rbue.lab.runs.folders import RunConfig
from rbue.lab.runs.measuring import evaluate_run
from rbue.lab.runs.training import train_run
from rbue.lab.training import recipe_for
from rbue.lab.training.step import TrainingStep


def flat(network):
    return torch.cat([one.detach().flatten() for one in network.parameters()])


def test_what_is_collected_is_mean_variance_and_the_last_deviations(monkeypatch):
    """Of epochs 3 to 6: the deviations are from the mean so far, the last two of them in a ring."""
    found, ends = trained("swag:2,3,0.3", monkeypatch=monkeypatch)
    iterates = torch.stack([flat(end.network).double() for end in ends[2:]])
    torch.testing.assert_close(found.mean.double(), iterates.mean(0), rtol=1e-4, atol=1e-6)
    variance = iterates.var(0, correction=0)
    torch.testing.assert_close(found.squares.double() / 4, variance, rtol=1e-3, atol=1e-9)
    expected = torch.stack([iterates[2] - iterates[:3].mean(0), iterates[3] - iterates.mean(0)])
    torch.testing.assert_close(found.deviations.double(), expected, rtol=1e-3, atol=1e-6)
    assert variance.max() > 1e-5


@pytest.mark.parametrize(("room", "rank"), [(3, 3), (9, 5)])
def test_mean_and_covariance_of_samples_are_those_of_the_formula(monkeypatch, room, rank):
    """A sample is linear in its normal numbers, so that what each of them does gives the covariance exactly."""
    torch.manual_seed(0)
    one = CollectedWeights(nn.Linear(2, 2, bias=False), rank=room, samples=2)
    iterates = torch.randn(5, 4)
    for count, weights in enumerate(iterates, 1):
        one.network.weight.data = weights.view(2, 2)
        one.collect(count)
    deviations = torch.stack([iterates[n] - iterates[: n + 1].mean(0) for n in range(5 - rank, 5)])
    covariance = iterates.var(0, correction=0).diag() / 2 + deviations.T @ deviations / (2 * (rank - 1))
    assert not one.sample(0).equal(one.sample(1))
    effects = []
    for effect in torch.eye(4 + rank):  # of z1, then of z2
        numbers = iter(effect.split([4, rank]))
        monkeypatch.setattr(swag, "standard_normal", lambda *_, numbers=numbers: next(numbers))
        effects.append(one.sample(0) - iterates.mean(0))
    torch.testing.assert_close(torch.stack(effects).T @ torch.stack(effects), covariance)
    places = []
    monkeypatch.setattr(swag, "standard_normal", lambda like, *place: places.append(place) or like)
    one.sample(0), one.sample(1)
    assert len(set(places)) == 4  # no numbers are used twice


def test_each_sample_is_a_network_with_statistics_of_its_own():
    found, _ = trained("swag:20,3,0.5")
    step = TrainingStep(fresh("single"), parse("single"), batches(), RECIPE, 0)
    assert found.collected == 3
    expected = []
    for weights in (*map(found.sample, range(3)), found.mean):
        network = fresh("single")
        nn.utils.vector_to_parameters(weights, network.parameters())
        update_bn(network, (x for x, _ in step._batches_of(RECIPE.epochs)))
        expected.append(network.eval()(X).softmax(1).detach())
    torch.testing.assert_close(found.eval()(X).softmax(1), expected.pop())
    torch.testing.assert_close(samples("swag:20,3,0.5", found, 3), torch.stack(expected))
    torch.testing.assert_close(samples("swag:20,3,0.5", found, 3, seed=6), torch.stack(expected))
    assert (expected[0] - expected[1]).abs().max() > 1e-3
    assert not found.statistics[0].equal(found.statistics[1])
    assert flat(found.network).equal(found.mean)


def test_statistics_in_half_precision_are_those_of_each_sample(monkeypatch):
    """As on a GPU: autocast would go on with the weights that it cast first."""
    found, _ = trained("swag:20,3,0.5")
    expected, step = found.statistics.clone(), TrainingStep(fresh("single"), parse("single"), batches(), RECIPE, 0)
    plain, seen = torch.autocast, []

    def half(kind, dtype=None, enabled=True, **options):
        seen.append(dtype)
        return plain(kind, torch.bfloat16, enabled=dtype is torch.bfloat16, **options)

    monkeypatch.setattr(torch, "autocast", half)
    found.estimate_statistics(lambda: step._batches_of(RECIPE.epochs))
    assert torch.bfloat16 in seen
    torch.testing.assert_close(found.statistics, expected, rtol=0.02, atol=0.02)
    assert not torch.allclose(expected[0], expected[1], rtol=0.02, atol=0.02)


def test_a_network_without_batchnorm_has_no_statistics():
    network = parse("swag:2,2").prepare(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), X)
    step = TrainingStep(network, parse("swag:2,2"), batches(), RECIPE, 0)
    for epoch in range(6):
        step.start_epoch(epoch)
        step(16)
        step.end_epoch(epoch)
    assert network.statistics.shape == (2, 0)
    weights = network.sample(1).split([108, 3])
    state = {"1.weight": weights[0].view(3, 36), "1.bias": weights[1]}
    expected = functional_call(network.network, state, X).softmax(1)
    torch.testing.assert_close(samples("swag:2,2", network, 2)[1], expected)


def test_the_learning_rate_falls_to_a_half_and_stays():
    found = [parse("swag").learning_rate(0.1, 10, at) for at in (0.0, 3.0, 6.0, 9.5)]
    assert found == pytest.approx([0.1, 0.075, 0.05, 0.05])
    assert parse("swag:2,2,0.07").learning_rate(0.1, 100, 7.0) == pytest.approx(0.05)  # 0.07 * 100 is more than 7
    assert parse("swag:2,2,1e-9").learning_rate(0.1, 20, 0.0) == pytest.approx(0.05)


def test_samples_are_measured_as_draws_and_not_as_members(tmp_path):
    """At numbers on the way, and four of them against each other, as for a method without an end to its samples."""
    config = RunConfig(method="swag:2,6,0", width=0.25, recipe=recipe_for("digits", epochs=2, batch=512))
    train_run(config, tmp_path, CPU)
    found = evaluate_run(config, tmp_path, CPU, samples=100)
    assert found["samples"] == 6
    assert [row["samples"] for row in found["by_samples"]] == [1, 4]
    assert len(found["jsd"]) == 4
    again = evaluate_run(config, tmp_path, CPU, samples=8, augment="shift:1")
    assert again["samples"] == 8
