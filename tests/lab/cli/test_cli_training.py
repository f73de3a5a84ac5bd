"""train, evaluate, compare and predict on the digits, with networks of a few hundred weights."""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tiny_runs import TINY
from typer.testing import CliRunner

from rbue.errors import InvalidInput
from rbue.lab.cli import app
from rbue.lab.data import ImageSet
from rbue.lab.data.folder import read_image
from rbue.lab.runs import training
from rbue.lab.runs.training import train_run
from rbue.locks import locked


def test_train_then_say_it_is_done(command):
    first = command("train", *TINY)
    folder = Path(first.stdout.strip().splitlines()[-1])
    assert (folder / "training.json").is_file()
    assert "epoch 1/1, loss" in first.stderr
    assert "trained" in first.stdout
    weights = (folder / "state.safetensors").read_bytes()
    again = command("train", *TINY)
    assert "done already" in again.stdout
    assert again.stdout.strip().splitlines()[-1] == str(folder)
    assert (folder / "state.safetensors").read_bytes() == weights


def test_damaged_weights_are_not_called_done(command, as_json, fails):
    folder = Path(as_json("train", *TINY)["run"])
    weights = folder / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    assert f"remove {folder / 'training.json'}, and `rbue train` with the same" in fails("train", *TINY, code=1)
    (folder / "training.json").unlink()
    command("train", *TINY)
    assert weights.read_bytes() == whole
    weights.unlink()
    assert as_json("train", *TINY)["networks"][0]["outcome"] == "continued"
    assert weights.read_bytes() == whole
    as_json("evaluate", *TINY, "--samples", 3)
    weights.unlink()
    assert "takes them from state.safetensors" in fails("evaluate", *TINY, "--samples", 4, code=1)
    (folder / "state.safetensors").unlink()  # both may be kept elsewhere
    assert "done already" in command("train", *TINY).stdout
    assert "with another --runs" in fails("evaluate", *TINY, "--samples", 4, code=1)


def test_train_continues(command, as_json):
    folder = Path(as_json("train", *TINY)["run"])
    (folder / "training.json").unlink()
    content = as_json("train", *TINY)
    assert content["networks"][0]["outcome"] == "continued"


def test_how_to_train_reaches_the_training(command, monkeypatch):
    ways = []

    def noted(*words, **way):
        ways.append(way)
        return train_run(*words, **way)

    monkeypatch.setattr(training, "train_run", noted)
    command("train", "--engine", "plain", "--together", 3, "--shard-mib", 7, *TINY)
    assert ways == [{"engine": "plain", "together": 3, "shard_mib": 7}]


def test_every_recipe_option_reaches_the_run(as_json):
    content = as_json(
        *("train", "--method", "single", "--seed", 3, "--holdout", 1300, "--holdout-seed", 2, "--width", 0.25),
        *("--epochs", 1, "--batch", 64, "--rate", 0.02, "--milestones", "0.5,0.75", "--factor", 0.5, "--momentum", 0.8),
        *("--no-nesterov", "--weight-decay", 0.001, "--padding", 0, "--flip", "--device", "cpu"),
        *("--label-smoothing", 0.1, "--cutout", 3, "--mixup", 0.2, "--noise", 0.05, "--augmix", 0.5),
    )
    config = content["config"]
    assert (config["seed"], config["holdout"], config["holdout_seed"], config["width"]) == (3, 1300, 2, 0.25)
    assert config["recipe"] == {
        "epochs": 1,
        "batch": 64,
        "rate": 0.02,
        "milestones": [0.5, 0.75],
        "factor": 0.5,
        "momentum": 0.8,
        "nesterov": False,
        "weight_decay": 0.001,
        "padding": 0,
        "flip": True,
        "label_smoothing": 0.1,
        "cutout": 3,
        "mixup": 0.2,
        "noise": 0.05,
        "augmix": 0.5,
    }
    assert content["networks"][0]["data"]["count"] == 142


def test_a_named_recipe_and_any_part_of_an_average_reach_every_member_of_an_ensemble(as_json):
    words = (
        "--recipe",
        "strong",
        *TINY,
        "--epochs",
        3,
        "--average-start",
        1,
        "--average-rate",
        0.02,
        "--device",
        "cpu",
    )
    content = as_json("train", "--method", "deep-ensemble:2[mc-droprelu:0.9]", *words)
    for network in content["networks"]:
        recipe = json.loads((Path(network["run"]) / "config.json").read_text())["recipe"]
        expected = {"average": "swa", "average_start": 1.0, "average_learning_rate": 0.02, "weight_decay": 0.0005}
        assert recipe == content["config"]["recipe"] == recipe | expected
        assert "average_decay" not in recipe
        log = [json.loads(line) for line in (Path(network["run"]) / "log.jsonl").read_text().splitlines()]
        assert [line["rate"] for line in log] == [0.05, 0.02, 0.02]
        batches = load_file(f"{network['run']}/weights.safetensors")
        counts = {int(value) for name, value in batches.items() if name.endswith("num_batches_tracked")}
        assert counts == {12}  # of one more epoch of 1,442 images, and not of all three
    other = as_json("train", "--average", "ema", "--average-decay", 0.9, *TINY)["config"]["recipe"]
    assert (other["average"], other["average_start"], other["average_decay"]) == ("ema", 0, 0.9)


def test_help_says_what_the_recipes_are(command):
    shown = " ".join(command("train", "--help").stdout.replace("│", " ").split())
    for words in ("'paper', the paper's", "'strong', which has weight decay 5e-4 and SWA from 80 % of the epochs on"):
        assert words in shown


def test_evaluate_on_the_images_that_were_held_out(as_json, command, fails):
    words = ("--method", "mc-droprelu:0.9", "--holdout", 200, *TINY, "--device", "cpu")
    folder = Path(as_json("train", *words)["run"])
    held = as_json("evaluate", *words, "--samples", 4, "--split", "validation")["result"]
    assert (held["data"]["count"], held["data"]["holdout"]["part"]) == (200, "validation")
    assert not (folder / "results.json").exists()
    assert as_json("evaluate", folder, "--samples", 4, "--split", "validation")["result"] == held
    assert np.load(folder / "validation_probs.npy").shape == (200, 10)
    (row,) = as_json("runs", "list")["runs"]
    assert (row["state"], row["accuracy"], row["weights"]) == ("measured (held-out)", None, True)
    assert "measured (held-out)" in command("runs", "list").stdout
    shown = command("runs", "show", folder).stdout
    assert "measured (held-out)" in shown
    _, _, after = shown.partition("held-out images with samples=4,seed=0\n")
    assert after.split()[:2] == ["accuracy", f"{held['accuracy']:.6g}"]
    assert as_json("runs", "show", folder)["validation"] == {"samples=4,seed=0": held}
    said = fails("report", folder, code=1)
    assert said.endswith(f"{folder.name}: measured on its held-out images only; a report is about test images.")
    test = as_json("evaluate", folder, "--samples", 4)["result"]
    (row,) = as_json("runs", "list")["runs"]
    assert (row["state"], row["accuracy"]) == ("measured", test["accuracy"])
    assert test["data"]["split"] == "test"
    assert json.loads((folder / "validation.json").read_text()) == {"samples=4,seed=0": held}
    assert "200 validation images" in command("evaluate", folder, "--samples", 4, "--split", "validation").stdout
    assert "split must be test or validation, not 'valid' (did you mean 'validation'?)" in fails(
        "evaluate", folder, "--split", "valid", code=2
    )


def test_diversity_beside_augmented_passes_is_said_to_be_of_plain_ones(trained_once, command, as_json):
    words = ("evaluate", trained_once, "--samples", 2)
    plain, shown = as_json(*words)["result"], command(*words, "--augment", "flip").stdout
    for name, key in (("Mean-JSD", "mean_jsd"), ("Mean-DIS", "mean_dis")):
        (line,) = [line for line in shown.splitlines() if name in line]
        assert line.split(maxsplit=1)[1].strip() == f"{plain[key]:.4f}, of plain passes"
    assert shown.count("plain passes") == 2
    assert "plain passes" not in command(*words).stdout


def test_a_run_without_held_out_images_has_no_validation(trained_once, fails):
    assert "train it with --holdout" in fails("evaluate", trained_once, "--split", "validation", code=2)


def test_evaluate_by_settings_folder_and_id_agree(trained_once, command, as_json):
    root = Path(trained_once).parents[2]
    settings = ("--method", "mc-droprelu:0.9", "--runs", root, *TINY)
    by_settings = as_json("evaluate", *settings, "--samples", 4)
    assert by_settings["run"] == trained_once
    assert by_settings["result"]["samples"] == 4
    assert by_settings["result"]["mutual_information"] > 0
    assert as_json("evaluate", trained_once, "--samples", 4) == by_settings
    identity = trained_once.rpartition("-")[2]
    assert as_json("evaluate", identity, "--runs", root, "--samples", 4) == by_settings
    shown = command("evaluate", trained_once, "--samples", 4).stdout
    assert all(name in shown for name in ("accuracy", "ECE", "NLL", "Mean-JSD", "Mean-DIS", "samples"))


def test_the_seed_of_the_passes_reaches_them(trained_once, as_json):
    shutil.copytree(Path(trained_once).parents[2], "runs")
    words = ("--samples", 4, "--sample-seed", 1, *TINY)
    measured = as_json("evaluate", "--method", "mc-droprelu:0.9", *words)["result"]
    (compared,) = as_json("compare", "--methods", "mc-droprelu:0.9", *words)["methods"]
    assert (measured["seed"], compared["seed"]) == (1, 1)


def test_evaluate_needs_a_training(fails):
    assert "run `rbue train` with the same settings first" in fails("evaluate", "--method", "single", code=1)


def test_evaluate_takes_a_folder_or_settings(trained_once, fails):
    message = fails("evaluate", trained_once, "--seed", 1, "--method", "single", code=2)
    assert "--method, --seed" in message
    assert "--sample-seed" in message


def test_predict(trained_once, digit, command, as_json, tmp_path):
    Image.open(digit).convert("RGB").save(tmp_path / "colour.png")
    content = as_json("predict", trained_once, digit, tmp_path / "colour.png", "--samples", 5)
    first, second = content["predictions"]
    assert first["label"] in "0123456789"
    assert first["samples"] == 5
    assert first["mutual_information"] > 0
    assert abs(sum(first["probabilities"].values()) - 1) < 1e-5
    assert first["confidence"] == max(first["probabilities"].values())
    assert second["confidence"] != first["confidence"]  # another place in the list, other random ReLUs
    assert all(one["probabilities"][one["label"]] == one["confidence"] for one in (first, second))
    assert content["draws"] == "balanced"
    plain = as_json("predict", trained_once, digit, "--samples", 5, "--draws", "independent")
    assert plain["draws"] == "independent"
    assert plain["predictions"][0]["confidence"] != first["confidence"]
    (other,) = as_json("predict", trained_once, digit, "--samples", 5, "--seed", 1)["predictions"]
    assert other["confidence"] != first["confidence"]
    shown = command("predict", trained_once, digit, "--samples", 5).stdout
    assert "mutual information" in shown
    assert "digit.png" in shown


def test_predict_needs_neither_the_photographs_nor_their_size(tmp_path, command, as_json):
    shades = np.random.RandomState(0).randint(0, 60, (2, 10))
    for label in range(2):
        (tmp_path / "photos" / "ab"[label]).mkdir(parents=True)
        for number, shade in enumerate(shades[label]):
            image = Image.new("L", (20 + number, 30), int(shade) + 150 * label)
            image.save(tmp_path / "photos" / "ab"[label] / f"{number}.png")
    words = ("--data", f"folder:{tmp_path / 'photos'}:8", "--method", "mc-droprelu", "--runs", tmp_path / "runs", *TINY)
    run = as_json("train", *words)["run"]
    unknown = (tmp_path / "photos" / "b" / "9.png").rename(tmp_path / "unknown.png")
    shutil.rmtree(tmp_path / "photos")
    (answer,) = as_json("predict", run, unknown, "--samples", 5)["predictions"]
    assert set(answer["probabilities"]) == {"a", "b"}


def test_predict_refuses_what_is_no_image_of_the_set(trained_once, digit, fails, tmp_path):
    def message(*names):
        return fails("predict", trained_once, *(tmp_path / name for name in names), code=2)

    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "cut.png").write_bytes(digit.read_bytes()[:60])
    Image.new("L", (9, 8)).save(tmp_path / "wide.png")
    Image.new("RGBA", (8, 8)).save(tmp_path / "clear.png")
    assert "not an image that can be read (unknown format)" in message("text.png")
    assert "not an image that can be read" in message("cut.png")
    assert "9x8 pixels, but the images of digits have 8x8" in message("wide.png")
    assert "transparency" in message("clear.png")
    assert "there is no file" in message("nowhere.png")
    assert message("nowhere.png", "wide.png", "clear.png").endswith("nowhere.png (and 2 more like it).")
    (tmp_path / "empty").mkdir()
    assert message("empty").endswith(f"there is no image in {tmp_path / 'empty'}.")
    assert "must end in .csv" in fails("predict", trained_once, digit, "-o", "table.xls", code=2)
    assert "(Not a directory)" in fails("predict", trained_once, "nowhere.png", "-o", digit / "table.csv", code=1)


@pytest.fixture
def photos(digit):
    """Two images, one deeper, one without an ending; a broken one; files that are no images."""
    (digit.parent / "photos" / "b").mkdir(parents=True)
    for name in ("c.png", "b/d.png", "a"):
        shutil.copy(digit, digit.parent / "photos" / name)
    for name in ("b/cut.png", "b/Thumbs.db", ".DS_Store"):
        (digit.parent / "photos" / name).write_bytes(digit.read_bytes()[:60] if name.endswith("png") else b"text")
    return Path("photos")


def test_predict_takes_folders_and_sets_aside_what_cannot_be_read(trained_once, digit, photos, command):
    words = ("predict", trained_once, "digit.png", photos, photos / "c.png", "wrong.png", "--samples", 5)
    outcome = command(*words, "-o", "out.csv", code=1)
    shown = [line.split()[0] for line in outcome.stdout.splitlines() if "%" in line]
    assert shown == ["digit.png", "photos/a", "photos/b/d.png", "photos/c.png"]
    assert "note: photos has 1 file that is no image, left out: b/Thumbs.db." in outcome.stderr
    *_, first, second, last = outcome.stderr.splitlines()
    assert "error: photos/b/cut.png is not an image that can be read" in first
    assert second == "error: there is no file wrong.png."
    assert last == "2 of 6 images could not be predicted."
    content = json.loads(command(*words, "--json", code=1).stdout)
    assert [row["image"] for row in content["predictions"]] == shown
    assert [row["image"] for row in content["unreadable"]] == ["photos/b/cut.png", "wrong.png"]
    assert content["unreadable"][1]["error"] == "there is no file wrong.png."
    heading, *rows = csv.reader(Path("out.csv").read_text().splitlines())
    assert heading[:2] + heading[-1:] == ["image", "label", "p(9)"]
    assert [row[0] for row in rows] == shown
    assert float(rows[3][-1]) == content["predictions"][3]["probabilities"]["9"]


def test_an_image_is_as_wide_and_as_high_as_those_of_the_set():
    pixels = np.arange(54, dtype=np.uint8).reshape(6, 9)
    Image.fromarray(pixels).save("wide.png")
    Image.fromarray(pixels.T.copy()).save("high.png")
    nothing = np.empty((0, 6, 9, 1), np.uint8), np.empty(0, np.int64)
    like = ImageSet(*nothing, ("a",), "folder:there", "test", (0.5,), (0.5,))
    assert np.array_equal(read_image(Path("wide.png"), like)[..., 0], pixels)
    with pytest.raises(InvalidInput, match="6x9 pixels, but the images of folder:there have 9x6"):
        read_image(Path("high.png"), like)


def test_a_network_of_ones_own_in_this_folder(as_json, fails):
    Path("my_little_networks.py").write_text(
        "from torch import nn\n"
        "def make(classes, channels):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 16), nn.ReLU(), nn.Linear(16, classes))\n"
    )
    run = as_json("train", "--model", "my_little_networks:make", "--method", "mc-droprelu", "--epochs", 1)["run"]
    assert as_json("evaluate", run, "--samples", 2)["result"]["parameters"] == 65 * 16 + 170
    assert [site["name"] for site in as_json("sites", "my_little_networks:make", "--shape", "1,8,8")["sites"]] == ["2"]
    assert "cannot take an image of 1x9x9" in fails("sites", "my_little_networks:make", "--shape", "1,9,9", code=2)


def test_mistakes_get_one_sentence(fails):
    assert "did you mean 'mc-droprelu'?" in fails("train", "--method", "mc-dropreluu:0.9", code=2)
    assert "did you mean 'small_cnn'?" in fails("train", "--model", "smal_cnn", code=2)
    assert "did you mean 'digits'?" in fails("train", "--data", "digit", code=2)
    assert "no module 'nowhere'" in fails("train", "--model", "nowhere:make", code=2)
    assert "epochs must be at least 1" in fails("train", "--epochs", 0, code=2)
    assert "--milestones" in fails("train", "--milestones", "early", code=2)
    for option, value in (("weight-decay", -1), ("momentum", 2), ("factor", "nan"), ("rate", "inf")):
        message = fails("train", f"--{option}", value, code=2)
        assert message.startswith(f"error: --{option} must be a")
        assert message.endswith(f"not {float(value)}.")
    for option, value in (("average-rate", "0.1"), ("average-start", 3), ("average-decay", 0.9)):
        message = fails("train", f"--{option}", value, code=2)
        assert f"error: --{option} is a setting of --average " in message
        assert message.endswith(", but --average is none; leave it out.")
    assert "--factor has no effect with --average swa" in fails("train", "--average", "swa", "--factor", 0.5, code=2)
    assert "seed must lie in [0, 2**64), not 9999999999999999999999" in fails("train", "--seed", "9" * 22, code=2)
    message = fails("train", "--method", "deep-ensemble:3", "--seed", 2**64 - 2, code=2)
    assert f"the last network of deep-ensemble:3 with seed {2**64 - 2} would have the seed {2**64}" in message
    assert "where in 'mc-droprelu:0.9,' is empty" in fails("train", "--method", "mc-droprelu:0.9,", code=2)
    assert "there is no device 'gpux'" in fails("train", "--device", "gpux", code=2)
    assert "rbue data fetch cifar10" in fails("train", "--data", "cifar10", code=1)
    assert "there is no run 'nowhere'" in fails("predict", "nowhere", "x.png", code=2)
    Path("net.safetensors").touch()
    for words in (("predict", "net.safetensors", "x.png"), ("evaluate", "net.safetensors")):
        assert "net.safetensors is a file and no run" in fails(*words, code=2)
    assert not Path("runs").exists()


@pytest.mark.parametrize("batch", [10**12, 10**30])
def test_a_batch_of_more_images_than_there_are_is_all_of_them(as_json, batch):
    words = ("train", "--epochs", 2, "--width", 0.25, "--batch")
    (all_of_them,), (more,) = (as_json(*words, size)["networks"] for size in (1442, batch))
    assert all_of_them["data"]["count"] == 1442
    assert (more["loss"], more["accuracy"]) == (all_of_them["loss"], all_of_them["accuracy"])
    first, second = (load_file(Path(one["run"]) / "weights.safetensors") for one in (all_of_them, more))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("engine", ["captured", "compiled"])
def test_an_engine_for_gpus_is_refused_elsewhere(fails, engine):
    message = fails("train", "--engine", engine, "--device", "cpu", *TINY, code=2)
    assert message == f"error: the {engine} engine needs a CUDA device; use --engine plain on cpu."


def test_an_unknown_engine_is_refused_where_all_is_done_too(trained_once, fails):
    words = ("train", "--method", "mc-droprelu:0.9", "--runs", Path(trained_once).parents[2], *TINY)
    assert "--engine must be one of auto, plain, captured, compiled, not 'foo'" in fails(
        *words, "--engine", "foo", code=2
    )
    assert "--engine" in fails("train", "--data", "nowhere", "--engine", "foo", code=2)


def test_a_folder_without_test_images_is_refused_before_training(fails):
    Path("photos/cat").mkdir(parents=True)
    Image.new("L", (8, 8)).save("photos/cat/1.png")
    said = fails("train", "--data", "folder:photos", *TINY, code=1)
    assert "photos gives no test images: a class needs 5 files to have one" in said
    assert not Path("runs").exists()


def test_two_processes_on_one_run(as_json, fails, command):
    run = Path(as_json("train", *TINY)["run"])
    log = (run / "log.jsonl").read_bytes()
    (run / "training.json").unlink()
    with locked(run / ".lock"):
        for words in (["train", *TINY], ["runs", "remove", run, "--yes"]):
            said = fails(*words, code=1)
            assert f"{run} is in use by process {os.getpid()} on {platform.node()} since 2" in said
            assert said.strip().endswith("; wait until that has ended.")
    assert (run / "log.jsonl").read_bytes() == log
    command("train", *TINY)
    assert len((run / "log.jsonl").read_text().splitlines()) == 1


def test_a_file_where_the_runs_should_be(fails):
    Path("runs").write_text("in the way")
    assert "could not be written" in fails("train", *TINY, code=1)
    assert Path("runs").read_text() == "in the way"


def test_a_checkpoint_of_another_model(trained_once, as_json, fails, digit):
    run = Path(as_json("train", "--epochs", 1, "--batch", 128, "--width", 0.5)["run"])
    shutil.copy(Path(trained_once) / "weights.safetensors", run / "weights.safetensors")
    assert "weights of another network" in fails("predict", run, digit, code=1)
    (run / "weights.safetensors").write_bytes(b"nonsense")
    assert "cannot be read" in fails("evaluate", run, code=1)


def test_a_renamed_run(trained_once, fails, digit, tmp_path):
    shutil.copytree(trained_once, tmp_path / "copy")
    assert "was renamed" in fails("predict", tmp_path / "copy", digit, code=1)


def test_interruption(command, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train_run", stop)
    result = command("train", *TINY, code=130)
    assert "the same command continues" in result.stderr
    assert result.stdout == ""


def test_debug_shows_where():
    for words in (["--debug", "train", "--method", "x"], ["train", "--method", "x", "--debug"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2
        assert "Traceback" in result.stderr
