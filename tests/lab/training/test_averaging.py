"""Averages of weights: what they are averages of, the statistics that go with them, and that they resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_trainer import FEW, METHODS, batches, epoch_of, fresh, same, weights
from torch import nn
from torch.nn import functional as F

from rbue.errors import RbueError
from rbue.lab.methods import parse
from rbue.lab.processes import Rank
from rbue.lab.training import Job, Recipe, train, train_together, trainer
from rbue.lab.training.checkpoint import read_tensors
from rbue.lab.training.step import TrainingStep

BASE = Recipe(epochs=5, batch=20, learning_rate=0.1, padding=1)
SWA = replace(BASE, average="swa", average_start=0.4)  # of the epochs 2, 3 and 4
EMA = replace(BASE, average="ema", average_start=1, average_decay=0.9)
KINDS = pytest.mark.parametrize("recipe", [SWA, EMA], ids=["swa", "ema"])


class NotedStep(TrainingStep):
    """Keeps the weights after every step and at the end of every epoch, before they may become the average."""

    steps: list
    ends: list

    def _noted(self):
        return [parameter.detach().double().clone() for parameter in self.network.parameters()]

    def start_epoch(self, epoch):
        super().start_epoch(epoch)
        if epoch == EMA.average_from:
            NotedStep.steps.append(self._noted())

    def __call__(self, rows):
        super().__call__(rows)
        NotedStep.steps.append(self._noted())

    def end_epoch(self, epoch):
        NotedStep.ends.append(self._noted())
        super().end_epoch(epoch)


@pytest.fixture
def noted(monkeypatch):
    monkeypatch.setattr(NotedStep, "steps", [], raising=False)
    monkeypatch.setattr(NotedStep, "ends", [], raising=False)
    monkeypatch.setattr(trainer, "TrainingStep", NotedStep)
    return NotedStep


def trained(recipe, spec="mc-droprelu:0.8", count=96, **settings):
    method = parse(spec)
    network = fresh(method)
    train(Job(network, method, batches(count=count), recipe, 0, **settings), "plain")
    return network


@pytest.mark.parametrize("spec", METHODS)
def test_swa_is_the_mean_of_the_ends_of_epochs(spec, noted):
    network = trained(SWA, spec)
    expected = [torch.stack(one).mean(0) for one in zip(*noted.ends[2:], strict=True)]
    assert len(noted.ends) == 5
    for found, value in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(found.double(), value, rtol=1e-5, atol=1e-6)
    assert any((last - mean).abs().max() > 1e-3 for last, mean in zip(noted.ends[-1], expected, strict=True))


@pytest.mark.parametrize("spec", ["single", "mc-droprelu:0.8", "svi"])
def test_ema_moves_after_every_step_from_its_start(spec, noted):
    network = trained(EMA, spec)
    first, *later = noted.steps[5:]  # five steps in the epoch before its start
    assert len(later) == 4 * 5
    for average, *after in zip(first, *later, strict=True):
        for one in after:
            average += 0.1 * (one - average)
    for found, value in zip(network.parameters(), first, strict=True):
        torch.testing.assert_close(found.double(), value, rtol=1e-5, atol=1e-6)


@KINDS
@pytest.mark.parametrize("spec", ["single", "mc-droprelu:0.8"])
def test_statistics_are_those_of_the_averaged_network_over_one_more_epoch(recipe, spec):
    """Its first layer sees no randomness: plan and augmentation are those of the epoch after the last."""
    network = trained(recipe, spec)
    seen = [F.conv2d(x, network[0].weight, padding=1).detach() for x, _ in epoch_of(batches(), recipe.epochs)]
    torch.testing.assert_close(network[1].running_mean, torch.cat(seen).mean((0, 2, 3)))
    variances = torch.stack([x.transpose(0, 1).flatten(1).var(1) * len(x) for x in seen])
    torch.testing.assert_close(network[1].running_var, variances.sum(0) / 96)
    assert network.training
    assert network[1].momentum == 0.1


def test_statistics_are_estimated_under_the_noise_of_the_method():
    """Gaussian weights widen what BatchNorm sees, by the same noise at every start."""
    wide = "svi:1.0,0.5,2.0"
    network = trained(SWA, wide)
    x = torch.cat([x for x, _ in epoch_of(batches(), 5)])
    plain = F.conv2d(x, network[0].weight, padding=1).detach()
    noise = F.conv2d(x**2, F.softplus(network[0].weight_rho) ** 2, padding=1).detach()
    expected = (plain.var((0, 2, 3)) + noise.mean((0, 2, 3))).sum()
    assert network[1].running_var.sum() == pytest.approx(expected.item(), rel=0.02)
    assert noise.mean((0, 2, 3)).sum() > 0.2 * expected
    assert same(weights(network), weights(trained(SWA, wide)))


def test_the_learning_rate_falls_by_a_cosine_and_stays():
    rates = []
    trained(SWA, "single", report=lambda epoch: rates.append(epoch.learning_rate))
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.05, 0.05])


@KINDS
@pytest.mark.parametrize(
    ("spec", "stop"),
    [("mc-droprelu:0.8", 1), ("mc-droprelu:0.8", 2), ("mc-droprelu:0.8", 4), ("svi", 4), ("single", 4)],
)
def test_a_stopped_average_goes_on_bit_for_bit(recipe, spec, stop, tmp_path, monkeypatch):
    file = tmp_path / "state.safetensors"
    monkeypatch.setattr(trainer._Runner, "_is_time_to_save", lambda *_: True)  # short epochs are not all kept

    def interrupt(report):
        if report.epoch == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(recipe, spec, FEW, checkpoint=file, report=interrupt)
    tensors, note = read_tensors(file)
    assert note["epoch"] == stop
    assert {name for name in tensors if name.startswith("average.")} >= {"average.0.weight", "average.5.bias"}
    continued = trained(recipe, spec, FEW, checkpoint=file)
    assert same(weights(continued), weights(trained(recipe, spec, FEW)))


@KINDS
def test_the_last_checkpoint_holds_the_averaged_network(recipe, tmp_path):
    """Whatever happens before the weights are written beside it, they can be had from it."""
    file = tmp_path / "state.safetensors"
    network = trained(recipe, checkpoint=file)
    tensors, _ = read_tensors(file)
    assert not [name for name in tensors if name.startswith("average.")]
    assert same(weights(network), {name[8:]: value for name, value in tensors.items() if name.startswith("weights.")})
    assert same(weights(network), weights(trained(recipe, checkpoint=file)))


@pytest.mark.parametrize(("before", "after"), [(BASE, SWA), (SWA, BASE), (SWA, replace(SWA, average_start=0.2))])
def test_a_checkpoint_with_another_average_is_refused(before, after, tmp_path):
    file = tmp_path / "state.safetensors"
    trained(before, checkpoint=file)
    with pytest.raises(RbueError, match="holds a training with average"):
        trained(after, checkpoint=file)


@KINDS
def test_networks_side_by_side_get_the_averages_of_training_alone(recipe):
    method = parse("mc-droprelu:0.8")
    jobs = [Job(fresh(method, seed), method, batches(seed), recipe, seed) for seed in (0, 1)]
    train_together(jobs, "plain")
    assert same(weights(jobs[0].network), weights(trained(recipe)))
    assert not same(weights(jobs[0].network), weights(jobs[1].network))


@pytest.mark.parametrize("spec", ["mc-droprelu:0.8", "svi"])
def test_every_process_ends_with_the_same_network(spec):
    method, found = parse(spec), []
    for rank in (Rank(0, 2), Rank(1, 2)):
        network = fresh(method)
        torch.rand(7 * rank.index)  # each process has drawn noise of its own until then
        TrainingStep(network, method, batches(), SWA, 0, rank).end_epoch(4)
        found.append(weights(network))
    assert same(*found)


def test_the_seed_of_the_run_decides_the_masks_under_which_statistics_are_estimated():
    method, found = parse("mc-droprelu:0.5"), []
    network = method.prepare(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(1)), torch.zeros(1, 1, 8, 8))
    for run_seed in (0, 0, 1):
        TrainingStep(network, method, batches(), SWA, run_seed).end_epoch(4)
        found.append(network[1].running_mean.item())
    assert found[0] == found[1] != found[2]


def test_a_training_of_one_epoch_has_an_average():
    for average in ("swa", "ema"):
        network = trained(replace(BASE, epochs=1, average=average))
        assert network[1].num_batches_tracked == 5


@pytest.mark.gpu
@KINDS
@pytest.mark.parametrize("engine", ["captured", "compiled"])
def test_averages_on_a_gpu_are_those_of_the_plain_loop(recipe, engine):
    """Bit for bit when captured; closely when compiled."""
    method, found = parse("mc-droprelu:0.8"), []
    for name in ("plain", engine):
        network = fresh(method).cuda()
        summary = train(Job(network, method, batches(device=torch.device("cuda")), recipe, 0), name)
        assert summary.engine == name
        found.append(torch.cat([value.flatten().double() for value in weights(network).values()]))
    tolerance = 0.0 if engine == "captured" else 0.05
    torch.testing.assert_close(found[1], found[0], atol=tolerance, rtol=tolerance)
