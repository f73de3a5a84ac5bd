"""What was measured, beside the paper's numbers, with what is missing."""

from __future__ import annotations

import base64
import csv
import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from faked_work import FakeWork, place

from rbue.lab.corruptions import CORRUPTIONS
from rbue.lab.environment import facts
from rbue.lab.paper.experiments import EXPERIMENTS, chosen, get
from rbue.lab.paper.gathering import gather
from rbue.lab.paper.illustrations import illustration_file, read_illustration, write_illustration
from rbue.lab.paper.planning import is_measured
from rbue.lab.paper.reporting import comma_separated, markdown, plain_files, write_report
from rbue.lab.paper.results import Measured
from rbue.lab.paper.runner import run_experiments
from rbue.lab.paper.settings import Settings, last_settings
from rbue.lab.runs.folders import RunFolder

TWO = Settings(models=("densenet121", "vgg13"), methods=("single", "deep-ensemble:4"), seeds=(0, 1))


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        FakeWork(patch)
        run_experiments(chosen(["table1-cifar10", "fig-shift-cifar10"]), TWO, place(root))
    return root


@pytest.fixture
def measured(measured_once, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(measured_once, tmp_path, dirs_exist_ok=True)


def test_several_seeds_give_mean_and_deviation(measured):
    found = Measured(measured, TWO).summary("cifar10", "vgg13", "single", "accuracy")
    assert found.values == (0.9, 0.91)
    assert found.mean == pytest.approx(0.905)
    assert found.deviation == pytest.approx(0.00707, abs=1e-5)
    one = Measured(measured, Settings()).summary("cifar10", "vgg13", "single", "accuracy")
    assert one.deviation is None


def test_runs_of_other_settings_do_not_count(measured):
    for other in (Settings(epochs=3), Settings(quick=True), Settings(samples=7)):
        assert Measured(measured, other).value("cifar10", "vgg13", "single", "accuracy") is None


@pytest.fixture
def one_run(tmp_path, monkeypatch):
    """The settings of a measured run, its config and its folder."""
    FakeWork(monkeypatch)
    settings = Settings(models=("vgg13",), methods=("mc-rrelu",))
    run_experiments(chosen(["table1-cifar10"]), settings, place(tmp_path))
    config = settings.config("cifar10", "vgg13", "mc-rrelu", 0)
    folder = RunFolder.of(config, tmp_path)
    return settings, config, folder


def test_results_of_another_random_stream_do_not_count(tmp_path, one_run):
    settings, config, folder = one_run
    assert Measured(tmp_path, settings).result(config) is not None
    assert is_measured(config, tmp_path, 100)
    folder.write("results", {key: {**entry, "stream_version": 0} for key, entry in folder.read("results").items()})
    assert Measured(tmp_path, settings).result(config) is None
    assert Measured(tmp_path, settings).calibration(config) is None
    assert not is_measured(config, tmp_path, 100)


def test_results_of_networks_that_were_trained_again_since_do_not_count(tmp_path, one_run):
    settings, config, folder = one_run
    folder.write("training", {**folder.read("training"), "seconds": 61})
    assert Measured(tmp_path, settings).result(config) is None
    assert not is_measured(config, tmp_path, 100)
    assert run_experiments(chosen(["table1-cifar10"]), settings, place(tmp_path)).done == [
        "measure cifar10 vgg13 mc-rrelu seed 0"
    ]
    assert Measured(tmp_path, settings).result(config)["training_seconds"] == 61


def test_a_calibration_of_other_probabilities_does_not_count(tmp_path, one_run):
    settings, config, folder = one_run
    for made_from, counts in (("b", False), ("a", True)):
        for name, noted in (("results", {"probs_sha256": "a"}), ("calibration", {"probs": {"sha256": made_from}})):
            folder.write(name, {key: {**entry, **noted} for key, entry in folder.read(name).items()})
        assert (Measured(tmp_path, settings).calibration(config) is not None) is counts


@pytest.mark.parametrize(("method", "counts"), [("mc-rrelu", False), ("single", True)])
def test_corrupted_rows_of_another_random_stream_do_not_count(method, counts, tmp_path, monkeypatch):
    work = FakeWork(monkeypatch)
    settings = Settings(methods=(method,))
    run_experiments(chosen(["fig-shift-cifar10"]), settings, place(tmp_path))
    config = settings.config("cifar10", "densenet121", method, 0)
    folder = RunFolder.of(config, tmp_path)
    content = folder.read("shift")
    folder.write("shift", {**content, "rows": [{**row, "stream_version": 0} for row in content["rows"]]})
    assert bool(Measured(tmp_path, settings).corrupted_rows(config)) is counts
    run_experiments(chosen(["fig-shift-cifar10"]), settings, place(tmp_path))
    assert len(work.shifted) == (1 if counts else 2)


def test_sizes_are_in_singles(measured):
    assert Measured(measured, TWO).value("cifar10", "vgg13", "deep-ensemble:4", "relative_size") == 4


@pytest.mark.parametrize("beside", ["side_by_side", "workers"])
def test_only_the_time_of_networks_trained_alone_decides_about_sentences(measured, beside):
    def seconds(method):
        return Measured(measured, TWO).value("cifar10", "vgg13", method, "training_seconds")

    assert (seconds("single"), seconds("deep-ensemble:4")) == (54, 4 * 54)  # of epochs alone
    folder = RunFolder.of(TWO.config("cifar10", "vgg13", "single", 1), measured)
    folder.write("training", {**folder.read("training"), beside: 2})
    assert seconds("single") is seconds("deep-ensemble:4") is None
    shown = gather(get("table1-cifar10"), TWO, measured)
    assert shown.rows[0].cells["training_seconds"].measured.values == (60,)  # not those of another kind
    assert len(shown.rows[0].cells["accuracy"].measured.values) == 2
    assert ("more or fewer processes" in shown.trained.note()) == (beside == "workers")
    assert Measured(measured, TWO).value("cifar10", "vgg13", "single", "accuracy") is not None


def test_times_of_more_processes_than_singles_are_not_shown_beside_its(measured):
    def times():
        return Measured(measured, TWO).summary("cifar10", "vgg13", "deep-ensemble:4", "training_seconds")

    members = [TWO.config("cifar10", "vgg13", "single", seed) for seed in range(8)]
    folders = [RunFolder.of(one, measured) for one in members]
    assert times().values == (240, 240)
    folders[2].write("training", {**folders[2].read("training"), "workers": 3})
    assert times().values == (240,)
    folders[5].write("training", {**folders[5].read("training"), "workers": 3})
    assert times() is None


def test_the_paper_stands_beside(measured):
    gathered = gather(get("table1-cifar10"), TWO, measured)
    row = gathered.rows[0]
    assert (row.model, row.method) == ("vgg13", "single")
    assert row.cells["accuracy"].paper == 0.9385
    assert row.cells["accuracy"].difference == pytest.approx(0.905 - 0.9385)
    assert gathered.missing == ()
    text = markdown(gathered)
    assert "90.50 ± 0.71 (paper 93.85, -3.35)" in text
    assert "(paper 0.05, " in text
    assert "paper 0.0500" not in text
    assert "Quick" not in text


def test_a_table_shows_its_own_numbers(tmp_path):
    """Table 6 repeats a row of Table 3 with another training time."""
    rows = gather(get("table6-position"), Settings(), tmp_path).rows
    (cell,) = (row.cells["training_seconds"] for row in rows if row.method == "mc-droprelu:0.8")
    assert cell.paper == pytest.approx(13.2 * 3600)


def test_times_are_readable_and_not_compared_with_those_of_other_hardware(measured):
    gathered = gather(get("table1-cifar10"), TWO, measured)
    assert gathered.rows[0].cells["training_seconds"].difference is None
    text = markdown(gathered)
    assert "| 1:00 ± 0.0\u00a0s (paper 1:24:00) |" in text
    machine = f"{facts()['cpu']}, {facts()['cores']} cores"
    assert f"Training times count compiling and saving, on {machine}; the paper's are from NVIDIA RTX 3090" in text
    assert "trained side by side (here 1 at a time) share the time" in text
    (row,) = (
        row
        for row in csv.DictReader(io.StringIO(comma_separated([gathered])))
        if (row["model"], row["method"], row["measure"]) == ("vgg13", "single", "training_seconds")
    )
    assert (row["mean"], row["difference"]) == ("60.0", "")


def test_shift_is_gathered_by_severity(measured):
    gathered = gather(get("fig-shift-cifar10"), TWO, measured)
    boxes = gathered.corrupted["ece"]["deep-ensemble:4"]
    assert sorted(boxes) == [1, 2, 3, 4, 5]
    assert len(boxes[3]) == 19
    assert Measured(measured, TWO).shift("cifar10", "densenet121", "single", "ece", 2) == pytest.approx(0.02 * 9)
    assert "median ECE over corruptions" in markdown(gathered)
    assert "| deep-ensemble:4 | 0.0900 | 0.1800 | 0.2700 | 0.3600 | 0.4500 |" in markdown(gathered)


def test_a_corruption_has_the_mean_of_its_repetitions_and_a_severity_the_median_of_its_corruptions(measured):
    for seed in (0, 1):
        folder = RunFolder.of(TWO.config("cifar10", "densenet121", "single", seed), measured)
        content = folder.read("shift")
        hard = [{**row, "ece": 0.99 if row["corruption"] == CORRUPTIONS[-1] else row["ece"]} for row in content["rows"]]
        folder.write("shift", {**content, "rows": [{**row, "ece": row["ece"] + 0.1 * seed} for row in hard]})
    place = ("cifar10", "densenet121", "single", "ece", 2)
    assert Measured(measured, TWO).shift(*place) == pytest.approx(0.23)
    assert Measured(measured, TWO).shift_medians(*place) == pytest.approx([0.18, 0.28])
    assert "| single | 0.1400 | 0.2300 | 0.3200 | 0.4100 | 0.5000 |" in markdown(
        gather(get("fig-shift-cifar10"), TWO, measured)
    )


def test_medians_are_over_all_corruptions_or_not_given(measured):
    """A run that has only the mild ones so far would look better than those that have all."""
    folder = RunFolder.of(TWO.config("cifar10", "densenet121", "single", 0), measured)
    other = RunFolder.of(TWO.config("cifar10", "densenet121", "single", 1), measured)
    for one in (folder, other):
        content = one.read("shift")
        mild = [row for row in content["rows"] if row["severity"] != 2 or row["corruption"] in CORRUPTIONS[:5]]
        one.write("shift", {**content, "rows": mild})
    gathered = gather(get("fig-shift-cifar10"), TWO, measured)
    assert sorted(gathered.corrupted["ece"]["single"]) == [1, 3, 4, 5]
    assert sorted(gathered.corrupted["ece"]["deep-ensemble:4"]) == [1, 2, 3, 4, 5]
    assert gathered.missing == ("densenet121 single under corruptions: 28 of 190",)
    assert Measured(measured, TWO).shift("cifar10", "densenet121", "single", "ece", 2) is None
    assert Measured(measured, TWO).shift("cifar10", "densenet121", "single", "ece", 3) == pytest.approx(0.03 * 9)


def test_networks_under_corruptions_have_rows_of_their_own(tmp_path, monkeypatch):
    FakeWork(monkeypatch)
    settings = Settings(models=("vgg13", "resnet18"), methods=("single",), shift=True)
    run_experiments(chosen(["table1-cifar10"]), settings, place(tmp_path))
    folder = RunFolder.of(settings.config("cifar10", "vgg13", "single", 0), tmp_path)
    content = folder.read("shift")
    folder.write("shift", {**content, "rows": [{**row, "accuracy": 0.123} for row in content["rows"]]})
    text = markdown(gather(get("table1-cifar10"), settings, tmp_path))
    assert "| vgg13 single | 12.30 |" in text
    assert "| resnet18 single | 70.00 |" in text
    (folder.path / "shift.json").unlink()
    assert gather(get("table1-cifar10"), settings, tmp_path).missing == ("vgg13 single under corruptions",)


def test_heat_maps(tmp_path, monkeypatch):
    FakeWork(monkeypatch)
    settings = Settings(methods=("svi",))
    run_experiments(chosen(["fig-jsd"]), settings, place(tmp_path))
    assert gather(get("fig-jsd"), settings, tmp_path).heat_maps["jsd"] == {"svi": [[0.0, 0.01], [0.01, 0.0]]}


def test_what_is_missing_is_said(tmp_path):
    everything = [gather(one, Settings(), tmp_path) for one in EXPERIMENTS]
    assert all(one.missing for one in everything)
    assert not any(one.has_something for one in everything)
    assert {one.state for one in everything} == {"not run"}
    command = f"`rbue paper run table1-cifar10 --runs {tmp_path}`"
    assert markdown(everything[0]) == f"Table 1 ({everything[0].experiment.title}): not run; {command}\n"
    shift = gather(get("fig-shift-cifar10"), Settings(), tmp_path)
    assert "densenet121 svi under corruptions" in shift.missing


def test_the_report_holds_every_id(measured, tmp_path):
    gathered = [gather(one, TWO, measured) for one in EXPERIMENTS]
    files = write_report(gathered, tmp_path / "report")
    text = files[0].read_text()
    assert all((f"## {one.experiment.id}:" in text) is one.has_something for one in gathered)
    assert "| vgg13 | single | " in text
    assert "| densenet121 | svi | –" not in text, "a row without a number"
    assert json.loads((tmp_path / "report" / "data" / "fig-shift-cifar10.json").read_text())["scale"] == "full"
    rows = list(csv.DictReader(io.StringIO(comma_separated(gathered))))
    (cell,) = [
        row
        for row in rows
        if (row["experiment"], row["model"], row["method"], row["measure"])
        == ("table1-cifar10", "vgg13", "single", "ece")
    ]
    assert (cell["mean"], cell["repetitions"], cell["paper"]) == ("0.05", "2", "0.05")
    assert "seed0" in cell["runs"]


def test_quick_results_are_labelled(tmp_path, monkeypatch):
    settings = Settings(quick=True, methods=("svi",))
    FakeWork(monkeypatch)
    run_experiments([get("table4-jsd")], settings, place(tmp_path))
    gathered = [gather(get("table4-jsd"), settings, tmp_path)]
    assert plain_files(gathered)["report.md"].decode().count("**Quick run**") == 2


def test_a_page_can_be_plugged_in(tmp_path):
    files = write_report([], tmp_path, renderers=[lambda gathered: {"page.html": b"<p>"}])
    assert files[0].read_bytes() == b"<p>"


def test_the_last_settings_are_remembered(measured):
    assert last_settings(measured, Settings()) == Settings(seeds=(0, 1))
    assert last_settings(measured, Settings(epochs=3)) == Settings(epochs=3)
    assert last_settings(measured / "nowhere", Settings()) == Settings()


@pytest.mark.parametrize("name", ["fig-activations", "fig-network", "fig-shot-noise", "variance"])
def test_illustrations(name, tmp_path, monkeypatch):
    monkeypatch.setattr("rbue.lab.paper.illustrations.SIMULATIONS", 2000)
    settings = Settings(quick=True)
    assert read_illustration(get(name), settings, tmp_path) is None
    write_illustration(get(name), settings, tmp_path, torch.device("cpu"))
    content = read_illustration(get(name), settings, tmp_path)
    assert content["scale"] == "quick"
    assert read_illustration(get(name), Settings(), tmp_path) is None
    if name == "variance":
        for exact, seen, error in zip(content["exact"], content["simulated"], content["error"], strict=True):
            assert abs(exact - seen) < 5 * error
    if name == "fig-shot-noise":
        count, versions, *_, channels = content["images"]["shape"]
        assert (count, versions, channels) == (3, 6, 3)
        pixels = np.frombuffer(base64.b64decode(content["images"]["base64"]), dtype=np.uint8)
        pixels = pixels.reshape(content["images"]["shape"])
        assert all((pixels[:, 0] != pixels[:, noisy]).any() for noisy in range(1, versions))


def test_the_framework_is_drawn_from_a_real_prediction(tmp_path):
    settings = Settings(quick=True, epochs=1)
    experiment = get("fig-framework")
    outcome = run_experiments([experiment], settings, place(tmp_path))
    assert outcome.done[-1] == "draw from fig-framework"
    content = gather(experiment, settings, tmp_path).illustration
    samples = torch.tensor(content["samples"])
    assert samples.shape == (10, 10)
    assert torch.allclose(samples.mean(0), torch.tensor(content["mean"]), atol=1e-5)
    assert content["image"]["shape"][:2] == [16, 16]
    assert content["truth"] in content["classes"]
    for other in (replace(settings, epochs=2), replace(settings, samples=11)):
        assert gather(experiment, other, tmp_path).illustration is None
        assert run_experiments([experiment], other, place(tmp_path), kinds=["draw"]).done == (
            ["draw from fig-framework"] if other.epochs == 1 else []  # else the run it would be drawn from is missing
        )
    path = illustration_file(experiment, settings, tmp_path)
    path.write_text(json.dumps({**content, "stream_version": 0}))
    assert read_illustration(experiment, settings, tmp_path) is None
