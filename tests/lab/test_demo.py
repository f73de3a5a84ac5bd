"""The sentences of the demonstration: whatever was measured, what they say of it is true."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from rbue.errors import RbueError
from rbue.lab import demo
from rbue.lab.report.chance import resample
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.probabilities import write_probs
from rbue.lab.shift import Cell, ShiftStore

IMAGES, CLASSES = 300, 10
LABELS = np.random.default_rng(0).integers(0, CLASSES, IMAGES)
NAMES = ("single", "mc-dropout:0.5", "deep-ensemble:4", "svi", "mc-rrelu", demo.OURS)


def answers(right, confidence, seed=0):
    """Probabilities that are right on the easiest part ``right`` of the images, with such a mean confidence."""
    random = np.random.default_rng(seed)
    top = np.clip(random.normal(confidence, 0.01, IMAGES), 0.2, 0.999)
    correct = np.arange(IMAGES) < right * IMAGES
    chosen = np.where(correct, LABELS, (LABELS + 1) % CLASSES)
    probs = np.repeat(((1 - top) / (CLASSES - 1))[:, None], CLASSES, 1)
    probs[np.arange(IMAGES), chosen] = top
    return probs


def findings(clean, damaged, learnt=(0.9, 0.95)):
    """From method -> (accuracy, confidence); methods that are not named answer as ours."""

    def answered(given):
        return {name: [answers(*given.get(name, given[demo.OURS]))] for name in NAMES}

    both = [demo.Answered.of(answered(given), LABELS) for given in (clean, damaged)]
    return demo.Findings(
        *both, epochs=16, learnt=dict(zip((demo.OURS, demo.PLAIN), learnt, strict=True)), scaled={demo.OURS: 0.123}
    )


KEPT = {"samples_asked": None, "seed": None, "accuracy": 1, "ece": 0, "variant": "", "labels_sha256": ""}


def test_an_ensemble_answers_damaged_images_by_the_mean_of_its_members(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "CORRUPTIONS", ["snow"])
    monkeypatch.setattr(demo, "calibrate_run", lambda *_: ("", {"after": {"nll": 0}}))
    monkeypatch.setattr(demo.data, "load", lambda *_: SimpleNamespace(labels=np.arange(2)))
    config = RunConfig(data=demo.DATA, model=demo.MODEL, method="deep-ensemble:2")
    for member, sure in zip(config.members(), (0.6, 1.0), strict=True):
        probs = np.array([[sure, 1 - sure]] * 2, np.float32)
        for severity in demo.SEVERITIES:
            row = {**Cell("snow", severity)._asdict(), **KEPT}
            ShiftStore(RunFolder.of(member, tmp_path)).keep(row, probs)
    folder = RunFolder.of(config, tmp_path)
    result = {"samples": 2, "seed": 0, "probs_sha256": write_probs(folder.probs, probs)}
    folder.write("results", {"samples=20,seed=0": result})
    found = demo.find([config], tmp_path).damaged.confidence
    assert found == {config.method: pytest.approx(0.8, abs=1e-3)}


def test_answers_of_another_measurement_are_refused(tmp_path, monkeypatch):
    config, cell = RunConfig(data=demo.DATA, model=demo.MODEL, method="single"), Cell("snow", 1)
    folder, probs = RunFolder.of(config, tmp_path), np.full((4, 2), 0.5, np.float32)
    monkeypatch.setattr(demo, "CORRUPTIONS", ["snow"])
    monkeypatch.setattr(demo, "calibrate_run", lambda *_: 1 / 0)
    for severity in demo.SEVERITIES:
        ShiftStore(folder).keep({**Cell("snow", severity)._asdict(), **KEPT}, probs)
    result = {"samples": 1, "seed": 0, "probs_sha256": write_probs(folder.probs, probs)}
    folder.write("results", {"samples=20,seed=0": result})
    with pytest.raises(ZeroDivisionError):  # all answers are those that were measured
        demo.find([config], tmp_path)
    ShiftStore(folder).save_probs(cell, np.eye(4, 2, dtype=np.float32))
    with pytest.raises(RbueError, match=r"shift\.json is of another measurement by now; remove it"):
        demo.find([config], tmp_path)
    write_probs(folder.probs, np.eye(4, 2, dtype=np.float32))
    with pytest.raises(RbueError, match=r"probs\.npy is of another measurement by now; remove it"):
        demo.find([config], tmp_path)


def test_nothing_is_made_of_equal_answers():
    alike = {demo.OURS: (0.9, 0.9)}
    first, second, third = demo.sentences(findings(alike, alike))
    assert "is right on 90.0 % and has an NLL of" in first
    assert first.endswith("and no other method differs from it by more than chance.")
    assert second.startswith("On the same digits damaged by impulse noise, glass blur, snow or contrast it is right on")
    assert third.startswith("No method beats it on either by more than chance")


def test_a_loss_to_four_trainings_is_no_loss_to_one():
    clean, damaged = {demo.OURS: (0.9, 0.9)}, {demo.OURS: (0.6, 0.6), "deep-ensemble:4": (0.8, 0.8)}
    first, second, third = demo.sentences(findings(clean, damaged))
    assert "no other method differs" in first
    assert "behind `deep-ensemble:4` in accuracy, and behind `deep-ensemble:4` in NLL" in second
    assert third.startswith("What beats it in accuracy and NLL on damaged digits is four trainings in place of one;")


def test_the_other_random_relu_is_no_plain_network():
    """It learns as slowly, so that this is no reason to lose against it."""
    better = {demo.OURS: (0.6, 0.6), "mc-rrelu": (0.8, 0.8), "deep-ensemble:4": (0.8, 0.8)}
    *_, third = demo.sentences(findings(better, better))
    assert third.startswith(
        "What beats it in accuracy and NLL on clean and damaged digits is four trainings in place of"
    )
    assert "of one and the other random ReLU (`mc-rrelu`); to come nearer" in third


@pytest.mark.parametrize(
    ("ours", "learnt", "seen"),
    [
        (
            (0.8, 0.7),
            (0.9, 0.95),
            "after 16 epochs it is right on 90 % of its training images, with its masks on, a plain network on 95 %",
        ),
        ((0.8, 0.95), (0.9, 0.95), "it is too sure, 95 % where 80 % is right"),
        ((0.8, 0.8), (0.95, 0.95), "after 16 epochs it is right on 95 % of its training images"),
    ],
)
def test_the_advice_follows_from_what_was_measured(ours, learnt, seen):
    clean = {demo.OURS: ours, "single": (0.95, 0.95)}
    *_, third = demo.sentences(findings(clean, {demo.OURS: (0.6, 0.6)}, learnt))
    assert third.startswith(f"It loses in accuracy and NLL on clean digits; {seen}")
    assert re.search(r"a temperature alone takes its NLL on clean digits from \d\.\d\d to 0\.12\.$", third)


def test_the_command_to_train_longer_is_about_the_demo():
    clean = {demo.OURS: (0.8, 0.7), "single": (0.95, 0.95)}
    *_, third = demo.sentences(findings(clean, clean))
    found = re.search(r"train longer \(`rbue compare (.*?)`\)", third)
    options = dict(zip(*[iter(found[1].split())] * 2, strict=True))
    assert (options["--data"], options["--model"]) == (demo.DATA, demo.MODEL)
    assert demo.OURS in options["--methods"]
    assert int(options["--epochs"]) > demo.EPOCHS
    assert "because" not in third


def test_what_wins_in_one_score_may_lose_in_another():
    damaged = {demo.OURS: (0.7, 0.7), "single": (0.8, 0.999)}
    _, second, third = demo.sentences(findings({demo.OURS: (0.9, 0.9)}, damaged))
    assert "behind `single` in accuracy, and ahead of `single` in NLL" in second
    assert third.startswith("It loses in accuracy on damaged digits; ")


@pytest.mark.parametrize("seed", range(5))
def test_every_comparison_in_a_sentence_is_one_beyond_chance(seed):
    """Read the sentences back, and compare with the bootstrap itself."""
    random = np.random.default_rng(seed)
    probs = {name: [answers(*random.uniform((0.75, 0.7), (0.9, 0.95)), seed)] for name in NAMES}
    found = demo.Findings(
        *[demo.Answered.of(probs, LABELS)] * 2, 16, dict.fromkeys((demo.OURS, demo.PLAIN), 0.9), {demo.OURS: 0.1}
    )
    sentence, measures = demo.sentences(found)[0], resample(probs, LABELS)
    for measure, name in (("accuracy", "accuracy"), ("nll", "NLL")):
        part = re.search(rf"(?:it is|, and) ((?:behind|ahead)(?:(?!, and ).)*) in {name}", sentence)
        text = part[1] if part else ""
        told = measures[measure]
        for other in NAMES[:-1]:
            ours, its = (told.values[told.methods.index(one)] for one in (demo.OURS, other))
            word = "behind" if (its > ours) == told.higher else "ahead of"
            said = re.search(rf"{word} ((?!ahead of|behind).)*(`{other}`|all others)", text)
            assert bool(said) == told.apart(demo.OURS, other), (sentence, other)
