"""compare on the digits: one table, with one seed or several, and what of it is more than chance."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path

import pytest
from tiny_runs import TINY

from rbue.errors import InvalidInput
from rbue.lab.cli import compare as verbs
from rbue.lab.methods import list_methods


def test_compare_shows_one_table_and_writes_it(command, as_json):
    words = ("compare", "--methods", "single,mc-droprelu:0.8,last,deep-ensemble:2", "--samples", 4, *TINY)
    first = command(*words, "-o", "table.md")
    for heading in ("accuracy", "ECE", "NLL", "Mean-JSD", "Mean-DIS", "parameters", "training"):
        assert heading in first.stdout
    assert "2 of 3: mc-droprelu:0.8,last" in first.stderr
    *lines, blank, said = Path("table.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["single", "mc-droprelu:0.8,last", "deep-ensemble:2"]
    assert blank == ""
    assert "355 images" in said
    assert said in first.stdout
    content = as_json(*words, "-o", "table.json")
    assert json.loads(Path("table.json").read_text()) == content
    parameters = [row["parameters"] for row in content["methods"]]
    assert parameters[0] == parameters[1] == parameters[2] // 2
    assert content["methods"][0]["mean_jsd"] is None
    command(*words, "-o", "table.csv")
    assert Path("table.csv").read_text().splitlines()[0].startswith("method,accuracy,ece,nll,mean_jsd,mean_dis,")


def test_held_out_images_are_compared_without_a_look_at_the_test_images(command, as_json):
    words = ("compare", "--methods", "single,mc-droprelu:0.9", "--samples", 4, "--split", "validation", *TINY)
    said = command(*words, code=2).stderr
    assert "has no validation images; train it with --holdout N" in said
    said = command(*words, "--holdout", 100, "-o", "page.html", code=2).stderr
    assert "a page is about test images; with --split validation the name of page.html must end in .md" in said
    Path("page.md").mkdir()
    said = command(*words, "--holdout", 100, "-o", "page.md", code=1).stderr
    assert "page.md could not be written (Is a directory)." in said
    assert not Path("runs").exists()
    shown = command(*words, "--holdout", 100).stdout
    assert "small_cnn on digits (validation), seed 0" in shown
    assert "on 100 images" in shown.lower()
    for row in as_json(*words, "--holdout", 100)["methods"]:
        (kept,) = json.loads((Path(row["run"]) / "validation.json").read_text()).values()
        assert row["nll"] == kept["nll"]
        assert (row["data"]["split"], row["data"]["count"]) == ("validation", 100)
        assert not (Path(row["run"]) / "results.json").exists()


@pytest.mark.parametrize("name", ["folder:", "folder:images:0", "folder:images:abc", "folder:images:test=1.5", "svhn"])
def test_data_that_cannot_be_used_are_refused_before_the_first_method(name, fails, command):
    Path("images").mkdir()
    fails("compare", "--methods", "single,svi", "--data", name, *TINY, code=1)
    assert " of 2: " not in command("compare", "--methods", "single,svi", "--data", name, *TINY, code=1).stderr


def test_compare_goes_on_after_a_damaged_file(command, as_json):
    words = ("compare", "--methods", "single,mc-droprelu:0.8,svi", "--samples", 4, *TINY)
    whole = as_json(*words)["methods"]
    results = Path(whole[1]["run"]) / "results.json"
    results.write_text(results.read_text()[:200])
    (Path(whole[2]["run"]) / "results.json").unlink()
    result = command(*words, "-o", "table.md", code=1)
    (broken,) = [line for line in result.stdout.splitlines() if "mc-droprelu" in line]
    assert "unreadable" in broken
    assert "%" not in broken
    (measured,) = [line for line in result.stdout.splitlines() if line.strip().startswith("svi")]
    assert "%" in measured
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: {results} cannot be read")
    assert result.stderr.count("error: ") == 1
    assert "| mc-droprelu:0.8 | unreadable | – |" in Path("table.md").read_text()
    command(*words, "-o", "table.csv", code=1)
    assert "mc-droprelu:0.8,,,,,,," in Path("table.csv").read_text()
    rows = json.loads(command(*words, "--json", code=1).stdout)["methods"]
    assert [row["accuracy"] for row in rows] == [whole[0]["accuracy"], None, whole[2]["accuracy"]]
    assert "cannot be read" in rows[1]["error"]


def test_compare_says_why_nothing_could_be_measured(as_json, fails):
    words = ("compare", "--methods", "single,svi", "--samples", 4, *TINY)
    for row in as_json(*words)["methods"]:
        (Path(row["run"]) / "results.json").write_text("{")
    assert "results.json cannot be read" in fails(*words, code=1)


def test_compare_refuses_before_training(fails):
    assert "did you mean 'single'?" in fails("compare", "--methods", "mc-rrelu,singel", *TINY, code=2)
    assert ".html, .md, .csv, .json" in fails("compare", "--methods", "single", "-o", "table.xls", code=2)
    assert "flop" in fails("compare", "--methods", "single", "--augment", "flop", *TINY, code=2)
    assert "not 'fair'" in fails("compare", "--methods", "single", "--draws", "fair", *TINY, code=2)
    assert not Path("runs").exists()


def test_lists_of_methods():
    assert verbs.split_methods(None) == [*verbs.PAPER_METHODS]
    assert set(verbs.PAPER_METHODS) < set(list_methods())
    assert verbs.split_methods("single,mc-droprelu:0.9,last,svi") == ["single", "mc-droprelu:0.9,last", "svi"]
    assert verbs.split_methods("mc-rrelu:0.1,0.2 single;svi") == ["mc-rrelu:0.1,0.2", "single", "svi"]
    assert verbs.split_methods("mc-droprelu:0.9,mc-rrelus") == ["mc-droprelu:0.9", "mc-rrelus"]
    with pytest.raises(InvalidInput, match="names no method"):
        verbs.split_methods(" ")


def test_only_what_is_better_by_more_than_chance_is_marked(capsys):
    parts = [dict.fromkeys((column.key for column in verbs.COLUMNS), value) for value in (0.5, 0.25)]
    rows = [{"method": name, **part} for name, part in zip("ab", parts, strict=True)]
    assert "**" not in verbs.markdown(rows, verbs.Marks())
    marks = verbs.Marks(frozenset({("b", "nll")}), "`b` is ahead.")
    first, second, _, said = verbs.markdown(rows, marks).splitlines()[2:]
    assert "**" not in first
    assert second.count("**0.2500**") == second.count("**") / 2 == 1
    assert said == "`b` is ahead."
    for given, stars in ((verbs.Marks(), 0), (marks, 2)):  # in the table and below it
        verbs._show("title", rows, given)
        out = capsys.readouterr().out
        assert out.count("*") == stars
        assert "no diversity" not in out, "no row has a dash"


def test_an_earlier_measurement_is_compared_again_after_another_one(command, as_json):
    words = ("compare", "--methods", "single,mc-droprelu:0.8", *TINY)
    shown = command(*words, "--samples", 4)
    first = shown.stdout
    assert ("another training would move the numbers too" in shown.stderr) == ("chance" in first.splitlines()[-1])
    (_, row) = as_json(*words, "--samples", 4)["methods"]
    command("evaluate", row["run"], "--samples", 2)
    verdict = first.strip().splitlines()[-2]
    assert verdict in command(*words, "--samples", 4).stdout
    results = json.loads((Path(row["run"]) / "results.json").read_text())
    assert [*results] == ["samples=2,seed=0", row["measurement"]], "what was asked for last is last"
    assert results[row["measurement"]]["nll"] == row["nll"]


def test_a_comparison_of_another_measurement_is_not_marked(command, as_json):
    words = ("compare", "--methods", "mc-droprelu:0.8", *TINY)
    command(*words, "--samples", 4)
    (row,) = as_json(*words, "--samples", 5)["methods"]
    for weights in Path(row["run"]).glob("*.safetensors"):
        weights.unlink()
    assert "is right on" in command(*words, "--samples", 5).stdout
    assert "Chance cannot be told" in command(*words, "--samples", 4).stdout  # the answers of 5 samples are


def test_more_accuracy_and_diversity_are_better_and_less_of_all_else():
    better = {column.key for column in verbs.COLUMNS if column.title.endswith("↑")}
    assert better == {"accuracy", "mean_jsd", "mean_dis"}


def test_several_seeds_give_means_and_deviations(command, as_json):
    words = ("compare", "--methods", "single,deep-ensemble:2", "--seeds", 2, "--seed", 3, "--samples", 2, *TINY)
    shown = command(*words)
    assert "2 of 4: single seed 4" in shown.stderr
    assert "4 of 4: deep-ensemble:2 seed 5" in shown.stderr, "it shares no member with seed 3"
    assert "2 seeds, up to 2 samples" in shown.stdout
    assert "± standard deviation over seeds" in shown.stdout
    single, ensemble = as_json(*words, "-o", "table.csv")["methods"]
    accuracies = [one["accuracy"] for one in single["by_seed"]]
    assert single["accuracy"] == pytest.approx(statistics.fmean(accuracies))
    assert single["deviations"].get("accuracy", 0.0) == pytest.approx(statistics.stdev(accuracies))
    assert single["deviations"]["nll"] > 0
    assert "parameters" not in ensemble["deviations"]
    assert ensemble["parameters"] == 2 * single["parameters"]
    assert [json.loads((Path(run) / "config.json").read_text())["seed"] for run in ensemble["runs"]] == [3, 5]
    with open("table.csv") as file:
        first, second = csv.DictReader(file)
    assert float(first["nll_std"]) == single["deviations"]["nll"]
    assert (second["parameters_std"], second["mean_jsd"] != "") == ("", True)
    assert f"{100 * single['deviations'].get('accuracy', 0.0):.2f} %" in shown.stdout


def test_a_number_that_a_seed_lacks_has_no_mean():
    """As the diversity of an ensemble that was combined from stored probabilities."""
    parts = [dict.fromkeys((column.key for column in verbs.COLUMNS), value) for value in (0.5, 0.25)]
    row = verbs._row([{"method": "a", "run": "", **parts[0]}, {"method": "a", "run": "", **parts[1], "mean_jsd": None}])
    assert (row["mean_jsd"], row["mean_dis"]) == (None, 0.375)
    assert row["deviations"].keys() == parts[0].keys() - {"mean_jsd"}
    assert row["deviations"]["mean_dis"] == pytest.approx(0.25 / 2**0.5)


def test_a_method_with_a_damaged_seed_has_no_mean(command, as_json):
    words = ("compare", "--methods", "single,mc-droprelu:0.8", "--seeds", 2, "--samples", 2, *TINY)
    (Path(as_json(*words)["methods"][1]["runs"][1]) / "results.json").write_text("{")
    single, broken = json.loads(command(*words, "--json", code=1).stdout)["methods"]
    assert single["accuracy"] > 0
    assert (broken["accuracy"], broken["trouble"]) == (None, "unreadable")


def test_percentages_have_one_unit():
    row = {"accuracy": 0.9512, "nll": 0.25, "deviations": {"accuracy": 0.0021}}
    assert [column.cell(row) for column in verbs.COLUMNS if column.key in row] == ["95.12 ± 0.21 %", "0.2500"]


def test_all_methods_are_measured_in_the_same_way(as_json, command):
    words = ("compare", "--methods", "single,mc-droprelu:0.8", "--samples", 4, "--draws", "balanced", *TINY)
    rows = as_json(*words, "--augment", "flip, shift:1")["methods"]
    assert [row["augment"] for row in rows] == ["flip,shift:1"] * 2
    assert [row["samples"] for row in rows] == [4, 4], "a plain network has as many augmented samples"
    assert {row["measurement"] for row in rows} == {"samples=4,seed=0,draws=balanced,augment=flip,shift:1"}
    shown = command(*words, "--augment", "flip, shift:1").stdout
    assert "up to 4 samples, augmented by flip,shift:1" in shown
    assert "Mean-JSD and Mean-DIS are those of plain passes" in " ".join(shown.split())
    assert "plain passes" not in command(*words).stdout
    assert "Chance cannot be told" not in shown
    assert "– a method with one sample of an image as it is has no diversity" in shown
    assert [row["draws"] for row in as_json(*words)["methods"]] == ["independent", "balanced"]
