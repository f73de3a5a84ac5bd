"""The stored answers of a run, and the images to look at: surest mistakes, least and most certain answers.

The spread of samples on the images is drawn again from the weights, where they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rbue import metrics
from rbue.errors import RbueError
from rbue.lab import data
from rbue.lab.report.page import Bar, Block, Card, Cards
from rbue.lab.report.run_records import Record
from rbue.lab.runs.folders import outdated
from rbue.lab.runs.measuring import predict_images
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.probabilities import belong_to, read_probs


class NoImages(RbueError):
    """The test images of a data set are not on this machine."""


ENOUGH = 20
"""Samples of which the range of nine in ten is shown; of fewer it is that of all."""


@dataclass(frozen=True)
class Answers:
    """Mean probabilities of the test images.

    Attributes:
        record: the run they come from.
        images: the test images.
        probs: ``(N, classes)``, made to sum to 1 again, since they are stored with three digits.
        label: what its group calls the method, if not by its short text.
    """

    record: Record
    images: data.ImageSet
    probs: NDArray[np.float64]
    label: str = ""

    @property
    def method(self) -> str:
        """Short text of the method, with the augmentation where its group differs in it."""
        return self.label or self.record.settings.method

    @property
    def has_spread(self) -> bool:
        """Whether there is more than one sample of each image."""
        return bool(self.record.result["samples"] > 1)

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether each answer is right."""
        return self.probs.argmax(1) == self.images.labels

    @cached_property
    def entropy(self) -> NDArray[np.float64]:
        """Entropy of the mean, in nats."""
        return metrics.entropy(torch.from_numpy(self.probs)).numpy()

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """The probability of each answer."""
        return self.probs.max(1)

    def reliability(self) -> metrics.Reliability:
        """The reliability diagram, in as many bins as the images can fill: ``√n / 2``, from 5 to 30."""
        bins = min(max(round(math.sqrt(len(self.probs)) / 2), 5), 30)
        return metrics.reliability(torch.from_numpy(self.probs), torch.from_numpy(self.images.labels), bins)

    def risk_coverage(self) -> metrics.RiskCoverage:
        """The risk-coverage curve."""
        return metrics.risk_coverage(torch.from_numpy(self.confidence), torch.from_numpy(self.correct))


class TestImages:
    """The test images of each data set, loaded and compared once."""

    def __init__(self) -> None:
        self._sets: dict[str, tuple[data.ImageSet, dict[str, str]] | RbueError] = {}

    def answers(self, record: Record) -> Answers:
        """The stored answers of a run.

        Raises:
            RbueError: in one sentence, why they cannot be drawn.
        """
        if not record.folder.probs.is_file():
            raise RbueError("its probs.npy is not there, so its answers cannot be drawn.")
        images = self._matching(record)
        stored = read_probs(record.folder.probs)
        if stored.shape != (len(images), len(images.classes)):
            raise RbueError(f"its probs.npy has shape {stored.shape}, which does not fit {images!r}.")
        if not belong_to(record.folder.probs, record.result):
            raise RbueError("its probs.npy is of another measurement, so its answers cannot be drawn.")
        return Answers(record, images, stored.astype(np.float64))

    def _matching(self, record: Record) -> data.ImageSet:
        name = record.settings.data
        if name not in self._sets:
            try:
                images = data.load(name, "test")
                self._sets[name] = images, images.record()["sha256"]
            except RbueError as error:
                self._sets[name] = error
        found = self._sets[name]
        if isinstance(found, RbueError):
            raise NoImages(f"the test images of {name} are needed to judge and draw answers: {found}")
        measured: dict[str, Any] = dict(record.result.get("data") or {}).get("sha256") or found[1]
        if measured != found[1]:
            raise RbueError(f"it was measured on other test images of {name} than those on this machine.")
        return found[0]


Samples = NDArray[np.float64]

SHOWN = 4
"""How many images of each kind are shown."""


def image_cards(answers: Answers, device: torch.device) -> tuple[list[Block], Exception | None]:
    """Cards of the surest mistakes, of the least and of the most certain images, and why no spread is on them."""
    order = np.argsort(-answers.entropy, kind="stable")
    surest = np.argsort(-answers.confidence, kind="stable")
    kinds = {
        "Surest mistakes": surest[~answers.correct[surest]][:SHOWN],
        "Least certain": order[:SHOWN],
        "Most certain": order[::-1][:SHOWN],
    }
    chosen = np.concatenate(list(kinds.values()))
    samples: Samples | None = None
    trouble: Exception | None = None
    if answers.has_spread:
        try:
            samples = drawn_again(answers, chosen, device)
        except (RbueError, OSError) as error:
            trouble = error
    cards = iter(
        _card(answers, int(image), None if samples is None else samples[:, place]) for place, image in enumerate(chosen)
    )
    return [Cards(title, [next(cards) for _ in images]) for title, images in kinds.items() if len(images)], trouble


def drawn_again(answers: Answers, chosen: NDArray[np.int64], device: torch.device) -> Samples:
    """The very samples that were measured, of some of the images: ``(S, images, classes)``.

    Every image keeps its number, and with it its random bits.
    """
    record = answers.record
    config, root = record.settings, record.root
    if root is None:
        raise RbueError(f"{record.name} was renamed or moved out of its folder of runs.")
    if words := outdated(config, root, record.result):
        raise RbueError(f"they were measured {words}.")
    networks = load_networks(config, root, device)
    passes = Passes.noted(record.result)
    found = predict_images(config, networks, answers.images, passes, device, return_samples=True, chosen=chosen)
    assert found.samples is not None
    return found.samples.double().cpu().numpy()


def _card(answers: Answers, image: int, samples: Samples | None) -> Card:
    classes, label = answers.images.classes, int(answers.images.labels[image])
    probs = answers.probs[image]
    said = int(probs.argmax())
    bars = []
    for place in np.argsort(-probs, kind="stable")[:3]:
        bar = Bar(classes[place], float(probs[place]), marked=bool(place == label))
        if samples is not None:
            ends = [0.0, 1.0] if len(samples) < ENOUGH else [0.05, 0.95]
            low, high = np.quantile(samples[:, place], ends)
            bar = replace(bar, low=float(low), high=float(high))
        bars.append(bar)
    right = said == label
    verdict = f"It is {classes[label]}. " if not right else ""
    file = answers.images.files[image] if answers.images.files else f"Image {image}"
    return Card(
        pixels=answers.images.images[image],
        alt=f"Test image {image}, labelled {classes[label]}, answered {classes[said]}.",
        title=f"“{classes[said]}”",
        facts=f"{verdict}{file}, entropy {answers.entropy[image]:.3f}",
        bars=bars,
        good=right,
    )
