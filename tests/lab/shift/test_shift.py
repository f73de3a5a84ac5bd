"""Runs under corruptions: right numbers, nothing measured twice, ensembles from their members."""

from __future__ import annotations

import io
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rbue import metrics
from rbue.errors import InvalidInput, RbueError, RbueWarning
from rbue.lab import data
from rbue.lab.corruptions import CORRUPTIONS, corrupt, frost, sets
from rbue.lab.paper.results import shift_is_done, shift_rows
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import evaluate_run, predict_images
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.probabilities import belong_to, probs_of, read_probs
from rbue.lab.runs.training import train_run
from rbue.lab.shift import (
    Setting,
    ShiftStore,
    by_severity,
    clean_result,
    corrupted_sets,
    measuring,
    shift_run,
    shift_runs,
    summarise,
)
from rbue.lab.shift.corrupted_sets import prepared
from rbue.lab.shift.rows import Cell, clean_otherwise
from rbue.lab.training import recipe_for
from rbue.sampling.adaptive import Adaptive

CPU = torch.device("cpu")
NAMES = ("fog", "contrast", "frost")
LEVELS = (1, 4)
CELLS = [Cell(name, level) for name in NAMES for level in LEVELS]


@pytest.fixture(autouse=True)
def _own_places(tmp_path, monkeypatch):
    """No test sees this machine's data, cache or frost photographs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RBUE_DATA", raising=False)
    monkeypatch.delenv(frost.VARIABLE, raising=False)
    monkeypatch.setattr(frost, "_PACKAGE", "a_package_that_is_not_there")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def stored(store: ShiftStore, cell: Cell) -> np.ndarray:
    """The probabilities in a file, whatever measurement they are of."""
    return read_probs(store.folder.path / "shift" / f"{cell.corruption}-{cell.severity}.npy")


def write_pictures(base: Path, channels: int = 3) -> str:
    """Three classes of small pictures that a network can tell apart, and their name as a data set."""
    random = np.random.RandomState(0)
    for split, count in (("train", 8), ("test", 11)):
        for label, name in enumerate("abc"):
            place = base / split / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = random.randint(0, 90, (16, 18, channels)) + 60 * label
                Image.fromarray(pixels.astype(np.uint8).squeeze()).save(place / f"{number:02}.png")
    return f"folder:{base}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A root with two plain networks and an mc-droprelu, and the settings of the latter; not to be changed."""
    return trained_runs(tmp_path_factory.mktemp("shift"))


def trained_runs(base, **settings):
    name = write_pictures(base / "pictures")
    recipe = recipe_for(name, epochs=2, batch=16)
    config = RunConfig(name, "small_cnn", "mc-droprelu:0.8", width=0.25, recipe=recipe, **settings)
    for one in (config, *ensemble_of(config).members()):
        train_run(one, base / "runs", CPU)
    return base / "runs", config


@pytest.fixture
def runs(trained, tmp_path):
    root, config = trained
    return shutil.copytree(root, tmp_path / "runs"), config


def ensemble_of(config):
    return replace(config, method="deep-ensemble:2")


def in_order(rows):
    return sorted(rows, key=lambda row: (CORRUPTIONS.index(row["corruption"]), row["severity"]))


def measure(config, root, **more):
    return shift_run(config, root, CPU, **{"corruptions": NAMES, "severities": LEVELS, "samples": 6, **more})


@pytest.fixture
def predictions(monkeypatch):
    """Counts predictions; the function in it, if any, is called before each."""
    calls, before = [], []

    def counted(config, networks, images, *words, **more):
        for act in before:
            act()
        calls.append((config.method, config.seed, images.variant))
        return predict_images(config, networks, images, *words, **more)

    monkeypatch.setattr(measuring, "predict_images", counted)
    return calls, before


def test_balanced_rows_stand_beside_independent_ones(runs, predictions):
    root, config = runs
    calls, _ = predictions
    independent = measure(config, root)
    before = len(calls)
    balanced = measure(config, root, draws="balanced")
    assert len(calls) == before + len(CELLS)
    assert [row["draws"] for row in balanced] == ["balanced"] * len(CELLS)
    assert [row["nll"] for row in balanced] != [row["nll"] for row in independent]
    assert measure(config, root) == independent
    assert measure(config, root, draws="balanced") == balanced
    assert len(calls) == before + len(CELLS)


def test_augmented_rows_stand_beside_the_others(runs, predictions):
    root, config = runs
    plain = measure(config, root)
    augmented = measure(config, root, augment=" flip,shift:1")
    assert [row["augment"] for row in augmented] == ["flip,shift:1"] * len(CELLS)
    assert [row["nll"] for row in augmented] != [row["nll"] for row in plain]
    assert measure(config, root) == plain
    assert measure(config, root, augment="flip,shift:1") == augmented
    assert Setting(8, augment="flip").facts(RunConfig(method="single")) == {
        "samples_asked": 8,
        "seed": 0,
        "augment": "flip",
    }


def test_adaptive_balanced_rows_say_what_they_took_for_interactions():
    config = RunConfig(method="mc-droprelu:0.9")
    asked = [
        Setting(100, 0, Adaptive(interactions=part), draws).facts(config)["samples_asked"]
        for part, draws in ((0.25, "independent"), (0.5, "independent"), (0.25, "balanced"), (0.5, "balanced"))
    ]
    assert asked[:2] == ["adaptive:100,0.02,0.95,16"] * 2
    assert asked[2:] == ["adaptive:100,0.02,0.95,16,0.25", "adaptive:100,0.02,0.95,16,0.5"]


def test_every_way_to_draw_has_facts_of_its_own():
    stops = [Adaptive(), Adaptive(0.1), Adaptive(confidence=0.9), Adaptive(first=8), Adaptive(interactions=0.5)]
    ways = [{}, {"samples": 20}, {"seed": 1}, {"draws": "balanced"}, {"augment": "flip"}]
    ways += [{"adaptive": one, "draws": "balanced"} for one in stops]
    config = RunConfig(method="mc-droprelu:0.9")
    assert len({str(Setting(**one).facts(config)) for one in ways}) == len(ways)
    for samples, asked in ((3, 3), (4, None), (5, None)):
        facts = Setting(samples, seed=2).facts(RunConfig(method="deep-ensemble:4"))
        assert facts == {"samples_asked": asked, "seed": None}


def test_a_measurement_tells_how_it_was_drawn():
    noted = {"samples": 20, "seed": 3, "draws": "balanced", "augment": "flip"}
    assert Setting.noted(noted) == Setting(**noted)


def test_rows_are_complete_and_right(runs):
    root, config = runs
    rows = measure(config, root, seed=3)
    assert [(row["corruption"], row["severity"]) for row in rows] == CELLS
    row = rows[CELLS.index(("frost", 4))]
    clean = data.load(config.data, "test")
    damaged = replace(clean, images=corrupt(clean.images, "frost", 4))
    state = torch.get_rng_state()
    networks = load_networks(config, root, CPU)
    assert torch.get_rng_state().equal(state)
    prediction = predict_images(config, networks, damaged, Passes(6, 3), CPU)
    labels = torch.from_numpy(clean.labels)
    for name in ("accuracy", "ece", "nll", "brier"):
        assert row[name] == float(getattr(metrics, name)(prediction.probs, labels)), name
    assert row["entropy"] == pytest.approx(float(metrics.entropy(prediction.probs).mean()), rel=1e-5)
    assert row["mutual_information"] == float(prediction.mutual_information.mean()) > 0
    assert (row["samples"], row["samples_asked"], row["seed"], row["images"]) == (6, 6, 3, 33)
    assert row["variant"].startswith("generated: frost, severity 4, seed 0")
    assert "frost: drawn ice" in row["variant"]
    stored = np.load(RunFolder.of(config, root).path / "shift" / "frost-4.npy")
    assert stored.dtype == np.float16
    assert np.allclose(stored, prediction.probs, atol=1e-3)
    content = json.loads((RunFolder.of(config, root).path / "shift.json").read_text())
    assert content["rows"] == in_order(rows)
    assert content["environments"][row["environment"]]["torch"] == torch.__version__


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_stopped_measurement_goes_on_where_it_was(runs, predictions, error):
    root, config = runs
    calls, before = predictions

    def stop():
        if len(calls) == 4:
            raise error

    before.append(stop)
    with pytest.raises(error):
        measure(config, root)
    assert len(ShiftStore(RunFolder.of(config, root)).find(config, Setting(6))) == 4
    before.clear()
    told = []
    rows = measure(config, root, progress=lambda *said: told.append(said))
    assert len(rows) == len(calls) == len(set(calls)) == 6
    assert told == [("measuring under corruptions", done, 6) for done in (4, 5, 6)]
    assert measure(config, root) == rows
    assert len(calls) == 6
    assert not list(root.rglob("*.partial"))


def test_a_killed_write_leaves_the_rows_before_it(runs, monkeypatch):
    root, config = runs
    first = measure(config, root, severities=[1])
    monkeypatch.setattr(ShiftStore, "add", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure(config, root)
    monkeypatch.undo()
    assert list(ShiftStore(RunFolder.of(config, root)).find(config, Setting(6)).values()) == in_order(first)


def test_several_runs_share_every_set(runs, predictions, monkeypatch):
    root, config = runs
    made, loaded = [], []
    usual, load = corrupted_sets.corrupted, measuring.load_networks
    monkeypatch.setattr(
        corrupted_sets, "corrupted", lambda *words, **more: made.append(words[1:]) or usual(*words, **more)
    )
    monkeypatch.setattr(measuring, "load_networks", lambda *words: loaded.append(words[0]) or load(*words))
    single = replace(config, method="single")
    of_two = [config, single, ensemble_of(config)]
    rows = shift_runs(of_two, root, CPU, NAMES, LEVELS, samples=6, cache=False)
    assert [len(one) for one in rows] == [6, 6, 6]
    assert made == CELLS
    assert len(loaded) == 3
    assert len(predictions[0]) == 3 * 6
    assert [call[0] for call in predictions[0][:3]] == ["mc-droprelu:0.8", "single", "single"]
    assert not (Path("cache") / "rbue").exists()


def test_an_ensemble_is_the_mean_of_its_members(runs, monkeypatch):
    root, config = runs
    whole = ensemble_of(config)
    members = [measure(member, root) for member in whole.members()]
    monkeypatch.setattr(measuring, "load_networks", lambda *_: 1 / 0)
    rows = measure(whole, root)
    labels = torch.from_numpy(data.load(config.data, "test").labels)
    for place, (row, cell) in enumerate(zip(rows, CELLS, strict=True)):
        stores = [ShiftStore(RunFolder.of(member, root)) for member in whole.members()]
        mean = torch.from_numpy(np.mean([stored(store, cell) for store in stores], axis=0))
        for name in ("accuracy", "ece", "nll", "brier"):
            assert row[name] == pytest.approx(float(getattr(metrics, name)(mean, labels)), rel=1e-5), name
        assert row["samples"] == 2
        assert row["combined_from"] == "stored probabilities"
        assert row["brier"] <= max(each[place]["brier"] for each in members) + 1e-3
    monkeypatch.undo()
    networks = load_networks(whole, root, CPU)
    clean = data.load(config.data, "test")
    damaged = replace(clean, images=corrupt(clean.images, *CELLS[0]))
    direct = predict_images(whole, networks, damaged, Passes(6), CPU)
    assert rows[0]["nll"] == pytest.approx(float(metrics.nll(direct.probs, labels)), rel=1e-2)
    assert rows[0]["mutual_information"] == pytest.approx(float(direct.mutual_information.mean()), rel=5e-2, abs=1e-4)


def test_members_of_an_ensemble_share_the_samples_asked_for(runs):
    """One of each plain member; augmented and random ones as in a prediction of clean images, which needs weights."""
    root, config = runs
    random, plain = replace(config, method=f"deep-ensemble:2[{config.method}]"), ensemble_of(config)
    first, second = (RunFolder.of(member, root).path for member in random.members())
    shutil.copytree(first, second)
    (second / "config.json").unlink()
    one = {"corruptions": ["contrast"], "severities": [4]}
    asked = (plain, ""), (plain, "flip"), (random, "")
    rows = [measure(run, root, augment=augment, **one)[0] for run, augment in asked]
    assert [(row["samples"], row["samples_asked"]) for row in rows] == [(2, None), (6, 6), (6, 6)]
    clean = data.load(config.data, "test")
    damaged = replace(clean, images=corrupt(clean.images, "contrast", 4))
    direct = predict_images(random, load_networks(random, root, CPU), damaged, Passes(6), CPU)
    assert rows[2]["nll"] == pytest.approx(float(metrics.nll(direct.probs, torch.from_numpy(clean.labels))), rel=1e-6)
    assert not (first / "shift.json").exists()

    folder = RunFolder.of(random, root)  # as it was combined before members shared
    content = folder.read("shift")
    earlier = {**content["rows"][0], "samples": 12.0, "combined_from": "stored probabilities"}
    folder.write("shift", {**content, "rows": [earlier]})
    assert measure(random, root, **one) == [rows[2]]
    folder.write("shift", {**content, "rows": [earlier]})
    (second / "weights.safetensors").unlink()
    with pytest.raises(RbueError, match="under corruptions with as many passes of each member, while members share"):
        measure(random, root, **one)


def test_stored_probabilities_are_checked_once_for_a_plan_and_once_for_an_ensemble(runs, monkeypatch):
    root, config = runs
    whole, checked = ensemble_of(config), []
    for member in whole.members():
        measure(member, root)
    for name, real in (("belong_to", belong_to), ("probs_of", probs_of)):
        counted = lambda path, row, real=real: checked.append(path) or real(path, row)  # noqa: E731
        monkeypatch.setattr(f"rbue.lab.shift.rows.{name}", counted)
    measure(whole, root)
    assert len(checked) == 2 * 2 * len(CELLS)


def test_a_member_that_is_measured_meanwhile_counts_as_it_was_checked(runs, monkeypatch):
    root, config = runs
    whole, check = ensemble_of(config), measuring._check_same_images
    wanted = measure(whole, root)
    shutil.rmtree(RunFolder.of(whole, root).path)

    def slowly(config, stores, rows, cell):
        stores[0].save_probs(cell, stored(stores[0], cell)[::-1])
        check(config, stores, rows, cell)

    monkeypatch.setattr(measuring, "_check_same_images", slowly)
    assert measure(whole, root) == wanted


def test_fewer_samples_than_members_are_the_first_members(runs):
    root, config = runs
    whole = ensemble_of(config)
    (row,) = measure(whole, root, samples=1, corruptions=["fog"], severities=[4])
    first, second = (ShiftStore(RunFolder.of(member, root)) for member in whole.members())
    assert first.has_probs(Cell("fog", 4))
    assert not second.has_probs(Cell("fog", 4))
    (own,) = measure(whole.members()[0], root, corruptions=["fog"], severities=[4])
    assert (row["samples"], row["samples_asked"], row["accuracy"]) == (1, 1, own["accuracy"])
    (both,) = measure(whole, root, corruptions=["fog"], severities=[4])
    assert (both["samples"], both["samples_asked"]) == (2, None)


def test_a_run_without_weights_says_how_it_was_measured(runs):
    root, config = runs
    measure(config, root, severities=[1], corruptions=["fog"], draws="balanced", augment="shift:1")
    (RunFolder.of(config, root).path / "weights.safetensors").unlink()
    words = "with samples 6, seed 0, draws balanced, augment shift:1; ask for that: its weights are not kept"
    with pytest.raises(RbueError, match=words):
        measure(config, root, severities=[1], corruptions=["fog"])


def test_an_ensemble_has_its_members_measured_and_needs_no_weights_then(runs):
    root, config = runs
    whole = ensemble_of(config)
    first = measure(whole, root, severities=[1])
    for member in whole.members():
        folder = RunFolder.of(member, root)
        assert len(folder.read("shift")["rows"]) == 3
        (folder.path / "weights.safetensors").unlink()
    shutil.rmtree(RunFolder.of(whole, root).path)
    again = measure(whole, root, severities=[1])
    assert again == first
    with pytest.warns(RbueWarning, match=r"lacks 3 of 6 measurements .* weights are not here"):
        assert measure(whole, root) == first
    with pytest.raises(RbueError, match=r"neither trained networks nor measurements .* train it first"):
        measure(whole, root, severities=[5])


def test_an_ensemble_joins_a_published_member_and_one_with_weights(runs, predictions):
    root, config = runs
    whole = ensemble_of(config)
    wanted = measure(whole, root)
    shutil.rmtree(RunFolder.of(whole, root).path)
    published, here = (RunFolder.of(member, root) for member in whole.members())
    (published.path / "weights.safetensors").unlink()
    shutil.rmtree(here.path / "shift")
    (here.path / "shift.json").unlink()
    predictions[0].clear()
    rows = measure(whole, root)
    assert {call[1] for call in predictions[0]} == {1}
    assert [row["nll"] for row in rows] == [row["nll"] for row in wanted]


def drawn_by(config, root, version, cells):
    """Make some rows of a run those of another version of the random stream."""
    store = ShiftStore(RunFolder.of(config, root))
    for cell, row in store.find(config, Setting(6)).items():
        if cell in cells:
            store.add({**row, "stream_version": version, "nll": 99.0})


def test_rows_of_another_stream_are_measured_again(runs, predictions):
    root, config = runs
    rows = measure(config, root)
    drawn_by(config, root, 0, CELLS[:2])
    predictions[0].clear()
    assert measure(config, root) == rows
    assert len(predictions[0]) == 2
    single = replace(config, method="single")
    measure(single, root)
    drawn_by(single, root, 0, CELLS)
    assert [row["nll"] for row in measure(single, root)] == [99.0] * 6


@pytest.mark.parametrize("choose", [lambda config: replace(config, method="mc-droprelu:0.8[single]"), ensemble_of])
def test_rows_of_networks_that_were_trained_again_since_are_measured_again(runs, predictions, choose):
    root, config = runs[0], choose(runs[1])
    rows = measure(config, root)
    predictions[0].clear()
    for one in config.trainings():
        folder = RunFolder.of(one, root)
        training = folder.read("training")
        folder.write("training", {**training, "seconds": training["seconds"] + 1})
    again = measure(config, root)
    assert len(predictions[0]) == 6 * len(config.trainings())
    assert [row["nll"] for row in again] == [row["nll"] for row in rows]
    (folder.path / "weights.safetensors").unlink()
    folder.write("training", training)
    with pytest.raises(RbueError, match="before its networks were trained again"):
        measure(config, root)


def test_rows_of_another_stream_without_weights(runs):
    root, config = runs
    rows = measure(config, root)
    drawn_by(config, root, 0, CELLS[:2])
    (RunFolder.of(config, root).path / "weights.safetensors").unlink()
    both = "version 0 of the random stream, while this is version 1"
    with pytest.warns(RbueWarning, match=rf"lacks 2 of 6 .*{both}"):
        assert measure(config, root) == rows[2:]
    with pytest.raises(RbueError, match=rf"{both}; its weights are not kept in this folder to measure it again"):
        measure(config, root, corruptions=["fog"])


def test_rows_in_a_folder_that_is_named_from_within_are_read(runs, monkeypatch):
    root, config = runs
    rows = measure(config, root)
    path = RunFolder.of(config, root).path
    monkeypatch.chdir(path.parent)
    found = ShiftStore(RunFolder(Path(path.name))).near(config, Setting(6))
    assert in_order(found.values()) == in_order(rows)


@pytest.mark.parametrize("method", ["mc-droprelu:0.8", "single", "deep-ensemble:2"])
def test_a_clean_result_of_networks_that_were_trained_again_since_is_left_out(runs, method):
    root, config = runs[0], replace(runs[1], method=method)
    clean = evaluate_run(config, root, CPU, samples=6)
    folder = RunFolder.of(config, root)
    assert clean_result(config, folder, Setting(6))["ece"] == clean["ece"]
    trained = RunFolder.of(config.trainings()[-1], root)
    training = trained.read("training")
    trained.write("training", {**training, "seconds": training["seconds"] + 1})
    with pytest.warns(RbueWarning, match="on clean images before its networks were trained again; that is left out"):
        assert clean_result(config, folder, Setting(6)) is None


def test_a_clean_result_of_another_stream_is_left_out(runs):
    root, config = runs
    folder = RunFolder.of(config, root)
    clean = evaluate_run(config, root, CPU, samples=6)
    folder.write("results", {"samples=6,seed=0": {**clean, "stream_version": 0}})
    with pytest.warns(RbueWarning, match="version 0 of the random stream"):
        assert clean_result(config, folder, Setting(6)) is None


def test_a_run_without_weights_or_data_gives_its_rows(runs, monkeypatch):
    root, config = runs
    rows = measure(config, root, severities=[1])
    (RunFolder.of(config, root).path / "weights.safetensors").unlink()
    monkeypatch.setattr(measuring, "is_here", lambda _: False)
    monkeypatch.setattr(data, "load", lambda *_: 1 / 0)
    assert measure(config, root, severities=[1]) == rows


@pytest.fixture
def own_pictures(tmp_path):
    """Pictures to change, and the networks of an ensemble trained on them: the folder, the root and the settings."""
    name = write_pictures(tmp_path / "own")
    recipe = recipe_for(name, epochs=1, batch=16)
    whole = RunConfig(name, "small_cnn", "deep-ensemble:2", width=0.25, recipe=recipe)
    train_run(whole, tmp_path / "runs", CPU)
    return tmp_path / "own", tmp_path / "runs", whole


def repaint(pictures, split):
    """Change the pictures of one class."""
    for path in (pictures / split / "a").iterdir():
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)


def change(root, member, *, without=(), **changes):
    """Change what the rows of a run say."""
    store = ShiftStore(RunFolder.of(member, root))
    for row in store.find(member, Setting(6)).values():
        store.add({**{name: value for name, value in row.items() if name not in without}, **changes})


def take_weights(config, root):
    for member in config.members():
        (RunFolder.of(member, root).path / "weights.safetensors").unlink()


def test_other_test_images_in_a_folder_are_measured_anew(own_pictures, predictions):
    pictures, root, whole = own_pictures
    single = whole.members()[0]
    before = {config: measure(config, root, severities=[1]) for config in (single, whole)}
    assert before[single][0]["clean_sha256"] == data.load(single.data, "test").record()["sha256"]
    repaint(pictures, "test")
    predictions[0].clear()
    after = {config: measure(config, root, severities=[1]) for config in (single, whole)}
    assert len(predictions[0]) == 2 * 3
    for config in (single, whole):
        assert all(old["nll"] != new["nll"] for old, new in zip(before[config], after[config], strict=True))
        assert measure(config, root, severities=[1]) == after[config]
    assert len(predictions[0]) == 2 * 3
    repaint(pictures, "test")
    take_weights(whole, root)
    for config in (single, whole):
        with pytest.raises(RbueError, match=r"on other test images than folder:.* holds now; its weights are not kept"):
            measure(config, root, severities=[1])


def test_rows_that_do_not_say_on_which_images_are_believed(own_pictures, predictions):
    pictures, root, whole = own_pictures
    single = whole.members()[0]
    measure(single, root)
    change(root, single, without=["clean_sha256", "probs_sha256"])
    rows = measure(single, root)
    repaint(pictures, "test")
    predictions[0].clear()
    assert measure(single, root) == rows
    assert not predictions[0]


def test_networks_trained_on_other_images_are_not_measured(own_pictures):
    pictures, root, whole = own_pictures
    rows = measure(whole, root, severities=[1])
    repaint(pictures, "train")
    assert measure(whole, root, severities=[1]) == rows
    with pytest.raises(RbueError, match=r"single-seed0-.* was trained on other images than folder:.* holds now"):
        measure(whole, root)


def test_probabilities_of_another_measurement_are_not_combined(runs, predictions):
    root, config = runs
    whole = ensemble_of(config)
    wanted = measure(whole, root, severities=[1])
    shutil.rmtree(RunFolder.of(whole, root).path)
    store = ShiftStore(RunFolder.of(whole.members()[1], root))
    store.save_probs(CELLS[0], stored(store, CELLS[0])[::-1])
    predictions[0].clear()
    assert measure(whole, root, severities=[1]) == wanted
    assert len(predictions[0]) == 1  # that one again
    assert "probs_sha256" not in wanted[0]
    shutil.rmtree(RunFolder.of(whole, root).path)
    store.save_probs(CELLS[0], stored(store, CELLS[0])[::-1])
    take_weights(whole, root)
    with pytest.raises(
        RbueError, match=r"single-seed1.* with other probabilities than .*fog-1\.npy holds; its weights"
    ):
        measure(whole, root, corruptions=["fog"], severities=[1])
    with pytest.warns(RbueWarning, match=r"lacks 1 of 3 measurements .* with other probabilities than"):
        assert measure(whole, root, severities=[1]) == wanted[1:]


@pytest.mark.parametrize("last", ["add", "save_probs"])
def test_a_stop_between_row_and_probabilities_leaves_nothing_that_is_taken_for_both(runs, monkeypatch, last):
    """An earlier row, of other images and from before checksums were noted, must not get the new probabilities."""
    root, config = runs
    whole = ensemble_of(config)
    first = whole.members()[0]
    one = {"corruptions": ["fog"], "severities": [1]}
    measure(first, root, **one)
    change(root, first, variant="of another set", without=["probs_sha256"])
    shutil.rmtree(RunFolder.of(first, root).path / "shift")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ShiftStore, last, stop)
    with pytest.raises(KeyboardInterrupt):
        measure(whole, root, **one)
    monkeypatch.undo()
    assert ShiftStore(RunFolder.of(first, root)).find(first, Setting(6), with_probs=True) == {}


@pytest.mark.parametrize("shape", [(32, 3), (33, 2)])
def test_probabilities_of_another_shape(runs, shape):
    root, config = runs
    whole = ensemble_of(config)
    for member in whole.members():
        measure(member, root, severities=[1])
        change(root, member, without=["probs_sha256"])
    ShiftStore(RunFolder.of(member, root)).save_probs(CELLS[0], np.ones(shape, np.float32))
    with pytest.raises(RbueError, match=r"single-seed1.*fog-1\.npy has shape \(\d+, \d\) instead of \(33, 3\)"):
        measure(whole, root, severities=[1])


def test_members_measured_on_other_clean_images_are_not_mixed(runs, monkeypatch):
    root, config = runs
    whole = ensemble_of(config)
    measure(whole, root, severities=[1])
    shutil.rmtree(RunFolder.of(whole, root).path)
    first, second = whole.members()
    monkeypatch.setattr(measuring, "is_here", lambda _: False)  # the rows are all that tells
    known = {"images": "other", "labels": "other"}
    change(root, second, clean_sha256=known)
    with pytest.raises(RbueError, match=r"different images of fog severity 1 \(made from other test images\); remove"):
        measure(whole, root, severities=[1])
    change(root, first, without=["clean_sha256"])
    assert [row["clean_sha256"] for row in measure(whole, root, severities=[1])] == [known] * 3


def test_members_measured_on_other_images_are_not_mixed(runs):
    root, config = runs
    whole = ensemble_of(config)
    measure(whole, root, severities=[1])
    shutil.rmtree(RunFolder.of(whole, root).path)

    for other in ({"labels_sha256": "z"}, {"variant": "published CIFAR-10-C: fog, severity 1"}):
        change(root, whole.members()[1], **other)
        with pytest.raises(RbueError, match=r"different images of fog severity 1 .*remove .*shift\.json"):
            measure(whole, root, severities=[1])
    for member in whole.members():
        change(root, member, variant="x", labels_sha256="y")
    with pytest.raises(RbueError, match="belong to images that are not on this machine"):
        measure(whole, root, severities=[1])


def test_no_stored_probability_is_zero(runs):
    store = ShiftStore(RunFolder.of(runs[1], runs[0]))
    store.save_probs(CELLS[0], np.array([[1.0, 1e-12], [0.5, 0.5]], np.float32))
    assert stored(store, CELLS[0])[0, 1] == pytest.approx(2.0**-24)
    assert np.abs(stored(store, CELLS[0]).sum(1) - 1).max() < 1e-6
    (store.folder.path / "shift" / "fog-1.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(RbueError, match=r"fog-1\.npy cannot be read"):
        stored(store, CELLS[0])


def test_settings_are_kept_apart(runs, predictions):
    root, config = runs
    one = {"corruptions": ["fog"], "severities": [4]}
    plain = measure(config, root, **one)[0]
    other = measure(config, root, seed=1, **one)[0]
    more = measure(config, root, samples=64, **one)[0]
    early = measure(config, root, samples=64, adaptive=Adaptive(tolerance=0.2, first=4), **one)[0]
    assert len({row["nll"] for row in (plain, other, more, early)}) == 4
    assert 4 <= early["samples"] < 64 == more["samples"]
    assert early["samples"] % 1, "a mean over images, not the most of any"
    assert early["samples_asked"] == "adaptive:64,0.2,0.95,4"
    assert measure(config, root, **one) == [plain]
    assert len(predictions[0]) == 4


def test_a_single_network_is_measured_once_for_all_settings(runs, predictions):
    root, config = runs
    single = replace(config, method="single")
    rows = measure(single, root)
    assert measure(single, root, samples=50, seed=2, adaptive=Adaptive()) == rows
    assert len(predictions[0]) == 6
    assert (rows[0]["samples"], rows[0]["samples_asked"], rows[0]["seed"]) == (1, None, None)
    assert rows[0]["mutual_information"] < 1e-6
    assert shift_rows(single, root, 50) == in_order(rows)


def test_the_paper_finds_the_rows(runs):
    root, config = runs
    rows = shift_run(config, root, CPU, severities=(1,), samples=2)
    assert len(rows) == 19
    measure(config, root, samples=4, severities=(1,))
    measure(config, root, samples=2, severities=(1,), seed=1)
    measure(config, root, samples=2, severities=(1,), adaptive=Adaptive())
    assert shift_rows(config, root, 2) == rows
    assert shift_is_done(config, root, (1,), 2)
    assert not shift_is_done(config, root, (1, 2), 2)
    assert not shift_is_done(config, root, (1,), 4)


def test_severity_zero_is_the_clean_result(runs):
    root, config = runs
    rows, folder, setting = measure(config, root), RunFolder.of(config, root), Setting(6)
    assert clean_result(config, folder, setting) is None
    assert sorted(by_severity(rows, "ece")) == [1, 4]
    clean = evaluate_run(config, root, CPU, samples=6)
    assert clean_result(config, folder, setting) == clean
    assert clean_result(config, folder, Setting(7)) is None
    said = f"measured with samples=6,seed=0, not samples=7,seed=0; `rbue evaluate {config.id} --samples 7` adds it"
    assert (clean_otherwise(config, folder, setting), clean_otherwise(config, folder, Setting(7))) == ("", said)
    other = clean_otherwise(config, folder, Setting(7, seed=3, draws="balanced", augment="flip"))
    assert other.endswith(" --samples 7 --sample-seed 3 --draws balanced --augment flip` adds it")
    assert by_severity(rows, "ece", clean) == {
        0: [clean["ece"]],
        1: [row["ece"] for row in rows if row["severity"] == 1],
        4: [row["ece"] for row in rows if row["severity"] == 4],
    }
    single = replace(config, method="single")
    evaluate_run(single, root, CPU, samples=9)
    assert clean_result(single, RunFolder.of(single, root), setting)["samples"] == 1
    whole = ensemble_of(config)
    folder = RunFolder.of(whole, root)
    flipped = {"samples=2,seed=0,augment=flip": {"samples": 2, "augment": "flip"}}
    folder.write("results", {**flipped, "samples=1,seed=0": {"samples": 1}, "samples=9,seed=0": {"samples": 2}})
    assert clean_result(whole, folder, setting) == clean_result(whole, folder, Setting(2)) == {"samples": 2}
    assert clean_result(whole, folder, Setting(1)) == {"samples": 1}
    assert clean_result(whole, folder, Setting(1, draws="balanced")) == {"samples": 1}  # its members draw nothing


def test_rows_near_a_setting_are_those_of_it_or_the_most_that_are_augmented_alike(tmp_path):
    config = RunConfig(method="mc-droprelu:0.8")
    store = ShiftStore(RunFolder.of(config, tmp_path))
    kept = {"seed": 0, "accuracy": 0.5, "ece": 0.1, "variant": "generated", "labels_sha256": ""}
    rows = [
        {**Cell(name, 1)._asdict(), **kept, "samples_asked": samples, "augment": augment}
        for samples, augment, count in ((50, "", 1), (20, "", 2), (9, "flip", 4))
        for name in CORRUPTIONS[:count]
    ]
    store.folder.write("shift", {"rows": rows, "environments": {}})
    for setting, expected in ((Setting(50), 50), (Setting(7), 20), (Setting(7, augment="flip"), 9)):
        assert {row["samples_asked"] for row in store.near(config, setting).values()} == {expected}
    store.folder.write("shift", {"rows": [{**row, "stream_version": 0} for row in rows], "environments": {}})
    assert not store.near(config, Setting(50))


def test_probabilities_of_other_clean_images_are_not_there(tmp_path):
    config, cell = RunConfig(), Cell("fog", 1)
    store = ShiftStore(RunFolder.of(config, tmp_path))
    row = {"accuracy": 0.5, "ece": 0.1, "variant": "", "labels_sha256": "", "clean_sha256": {"images": "a"}}
    store.keep({**cell._asdict(), **Setting().facts(config), **row}, np.full((2, 3), 1 / 3, np.float32))
    found = [store.whole(config, Setting(), cell, {"images": name}) is not None for name in "ab"]
    assert found == [True, False]


def test_a_severity_is_summed_up_by_its_mean_and_its_worst():
    numbers = {("fog", 1): (0.8, 0.1), ("frost", 1): (0.5, 0.3), ("snow", 1): (0.2, 0.2), ("fog", 4): (0.4, 0.6)}
    rows = [{**Cell(*cell)._asdict(), "accuracy": own[0], "ece": own[1]} for cell, own in numbers.items()]
    first, last = summarise(rows)
    assert (first.severity, first.corruptions, last.severity, last.corruptions) == (1, 3, 4, 1)
    assert (first.accuracy, first.worst_accuracy, first.hardest) == (pytest.approx(0.5), 0.2, "snow")
    assert (first.ece, first.worst_ece, first.least_calibrated) == (pytest.approx(0.2), 0.3, "frost")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"corruptions": ["shot_nois"]}, "did you mean 'shot_noise'"),
        ({"severities": [0]}, "got 0; severity 0 is the clean image"),
        ({"severities": [1, 6]}, "got 6"),
        ({"corruptions": []}, "nothing to measure"),
        ({"corruptions": "fog"}, "must be a list"),
        ({"samples": 0}, "samples is 0; give a whole number of at least 1"),
        ({"samples": 2.5}, r"samples is 2\.5; give a whole number"),
    ],
)
def test_bad_requests_are_refused_first(runs, bad, message, monkeypatch):
    monkeypatch.setattr(data, "load", lambda *_: 1 / 0)
    with pytest.raises(InvalidInput, match=message):
        measure(runs[1], runs[0], **bad)


def test_small_images_are_refused(tmp_path):
    config = RunConfig("digits", width=0.25, recipe=recipe_for("digits", epochs=1, batch=256))
    train_run(config, tmp_path, CPU)
    with pytest.raises(InvalidInput, match="images of digits have 8x8 pixels, but corruptions need at least 16x16"):
        measure(config, tmp_path)


def test_an_untrained_run(tmp_path, runs):
    with pytest.raises(RbueError, match="train it first"):
        measure(runs[1], tmp_path / "nowhere")


ROW = {**Cell("fog", 1)._asdict(), "samples_asked": 6, "seed": 0, "accuracy": 0.5, "ece": 0.1}
ROW |= {"variant": "generated: fog", "labels_sha256": "0"}


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"rows": []},
        {"rows": {}, "environments": {}},
        {"rows": [3], "environments": {}},
        *({"rows": [{name: ROW[name] for name in ROW if name != left_out}], "environments": {}} for left_out in ROW),
        {"rows": [{**ROW, "corruption": "rain"}], "environments": {}},
        {"rows": [{**ROW, "severity": 6}], "environments": {}},
        {"rows": [{**ROW, "accuracy": "high"}], "environments": {}},
        {"rows": [{**ROW, "seed": "0"}], "environments": {}},
        {"rows": [ROW], "environments": []},
        {"rows": [ROW], "environments": {"a": 3}},
    ],
)
def test_a_file_of_another_form(runs, content):
    folder = RunFolder.of(runs[1], runs[0])
    folder.write("shift", {"rows": [ROW], "environments": {}})
    assert measure(runs[1], runs[0], corruptions=["fog"], severities=[1]) == [ROW]
    folder.write("shift", content)
    with pytest.raises(RbueError, match=r"shift\.json has another form; remove it"):
        measure(runs[1], runs[0], corruptions=["fog"], severities=[1])


@pytest.mark.parametrize("content", [[3], {"samples=6,seed=0": 3}])
def test_results_of_another_form(runs, content):
    root, config = runs
    folder = RunFolder.of(config, root)
    folder.write("results", content)
    with pytest.raises(RbueError, match=r"results\.json has another form.*; remove it"):
        clean_result(config, folder, Setting(6))
    with pytest.raises(RbueError, match=r"results\.json has another form.*; remove it"):
        evaluate_run(config, root, CPU, samples=6)


def test_grey_images_stay_grey(tmp_path):
    images = data.load(write_pictures(tmp_path / "grey", channels=1), "test")
    assert images.images.shape[3] == 1
    ((_, damaged),) = prepared(images, [Cell("saturate", 4)], cache=False)
    assert damaged.images.shape == images.images.shape
    assert (damaged.mean, damaged.std) == (images.mean, images.std)
    assert damaged.variant.endswith("as grey")
    colours = corrupt(images.images, "saturate", 4)[0].astype(float)
    assert np.abs(damaged.images[0, ..., 0] - colours @ [0.299, 0.587, 0.114]).max() <= 0.5


def test_helper_processes_make_the_same_images(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    images = data.load(trained[1].data, "test")
    for cell, damaged in prepared(images, CELLS[:4], cache=False, helpers=1):
        assert np.array_equal(damaged.images, corrupt(images.images, *cell))
        assert np.array_equal(damaged.labels, images.labels)
        assert damaged.variant.startswith(f"generated: {cell.corruption}, severity {cell.severity}")
    assert not (tmp_path / "cache").exists()
    assert not list(tmp_path.glob("rbue-*"))


def test_what_a_helper_answers(trained, tmp_path, monkeypatch):
    images = data.load(trained[1].data, "test")
    np.save("clean.npy", images.images)
    (tmp_path / "bad").write_text("in the way")

    def answers(root):
        start = {"clean": "clean.npy", "root": str(root), "name": images.name, "split": "test", "mean": images.mean}
        questions = [start, *({"corruption": name, "severity": 4} for name in ("fog", "contrast"))]
        out = io.StringIO()
        corrupted_sets.serve(io.StringIO("".join(json.dumps(question) + "\n" for question in questions)), out)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    assert answers(tmp_path / "cache" / "rbue" / "data") == [None, None]
    monkeypatch.setattr(sets, "corrupt", lambda *_, **__: 1 / 0)
    kept = list(prepared(images, [Cell("fog", 4), Cell("contrast", 4)], helpers=0))
    assert np.array_equal(kept[0][1].images, corrupt(images.images, "fog", 4))
    assert all("a file is in the way" in answer for answer in answers(tmp_path / "bad"))


def test_a_dead_helper(trained, monkeypatch):
    images = data.load(trained[1].data, "test")
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(RbueError, match="a helper process ended while making fog severity 1"):
        next(prepared(images, CELLS[:2], cache=False, helpers=1))


def test_leaving_early_ends_the_work(trained, monkeypatch):
    images = data.load(trained[1].data, "test")
    begun = []
    usual = corrupted_sets.corrupted
    monkeypatch.setattr(
        corrupted_sets, "corrupted", lambda *words, **more: begun.append(words) or usual(*words, **more)
    )
    cells = [Cell(name, level) for name in CORRUPTIONS for level in (1, 2, 3, 4, 5)]
    before = set(threading.enumerate())  # torch.compile leaves threads of its own behind
    sets = prepared(images, cells, cache=False)
    next(sets)
    assert set(threading.enumerate()) - before
    sets.close()
    assert len(begun) <= 3
    assert not set(threading.enumerate()) - before


def test_helpers_are_for_large_work(monkeypatch):
    monkeypatch.setattr(corrupted_sets, "usable_cores", lambda: 16)
    assert corrupted_sets.helpers_for(950_000) == 14
    assert corrupted_sets.helpers_for(1000) == 0
    monkeypatch.setattr(corrupted_sets, "usable_cores", lambda: 2)
    assert corrupted_sets.helpers_for(950_000) == 0
