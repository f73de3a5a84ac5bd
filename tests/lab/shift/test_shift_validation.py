"""Damaged forms of held-out images: measured beside the test images, and never mixed with them."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_shift import CPU, LEVELS, NAMES, _own_places, ensemble_of, in_order, measure, trained_runs  # noqa: F401

from rbue import metrics
from rbue.errors import InvalidInput
from rbue.lab import data
from rbue.lab.corruptions import corrupt
from rbue.lab.paper.results import shift_rows
from rbue.lab.runs.folders import RunFolder
from rbue.lab.runs.measuring import evaluate_run, predict_images
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.training import train_run
from rbue.lab.shift import Setting, ShiftStore, clean_result, shift_runs
from rbue.lab.shift.rows import clean_otherwise


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A root with an mc-droprelu and two plain networks, trained without 15 of 72 images; not to be changed."""
    return trained_runs(tmp_path_factory.mktemp("held-out"), holdout=15, holdout_seed=3)


@pytest.fixture
def runs(trained, tmp_path):
    root, config = trained
    return shutil.copytree(root, tmp_path / "runs"), config


def test_rows_are_those_of_the_damaged_held_out_images(runs):
    root, config = runs
    rows = measure(config, root, split="validation")
    assert [(row["corruption"], row["severity"]) for row in rows] == [(name, one) for name in NAMES for one in LEVELS]
    _, held_out = data.holdout(data.load(config.data, "train"), 15, 3)
    networks = load_networks(config, root, CPU)
    for row in rows:
        damaged = replace(held_out, images=corrupt(held_out.images, row["corruption"], row["severity"]))
        prediction = predict_images(config, networks, damaged, Passes(6), CPU)
        labels = torch.from_numpy(held_out.labels)
        assert row["accuracy"] == pytest.approx(float(metrics.accuracy(prediction.probs, labels)))
        assert row["nll"] == pytest.approx(float(metrics.nll(prediction.probs, labels)), rel=1e-5)
        assert (row["images"], row["split"]) == (15, "validation")
        assert row["clean_sha256"] == held_out.record()["sha256"]


def test_they_are_kept_apart_from_those_of_the_test_images(runs):
    root, config = runs
    folder = RunFolder.of(config, root)
    of_test = measure(config, root)
    kept = {path: path.read_bytes() for path in (folder.path / "shift.json", *(folder.path / "shift").iterdir())}
    held_out = measure(config, root, split="validation")
    assert {path: path.read_bytes() for path in kept} == kept
    assert all("split" not in row and row["images"] == 33 for row in of_test)
    assert (folder.path / "validation_shift.json").exists()
    assert np.load(folder.path / "validation_shift" / "fog-1.npy").shape == (15, 3)
    assert measure(config, root) == of_test
    assert measure(config, root, split="validation") == held_out
    assert in_order(shift_rows(config, root, 6)) == in_order(of_test)
    (folder.path / "shift.json").unlink()
    assert ShiftStore(folder).find(config, Setting(6)) == {}
    assert measure(config, root, split="validation") == held_out


def test_nothing_is_measured_twice_and_ensembles_come_from_their_members(runs, monkeypatch):
    root, config = runs
    whole = ensemble_of(config)
    rows = measure(whole, root, split="validation")
    assert {row["combined_from"] for row in rows} == {"stored probabilities"}
    assert {row["split"] for row in rows} == {"validation"}
    monkeypatch.setattr("rbue.lab.shift.measuring.load_networks", lambda *_: 1 / 0)
    assert measure(whole, root, split="validation") == rows
    with pytest.raises(ZeroDivisionError):
        measure(whole, root)


def test_runs_that_held_out_other_images_are_measured_on_their_own(runs):
    root, config = runs
    other = replace(config, holdout_seed=4)
    train_run(other, root, CPU)
    both = shift_runs([config, other], root, CPU, ["fog"], [1], samples=2, split="validation")
    assert both[0][0]["clean_sha256"] != both[1][0]["clean_sha256"]
    of_test = shift_runs([config, other], root, CPU, ["fog"], [1], samples=2)
    assert of_test[0][0]["clean_sha256"] == of_test[1][0]["clean_sha256"]


def test_the_clean_result_is_that_of_the_same_images(runs):
    root, config = runs
    folder = RunFolder.of(config, root)
    found = evaluate_run(config, root, CPU, samples=6, split="validation")
    assert clean_result(config, folder, Setting(6)) is None
    assert clean_result(config, folder, Setting(6), "validation") == found
    assert clean_otherwise(config, folder, Setting(6)) == ""
    assert clean_otherwise(config, folder, Setting(5), "validation").endswith("--samples 5 --split validation` adds it")


@pytest.mark.parametrize(
    ("changes", "split", "said"),
    [
        ({"holdout": 0}, "validation", "has no validation images; train it with --holdout N, a tenth of its"),
        ({}, "valid", "split must be test or validation, not 'valid'"),
    ],
)
def test_images_that_are_not_there_are_refused(runs, changes, split, said):
    root, config = runs
    with pytest.raises(InvalidInput, match=said):
        measure(replace(config, **changes), root, split=split)
