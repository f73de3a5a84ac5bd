"""Every run once, in order, within the time, and again from where it stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from faked_work import FakeWork, place
from typer.testing import CliRunner

from rbue.errors import InvalidInput, RbueError
from rbue.lab.cli import app
from rbue.lab.executors import Executor, in_order
from rbue.lab.paper import runner
from rbue.lab.paper.experiments import EXPERIMENTS, METHODS, chosen
from rbue.lab.paper.gathering import gather
from rbue.lab.paper.planning import jobs_for, training_cost
from rbue.lab.paper.runner import TimeBudget, parse_duration, run_experiments
from rbue.lab.paper.settings import FULL, QUICK, Settings, parse_seeds
from rbue.lab.runs.folders import RunFolder
from rbue.lab.training import Diverged
from rbue.lab.training.recipe import recipe_for

SMALL = Settings(quick=True, models=("vgg13",), methods=("single", "deep-ensemble:4", "mc-rrelu"))
KILLED = Settings(quick=True, models=("vgg13",), methods=("single", "mc-dropout:0.2"), epochs=2)


def test_shared_runs_are_one_job():
    jobs = jobs_for(chosen(["table1-cifar10", "table4-jsd", "fig-q-sweep", "fig-shift-cifar10"]), Settings())
    assert len({job.config for job in jobs}) == len(jobs) == 30 + 4
    shared = {(job.config.model, job.config.method): job for job in jobs}
    assert shared["resnet18", "mc-droprelu:0.8"].experiments == ("table1-cifar10", "table4-jsd", "fig-q-sweep")
    assert shared["resnet18", "mc-droprelu:0.8"].measures == {"clean", "diversity"}
    assert shared["densenet121", "svi"].measures == {"clean", "shift"}


def test_quick_runs_serve_all_three_tables():
    jobs = jobs_for(EXPERIMENTS, Settings(quick=True))
    networks = {member for job in jobs for member in job.config.members()}
    assert len(jobs) == 30 + 4 + 2 + 2 + 3
    assert len(networks) == 3 * (4 + 8) + 4 + 2 + 2 + 3
    assert {job.config.data for job in jobs} == {QUICK.data}
    assert {job.config.width for job in jobs} == {QUICK.width}


def test_full_and_quick_share_no_run():
    full, quick = ({job.config for job in jobs_for(EXPERIMENTS, Settings(quick=one))} for one in (False, True))
    assert not {config.id for config in full} & {config.id for config in quick}
    assert {config.recipe for config in full if config.data == "cifar10"} == {recipe_for("cifar10")}
    assert FULL.samples == 100


def test_cheap_and_shared_runs_come_first():
    jobs = jobs_for(chosen(["table1-cifar10", "table4-jsd"]), Settings())
    price = [training_cost(job.config) / len(job.experiments) for job in jobs]
    assert price == sorted(price)
    names = [(job.config.model, job.config.method) for job in jobs]
    assert names.index(("vgg13", "single")) < names.index(("densenet121", "single"))
    assert names.index(("resnet18", "svi")) < names.index(("resnet18", "single"))
    assert names.index(("vgg13", "single")) < names.index(("vgg13", "deep-ensemble:4"))


def test_repetitions_of_an_ensemble_share_no_member():
    settings = Settings(methods=("single", "deep-ensemble:4"), models=("vgg13",), seeds=(0, 1))
    (experiment,) = chosen(["table1-cifar10"])
    configs = list(settings.configs(experiment))
    assert [(config.method, config.seed) for config in configs] == [
        ("single", 0),
        ("single", 1),
        ("deep-ensemble:4", 0),
        ("deep-ensemble:4", 4),
    ]
    members = [member for config in configs[2:] for member in config.members()]
    assert len(set(members)) == 8
    assert set(configs[:2]) <= set(members)


def test_each_run_is_trained_once_and_measured_after_it(tmp_path, monkeypatch):
    work = FakeWork(monkeypatch)
    lines = []
    outcome = run_experiments(chosen(["table*"]), SMALL, place(tmp_path), tell=lines.append)
    assert len(work.trained) == len(set(work.trained)) == 5
    assert len(work.measured) == 3
    assert work.calibrated == work.measured
    assert not outcome.left
    assert lines.index("1 of 3: train colour-digits-few vgg13 single seed 0") + 1 == lines.index(
        "1 of 3: measure colour-digits-few vgg13 single seed 0"
    )
    again = run_experiments(chosen(["table*"]), SMALL, place(tmp_path))
    assert len(work.trained) == 5
    assert again.done == []
    assert again.already == 3


def test_a_measurement_that_was_stopped_before_its_calibration_is_calibrated_by_the_next_command(tmp_path, monkeypatch):
    work = FakeWork(monkeypatch)
    settings = replace(SMALL, methods=("single",))
    run_experiments(chosen(["table1-cifar10"]), settings, place(tmp_path))
    (folder,) = (RunFolder.of(config, tmp_path) for config in work.measured)
    (folder.path / "calibration.json").unlink()
    assert run_experiments(chosen(["table1-cifar10"]), settings, place(tmp_path)).done == []  # nothing to do it from
    folder.probs.write_bytes(b"probabilities")
    again = run_experiments(chosen(["table1-cifar10"]), settings, place(tmp_path))
    assert again.done == ["measure colour-digits-few vgg13 single seed 0"]
    assert len(work.calibrated) == 2
    assert run_experiments(chosen(["table1-cifar10"]), settings, place(tmp_path)).done == []


def test_the_budget_ends_between_steps_and_the_next_command_continues(tmp_path, monkeypatch):
    work = FakeWork(monkeypatch, seconds=60)
    experiments = chosen(["table1-cifar10"])
    outcome = run_experiments(experiments, SMALL, place(tmp_path), budget=TimeBudget(90, work.clock))
    assert len(work.trained) == 2
    assert work.now == 120  # the second training was begun within the time, and finished
    assert outcome.done
    assert any("deep-ensemble" in step for step in outcome.left)
    assert len(set(outcome.left)) == len(outcome.left)
    first = list(work.trained)
    outcome = run_experiments(experiments, SMALL, place(tmp_path), budget=TimeBudget(3600, work.clock))
    assert outcome.left == []
    assert len(work.trained) == 5
    assert not set(first) & set(work.trained[2:])
    assert len(work.measured) == 3


def test_no_time_at_all_does_nothing(tmp_path, monkeypatch):
    work = FakeWork(monkeypatch)
    ticking = iter(range(0, 10_000, 100))
    outcome = run_experiments(
        chosen(["table1-cifar10"]), SMALL, place(tmp_path), budget=TimeBudget(1, lambda: next(ticking))
    )
    assert work.trained == []
    assert len(outcome.left) == 5 + 3


def test_shift_of_the_first_network_or_of_all_where_asked(tmp_path, monkeypatch):
    work = FakeWork(monkeypatch)
    two = replace(SMALL, models=("resnet18", "vgg13"), methods=("single",))
    run_experiments(chosen(["table1*", "fig-shift-cifar10"]), two, place(tmp_path))
    assert [config.model for config in work.shifted] == ["resnet18"]
    run_experiments(chosen(["table1*", "fig-shift-cifar10"]), two, place(tmp_path))
    assert len(work.shifted) == 1
    run_experiments(chosen(["table1*"]), replace(two, shift=True), place(tmp_path))
    assert [config.model for config in work.shifted] == ["resnet18", "vgg13"]
    fresh = tmp_path / "other"
    run_experiments(chosen(["fig-shift-cifar10"]), replace(two, shift=False), place(fresh))
    assert len(work.shifted) == 2


def test_without_corruptions_the_rest_is_done(tmp_path, monkeypatch):
    """As where OpenCV is missing."""
    work = FakeWork(monkeypatch)

    def cannot(*_, **__):
        raise RbueError("corruptions need OpenCV; run pip install 'rbue[shift]'.")

    monkeypatch.setattr(runner, "shift_run", cannot)
    settings = Settings(quick=True, methods=("single",))
    outcome = run_experiments(chosen(["fig-shift-cifar10"]), settings, place(tmp_path))
    assert len(work.measured) == 1
    ((step, reason),) = outcome.failed
    assert outcome.skipped == []
    assert "corruptions" in step
    assert "rbue[shift]" in reason


def test_a_figure_that_cannot_be_drawn_does_not_stop_the_others(tmp_path, monkeypatch):
    FakeWork(monkeypatch)

    def draw(experiment, **_):
        if experiment.id == "fig-activations":
            raise RbueError("there is no ink.")

    monkeypatch.setattr(runner, "write_illustration", draw)
    outcome = run_experiments(chosen(["fig-activations", "fig-network"]), SMALL, place(tmp_path))
    assert outcome.failed == [("draw from fig-activations", "there is no ink.")]
    assert outcome.done == ["draw from fig-network"]


def test_missing_data_is_skipped_with_the_way_to_get_it(tmp_path, monkeypatch):
    work = FakeWork(monkeypatch)
    monkeypatch.setattr(runner, "data_is_here", lambda name: name != "cifar100")
    settings = Settings(models=("vgg13",), methods=("single",))
    outcome = run_experiments(chosen(["table1*", "table2*"]), settings, place(tmp_path))
    assert [config.data for config in work.trained] == ["cifar10"]
    assert {reason for _, reason in outcome.skipped} == {
        "cifar100 is not on this machine; run `rbue data fetch cifar100`"
    }


def test_only_some_kinds_of_steps(tmp_path, monkeypatch):
    work = FakeWork(monkeypatch)
    experiments = chosen(["table1-cifar10"])
    run_experiments(experiments, SMALL, place(tmp_path), kinds=["train"])
    assert (len(work.trained), len(work.measured)) == (5, 0)
    run_experiments(experiments, SMALL, place(tmp_path), kinds=["clean"])
    assert (len(work.trained), len(work.measured)) == (5, 3)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("1.5h", 5400)])
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["25", "", "25 minutes", "0s"])
def test_durations_that_are_none(text):
    with pytest.raises(InvalidInput, match="90s, 25m or 1h30m"):
        parse_duration(text)


def test_an_ensemble_gives_all_its_members():
    quick = Settings(quick=True)
    assert quick.samples_of(quick.config("cifar10", "vgg13", "deep-ensemble:4", 0)) == 4
    assert quick.samples_of(quick.config("cifar10", "vgg13", "svi", 0)) == QUICK.samples < 4
    assert Settings().samples_of(Settings().config("cifar10", "vgg13", "deep-ensemble:4", 0)) == 100


def test_seeds_and_settings_travel():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("4,0") == (4, 0)
    for wrong in ("0", "x", "", "-1", "1,-2"):
        with pytest.raises(InvalidInput, match="--seeds"):
            parse_seeds(wrong)
    settings = replace(SMALL, seeds=(0, 2), epochs=3)
    assert Settings.from_json(settings.as_json()) == settings
    with pytest.raises(RbueError, match="another version"):
        Settings.from_json({"speed": 3})
    assert Settings(methods=("mc-droprelu",)).methods == ("mc-droprelu:0.9",)
    assert set(METHODS) >= set(SMALL.methods)


def test_networks_side_by_side_are_each_trained_once(monkeypatch, tmp_path):
    """Later jobs lend their trainings to earlier ones; measuring still follows job by job."""
    work = FakeWork(monkeypatch)
    run_experiments(chosen(["table1-cifar10"]), SMALL, replace(place(tmp_path), together=2))
    assert len(work.trained) == len(set(work.trained)) == 5
    assert [len(group) for group in work.groups] == [2, 2, 1]
    assert {config.method for config in work.measured} == {"single", "deep-ensemble:4", "mc-rrelu"}


def test_the_engine_is_the_one_asked_for(monkeypatch, tmp_path):
    work = FakeWork(monkeypatch)
    run_experiments(chosen(["table1-cifar10"]), SMALL, replace(place(tmp_path), engine="captured"))
    assert work.engines == {"captured"}


def test_corrupted_images_get_fewer_samples():
    config = Settings().config("cifar10", "vgg13", "mc-rrelu", 0)
    assert (Settings().samples_of(config), Settings().shift_samples_of(config)) == (100, 20)
    assert Settings(samples=5).shift_samples_of(config) == 5
    ensemble = Settings().config("cifar10", "vgg13", "deep-ensemble:40", 0)
    assert Settings().shift_samples_of(ensemble) == 40


def test_a_run_that_fails_does_not_stop_the_others(monkeypatch, tmp_path):
    work = FakeWork(monkeypatch)
    train = work.train_runs

    def failing(configs, *words, **more):
        if configs[0].method == "single" and configs[0].seed == 0:
            raise RbueError("training diverged in epoch 1.")
        train(configs, *words, **more)

    monkeypatch.setattr(runner, "train_runs", failing)
    outcome = run_experiments(chosen(["table1-cifar10"]), SMALL, place(tmp_path))
    assert {config.method for config in work.measured} == {"mc-rrelu"}
    assert {reason for _, reason in outcome.failed} == {"training diverged in epoch 1."}
    assert {reason for _, reason in outcome.skipped} == {"its training is not finished"}


@pytest.mark.parametrize("together", [1, 5])
def test_a_training_that_diverges_is_reported_once_and_those_beside_it_are_done(together, monkeypatch, tmp_path):
    work = FakeWork(monkeypatch)
    train = work.train_runs

    def diverging(configs, *words, **more):
        fine = [config for config in configs if (config.method, config.seed) != ("single", 0)]
        train(fine, *words, **more)
        if len(fine) < len(configs):
            raise Diverged("training diverged in epoch 1.")

    monkeypatch.setattr(runner, "train_runs", diverging)
    outcome = run_experiments(chosen(["table1-cifar10"]), SMALL, replace(place(tmp_path), together=together))
    assert outcome.failed == [("train colour-digits-few vgg13 single seed 0", "training diverged in epoch 1.")]
    assert len(work.trained) == len(set(work.trained)) == 4
    assert {step for step in outcome.done if step.startswith("train")} == {
        "train colour-digits-few vgg13 mc-rrelu seed 0",
        *(f"train colour-digits-few vgg13 single seed {seed}" for seed in (1, 2, 3)),
    }
    assert {config.method for config in work.measured} == {"mc-rrelu"}


@pytest.mark.parametrize("together", [2, 5])
def test_trainings_that_fail_side_by_side_are_tried_one_by_one(together, monkeypatch, tmp_path):
    """The network of another process is in use: that says nothing of those beside it."""
    work = FakeWork(monkeypatch)
    train = work.train_runs

    def in_use(configs, *words, **more):
        if any((config.method, config.seed) == ("single", 1) for config in configs):
            raise RbueError("single with seed 1 is in use; wait.")
        train(configs, *words, **more)

    monkeypatch.setattr(runner, "train_runs", in_use)
    outcome = run_experiments(chosen(["table1-cifar10"]), SMALL, replace(place(tmp_path), together=together))
    assert outcome.failed == [("train colour-digits-few vgg13 single seed 1", "single with seed 1 is in use; wait.")]
    assert {(config.method, config.seed) for config in work.trained} == {
        *(("single", seed) for seed in (0, 2, 3)),
        ("mc-rrelu", 0),
    }
    assert len(outcome.done) == len(set(outcome.done))
    assert {config.method for config in work.measured} == {"single", "mc-rrelu"}


def test_what_cannot_be_trained_is_not_put_beside_what_can(monkeypatch, tmp_path):
    work = FakeWork(monkeypatch)
    settings = Settings(quick=True, models=("resnet18",), methods=("mc-rrelu", "snapshot-ensemble:4"), seeds=(0,))
    outcome = run_experiments(chosen(["related-cifar10"]), settings, replace(place(tmp_path), together=2))
    assert [[config.method for config in group] for group in work.groups] == [["mc-rrelu"]]
    assert not outcome.failed
    assert any("snapshot-ensemble:4" in step and "at least 4 epochs" in why for step, why in outcome.skipped)


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_the_command_ends_in_an_error_after_doing_the_rest(words, monkeypatch, tmp_path):
    work = FakeWork(monkeypatch)
    measure = work.evaluate_run

    def failing(config, *words, **more):
        if config.method == "single":
            raise RbueError("the weights of single are gone; train it again.")
        return measure(config, *words, **more)

    monkeypatch.setattr(runner, "evaluate_run", failing)
    command = ["paper", "run", "table1-cifar10", "--quick", "--models", "vgg13", "--methods", "single,mc-rrelu"]
    result = CliRunner().invoke(app, [*command, "--runs", str(tmp_path), *words])
    assert result.exit_code == 1
    assert {config.method for config in work.measured} == {"mc-rrelu"}
    assert result.stderr.splitlines()[-1] == ("error: 1 step failed: the weights of single are gone; train it again.")
    if words:
        assert len(json.loads(result.stdout)["failed"]) == 1
    assert CliRunner().invoke(app, [*command[:-1], "mc-rrelu", "--runs", str(tmp_path)]).exit_code == 0


def test_steps_left_out_are_told_with_one_full_stop(monkeypatch, tmp_path):
    FakeWork(monkeypatch)
    monkeypatch.setattr(runner, "_obstacle", lambda step, root: "it is too late; come again tomorrow.")
    command = ["paper", "run", "table1-cifar10", "--quick", "--models", "vgg13", "--methods", "single"]
    result = CliRunner().invoke(app, [*command, "--runs", str(tmp_path)])
    assert "2 steps left out: it is too late; come again tomorrow.\n" in result.stderr
    assert result.exit_code == 0


class TwoAtOnce(Executor):
    """As a cluster: a task is only begun while another one is under way, and the later one may end first."""

    def each(self, task, following):
        begun = []
        while True:
            while len(begun) < 2 and (item := following()) is not None:
                members = [{one for step in steps for one in step.config.members()} for steps in (*begun, item)]
                assert sum(map(len, members)) == len(set().union(*members))  # nobody else is at the same network
                begun.append(item)
            if not begun:
                return
            item = begun.pop()
            yield from super().each(task, in_order([item]))


@pytest.mark.parametrize("together", [1, 2])
def test_steps_at_the_same_time_are_about_different_networks_and_come_to_the_same(together, monkeypatch, tmp_path):
    done = []
    for name, executor in (("one", None), ("two", TwoAtOnce(torch.device("cpu")))):
        work = FakeWork(monkeypatch)
        somewhere = replace(place(tmp_path / name), together=together)
        shift = replace(SMALL, shift=True)
        outcome = run_experiments(chosen(["table*"]), shift, somewhere, executor=executor)
        assert len(work.trained) == len(set(work.trained)) == 5
        assert len(work.measured) == len(work.shifted) == 3
        assert outcome.failed == outcome.left == outcome.skipped == []
        done.append(sorted(outcome.done))
    assert done[0] == done[1]


def test_a_cluster_begins_nothing_after_the_time_either(monkeypatch, tmp_path):
    work = FakeWork(monkeypatch, seconds=60)
    budget = TimeBudget(90, work.clock)
    executor = TwoAtOnce(torch.device("cpu"))
    outcome = run_experiments(chosen(["table1-cifar10"]), SMALL, place(tmp_path), budget=budget, executor=executor)
    assert 2 <= len(work.trained) <= 3  # one was begun beside the last within the time
    assert set(outcome.left).isdisjoint(outcome.done)
    assert len(outcome.left) + len(outcome.done) == 5 + 3


@pytest.mark.slow
def test_killed_and_started_again(tmp_path):
    """Nothing is trained twice, and nothing lost."""
    (experiment,) = chosen(["table1-cifar10"])
    first, second = (RunFolder.of(config, tmp_path) for config in KILLED.configs(experiment))
    words = ("--quick", "--models", "vgg13", "--methods", "single,mc-dropout:0.2", "--device", "cpu")
    asked = [*words, "--epochs", str(KILLED.epochs), "--runs", str(tmp_path)]
    command = [sys.executable, "-m", "rbue", "paper", "run", "table1-cifar10", *asked]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and not second.state.exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert first.read("training") is not None
    assert first.read("results") is not None
    assert second.read("training") is None
    finished = {path.name: path.read_bytes() for path in first.path.iterdir() if path.is_file()}
    logged = _epochs(second)

    outcome = run_experiments([experiment], KILLED, place(tmp_path))
    assert outcome.already == 1
    assert finished == {path.name: path.read_bytes() for path in first.path.iterdir() if path.is_file()}
    assert sorted(set(_epochs(second))) == list(range(KILLED.epochs))
    assert _epochs(second)[: len(logged)] == logged
    assert (
        len(_epochs(second)) <= KILLED.epochs + 1
    )  # at most the epoch that was saved but not yet logged, or the reverse
    gathered = gather(experiment, KILLED, tmp_path)
    assert gathered.missing == ()
    assert run_experiments([experiment], KILLED, place(tmp_path)).done == []


def _epochs(folder):
    if not folder.log.exists():
        return []
    return [json.loads(line)["epoch"] for line in folder.log.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_id_is_complete_after_a_quick_run(tmp_path):
    settings = Settings(quick=True)
    outcome = run_experiments(EXPERIMENTS, settings, place(tmp_path))
    assert outcome.left == outcome.skipped == outcome.failed == []
    gathered = [gather(experiment, settings, tmp_path) for experiment in EXPERIMENTS]
    assert {one.experiment.id: one.missing for one in gathered if one.missing} == {}
    assert len({step for step in outcome.done if step.startswith("train")}) == 47
