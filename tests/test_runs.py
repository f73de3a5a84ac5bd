"""Where a run lives, what it trains on, and what it keeps."""

import io
from dataclasses import fields, replace

import numpy as np
import pytest

from rbue import data
from rbue.errors import RbueError
from rbue.experiment import training_images
from rbue.runs import RunConfig, RunFolder
from rbue.stored_probs import read_probs, write_probs
from rbue.training import Recipe

SETTINGS = {"data": "cifar10", "model": "vgg13", "method": "svi", "seed": 1, "width": 0.5}
SETTINGS |= {"holdout": 10, "holdout_seed": 1, "recipe": Recipe(epochs=3)}
RECIPE = {"epochs": 3, "batch": 7, "rate": 0.3, "milestones": (0.5,), "factor": 0.5}
RECIPE |= {"momentum": 0.5, "nesterov": False, "weight_decay": 0.5, "padding": 1, "flip": False}


def test_every_setting_has_a_folder_of_its_own(tmp_path):
    run = RunConfig()
    changed = [replace(run, **{name: value}) for name, value in SETTINGS.items()]
    changed += [replace(run, recipe=replace(run.recipe, **{name: value})) for name, value in RECIPE.items()]
    assert (SETTINGS.keys(), RECIPE.keys()) == tuple({one.name for one in fields(kind)} for kind in (RunConfig, Recipe))
    assert len({one.id for one in (run, *changed)}) == len(changed)  # three epochs are there twice
    assert len({RunFolder.of(one, tmp_path).path for one in (run, *changed)}) == len(changed)


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


def test_stored_probabilities_are_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "probs.npy"
    write_probs(path, np.array([[0.25, 0.75]], np.float32))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RbueError, match="No space left"):
        write_probs(path, np.array([[0.5, 0.5], [0.5, 0.5]], np.float32))
    assert read_probs(path).tolist() == [[0.25, 0.75]]


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
    with pytest.raises(RbueError, match=rf"probs\.npy {said}.*; remove it to have it made again\.$"):
        read_probs(path)


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
