"""rbue paper: list, plan, run, report and claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rbue.lab.paper import planning
from rbue.lab.paper.experiments import IDS

PUBLISHED = Path(__file__).parents[3] / "results" / "runs"
SMALL = ("table1-cifar10", "--quick", "--models", "vgg13", "--methods", "single,deep-ensemble:4", "--epochs", 1)


@pytest.fixture(autouse=True)
def _little_is_timed(monkeypatch):
    """A plan times real steps of a network; here two of two images."""
    monkeypatch.setattr(planning, "TIMED_BATCH", {"cpu": 2})
    monkeypatch.setattr(planning, "TIMED_STEPS", 2)


def test_list(command, as_json, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = command("paper", "list").stdout
    assert all(f"rbue paper run {name}" in shown for name in IDS)
    monkeypatch.setenv("COLUMNS", "80")
    assert "to do the rest: `rbue paper run ID` (a wider" in command("paper", "list").stderr
    assert shown.count("not run") == len(IDS)
    content = as_json("paper", "list")["experiments"]
    assert [one["id"] for one in content] == list(IDS)
    assert any("CIFAR-10 is assumed" in note for note in content[3]["notes"])


def test_plan_then_run_then_report(command, as_json):
    before = as_json("paper", "plan", *SMALL)
    assert [run["missing"] for run in before["runs"]] == [["train", "clean"], ["train", "train", "train", "clean"]]
    assert before["seconds"] > 0
    shown = command("paper", "plan", *SMALL).stdout
    assert "train 3, clean" in shown
    assert "2 of 2 runs have something missing" in shown
    assert "on one NVIDIA H200" not in shown, "nobody runs the stand-ins there"
    assert not Path("runs").exists()

    first = command("paper", "run", *SMALL)
    assert "1 of 2: train colour-digits-few vgg13 single seed 0" in first.stderr
    assert first.stdout.splitlines()[-1] == "runs"
    assert len(list(Path("runs").rglob("training.json"))) == 4
    calibrated = {path.parent.name.partition("-seed")[0] for path in Path("runs").rglob("calibration.json")}
    assert calibrated == {"single", "deep-ensemble-4"}
    again = as_json("paper", "run", *SMALL)
    assert (again["done"], again["left"], again["already"]) == ([], [], 2)
    assert as_json("paper", "plan", *SMALL)["seconds"] == 0

    result = command("paper", "report")
    assert "0 of 21 experiments complete (quick)" in result.stdout
    assert "table1-cifar10: 28 missing: vgg13 mc-dropout:0.2; " in result.stderr
    assert result.stdout.splitlines()[-1] == str(Path("paper-report/report.html"))
    page = Path("paper-report/report.html").read_text()
    assert [name for name in IDS if f'id="{name}"' in page] == list(IDS[:3]), "one stand-in for all data sets"
    assert "28 missing: vgg13 mc-dropout:0.2; " in page
    listed = {one["id"]: one for one in as_json("paper", "list")["experiments"]}
    assert listed["table1-cifar10"]["state"].startswith("28 missing: vgg13 mc-dropout:0.2; ")
    assert listed["fig-jsd"]["command"] == "rbue paper run fig-jsd --quick --epochs 1"
    assert "on a GPU" not in command("paper", "list").stdout  # nobody runs the stand-ins there
    assert "these numbers are no evidence" in page
    assert "two-fold cross-fit on the test set; not in the paper" in page
    assert r"\toprule" in Path("paper-report/report.tex").read_text()
    text = Path("paper-report/report.md").read_text()
    assert "**Quick run**" in text
    assert "| vgg13 | single |" in text
    assert "paper 93.85" in text
    content = as_json("paper", "report", "table1-cifar10", "-o", "other")
    assert content["scale"] == "quick"
    assert {Path(name).name for name in content["files"]} >= {"report.html", "report.md", "report.csv", "report.tex"}
    assert "paper 93.85" in Path("other/report.html").read_text()
    assert Path("other/data/table1-cifar10.json").is_file()
    judged = as_json("paper", "claims")
    assert judged["scale"] == "quick"


def test_a_budget_that_is_over_says_what_is_left(command, as_json):
    result = command("paper", "run", *SMALL, "--time-budget", "0.001s")
    assert "the time is over; 6 steps are left" in result.stdout
    assert "train colour-digits-few vgg13 single seed 0" in result.stdout
    assert not list(Path("runs").rglob("training.json"))


def test_figures_without_runs(command, as_json):
    content = as_json("paper", "run", "fig-activations", "fig-network")
    assert content["done"] == ["draw from fig-activations", "draw from fig-network"]
    assert as_json("paper", "run", "fig-activations")["done"] == []
    assert json.loads(Path("runs/paper/full/fig-activations.json").read_text())["q"] == 0.9


def test_report_of_nothing(command):
    result = command("paper", "report")
    assert "measured in runs with these settings yet; `rbue paper run --all` does it." in result.stderr
    some = command("paper", "report", "variance", "table1-cifar10", "--quick", "--epochs", 2)
    assert "`rbue paper run table1-cifar10 variance --quick --epochs 2` does it." in some.stderr
    assert "0 of 21 experiments complete (full)" in result.stdout
    assert "Nothing has been measured with these settings yet" in Path("paper-report/report.html").read_text()


def test_claims(command, as_json):
    shown = command("paper", "claims").stdout
    assert "outperforms-dropout" in shown
    assert "not measured" in shown
    content = {claim["id"]: claim for claim in as_json("paper", "claims")["claims"]}
    assert content["outperforms-dropout"]["paper"]["verdict"] == "false"
    assert content["jsd-order"]["paper"]["verdict"] == "true"
    assert content["jsd-order"]["measured"]["verdict"] == "not measured"
    assert "93.37 % against 93.78 %" in command("paper", "claims", "--why").stdout


@pytest.mark.parametrize(("columns", "room"), [(80, False), (140, True)])
def test_sentences_are_shown_where_there_is_room(command, monkeypatch, columns, room):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert ("cannot be calculated" in command("paper", "claims").stdout) is room
    assert "“This cannot be calculated”, read as:" in command("paper", "claims", "--why").stdout.replace("\n", " ")


def test_the_network_that_was_measured_stands_for_the_papers(as_json):
    """The published runs: the paper shows corruptions for DenseNet-121, ours are of ResNet-18."""
    listed = {one["id"]: one for one in as_json("paper", "list", "--runs", str(PUBLISHED))["experiments"]}
    assert listed["fig-shift-cifar10"]["state"] == "complete"
    assert "resnet18 svi" in listed["fig-shift-tinyimagenet"]["state"]
    planned = as_json("paper", "plan", "fig-shift-tinyimagenet", "--runs", str(PUBLISHED))
    assert listed["fig-shift-tinyimagenet"]["gpu_seconds"] == pytest.approx(planned["gpu_seconds"])
    assert listed["fig-shift-cifar10"]["gpu_seconds"] == 0
    found = as_json("paper", "claims", "--runs", str(PUBLISHED))
    judged = {claim["id"]: claim["measured"] for claim in found["claims"]}
    assert judged["shift-on-par"]["known"] == judged["shift-on-par"]["cases"] > 0
    assert "resnet18, severity 1" in judged["shift-on-par"]["why"]


@pytest.mark.parametrize("verb", ["report", "claims"])
def test_a_named_folder_of_runs_must_be_there(verb, command, fails):
    assert "there is no folder nowhere" in fails("paper", verb, "--runs", "nowhere", code=2)
    assert "there is no folder runs" in fails("paper", verb, "--runs", "runs", code=2)
    assert not Path("paper-report").exists()
    Path("empty").mkdir()
    command("paper", verb, "--runs", "empty")


def test_missing_data_is_named(command):
    result = command("paper", "run", "table2-cifar100", "--models", "vgg13", "--methods", "single")
    assert "cifar100 is not on this machine; run `rbue data fetch cifar100`" in result.stderr
    planned = command("paper", "plan", "table2-cifar100", "--models", "vgg13", "--methods", "single", "--epochs", 1)
    assert "cifar100 is not on this machine" in planned.stderr
    assert "on one NVIDIA H200\n  reckoned from trainings in results/runs" in planned.stdout
    assert "with --quick: small stand-ins that fit a laptop" in planned.stdout
    assert "several machines: " in planned.stdout


def test_mistakes_get_one_sentence(fails):
    assert "did you mean 'table1-cifar10'?" in fails("paper", "run", "table1-cifar", code=2)
    assert "did you mean 'table1-cifar10'?" in fails("paper", "plan", "table1", code=2)
    assert "did you mean 'fig-q-sweep'?" in fails("paper", "plan", "fig-qsweep", code=2)
    assert "give --all" in fails("paper", "run", code=2)
    assert "not '25'" in fails("paper", "run", "variance", "--time-budget", 25, code=2)
    assert "--seeds" in fails("paper", "run", "variance", "--seeds", "many", code=2)
    assert "not 'fast'" in fails("paper", "run", "table1-cifar10", "--engine", "fast", code=2)
    assert "not 'fast'" in fails("paper", "run", "nowhere", "--engine", "fast", code=2)
    words = ("paper", "run", "table1-cifar10", "--engine", "captured", "--workers", 2)
    assert "--workers is for --engine processes" in fails(*words, code=2)
    assert "--models names no network; it takes" in fails("paper", "claims", "--models", ",", code=2)
    assert "no network 'vgg16'" in fails("paper", "run", "table1-cifar10", "--models", "vgg16", code=2)
    assert "did you mean 'single'?" in fails("paper", "run", "table1-cifar10", "--methods", "singel", code=2)
    assert "none of these experiments has mc-droprelu:0.7" in fails(
        "paper", "run", "table1-cifar10", "--methods", "mc-droprelu:0.7", code=2
    )
    assert "leaves nothing" in fails("paper", "run", "variance", "--only", "table1-cifar10", code=2)
    assert not Path("runs").exists()


def test_only_takes_ids_and_steps(as_json):
    content = as_json("paper", "plan", "--quick", "--only", "table6*,train")
    assert {run["method"] for run in content["runs"]} == {
        "mc-droprelu:0.8",
        "mc-droprelu:0.8,last",
        "mc-droprelu:0.8,first",
    }
    assert all(run["missing"] == ["train"] for run in content["runs"])
    assert as_json("paper", "plan", "--quick", "--only", "table6*,diversity")["runs"][0]["missing"] == ["clean"]


@pytest.mark.slow  # judging every sentence by the published runs takes seconds
def test_the_page_needs_no_data_set(command, monkeypatch):
    def absent(*_, **__):
        raise AssertionError("a data set was asked for")

    monkeypatch.setattr("rbue.lab.data.load", absent)
    wanted = ("table4-jsd", "fig-activations", "fig-framework", "fig-shot-noise")
    command("paper", "report", *wanted, "--runs", str(PUBLISHED))
    page = Path("paper-report/report.html").read_text()
    absent = page.partition("Not here yet")[2].partition("</ul>")[0]
    for name in wanted:
        assert (f'id="{name}"' in page) != (f"rbue paper run {name} --runs" in absent), "drawn, or a line"
    assert 'id="fig-shot-noise"' in page


def test_what_the_budget_leaves_out_is_said(command, as_json):
    Path("runs/paper").mkdir(parents=True)
    Path("runs/paper/budget.json").write_text(json.dumps([{"why": "of time", "models": ["vgg13"], "seeds": 0}]))
    said = "Left out: all rows, because of time. --seeds 1 has them all the same."
    for verb in ("run", "plan"):
        assert said in command("paper", verb, "table1-cifar10", "--models", "vgg13", "--device", "cpu").stderr
    assert len(as_json("paper", "report", "table1-cifar10")["left_out"]["table1-cifar10"]) == 10
    (one, *_) = as_json("paper", "list")["experiments"]
    assert (one["id"], len(one["left_out"])) == ("table1-cifar10", 10)
