"""``rbue active`` and ``rbue active-report``: rounds, JSON, the page, mistakes."""

from __future__ import annotations

import functools
import json

from rbue.lab import data

TINY = ("--width", 0.25, "--batch", 64, "--steps", 2, "--samples", 2, "--rounds", 0, "--method", "mc-droprelu:0.95")


def test_rounds_then_the_page(as_json, command, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", functools.cache(data.load))
    rounds = as_json("active", "--acquire", "random,bald", "--seeds", 2, *TINY)["runs"]
    assert [(one["config"]["acquire"], one["config"]["seed"]) for one in rounds] == [
        ("random", 0),
        ("random", 1),
        ("bald", 0),
        ("bald", 1),
    ]
    assert as_json("active", "--seed", 1, *TINY)["runs"] == rounds[3:]  # found done, to the second
    shown = command("active", "--seed", 1, *TINY).stdout
    assert "mc-droprelu:0.95, bald, seed 1" in shown
    assert shown.splitlines()[-1] == rounds[3]["run"]

    document = as_json("active-report", "runs/active", "-o", "page.html", "--accuracies", "0.01,0.99")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    (comparison,) = document["comparisons"]
    assert comparison["levels"] == [0.01, 0.99]
    random, bald = comparison["curves"]
    assert random["labels"] == bald["labels"] == [20]
    assert bald["labels_saved"]["0.01"] == {"mean": 0, "std": 0, "values": [0, 0], "seeds": 2}
    assert bald["labels_saved"]["0.99"]["mean"] is None
    assert json.loads(command("runs", "list", "--json").stdout) == {"runs": []}  # they are no runs of `rbue train`


def test_mistakes_are_one_sentence(fails):
    assert "there is no acquisition 'batchbald' (did you mean 'batch-bald'?)" in fails(
        "active", "--acquire", "batchbald", code=2
    )
    assert "bald compares the samples of an image, but single has one" in fails("active", "--method", "single", code=2)
    assert "20 + 10 x 1,000 = 10,020 labels" in fails("active", "--take", 1000, code=2)
    assert "both say how long to train" in fails("active", "--steps", 5, "--epochs", 2, code=2)
    assert "--acquire names none" in fails("active", "--acquire", " ,", code=2)
    assert "there are no rounds of active learning in nowhere" in fails("active-report", "nowhere", code=2)
    assert "end its name in .html" in fails("active-report", "runs", "-o", "page.pdf", code=2)
    assert "--accuracies must be numbers" in fails("active-report", "runs", "--accuracies", "high", code=2)
    assert "must lie above 0" in fails("active-report", "runs", "--accuracies", "90", code=2)
