"""The stored answers of a run, and what a report shows of them: diagrams, and the most and least certain images.

Diagrams need no network; the spread of samples on the images is drawn again from the weights, where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rbue import metrics
from rbue.call_sites import evaluating
from rbue.errors import RbueError
from rbue.lab import data
from rbue.lab.report import figures
from rbue.lab.report.page import Bar, Block, Card, Cards, FigureBlock, FigureGrid, Text
from rbue.lab.report.run_records import Record
from rbue.lab.runs.folders import belong_to, other_stream, read_probs
from rbue.lab.runs.networks import load_networks
from rbue.lab.training import Normalise
from rbue.sampling.collect import collect


@dataclass(frozen=True)
class Answers:
    """Mean probabilities of the test images.

    Attributes:
        record: the run they come from.
        images: the test images.
        probs: ``(N, classes)``, made to sum to 1 again, since they are stored with three digits.
    """

    record: Record
    images: data.ImageSet
    probs: NDArray[np.float64]

    @property
    def method(self) -> str:
        """Short text of the method."""
        return self.record.settings.method

    @property
    def has_spread(self) -> bool:
        """Whether there is more than one sample of each image."""
        return bool(self.record.result["samples"] > 1)

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether each answer is right."""
        right: NDArray[np.bool_] = self.probs.argmax(1) == self.images.labels
        return right

    @cached_property
    def entropy(self) -> NDArray[np.float64]:
        """Entropy of the mean, in nats."""
        found: NDArray[np.float64] = metrics.entropy(torch.from_numpy(self.probs)).numpy()
        return found

    def reliability(self, bins: int = 30) -> metrics.Reliability:
        """The reliability diagram."""
        return metrics.reliability(torch.from_numpy(self.probs), torch.from_numpy(self.images.labels), bins)

    def risk_coverage(self) -> metrics.RiskCoverage:
        """The risk-coverage curve."""
        return metrics.risk_coverage(torch.from_numpy(self.probs.max(1)), torch.from_numpy(self.correct))


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
            raise RbueError(f"the test images of {name} are needed to draw its answers: {found}")
        measured: dict[str, Any] = dict(record.result.get("data") or {}).get("sha256") or found[1]
        if measured != found[1]:
            raise RbueError(f"it was measured on other test images of {name} than those on this machine.")
        return found[0]


def calibration_blocks(answers: Sequence[Answers]) -> list[Block]:
    """Reliability diagrams, one a method."""
    drawn = []
    for one in answers:
        diagram, ece = one.reliability(), one.record.result["ece"]
        figure = figures.reliability_diagram(
            *(diagram.edges, diagram.counts, diagram.confidence, diagram.accuracy),
            label=one.method,
            note=f"ECE {ece:.4f}",
        )
        sure = float(one.probs.max(1).mean())
        alt = (
            f"Reliability diagram of {one.method}: mean confidence {sure:.3f}, accuracy {one.correct.mean():.3f}, "
            f"ECE {ece:.4f}."
        )
        drawn.append(FigureBlock(figure, alt))
    words = (
        "Each bar holds the answers of one range of confidence and is as tall as the share of them that is right; "
        "the dot on it stands at their mean confidence. Bars that end below the dashed line are overconfident, bars "
        "above it underconfident. The small bars below show how many answers each range holds: ranges with "
        "few answers jump about."
    )
    return [Text(words), FigureGrid(drawn)]


def risk_blocks(answers: Sequence[Answers]) -> list[Block]:
    """Risk-coverage curves in one figure."""
    figure = figures.risk_coverage_curves({one.method: tuple(one.risk_coverage()) for one in answers})  # type: ignore[misc]
    areas = "; ".join(f"{one.method} {one.record.result['aurc']:.4f}" for one in answers if "aurc" in one.record.result)
    alt = f"Risk-coverage curves of {len(answers)} methods. Area under each: {areas}."
    words = (
        "A network may decline to answer. If only the surest images are answered, this is how many answers are wrong."
    )
    return [Text(words), FigureBlock(figure, alt, "Lower is better; at the right end every image is answered.")]


def entropy_blocks(answers: Sequence[Answers]) -> list[Block]:
    """Histograms of entropy, one figure a method."""
    drawn = []
    for one in answers:
        right, wrong = (one.entropy[chosen] for chosen in (one.correct, ~one.correct))
        means = [f"{part.mean():.3f}" if len(part) else "none" for part in (right, wrong)]
        alt = (
            f"Entropy of the answers of {one.method}: mean {means[0]} nats for {len(right)} right answers, "
            f"{means[1]} for {len(wrong)} wrong ones."
        )
        figure = figures.entropy_histograms(one.entropy, one.correct, one.probs.shape[1], label=one.method)
        drawn.append(FigureBlock(figure, alt))
    words = (
        "Uncertainty is worth something where wrong answers have more of it than right ones. Each histogram is a share "
        "of its own group, so that a handful of wrong answers is as visible as hundreds of right ones."
    )
    return [Text(words), FigureGrid(drawn)]


Samples = NDArray[np.float64]


def certain_cards(answers: Answers, device: torch.device) -> tuple[list[Block], Exception | None]:
    """Cards of the least and of the most certain images, and why the spread of samples is not on them."""
    order = np.argsort(-answers.entropy, kind="stable")
    shown = min(4, len(order))
    least, most = order[:shown], order[::-1][:shown]
    samples: Samples | None = None
    trouble: Exception | None = None
    if answers.has_spread:
        try:
            samples = drawn_again(answers, np.concatenate([least, most]), device)
        except (RbueError, OSError) as error:
            trouble = error
    cards = [
        _card(answers, int(image), None if samples is None else samples[:, place])
        for place, image in enumerate([*least, *most])
    ]
    return [Cards("Least certain", cards[:shown]), Cards("Most certain", cards[shown:])], trouble


def drawn_again(answers: Answers, chosen: NDArray[np.int64], device: torch.device) -> Samples:
    """The very samples that were measured, of some of the images: ``(S, images, classes)``.

    Every image keeps its number, and with it its random bits.
    """
    record = answers.record
    config, root = record.settings, record.root
    if root is None:
        raise RbueError(f"{record.name} was renamed or moved out of its folder of runs.")
    streams = other_stream(config, record.result)
    if streams:
        raise RbueError(f"they were measured with {streams}.")
    networks = load_networks(config, root, device)
    pixels = np.ascontiguousarray(answers.images.images[chosen])
    x = Normalise(answers.images.mean, answers.images.std, device)(torch.from_numpy(pixels).to(device))
    numbers = torch.from_numpy(chosen).to(torch.int32).to(device)
    seed, draws = record.result["seed"], record.result.get("draws", "independent")
    with evaluating(nn.ModuleList(networks)):
        stream = config.parsed.stream(networks, x, seed, draws=draws)
        found = collect(stream, x, numbers, record.result["samples"], seed=seed, return_samples=True)
    assert found.samples is not None
    samples: Samples = found.samples.double().cpu().numpy()
    return samples


def _card(answers: Answers, image: int, samples: Samples | None) -> Card:
    classes, label = answers.images.classes, int(answers.images.labels[image])
    probs = answers.probs[image]
    said = int(probs.argmax())
    bars = []
    for place in np.argsort(-probs, kind="stable")[:3]:
        bar = Bar(classes[place], float(probs[place]), marked=bool(place == label))
        if samples is not None:
            low, high = np.quantile(samples[:, place], [0.05, 0.95])
            bar = replace(bar, low=float(low), high=float(high))
        bars.append(bar)
    right = said == label
    verdict = f"It is {classes[label]}." if not right else ""
    return Card(
        pixels=answers.images.images[image],
        alt=f"Test image {image}, labelled {classes[label]}, answered {classes[said]}.",
        title=f"“{classes[said]}”",
        facts=f"{verdict} Image {image}, entropy {answers.entropy[image]:.3f}".strip(),
        bars=bars,
        good=right,
    )
