"""``rbue active`` and ``rbue active-report``: rounds, JSON, the page, mistakes."""

from __future__ import annotations

import functools
import json
import pickle
from contextlib import contextmanager

import pytest
import torch

from rbue.errors import RbueError
from rbue.lab import data
from rbue.lab.active import loop
from rbue.lab.cli import active
from rbue.lab.executors import Done, Executor

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
    assert bald["labels_saved"]["0.01"] == {"mean": 0, "std": 0, "values": [0, 0], "seeds": 2, "at_least": 0}
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


class Elsewhere(Executor):
    """Tasks as another process gets them, which fails with one of them."""

    began: list = []  # noqa: RUF012

    def each(self, task, following):
        self.began.clear()
        while (config := following()) is not None:
            self.began.append((config.run.seed, config.run.method))
            if config.acquire == "margin" and config.run.seed == 1:
                yield Done(config, None, RbueError("the process of this task ended."))
                continue
            task, config = pickle.loads(pickle.dumps((task, config)))
            yield Done(config, pickle.loads(pickle.dumps(task(config))), None)


@pytest.fixture
def elsewhere(monkeypatch):
    @contextmanager
    def on(*_):
        yield Elsewhere(torch.device("cpu"))

    monkeypatch.setattr(active.TaskOptions, "on", on)


MANY = ("--acquire", "random,margin", "--seeds", 2, *TINY[:-1], "single,deep-ensemble:2")


def test_runs_are_tasks_that_any_process_can_do(as_json, command, elsewhere, monkeypatch):
    """Whole seeds come first, in each the longest runs; one that fails leaves the others."""
    loads = []
    monkeypatch.setattr(loop, "training_images", lambda run: loads.append(run) or data.load(run.data, "train"))
    failed = command("active", "--engine", "ray", *MANY, code=1)
    assert Elsewhere.began == [
        *((0, "deep-ensemble:2"), (0, "deep-ensemble:2"), (0, "single"), (0, "single")),
        *((1, "deep-ensemble:2"), (1, "deep-ensemble:2"), (1, "single"), (1, "single")),
    ]
    assert len(failed.stdout.strip().splitlines()[-6:]) == 6
    assert failed.stderr.count("error: the process of this task ended.") == 2
    assert len(loads) == 1  # for all runs of a process
    monkeypatch.undo()
    runs = as_json("active", *MANY)["runs"]
    assert len(runs) == 8
    assert [one["config"]["method"] for one in runs] == ["single"] * 4 + ["deep-ensemble:2"] * 4


def test_here_the_first_error_ends_it(fails, monkeypatch):
    def diverge(*_, **__):
        raise loop.Diverged("training diverged.")

    monkeypatch.setattr(loop, "_round", diverge)
    assert "training diverged" in fails("active", "--seeds", 2, *TINY, code=1)
