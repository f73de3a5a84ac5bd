"""Where a run lives, what it trains on, and what it keeps."""

import io
import json
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rbue import files
from rbue.errors import InvalidInput, RbueError
from rbue.lab import data
from rbue.lab.methods import parse
from rbue.lab.runs import folders, probabilities, training
from rbue.lab.runs.folders import RunConfig, RunFolder, find_runs, trained_again
from rbue.lab.runs.probabilities import probs_of, read_probs, write_probs
from rbue.lab.runs.training import missing_networks, train_run, training_images
from rbue.lab.training import Recipe, recipe_for
from rbue.locks import InUse

SETTINGS = {"data": "cifar10", "model": "vgg13", "method": "svi", "seed": 1, "width": 0.5}
SETTINGS |= {"holdout": 10, "holdout_seed": 1, "recipe": Recipe(epochs=3)}
RECIPE = {"epochs": 3, "batch": 7, "learning_rate": 0.3, "milestones": (0.5,), "factor": 0.5}
RECIPE |= {"momentum": 0.5, "nesterov": False, "weight_decay": 0.5, "padding": 1, "flip": False}
AVERAGES = [{"average": "swa"}, {"average": "swa", "average_start": 0.5}, {"average": "ema"}]
AVERAGES += [{"average": "swa", "average_learning_rate": 0.5}, {"average": "ema", "average_decay": 0.5}]
AUGMENTED = {"label_smoothing": 0.1, "cutout": 8, "mixup": 0.2, "noise": 0.1, "augmix": 0.5, "sync_batchnorm": True}


def test_trainings_are_told_apart_by_their_clocks_but_not_by_how_a_sum_of_them_is_rounded():
    clocks = [561.0640383809999, 595.680266137, 564.0557001230001, 277.030701487]  # whose sum Python 3.12 rounds anew
    plainly, exactly = 1997.8307061279997, 1997.830706128
    assert sum(clocks) in (plainly, exactly)
    for noted, seconds in ((plainly, exactly), (exactly, plainly), (None, exactly), (exactly, None)):
        assert trained_again({"training_seconds": noted}, seconds) == ""
    assert trained_again({}, exactly) == ""
    assert trained_again({"training_seconds": exactly}, exactly + 1e-6) == "before its networks were trained again"


def test_every_setting_has_a_folder_of_its_own(tmp_path):
    run = RunConfig()
    changed = [replace(run, **{name: value}) for name, value in SETTINGS.items()]
    changed += [
        replace(run, recipe=replace(run.recipe, **{name: value})) for name, value in (RECIPE | AUGMENTED).items()
    ]
    changed += [replace(run, recipe=replace(run.recipe, **average)) for average in AVERAGES]
    names = RECIPE.keys() | AUGMENTED.keys() | {name for average in AVERAGES for name in average}
    assert (SETTINGS.keys(), names) == tuple({one.name for one in fields(kind)} for kind in (RunConfig, Recipe))
    assert len({one.id for one in (run, *changed)}) == len(changed)  # three epochs are there twice
    assert len({RunFolder.of(one, tmp_path).path for one in (run, *changed)}) == len(changed)


STORED = sorted((Path(__file__).parents[3] / "results").glob("**/config.json"))


def test_every_run_that_was_kept_is_still_found():
    assert len(STORED) >= 33
    for path in STORED:
        content = json.loads(path.read_text())
        config = RunConfig.from_json(content)
        assert RunFolder.of(config, path.parents[3]).path == path.parent
        assert json.dumps(config.as_json()) == json.dumps(content)


@pytest.mark.parametrize(("name", "value"), [("flip", "x" * 5000), ("x" * 5000, 1)], ids=["value", "name"])
def test_a_damaged_setting_of_any_length_is_a_short_sentence(name, value):
    content = RunConfig().as_json()
    with pytest.raises(RbueError, match=r"^run/config\.json .*xxx\.\.\.") as error:
        RunConfig.from_json({**content, "recipe": {**content["recipe"], name: value}}, "run/config.json")
    assert len(str(error.value)) < 1200


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        *(("seed", value, f"seed must be an integer, not {value!r}.") for value in (1.5, True, "1")),
        *(("seed", value, f"seed must lie in [0, 2**64), not {value}.") for value in (-1, 2**64)),
        *((name, -5, f"{name} must be at least 0, not -5.") for name in ("holdout", "holdout_seed")),
        *(
            (name, value, f"{name} must be a whole number of at least 0, not {value!r}.")
            for name in ("holdout", "holdout_seed")
            for value in (2.5, True, None)
        ),
        *(("width", value, f"width must be a number, not {value!r}.") for value in ("1", None, True)),
        *(("method", value, f"such as 'mc-droprelu:0.9', not {value!r}.") for value in (None, 1)),
        ("data", Path("x"), f"data must be the name of a data set, or folder:PATH, not {Path('x')!r}."),
        ("model", None, "model must be the name of a network, or package.module:factory, not None."),
        *(
            ("recipe", value, f"recipe must be a Recipe, such as recipe_for('digits'), not {value!r}.")
            for value in (None, {})
        ),
    ],
)
def test_settings_that_cannot_be_are_named(name, value, said):
    with pytest.raises(InvalidInput) as refusal:
        RunConfig(**{name: value})
    assert str(refusal.value).endswith(said)


def test_the_same_settings_in_other_types_are_the_same_run(tmp_path):
    plain = RunConfig(
        method="mc-droprelu:0.8,last", seed=3, width=1.0, holdout=10, recipe=Recipe(learning_rate=1.0, epochs=4)
    )
    other = RunConfig(
        method=parse("mc-droprelu:0.8,last"),
        seed=np.int64(3),
        width=1,
        holdout=np.int32(10),
        holdout_seed=np.uint8(0),
        recipe=Recipe(learning_rate=1, epochs=np.int64(4)),
    )
    assert json.dumps(other.as_json()) == json.dumps(plain.as_json())
    assert RunFolder.of(other, tmp_path) == RunFolder.of(plain, tmp_path)


def test_every_member_of_an_ensemble_has_a_seed():
    assert RunConfig(method="deep-ensemble:3", seed=2**64 - 3).members()[-1].seed == 2**64 - 1
    with pytest.raises(InvalidInput, match=f"deep-ensemble:3 with seed {2**64 - 2} would have the seed {2**64}, and"):
        RunConfig(method="deep-ensemble:3", seed=2**64 - 2)


def test_an_ensemble_begins_at_its_own_seed():
    whole = RunConfig(method="deep-ensemble:3", seed=6)
    assert whole.members() == [RunConfig(method="single", seed=seed) for seed in (6, 7, 8)]


def test_what_is_held_out_is_not_trained_on():
    whole = data.load("digits", "train")
    kept = training_images(RunConfig(holdout=100, holdout_seed=2))
    expected, _ = data.holdout(whole, 100, 2)
    assert len(kept) == len(whole) - 100
    assert np.array_equal(kept.images, expected.images)
    assert kept.record()["holdout"]["part"] == "train"


def several_arrays():
    buffer = io.BytesIO()
    np.savez(buffer, a=np.ones((2, 2)), b=np.ones(3))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (several_arrays(), "holds several arrays"),
        (b"PK\x03\x04 and no more", "cannot be read"),
        (np.ones((3, 4), np.int8), "holds int8"),
        (np.ones((3, 4), complex), "holds complex128"),
        (np.array([["0.5", "0.5"]]), "holds <U3"),
        (np.array([[0.5, 0.5], [0, 0]], np.float16), "holds no probabilities in 1 of 2 rows, the first of them row 1"),
        (
            np.array([[np.nan, 0.5], [0.5, 0.5]], np.float16),
            "holds no probabilities in 1 of 2 rows, the first of them row 0",
        ),
        (np.array([[np.inf, 0.5]], np.float16), "holds no probabilities in 1 of 1 rows"),
        (np.array([[-1.0, 2.0]], np.float16), "holds no probabilities in 1 of 1 rows"),
        (np.ones((3, 0), np.float16), "holds no probabilities in 3 of 3 rows"),
    ],
)
def test_damaged_probabilities_are_named(tmp_path, content, said):
    path = tmp_path / "probs.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(RbueError, match=rf"probs\.npy .*{said}.*; remove it to have it made again\.$"):
        read_probs(path)


def test_probabilities_that_are_checked_are_those_that_are_given(tmp_path, monkeypatch):
    path, probs = tmp_path / "probs.npy", np.array([[0.25, 0.75]], np.float32)
    result = {"probs_sha256": write_probs(path, probs)}
    checksum = files.checksum

    def replaced_meanwhile(content):
        path.write_bytes(probabilities.probs_bytes(probs[:, ::-1]))
        return checksum(content)

    monkeypatch.setattr(probabilities, "checksum", replaced_meanwhile)
    assert probs_of(path, result).tolist() == [[0.25, 0.75]]
    assert probs_of(path, result) is None


def test_settings_that_cannot_be_read_are_written_anew_by_the_next_training(tmp_path):
    config = RunConfig()
    folder = RunFolder.of(config, tmp_path)
    folder.open(config, {"machine": "first"})
    (folder.path / "config.json").write_text("{")
    with pytest.raises(RbueError, match=r"config\.json cannot be read .*; the command that trained this run writes it"):
        folder.config()
    folder.open(config, {"machine": "second"})
    assert folder.config() == config
    assert folder.read("environment") == {"machine": "first"}  # that of the training


@pytest.mark.parametrize("content", ["[]", "[1]", "1", '"done"', "{}", '{"epochs": 3}', "{"])
def test_a_damaged_training_is_not_taken_for_one_that_is_done(tmp_path, content):
    config = RunConfig()
    folder = RunFolder.of(config, tmp_path)
    folder.open(config, {})
    (folder.path / "training.json").write_text(content)
    with pytest.raises(RbueError, match=r"training\.json (cannot be read|has another form).*; remove it to have it"):
        missing_networks([config], tmp_path)


def test_settings_that_are_a_list_are_written_anew_too(tmp_path):
    config = RunConfig()
    folder = RunFolder.of(config, tmp_path)
    folder.open(config, {})
    (folder.path / "config.json").write_text("[]")
    folder.open(config, {})
    assert folder.config() == config


@pytest.fixture
def folder(tmp_path):
    """A run folder with two files of results."""
    found = RunFolder(tmp_path / "run")
    found.write("results", {"samples=4,seed=0": {"accuracy": 0.5}})
    found.write("training", {"seconds": 1.0})
    return found


@pytest.mark.parametrize("name", ["results", "training"])
def test_a_flipped_byte_is_noticed(folder, name):
    path = folder.path / f"{name}.json"
    whole = path.read_bytes()
    content = bytearray(whole)
    content[whole.rindex(b".") + 1] ^= 1  # another digit
    path.write_bytes(content)
    with pytest.raises(
        RbueError, match=rf"{name}.json cannot be read \(.*checksum.*\); remove it .*checksums.json if it"
    ):
        folder.read(name)
    path.write_bytes(whole)
    assert folder.read(name) is not None
    path.write_bytes(content)
    (folder.path / "checksums.json").unlink()  # as of runs from before
    assert folder.read(name) is not None


@pytest.mark.parametrize("file", ["checksums.json", "results.json"])
def test_a_stop_between_a_file_and_its_checksum_is_no_damage(folder, monkeypatch, file):
    before, after = folder.read("results"), {"samples=9,seed=0": {"accuracy": 0.9}}

    def stop(path, content, wait=0.0, usual=files.write_bytes):
        if path.name == file:
            raise KeyboardInterrupt
        usual(path, content)

    for _ in range(2):
        for module in (files, folders):
            monkeypatch.setattr(module, "write_bytes", stop)
        with pytest.raises(KeyboardInterrupt):
            folder.write("results", after)
        monkeypatch.undo()
        assert folder.read("results") == before
    folder.write("results", after)
    assert folder.read("results") == after
    (folder.path / "results.json").unlink()
    folder.write("results", before)
    assert folder.read("results") == before


@pytest.mark.parametrize("content", ["{", "[]", '{"results.json": "no list"}'])
def test_damaged_checksums_are_named(folder, content):
    (folder.path / "checksums.json").write_text(content)
    with pytest.raises(RbueError, match=r"checksums.json (cannot be read|has another form).*; remove it\.$"):
        folder.read("results")


def test_two_processes_do_not_train_one_network(tmp_path):
    config = RunConfig(width=0.25, recipe=recipe_for("digits", epochs=1, batch=128))
    folder, cpu = RunFolder.of(config, tmp_path / "runs"), torch.device("cpu")
    with folder.locked():
        with pytest.raises(InUse, match=rf"{folder.path.name} is in use by process \d+ on .+ since .+; wait until"):
            train_run(config, tmp_path / "runs", cpu)
        assert [path.name for path in folder.path.iterdir()] == [".lock"]
    assert not (tmp_path / "runs").exists()
    train_run(config, tmp_path / "runs", cpu)
    assert not (folder.path / ".lock").exists()
    with folder.locked():
        train_run(config, tmp_path / "runs", cpu)  # nothing is left to do


def test_what_another_process_trained_meanwhile_is_not_trained_again(tmp_path, monkeypatch):
    config = RunConfig(width=0.25, recipe=recipe_for("digits", epochs=1, batch=128))

    @contextmanager
    def late(self, wait, usual=RunFolder.locked):
        monkeypatch.undo()
        train_run(config, tmp_path, torch.device("cpu"))
        monkeypatch.setattr(training, "_train_networks", lambda *_: 1 / 0)
        with usual(self, wait):
            yield

    monkeypatch.setattr(RunFolder, "locked", late)
    train_run(config, tmp_path, torch.device("cpu"))


def test_a_file_is_no_folder_of_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"file is a file; give the folder that holds the runs\.$"):
        list(find_runs(tmp_path / "file"))
