"""``rbue report``: every form, partial results, nothing at all."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from tiny_runs import TINY

from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.training import recipe_for

METHODS = "single,mc-droprelu:0.9"


@pytest.fixture(scope="session")
def measured_once(tmp_path_factory):
    """A runs folder with two measured methods and one that is only trained; not to be changed."""
    from typer.testing import CliRunner

    from rbue.lab.cli import app

    root = tmp_path_factory.mktemp("measured") / "runs"
    for words in (["compare", "--methods", METHODS, "--samples", "4"], ["train", "--method", "mc-rrelu"]):
        result = CliRunner().invoke(app, [*words, "--runs", str(root), *TINY])
        assert result.exit_code == 0, result.output
    return root


def test_page(measured_once, command, monkeypatch):
    monkeypatch.setattr("rbue.lab.report.page.inline_svg", lambda *_: "<svg></svg>")  # figures take their time
    result = command("report", measured_once)
    assert result.stdout.strip() == "report.html"
    text = Path("report.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "mc-droprelu:0.9" in text
    assert "trained but not measured" in text
    assert "missing: " in result.stderr
    assert str(measured_once) not in text
    assert list(Path.cwd().glob("*.partial")) == []


@pytest.mark.parametrize("given", ["suffix", "format"])
def test_other_forms(measured_once, command, given):
    for form, suffix, begin in (("md", ".md", "# small"), ("latex", ".tex", "% Needs"), ("csv", ".csv", "data,model,")):
        path = Path(f"out/table{suffix if given == 'suffix' else '.txt'}")
        command("report", measured_once, "-o", path, *(["--format", form] if given == "format" else []))
        assert path.read_text().startswith(begin)


def test_csv_has_a_row_a_run_with_where_it_comes_from(measured_once, command):
    command("report", measured_once, "-o", "table.csv")
    rows = list(csv.DictReader(Path("table.csv").read_text().splitlines()))
    assert [row["method"] for row in rows] == ["mc-droprelu:0.9", "single"]
    for row in rows:
        path = measured_once / row["run"]
        (result,) = json.loads((path / "results.json").read_text()).values()
        assert float(row["accuracy"]) == result["accuracy"]
        assert float(row["ece"]) == result["ece"]
        assert all(row[name] for name in ("hardware", "versions", "seed", "sample_seed", "test_images"))


def test_the_numbers_of_the_paper_stand_beside(command, tmp_path):
    config = RunConfig(data="cifar10", model="resnet18", method="mc-droprelu:0.95", recipe=recipe_for("cifar10"))
    folder = RunFolder.of(config, tmp_path / "runs")
    folder.open(config, {})
    result = {"accuracy": 0.95, "ece": 0.021, "samples": 100, "seed": 0, "mean_jsd": 0.01}
    folder.write("results", {"samples=100,seed=0": result})
    command("report", "runs", "-o", "table.md")
    assert re.search(r"95\.00\s% \(paper 95\.32\s%, −0\.32\)", Path("table.md").read_text())
    command("report", "runs", "-o", "table.csv")
    (row,) = csv.DictReader(Path("table.csv").read_text().splitlines())
    assert (row["accuracy_paper"], row["ece_paper"]) == ("0.9532", "0.02")


def test_runs_are_named_by_folder_parent_and_id(measured_once, command, as_json):
    (single,) = measured_once.glob("digits/*/single-*")
    identity = single.name.rpartition("-")[2]
    by_folder = as_json("report", single, "-o", "one.md")
    assert [Path(run).name for run in by_folder["runs"]] == [single.name]
    assert by_folder["missing"] == []
    by_id = as_json("report", identity, "--runs", measured_once, "-o", "one.md")
    assert by_id["runs"] == by_folder["runs"]
    several = as_json("report", single, measured_once / "digits", identity, "--runs", measured_once, "-o", "one.md")
    assert len(several["runs"]) == 2
    assert several["format"] == "md"
    assert "not measured" in several["missing"][0]


def test_nothing_to_report(measured_once, fails, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no run in empty yet" in fails("report", "empty", code=2)
    assert "there is no run 'nowhere'" in fails("report", "nowhere", code=2)
    (unmeasured,) = measured_once.glob("digits/*/mc-rrelu-*")
    assert f"{unmeasured.name}: trained but not measured" in fails("report", unmeasured, code=1)
    assert not Path("report.html").exists()


def test_wrong_names(measured_once, fails):
    assert ".html, .htm, .md, .tex, .csv" in fails("report", measured_once, "-o", "report.pdf", code=2)


def test_a_broken_run_does_not_spoil_the_others(measured_once, as_json, tmp_path):
    root = shutil.copytree(measured_once, tmp_path / "runs")
    (single,) = root.glob("digits/*/single-*")
    (single / "results.json").write_text("{")
    content = as_json("report", root, "-o", "table.md")
    assert len(content["runs"]) == 1
    assert any("cannot be read" in sentence for sentence in content["missing"])


def test_why_there_is_nothing_to_report_is_a_sentence(measured_once, fails, tmp_path):
    root = shutil.copytree(measured_once, tmp_path / "runs")
    (single,) = root.glob("digits/*/single-*")
    (single / "results.json").unlink()
    (single / "training.json").unlink()
    assert f"{single.name}: training stopped after 1 of 1 epochs" in fails("report", single, code=1)
    (single / "results.json").write_text("{")
    assert f"{single.name}: cannot be read: " in fails("report", single, code=1)
