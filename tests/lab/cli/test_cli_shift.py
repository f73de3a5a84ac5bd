"""``rbue shift`` and ``rbue corrupt``: table, JSON, figures, pictures, mistakes."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_runs import TINY
from typer.testing import CliRunner

from rbue.lab.cli import app
from rbue.lab.cli.options import labels_for
from rbue.lab.corruptions import corrupt, frost
from rbue.lab.report import severity_figures
from rbue.lab.runs.folders import RunConfig

FEW = ("--corruptions", "fog,contrast", "--severities", "1,5", "--samples", 4)


@pytest.fixture(autouse=True)
def _no_photographs(monkeypatch):
    monkeypatch.delenv(frost.VARIABLE, raising=False)
    monkeypatch.setattr(frost, "_PACKAGE", "a_package_that_is_not_there")


@pytest.fixture(scope="session")
def shifted_once(tmp_path_factory):
    """Runs on small pictures: single twice, an ensemble of them, mc-droprelu, which is evaluated too."""
    base = tmp_path_factory.mktemp("shifted")
    random = np.random.RandomState(0)
    for label in "ab":
        (base / "pictures" / label).mkdir(parents=True)
        for number in range(40):
            pixels = random.randint(0, 150, (16, 16, 3)) + 60 * (label == "b")
            Image.fromarray(pixels.astype(np.uint8)).save(base / "pictures" / label / f"{number}.png")
    folders = {}
    for method in ("single", "deep-ensemble:2", "mc-droprelu:0.9"):
        words = ["train", "--data", f"folder:{base / 'pictures'}", "--method", method, "--runs", str(base / "runs")]
        result = CliRunner().invoke(app, [*words, *TINY, "--json"])
        folders[method] = json.loads(result.stdout)["run"]
    assert CliRunner().invoke(app, ["evaluate", folders["mc-droprelu:0.9"], "--samples", "4"]).exit_code == 0
    return base / "runs", folders


@pytest.fixture
def shifted(shifted_once, tmp_path):
    """A copy of those runs, by method."""
    root, folders = shifted_once
    copy = shutil.copytree(root, tmp_path / "runs")
    return {method: copy / Path(folder).relative_to(root) for method, folder in folders.items()}


@pytest.fixture
def no_figures(monkeypatch):
    """As if there were no matplotlib, which draws for seconds."""
    usual = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "matplotlib" else usual(name))


def test_table_figures_and_progress(shifted, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    drawn = {}
    usual = severity_figures.severity_medians
    monkeypatch.setattr(
        severity_figures,
        "severity_medians",
        lambda values, *words, **more: drawn.update(values) or usual(values, *words, **more),
    )
    result = command("shift", *shifted.values(), *FEW)
    for word in ("severity", "accuracy", "ECE", "worst", "hardest", "clean", "single", "deep-ensemble:2", "fog"):
        assert word in result.stdout, word
    assert "under 2 corruptions (generated)" in result.stdout
    lines = result.stdout.splitlines()
    assert max(len(line) for line in lines if "folder" not in line) <= 80
    assert sum(line.count(" %") for line in lines) == 3 * 2 * 2 + 1
    assert "measuring under corruptions: 12 of 12" in result.stderr
    files = sorted(path.name for path in Path("shift").iterdir())
    assert [name.rpartition("pictures-")[2] for name in files] == [
        f"{name}.{kind}" for name in ("accuracy-boxes", "ece-boxes", "ece-medians") for kind in ("png", "svg")
    ]
    for path in Path("shift").iterdir():
        assert str(path) in result.stdout
        assert path.suffix == ".svg" or Image.open(path).size[0] > 800
    # A clean result is the start of a curve.
    assert {label: sorted(values) for label, values in drawn.items()} == {
        "single": [1, 5],
        "deep-ensemble:2": [1, 5],
        "mc-droprelu:0.9": [0, 1, 5],
    }
    again = command("shift", *shifted.values(), *FEW, "-o", "out")
    assert "measuring" not in again.stderr
    assert again.stdout == result.stdout.replace("shift/", "out/")
    assert len(list(Path("out").iterdir())) == 6


def test_a_page_of_what_was_damaged(shifted, command, fails, no_figures, monkeypatch):
    monkeypatch.setattr("rbue.lab.report.page.inline_svg", lambda *_: "<svg></svg>")  # figures take their time
    result = command("shift", shifted["mc-droprelu:0.9"], *FEW, "--page", "page.html")
    assert result.stdout.splitlines()[-1] == "page.html"
    assert "means over 2 corruptions (contrast, fog)" in Path("page.html").read_text()
    other = ("--corruptions", "fog", *FEW[2:], "--sample-seed", 3)  # the page is about what was just measured
    command("shift", shifted["mc-droprelu:0.9"], *other, "--page", "page.html")
    assert "means over 1 corruption (fog)" in Path("page.html").read_text()
    unmeasured = fails("shift", shifted["single"], *FEW, "--page", "other.html", code=2)
    assert "measure them first: rbue evaluate RUN" in unmeasured
    assert not Path("other.html").exists()
    assert "end its name in .html" in fails("shift", shifted["single"], "--page", "page.pdf", code=2)
    below = "page.html/other.html"
    said = fails("shift", shifted["single"], "--page", below, code=1)
    assert f"{below} could not be written (Not a directory)." in said
    held_out = ("--split", "validation", "--page", "page.html")
    assert "a page is about test images" in fails("shift", shifted["single"], *held_out, code=2)


def test_why_there_is_no_clean_row_is_said(shifted, command, no_figures):
    words = (shifted["mc-droprelu:0.9"], "--corruptions", "fog", "--severities", "1")
    name = shifted["mc-droprelu:0.9"].name.rpartition("-")[2]
    result = command("shift", shifted["single"], *words, "--samples", 3)
    assert " clean " not in result.stdout
    note = "no clean row for mc-droprelu:0.9: measured with samples=4,seed=0, not samples=3,seed=0; "
    assert f"note: {note}`rbue evaluate {name} --samples 3` adds it.\n" in result.stderr
    assert result.stderr.count("no clean row") == 1
    assert "no clean row" not in command("shift", *words, "--samples", 4).stderr


def test_json_has_everything(shifted, as_json, no_figures):
    content = as_json("shift", shifted["mc-droprelu:0.9"], *FEW, "--adaptive", "--sample-seed", 2, "--no-cache")
    (run,) = content["runs"]
    assert (content["samples"], content["adaptive"], content["seed"]) == (4, True, 2)
    assert [(row["corruption"], row["severity"]) for row in run["rows"]] == [
        (name, level) for name in ("fog", "contrast") for level in (1, 5)
    ]
    assert {"accuracy", "ece", "nll", "brier", "entropy", "mutual_information", "samples", "variant"} <= set(
        run["rows"][0]
    )
    accuracies = [row["accuracy"] for row in run["rows"] if row["severity"] == 5]
    (first, last) = run["by_severity"]
    assert (first["severity"], last["corruptions"]) == (1, 2)
    assert last["accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert last["worst_accuracy"] == min(accuracies)
    assert run["clean"] is None
    assert not Path("cache", "rbue").exists()
    assert as_json("shift", shifted["mc-droprelu:0.9"], *FEW)["runs"][0]["clean"]["samples"] == 4


def test_runs_are_named_by_id_and_once(shifted, as_json, no_figures):
    identity = shifted["single"].name.rpartition("-")[2]
    content = as_json("shift", identity, shifted["single"], "--runs", "runs", *FEW)
    assert [run["label"] for run in content["runs"]] == ["single"]


@pytest.mark.filterwarnings("always::rbue.errors.RbueWarning")
def test_runs_on_different_images_are_not_shown_as_if_they_compared(shifted, command, no_figures):
    words = [shifted["single"], shifted["mc-droprelu:0.9"], "--corruptions", "fog,frost", "--severities", 1]
    result = command("shift", *words, "--samples", 4)
    assert "under 2 corruptions (generated, frost: drawn ice)" in result.stdout
    assert "note:" not in result.stderr
    path = shifted["mc-droprelu:0.9"] / "shift.json"
    content = json.loads(path.read_text())
    fog, frozen = sorted(content["rows"], key=lambda row: row["corruption"])
    for row, other in (
        (fog, "published CIFAR-10-C: fog, severity 1"),
        (frozen, frozen["variant"].replace("drawn ice, version 1", "photographs, sha256 0123")),
    ):
        changed = [{**one, "variant": other} if one is row else one for one in content["rows"]]
        path.write_text(json.dumps({**content, "rows": changed}))
        path.with_name("checksums.json").unlink(missing_ok=True)
        result = command("shift", *words, "--samples", 4)
        (said,) = (line for line in result.stderr.splitlines() if line.startswith("note:"))
        assert "single and mc-droprelu:0.9 were not measured on the same damaged images" in said
        assert f"({row['variant']!r} and {other!r})" in said
        assert str(path) in said
    assert "(generated, frost: drawn ice and photographs)" in result.stdout


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_names_and_numbers_stay_whole_in_narrow_terminals(shifted, command, monkeypatch, no_figures, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    words = ["shift", *shifted.values(), "--corruptions", "elastic_transform", "--severities", "1,5", "--samples", 4]
    shown = command(*words).stdout.splitlines()
    table = shown[1 : next(place for place, line in enumerate(shown) if line.startswith("mean and worst"))]
    rows = [line.split() for line in table]
    assert {"single", "deep-ensemble:2", "mc-droprelu:0.9"} <= {row[0] for row in rows if row}
    assert not any("…" in line for line in table)
    assert max(len(line) for line in table if not line.startswith("no room")) <= columns
    left_out = {40: "hardest, worst", 60: "hardest"}.get(columns)
    assert [line for line in table if "no room" in line] == (
        [f"no room for {left_out}; --json has everything"] if left_out else []
    )
    assert any("hardest" in row for row in rows if "method" in row) == (columns >= 80)


def test_without_matplotlib(shifted, command, no_figures):
    result = command("shift", shifted["single"], *FEW)
    assert "pip install 'rbue[lab]'" in result.stderr
    assert "single" in result.stdout
    assert not Path("shift").exists()


def test_mistakes_get_one_sentence(shifted, trained_once, fails):
    run = shifted["single"]
    assert "did you mean 'shot_noise'?" in fails("shift", run, "--corruptions", "shot_nois", code=2)
    assert "--corruptions names none" in fails("shift", run, "--corruptions", ",", code=2)
    for bad in ("0", "6", "high", "1;2", ""):
        assert "numbers from 1 to 5 with commas" in fails("shift", run, "--severities", bad, code=2)
    assert "there is no run 'nowhere'" in fails("shift", "nowhere", code=2)
    assert "at least 16x16" in fails("shift", trained_once, code=2)
    for name in ("weights.safetensors", "state.safetensors"):
        (run / name).unlink()
    assert "train it first" in fails("shift", run, code=1)


def test_stopping_says_that_it_goes_on(shifted, command, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("rbue.lab.shift.shift_runs", stop)
    assert "the same command continues" in command("shift", shifted["single"], *FEW, code=130).stderr


def test_labels_tell_runs_apart():
    def named(**changes):
        return RunConfig("digits", **{"method": "single", **changes})

    assert labels_for([named(), named(method="svi")]) == ["single", "svi"]
    assert labels_for([named(), named(model="vgg13")]) == ["single (small_cnn)", "single (vgg13)"]
    assert labels_for([named(), named(seed=1)])[1] == "single (small_cnn, seed 1)"
    wide = labels_for([named(), named(width=2.0)])
    assert wide[0] != wide[1]
    assert labels_for([named(), named()])[1].endswith(", 2)")


def test_a_sheet_and_a_strip_of_a_file(command, fails):
    pixels = np.random.RandomState(0).randint(0, 256, (32, 32, 3)).astype(np.uint8)
    Image.fromarray(pixels).save("picture.png")
    assert command("corrupt", "picture.png", "-o", "sheet.png", "--tile", 32).stdout.strip() == "sheet.png"
    sheet = Image.open("sheet.png")
    assert sheet.width > 2 * 6 * 32
    assert sheet.height > 10 * 32
    command("corrupt", "picture.png", "--corruption", "shot_noise", "--tile", 32, "-o", "out/strip.webp")
    command("corrupt", "picture.png", "--corruption", "shot_noise", "--tile", 32, "-o", "strip.png")
    strip = np.asarray(Image.open("strip.png"))
    for severity in range(6):
        shown = strip[4:36, 4 + 36 * severity : 36 + 36 * severity]
        wanted = corrupt(pixels[None], "shot_noise", severity)[0] if severity else pixels
        assert np.array_equal(shown, wanted)
    command("corrupt", "picture.png", "--seed", 1, "-o", "other.png", "--tile", 32)
    assert not np.array_equal(np.asarray(Image.open("other.png")), np.asarray(sheet))
    assert "did you mean 'fog'?" in fails("corrupt", "picture.png", "--corruption", "fogg", code=2)
    assert ".png, .jpg" in fails("corrupt", "picture.png", "-o", "sheet.pdf", code=2)
    assert "there is no file nothing.png" in fails("corrupt", "nothing.png", code=2)
    Image.new("RGB", (600, 20)).save("large.png")
    assert "at most 512 pixels" in fails("corrupt", "large.png", code=2)
    Image.new("RGB", (15, 20)).save("small.png")
    assert "at least 16 pixels" in fails("corrupt", "small.png", code=2)
    Image.new("RGBA", (20, 20)).save("clear.png")
    assert "transparency" in fails("corrupt", "clear.png", code=2)
    Path("text.png").write_text("no image")
    assert "not an image that can be read" in fails("corrupt", "text.png", code=2)


def test_a_strip_of_a_test_image_shows_its_own_damage(shifted_once, command, fails):
    name = f"folder:{shifted_once[0].parent / 'pictures'}"
    command("corrupt", 3, "--data", name, "--corruption", "fog", "--tile", 16, "-o", "strip.png")
    from rbue.lab import data

    images = data.load(name, "test").images
    strip = np.asarray(Image.open("strip.png"))
    assert np.array_equal(strip[4:20, 4 + 20 * 5 : 20 + 20 * 5], corrupt(images, "fog", 5)[3])
    assert "there is no test image 16" in fails("corrupt", 16, "--data", name, code=2)
    assert "8x8 pixels" in fails("corrupt", 0, "--data", "digits", code=2)


def test_help_has_an_example(command):
    assert "rbue corrupt 7" in command("corrupt", "--help").stdout


def test_a_folder_whose_images_changed_is_noticed(shifted_once, tmp_path, command, fails):
    pictures = shutil.copytree(shifted_once[0].parent / "pictures", tmp_path / "pictures")
    words = ["--data", f"folder:{pictures}", "--method", "single", "--runs", str(tmp_path / "runs"), *TINY]
    run = json.loads(command("train", *words, "--json").stdout)["run"]
    command("train", *words)
    (pictures / "a").rename(pictures / "c")
    (pictures / "b").rename(pictures / "a")
    (pictures / "c").rename(pictures / "b")
    for again in (["train", *words], ["evaluate", run], ["shift", run, *FEW]):
        assert "was trained on other images than folder:" in fails(*again, code=1)


def test_a_folder_whose_images_changed_while_training_was_stopped_is_noticed(shifted_once, tmp_path, command, fails):
    pictures = shutil.copytree(shifted_once[0].parent / "pictures", tmp_path / "pictures")
    words = ["--data", f"folder:{pictures}", "--method", "single", "--runs", str(tmp_path / "runs"), *TINY]
    run = Path(json.loads(command("train", *words, "--json").stdout)["run"])
    (run / "training.json").unlink()  # as if it had been stopped before
    command("train", *words)
    (run / "training.json").unlink()
    next((pictures / "a").iterdir()).unlink()
    said = fails("train", *words, code=1)
    assert re.search(r"holds a training with data of (\d+) images \(.*\), not of (\d+) images", said), said


@pytest.mark.filterwarnings("default::rbue.errors.RbueWarning")
def test_held_out_images_are_damaged_on_demand(shifted_once, as_json, command, fails, no_figures):
    root, folders = shifted_once
    pictures = f"folder:{root.parent / 'pictures'}"
    words = ("train", "--data", pictures, *TINY)
    run, other = (as_json(*words, "--holdout", 12, "--holdout-seed", seed)["run"] for seed in (0, 1))
    content = as_json("shift", run, *FEW, "--split", "validation")
    assert content["split"] == "validation"
    assert {row["images"] for row in content["runs"][0]["rows"]} == {12}
    assert "(validation) under 2 corruptions" in command("shift", run, *FEW, "--split", "validation").stdout
    assert "split" not in as_json("shift", run, *FEW)
    assert "held out different images" in command("shift", run, other, *FEW, "--split", "validation").stderr
    assert "held out" not in command("shift", run, other, *FEW).stderr
    said = fails("shift", folders["single"], *FEW, "--split", "validation", code=2)
    assert "a run without held-out images has no validation images" in said
