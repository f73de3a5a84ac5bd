"""What the benchmarks compute from what they time; their timings are not tested."""

import importlib
import math
import os
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from rbue.files import write_json
from rbue.lab.runs.folders import RunConfig
from rbue.lab.runs.training import train_run
from rbue.lab.training import recipe_for

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name):
        if getattr(sys.modules.get(name), "__file__", None) is None:  # a folder of tests with the same name
            sys.modules.pop(name, None)
        return importlib.import_module(name)

    return load


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_every_benchmark_can_be_imported(script, path):
    assert script(path.stem).__doc__


def test_bandwidth_counts_what_each_way_moves(script):
    kernels = script("kernels")
    times = {"forward": {"copy": 10.0, "ReLU": 10.0, "RReLU": 20.0}, "backward": {"ReLU": 15.0, "RReLU": 30.0}}
    result = kernels.result_of(times, torch.bfloat16, (10, 10**6))
    assert result["share_of_copy_bandwidth"]["forward"] == {"copy": 1.0, "ReLU": 1.0, "RReLU": 0.5}
    assert result["share_of_copy_bandwidth"]["backward"] == {"ReLU": 1.0, "RReLU": 0.5}
    assert result["ratio_to_relu"]["backward"]["RReLU"] == 2.0
    assert result["copy_terabytes_per_second"] == 4.0


def test_variants_take_turns(script):
    calls = []
    found = script("harness").medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, warmup=1)
    assert "".join(calls) == "ab" + "ababab"
    assert set(found) == {"a", "b"}


def test_peers_take_the_place_of_relu_for_a_while(script):
    peers, plain, x = script("peers"), F.relu, -torch.ones(10_000)
    with peers.with_relu(peers.rand_formula):
        assert 0.87 < (F.relu(x) == 0).float().mean() < 0.93
    with peers.with_relu(peers.torch_rrelu):
        assert -1 / 3 <= F.relu(x).min() < F.relu(x).max() <= -1 / 8
    with peers.with_relu(None):
        assert F.relu is plain
    assert F.relu is plain


@pytest.mark.skipif(torch.cuda.is_available(), reason="would run")
def test_without_a_gpu_the_kernels_are_not_timed(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kernels.py"])
    assert script("kernels").main() == 2
    assert "needs a CUDA device" in capsys.readouterr().out


def test_what_was_tuned_while_memory_was_measured_is_not_timed(script, monkeypatch, tmp_path):
    steps = script("training_step")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")  # put back afterwards
    with steps.compiling_into_own_folder(tmp_path / "peaks.json") as folder:
        assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) == folder == tmp_path / "peaks.compiled"
        (folder / "ab").mkdir(parents=True)
        code, choice = folder / "ab" / "kernel.py", folder / "ab" / "kernel.best_config"
        for file in (code, choice):
            file.touch()
        steps.forget_tuning(folder)
        assert code.exists()
        assert not choice.exists()
    with steps.compiling_into_own_folder(None) as passing:
        assert passing.exists()
    assert code.exists()
    assert not passing.exists()


def test_goals_are_judged_by_their_limit(script, monkeypatch, tmp_path):
    goals = script("goals")
    monkeypatch.setattr(goals, "RESULTS", tmp_path)
    (tmp_path / "a.json").write_text('{"x": 1.5, "y": null}')
    most = goals.Goal("w", "CPU", 1.5, "a.json", lambda found: {"X": found["x"], "Y": found["y"]})
    assert most.row() == "| w | CPU | ≤ 1.5 | X 1.50 | yes |"
    assert most._replace(limit=1.4).row().endswith("| no |")
    assert most._replace(at_least=True, limit=1.6).row() == "| w | CPU | ≥ 1.6 | X 1.50 | no |"
    assert most._replace(file="b.json").row().endswith("| not measured yet | open |")


@pytest.mark.parametrize(
    ("nll", "ece", "counted"),
    [(0.0009, -0.0009, 15), (-0.0004, 0.0009, 15), (0.0011, 0, math.inf), (0, -0.0011, math.inf)],
)
def test_adaptive_sampling_counts_only_with_equal_scores(script, nll, ece, counted):
    goals = script("goals")
    rows = [
        {"draws": draws, "first": first, "tolerance": 0.05, "samples": n, "nll_difference": nll, "ece_difference": ece}
        for draws, first, n in (("independent", 16, 100), ("balanced", 4, 9), ("balanced", goals.ADAPTIVE[0], 15))
    ]
    run = {"config": {"method": "m"}, "adaptive": rows}
    assert goals.adaptive_samples({"runs": [run]}) == {"m": counted}


def test_balanced_draws_are_measured_from_a_run_to_its_picture(script, tmp_path, monkeypatch):
    config = RunConfig(method="mc-droprelu:0.8", width=0.25, recipe=recipe_for("digits", epochs=1, batch=64))
    device = torch.device("cpu")
    train_run(config, tmp_path, device)
    balanced = script("balanced")
    monkeypatch.setattr(balanced, "COUNTS", (2, 5, 10))
    monkeypatch.setattr(balanced, "CYCLES", (1, 2))
    monkeypatch.setattr(balanced, "SETTINGS", balanced.SETTINGS[:1])
    run = balanced.Measured(config, tmp_path, device)
    run.images, run.labels = run.first(100), run.labels[:100]
    found = balanced.measure(run, first=40, samples=200)
    assert [row["samples"] for row in found["errors"] if row["cycles"] in (1, 2)] == [
        found["cycle"],
        2 * found["cycle"],
    ]
    assert all(row["independent"] > row["balanced"] for row in found["errors"] if row["cycles"] == 1)
    assert [row["draws"] for row in found["adaptive"]] == ["independent", "balanced"]
    balanced.show(found)
    write_json(tmp_path / "found.json", {"runs": [found]})
    balanced.picture([tmp_path / "found.json"], tmp_path / "picture.svg")
    assert "samples" in (tmp_path / "picture.svg").read_text()


def test_a_training_in_full_counts_what_it_took(script):
    full = script("full_training")
    rows = {full.OURS: {"step_ms": 2.0, "prepare_s": 3.0}, "eager": {"step_ms": 10.0}}
    full.extrapolate(rows, 1000, None)
    assert rows["eager"]["over_ours"] == 2.0
    full.extrapolate(rows, 1000, {"total_s": 4.0})
    assert rows["eager"]["over_ours"] == 2.5
    assert rows[full.OURS] == {"step_ms": 2.0, "prepare_again_s": 3.0, "whole_s": 4.0, "over_ours": 1.0}
