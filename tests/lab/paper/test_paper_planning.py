"""A plan's times come from timed steps, or from trainings that are finished."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
from faked_work import FakeWork, place
from torch import nn

from rbue.files import read_json
from rbue.lab.environment import facts
from rbue.lab.paper.experiments import chosen
from rbue.lab.paper.planning import TIMED_STEPS, Estimator, RecordedGpu, Step, jobs_for, planned
from rbue.lab.paper.runner import run_experiments
from rbue.lab.paper.settings import Settings
from rbue.lab.runs.folders import RunFolder
from rbue.lab.training.trainer import read_log

QUICK = Settings(quick=True, models=("vgg13",), methods=("single", "svi", "deep-ensemble:4"))


@pytest.fixture
def estimator(tmp_path):
    ticks = iter(range(1000))
    return Estimator(torch.device("cpu"), tmp_path, clock=lambda: float(next(ticks)))


def test_a_timed_step_is_scaled_to_a_whole_training(estimator):
    config = QUICK.config("cifar10", "vgg13", "single", 0)
    per_image = 1 / 8
    assert estimator.seconds(Step("train", config), QUICK) == pytest.approx(200 * 3 * per_image)
    svi = QUICK.config("cifar10", "vgg13", "svi", 0)
    assert estimator.seconds(Step("train", svi), QUICK) == pytest.approx(2.4 * 200 * 3 * per_image)
    assert estimator.seconds(Step("shift", config), QUICK) == pytest.approx(100 * 38 * per_image)
    assert estimator.seconds(Step("clean", config), QUICK) == pytest.approx(100 * per_image)


def test_a_measurement_draws_its_samples_in_one_sweep(estimator):
    """Fewer of them come on its way; only where it asks for fewer than diversity needs, those are drawn apart."""
    config = QUICK.config("cifar10", "vgg13", "mc-rrelu", 0)
    per_image = 1.3 / 8
    many = replace(QUICK, samples=100)
    assert estimator.seconds(Step("clean", config), many) == pytest.approx(100 * 100 * per_image)
    assert estimator.seconds(Step("clean", config), QUICK) == pytest.approx(100 * (2 + 4) * per_image)


@pytest.fixture
def timed_batches(monkeypatch):
    """The shapes of the batches that are timed, with a network that does next to nothing."""
    seen = []

    class Flat(nn.Module):
        def __init__(self, classes, channels):
            super().__init__()
            self.head = nn.Linear(channels, classes)

        def forward(self, x):
            seen.append((self.training, tuple(x.shape)))
            return self.head(x.mean((2, 3)))

    monkeypatch.setattr("rbue.lab.models.create", lambda name, classes, channels, width: Flat(classes, channels))
    return seen


def test_sets_with_images_of_one_size_share_a_timing(estimator, timed_batches):
    full = Settings()
    first = estimator.speed(full.config("cifar10", "vgg13", "single", 0))
    timed = len(timed_batches)
    assert estimator.speed(full.config("cifar100", "vgg13", "single", 0)) is first
    assert len(timed_batches) == timed


def test_larger_images_are_timed_in_smaller_batches(estimator, timed_batches):
    estimator.speed(Settings().config("cifar10", "vgg13", "single", 0))
    estimator.speed(Settings().config("tiny-imagenet", "vgg13", "single", 0))
    assert {shape for _, shape in timed_batches} == {(8, 3, 32, 32), (2, 3, 64, 64)}


def clock_of(steps):
    """A clock that says that work took these seconds, step by step."""
    ticks = itertools.chain.from_iterable((0.0, seconds) for seconds in steps)
    return lambda: next(ticks)


def test_long_steps_are_timed_twice(tmp_path, timed_batches):
    slow = Estimator(torch.device("cpu"), tmp_path, clock=clock_of([5.0] * 4))
    speed = slow.speed(Settings().config("cifar10", "vgg13", "single", 0))
    assert speed.training == speed.forward == pytest.approx(5 / 8)
    assert [training for training, _ in timed_batches] == [True, True, False, False]


def test_another_process_that_slows_some_steps_does_not_count(tmp_path, timed_batches):
    quick = [0.1] * TIMED_STEPS
    for training in ([2.7, 0.1, 0.9, 0.3, 0.2], [0.1, 1.8, 1.8], [1.2, 1.9, 0.1]):
        busy = Estimator(torch.device("cpu"), tmp_path, clock=clock_of([*training, *quick]))
        speed = busy.speed(Settings().config("cifar10", "vgg13", "single", 0))
        assert speed.training == speed.forward == pytest.approx(0.1 / 8)


def test_a_finished_training_tells_more(estimator, tmp_path, monkeypatch):
    FakeWork(monkeypatch, seconds=500)
    run_experiments(chosen(["table1*"]), Settings(quick=True, models=("vgg13",), methods=("single",)), place(tmp_path))
    other = QUICK.config("cifar10", "vgg13", "single", 7)
    assert estimator.seconds(Step("train", other), QUICK) == pytest.approx(500)
    longer = Settings(quick=True, epochs=6).config("cifar10", "vgg13", "single", 7)
    assert estimator.seconds(Step("train", longer), QUICK) == pytest.approx(1000)


def trained_at(root, seconds, seed=0, device="cpu", side_by_side=1, workers=1, **elsewhere):
    """A finished training as a machine like this one would leave it, but for what is elsewhere."""
    folder = RunFolder.of(config := QUICK.config("cifar10", "vgg13", "single", seed), root)
    folder.open(config, {**facts(), **elsewhere})
    folder.write("training", {"seconds": seconds, "device": device, "side_by_side": side_by_side, "workers": workers})


@pytest.mark.parametrize(
    "other",
    [{"device": "cuda", "gpu": "NVIDIA H200"}, {"cpu": "Another CPU"}, {"cores": 1_000}, {"workers": 4}],
    ids=str,
)
def test_a_training_on_another_machine_or_beside_others_tells_nothing(estimator, tmp_path, other):
    wanted = Step("train", QUICK.config("cifar10", "vgg13", "single", 7))
    timed = estimator.seconds(wanted, QUICK)
    trained_at(tmp_path, 500, **other)
    assert estimator.seconds(wanted, QUICK) == timed
    trained_at(tmp_path, 300, seed=1)
    assert estimator.seconds(wanted, QUICK) == pytest.approx(300)


def test_a_damaged_training_in_the_same_place_tells_nothing(estimator, tmp_path):
    wanted = Step("train", QUICK.config("cifar10", "vgg13", "single", 7))
    trained_at(tmp_path, 300, seed=1)
    trained_at(tmp_path, 500, seed=2)
    (RunFolder.of(QUICK.config("cifar10", "vgg13", "single", 2), tmp_path).path / "training.json").write_text("{")
    assert estimator.seconds(wanted, QUICK) == pytest.approx(300)


def test_on_a_gpu_its_name_counts_and_not_the_cpu(tmp_path, monkeypatch):
    trained_at(tmp_path, 500, device="cuda", gpu="NVIDIA H200", cpu="Another CPU")
    monkeypatch.setattr("rbue.lab.paper.planning.facts", lambda: {"gpu": "NVIDIA H200"})
    wanted = Step("train", QUICK.config("cifar10", "vgg13", "single", 7))
    assert Estimator(torch.device("cuda"), tmp_path).seconds(wanted, QUICK) == pytest.approx(500)


def test_a_training_beside_as_many_others_tells_most(tmp_path):
    """The seconds of a network are its share of the clock, which is shorter beside others."""
    wanted = Step("train", QUICK.config("cifar10", "vgg13", "single", 7))
    trained_at(tmp_path, 200, seed=0, side_by_side=4)
    assert Estimator(torch.device("cpu"), tmp_path).seconds(wanted, QUICK) == pytest.approx(200)
    trained_at(tmp_path, 250, seed=1, side_by_side=1)
    assert Estimator(torch.device("cpu"), tmp_path).seconds(wanted, QUICK) == pytest.approx(250)
    assert Estimator(torch.device("cpu"), tmp_path, together=4).seconds(wanted, QUICK) == pytest.approx(200)


def test_a_gpu_is_reckoned_from_what_is_in_results(tmp_path):
    """The recorded seconds are those of the stored trainings; four times the pixels take four times as long."""
    published = Path(__file__).parents[3] / "results"
    full, gpu = Settings(), RecordedGpu(tmp_path)
    for model in ("vgg13", "resnet18", "densenet121"):
        config = full.config("cifar10", model, "single", 0)
        stored = RunFolder.of(config, published / "runs").read("training")
        assert gpu.seconds(Step("train", config), full) == pytest.approx(stored["seconds"], rel=0.02)
    alone = read_json(published / "full_training.json")["whole_run"]["training_s"]
    for method, single in (("svi", alone), ("mc-droprelu:0.9", 188.0)):  # three networks side by side
        stored = RunFolder.of(full.config("cifar10", "resnet18", method, 0), published / "runs").read("training")
        assert gpu.factor(full.config("cifar10", "resnet18", method, 0)) == pytest.approx(
            stored["seconds"] / single, rel=0.05
        )
    folders = [RunFolder(path) for path in (published / "costs" / "cifar10" / "resnet18").iterdir()]
    timed = {
        folder.read("config")["method"]: median(one["seconds"] for one in read_log(folder.log))
        for folder in folders
        if folder.log.exists()
    }
    for method in ("treenet:4", "batch-ensemble:4", "packed-ensemble:4"):
        factor = gpu.factor(full.config("cifar10", "resnet18", method, 0))
        assert factor == pytest.approx(timed[method] / timed["single"], rel=0.02)
    small, large = (gpu.speed(full.config(name, "resnet18", "single", 0)) for name in ("cifar10", "tiny-imagenet"))
    assert large.training == pytest.approx(4 * small.training)
    passes = read_json(published / "mc_inference_cuda.json")["seconds"]["rbue DropReLU, all sites"]
    assert small.forward * 100 * 10_000 == pytest.approx(passes, rel=0.01)


def test_a_calibration_alone_takes_no_time(estimator, tmp_path, monkeypatch):
    FakeWork(monkeypatch)
    settings = Settings(quick=True, models=("vgg13",), methods=("single",))
    step = Step("clean", settings.config("cifar10", "vgg13", "single", 0))
    assert estimator.seconds(step, settings) > 0
    run_experiments(chosen(["table1*"]), settings, place(tmp_path))
    assert estimator.seconds(step, settings) == 0


def test_a_network_that_two_runs_share_is_planned_once(estimator):
    rows = planned(jobs_for(chosen(["table1*"]), QUICK), QUICK, estimator)
    assert sum(row.missing.count("train") for row in rows) == 4 + 1
    assert [row.state for row in rows] == ["train, clean", "train, clean", "train 3, clean"]
