"""``rbue ood``: table, JSON, mistakes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rbue.lab.runs.out_of_distribution import SCORES

FEW = ("--samples", 3, "--images", 40, "--training-images", 100, "--k", 3)


@pytest.fixture
def trained(trained_once, tmp_path):
    """A copy of that run."""
    root = Path(trained_once).parents[2]
    return shutil.copytree(root, tmp_path / "runs") / Path(trained_once).relative_to(root)


def test_table_and_json(trained, command, as_json, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = ("ood", trained, "--near", "colour-digits, colour-digits-few", *FEW)
    shown = command(*words)
    assert "digits (40 test images) against colour-digits (40), colour-digits-few (40)" in shown.stdout
    for word in ("AUROC near", "FPR95 near", "mahalanobis", "mutual information", str(trained / "ood.json")):
        assert word in shown.stdout, word
    assert "far" not in shown.stdout
    assert "mc-droprelu:0.9 seed 0: 4 of 4" in shown.stderr
    (run,) = as_json(*words)["runs"]
    assert (run["near"], "far" in run) == (["colour-digits", "colour-digits-few"], False)
    assert tuple(run["means"]["near"]) == SCORES
    assert f"{run['means']['near']['energy']['auroc']:.4f}" in shown.stdout
    assert run["result"]["draws"] == "independent"
    again = command(*words)
    assert again.stdout == shown.stdout
    assert again.stderr == ""


def test_mistakes_are_one_sentence(trained, fails):
    assert "no usual set outside of digits" in fails("ood", trained, code=2)
    assert "did you mean 'colour-digits'?" in fails("ood", trained, "--near", "color-digits", code=2)
    assert "is the data set that the run was trained on" in fails("ood", trained, "--far", "digits", code=2)
    assert "named as near and as far" in fails("ood", trained, "--far", "svhn", "--near", "svhn", code=2)
    assert not (trained / "ood.json").exists()
