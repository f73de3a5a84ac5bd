"""``rbue calibrate``: from a measured run to a table and a file, and every mistake in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_runs import TINY
from typer.testing import CliRunner

from rbue.lab.cli import app


@pytest.fixture(scope="session")
def compared_once(tmp_path_factory):
    """Two measured methods and one that is only trained; not to be changed."""
    root = tmp_path_factory.mktemp("compared") / "runs"
    compare = ["compare", "--methods", "single,mc-droprelu:0.9", "--samples", "4"]
    for words in (compare, ["train", "--method", "mc-rrelu"]):
        result = CliRunner().invoke(app, [*words, "--runs", str(root), *TINY])
        assert result.exit_code == 0, result.output
    return root


@pytest.fixture
def runs(compared_once):
    """A copy of them in ``runs``: methods by the start of their names."""
    shutil.copytree(compared_once, "runs")
    return {path.name.partition("-seed")[0]: path for path in Path("runs/digits/small_cnn").iterdir()}


def test_a_table_and_a_file_a_run(runs, command):
    shown = command("calibrate", runs["single"], runs["mc-droprelu-0.9"]).stdout
    assert "digits after temperature scaling (two-fold cross-fit on the test set; not in the paper)" in shown
    for name, method in (("single", "single"), ("mc-droprelu-0.9", "mc-droprelu:0.9")):
        file = runs[name] / "calibration.json"
        entry = json.loads(file.read_text())["samples=4,seed=0"]
        (row,) = (line for line in shown.splitlines() if line.startswith(f" {method} "))
        assert f"{entry['temperatures'][0]:.3f}, {entry['temperatures'][1]:.3f}" in row
        assert f"{100 * entry['before']['accuracy']:.2f} %" in row
        for score in ("ece", "nll", "brier"):
            assert f"{entry['before'][score]:.4f} → {entry['after'][score]:.4f}" in row
        assert str(file) in shown.splitlines()
    assert list(Path("runs").rglob("*.partial")) == []


def test_numbers_are_whole_where_there_is_little_room(runs, command, monkeypatch):
    command("evaluate", runs["single"], "--samples", 2, "--augment", "flip,shift:2")
    for columns in (60, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = command("calibrate", runs["single"], runs["mc-droprelu-0.9"]).stdout.splitlines()
        for name in ("single", "mc-droprelu-0.9"):
            entry = list(json.loads((runs[name] / "calibration.json").read_text()).values())[-1]
            nll = f"{entry['before']['nll']:.4f} → {entry['after']['nll']:.4f}"
            assert any(nll in line for line in lines)
        assert "no room for Brier" in "".join(lines)


def test_an_augmented_measurement_is_named(runs, command):
    command("evaluate", runs["single"], "--samples", 2, "--augment", "flip")
    assert "single (augmented: flip)" in command("calibrate", runs["single"]).stdout
    assert "measured (augmented: flip)" in command("runs", "list", "--runs", Path("runs")).stdout


def test_json_and_ids(runs, as_json):
    identity = runs["single"].name.rpartition("-")[2]
    content = as_json("calibrate", identity, runs["single"])
    (one,) = content["runs"]
    assert (one["run"], one["measurement"]) == (str(runs["single"]), "samples=4,seed=0")
    assert one["config"]["method"] == "single"
    assert one["calibration"] == json.loads((runs["single"] / "calibration.json").read_text())["samples=4,seed=0"]


def test_a_bound_is_remarked(runs, command):
    file = runs["single"] / "calibration.json"
    command("calibrate", runs["single"])
    entries = json.loads(file.read_text())
    entries["samples=4,seed=0"]["temperatures"][1] = 100.0
    file.write_text(json.dumps(entries))
    file.with_name("checksums.json").unlink()
    result = command("calibrate", runs["single"])
    assert "no temperature from 0.01 to 100 is best for single" in result.stderr


def test_the_rest_is_calibrated_where_a_run_cannot_be(runs, command):
    """``mc-rrelu`` is only trained, and comes before ``single``."""
    every = sorted(runs.values())
    result = command("calibrate", *every, code=1)
    assert [line.split()[0] for line in result.stdout.splitlines() if " → " in line] == ["mc-droprelu:0.9", "single"]
    (said,) = (line for line in result.stderr.splitlines() if line.startswith("error: "))
    assert f"{runs['mc-rrelu']} is not measured yet" in said
    content = json.loads(command("calibrate", *every, "--json", code=1).stdout)
    assert [one["run"] for one in content["runs"]] == [str(runs[name]) for name in ("mc-droprelu-0.9", "single")]
    assert [(one["run"], f"error: {one['error']}") for one in content["failed"]] == [(str(runs["mc-rrelu"]), said)]
    (runs["single"] / "probs.npy").unlink()
    result = command("calibrate", runs["single"], runs["mc-rrelu"], code=1)
    assert result.stdout == ""
    assert result.stderr.count("error: ") == 2


def test_members_of_an_ensemble_need_not_be_measured(runs, command, as_json):
    command("compare", "--methods", "deep-ensemble:2", "--samples", 4, *TINY)
    runs["mc-rrelu"].rename("elsewhere")
    every = sorted(Path("runs/digits/small_cnn").iterdir())
    assert [path.name.partition("-seed")[0] for path in every].count("single") == 2, "one of them only trained"
    result = command("calibrate", *every)
    assert result.stdout.count(" → ") == 3 * 3
    assert "never measured alone: 1 network of these runs" in result.stderr
    assert "error" not in result.stderr
    assert as_json("calibrate", *every).keys() == {"runs"}
    assert "not measured yet" in command("calibrate", *(one for one in every if "-seed1-" in one.name), code=1).stderr


def test_mistakes_get_one_sentence(runs, fails, command):
    assert "there is no run 'nowhere'" in fails("calibrate", "nowhere", code=2)
    assert "not measured yet; run `rbue evaluate " in fails("calibrate", runs["mc-rrelu"], code=1)
    (runs["single"] / "probs.npy").unlink()
    said = fails("calibrate", runs["single"], code=1)
    assert "probs.npy is not there" in said
    assert not list(Path("runs").rglob("calibration.json"))
    # The way out that the sentence names.
    command("evaluate", runs["single"], "--samples", 4)
    assert "single" in command("calibrate", runs["single"]).stdout
    (runs["single"] / "probs.npy").write_bytes(b"no numbers")
    assert "probs.npy cannot be read" in fails("calibrate", runs["single"], code=1)
    (runs["single"] / "probs.npy").unlink()
    command("evaluate", runs["single"], "--samples", 4)
    assert "single" in command("calibrate", runs["single"]).stdout
    (runs["single"] / "calibration.json").write_text("{")
    assert "remove it to have it made again" in fails("calibrate", runs["single"], code=1)
    command("calibrate", code=2)
