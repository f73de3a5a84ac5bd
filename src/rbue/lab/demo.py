"""What ``rbue demo`` trains and measures, and the three sentences that follow from it.

The paper's methods learn the digits of scikit-learn in colour. They answer the test images as they are, and the same
images damaged. The first sentence says how MC-DropReLU stands on clean images, the second on damaged ones, the third
what beats it, what was seen, and what to try. Methods differ if they do so by more than chance
(:mod:`rbue.lab.report.chance`): damaged images count as one image each, since all its damaged forms fall or stand
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rbue.errors import RbueError
from rbue.lab import data
from rbue.lab.report.chance import Resampled, listed, resample
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.probabilities import probs_of
from rbue.lab.runs.temperatures import calibrate_run
from rbue.lab.shift import Cell, Setting, ShiftStore
from rbue.lab.shift.measuring import members_of

DATA, MODEL = "colour-digits", "small_cnn"
OURS, PLAIN, ENSEMBLE = "mc-droprelu:0.9", "single", "deep-ensemble"
OTHERWISE = {ENSEMBLE: "four trainings in place of one", "mc-rrelu": "the other random ReLU (`mc-rrelu`)"}
"""What may beat ours although it learns as a plain network does: more networks, or other slopes."""
METHODS = (PLAIN, "mc-dropout", ENSEMBLE, "svi", "mc-rrelu", OURS)
EPOCHS, SAMPLES = 16, 20
LONGER = f"rbue compare --data {DATA} --model {MODEL} --methods {PLAIN},{OURS} --epochs 60 --samples {SAMPLES}"
CORRUPTIONS = ("impulse_noise", "glass_blur", "snow", "contrast")
"""One of each family, such that digits of 16x16 pixels are harder to read; weaker noise hardly shows on them."""
SEVERITIES = (1, 3, 5)
SCORES = {"accuracy": "accuracy", "nll": "NLL"}
"""What the sentences compare: how often an answer is right, and how good its probabilities are."""
UNSURE = 0.02
"""From which difference of mean confidence and accuracy on answers are called too cautious or too sure."""

Floats = NDArray[np.float64]
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Answered:
    """How methods answered some images.

    Attributes:
        scores: accuracy, ECE, NLL and Brier score with their chance.
        confidence: method -> mean confidence.
    """

    scores: dict[str, Resampled]
    confidence: dict[str, float]

    @classmethod
    def of(cls, probs: dict[str, list[Floats]], labels: NDArray[np.int64]) -> Answered:
        """From method -> probabilities ``(images, classes)`` of each form of the images."""
        confidence = {name: float(np.mean([one.max(1) for one in found])) for name, found in probs.items()}
        return cls(resample(probs, labels), confidence)

    def value(self, measure: str, method: str) -> float:
        """One measurement."""
        return float(self.scores[measure].values[self.scores[measure].methods.index(method)])

    def apart(self, measure: str, better: bool) -> list[str]:
        """Methods that are better than ours, or worse, by more than chance."""
        found, own = self.scores[measure], self.value(measure, OURS)
        others = [name for name in found.methods if name != OURS and found.apart(OURS, name)]
        return [name for name in others if (self.value(measure, name) > own) == (found.higher == better)]


@dataclass(frozen=True)
class Findings:
    """What was measured.

    Attributes:
        clean: answers to the test images.
        damaged: answers to the same images under all corruptions and severities.
        epochs: how long every network was trained.
        learnt: accuracy on training images in the last epoch, of ours, with its masks on, and of a plain network.
        scaled: NLL on clean images after one temperature, method by method.
    """

    clean: Answered
    damaged: Answered
    epochs: int
    learnt: dict[str, float]
    scaled: dict[str, float]


def find(configs: Sequence[RunConfig], root: Path) -> Findings:
    """Read what measured runs have stored; nothing is computed by a network."""
    labels, setting = data.load(DATA, "test").labels, Setting(SAMPLES)
    cells = [Cell(name, severity) for name in CORRUPTIONS for severity in SEVERITIES]
    clean: dict[str, list[Floats]] = {}
    damaged: dict[str, list[Floats]] = {}
    scaled, learnt = {}, {}
    for config in configs:
        folder, members = RunFolder.of(config, root), members_of(config, setting)
        own = probs_of(folder.probs, folder.entries("results")[setting.key])
        clean[config.method] = [_measured(own, folder.probs).astype(np.float64)]
        stores = [ShiftStore(RunFolder.of(member, root)) for member in members]
        answers = [
            [
                _measured(one.whole(member, setting, cell), one.file)[1]
                for one, member in zip(stores, members, strict=True)
            ]
            for cell in cells
        ]
        damaged[config.method] = [np.stack(found).mean(0, dtype=np.float64) for found in answers]
        scaled[config.method] = float(calibrate_run(config, root)[1]["after"]["nll"])
        if config.method in (OURS, PLAIN):
            learnt[config.method] = float(folder.read("training")["accuracy"])
    return Findings(Answered.of(clean, labels), Answered.of(damaged, labels), configs[0].recipe.epochs, learnt, scaled)


def _measured(found: _Found | None, file: Path) -> _Found:
    if found is None:
        raise RbueError(f"{file} is of another measurement by now; remove it and give the same command again.")
    return found


def sentences(found: Findings) -> list[str]:
    """The three sentences; every number and every comparison in them was measured."""
    images = found.clean.scores["accuracy"].images
    kinds = [name.replace("_", " ") for name in CORRUPTIONS]
    damage = " or ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
    return [
        f"On {images} clean digits `{OURS}` {_standing(found.clean)}.",
        f"On the same digits damaged by {damage} it {_standing(found.damaged)}.",
        _advice(found),
    ]


def _standing(answered: Answered) -> str:
    accuracy, nll = (answered.value(measure, OURS) for measure in ("accuracy", "nll"))
    said = f"is right on {100 * accuracy:.1f} % and has an NLL of {nll:.2f}"
    against = {name: _against(answered, measure) for measure, name in SCORES.items()}
    told = [f"{part} in {name}" for name, part in against.items() if part]
    if not told:
        return f"{said}, and no other method differs from it by more than chance"
    level = [f"in {name} no method differs from it" for name, part in against.items() if not part]
    return f"{said}; by more than chance it is {', and '.join([*told, *level])}"


def _against(answered: Answered, measure: str) -> str:
    others = len(answered.scores[measure].methods) - 1
    better, worse = (answered.apart(measure, one) for one in (True, False))
    parts = [
        f"{word} {'all others' if len(names) == others else listed(names)}"
        for word, names in (("behind", better), ("ahead of", worse))
        if names
    ]
    return " but ".join(parts)


def _advice(found: Findings) -> str:
    """Whether ours loses beyond chance, what was seen, and what to try; docs/one-training.md measured the advice."""
    lost = {
        (name, where): found_by
        for where, answered in (("clean", found.clean), ("damaged", found.damaged))
        for measure, name in SCORES.items()
        if (found_by := answered.apart(measure, better=True))
    }
    if not lost:
        return "No method beats it on either by more than chance, not even four trainings: nothing is to be mended."
    by_plain = [place for place, names in lost.items() if any(not name.startswith(tuple(OTHERWISE)) for name in names)]
    if not by_plain:
        winners = [name for names in lost.values() for name in names]
        kinds = [words for start, words in OTHERWISE.items() if any(name.startswith(start) for name in winners)]
        return (
            f"What beats it {_places([*lost])} is {' and '.join(kinds)}; to come nearer with one training, average "
            "its weights (`--recipe strong`), draw masks by channel (`mc-droprelu:0.99,all,channel`) and augment the "
            "passes (`--augment shift:1`)."
        )
    answered = found.clean if any(where == "clean" for _, where in by_plain) else found.damaged
    confidence, accuracy = answered.confidence[OURS], answered.value("accuracy", OURS)
    learnt = (
        f"after {found.epochs} epochs it is right on {100 * found.learnt[OURS]:.0f} % of its training images, with its "
        f"masks on, a plain network on {100 * found.learnt[PLAIN]:.0f} %"
    )
    if confidence - accuracy > UNSURE:
        seen = f"it is too sure, {100 * confidence:.0f} % where {100 * accuracy:.0f} % is right"
        what = "draw masks by channel (`mc-droprelu:0.99,all,channel`) and augment the passes (`--augment shift:1`)"
    elif found.learnt[OURS] < found.learnt[PLAIN]:
        seen, what = learnt, f"train longer (`{LONGER}`), or make fewer ReLUs random (`mc-droprelu:0.98`)"
    else:
        seen = learnt
        what = "make fewer ReLUs random (`mc-droprelu:0.98`) and average the weights (`--recipe strong`)"
    before, after = found.clean.value("nll", OURS), found.scaled[OURS]
    scale = f"a temperature alone takes its NLL on clean digits from {before:.2f} to {after:.2f}"
    return f"It loses {_places(by_plain)}; {seen}; {what}; {scale}."


def _places(lost: Sequence[tuple[str, str]]) -> str:
    """Where something was lost: ``in accuracy and NLL on clean digits and in NLL on damaged ones``."""
    names = {where: " and ".join(name for name, place in lost if place == where) for _, where in lost}
    if len(names) > 1 and len({*names.values()}) == 1:
        return f"in {next(iter(names.values()))} on {' and '.join(names)} digits"
    first, *second = (f"in {name} on {where}" for where, name in names.items())
    return " and ".join([f"{first} digits", *(f"{part} ones" for part in second)])
