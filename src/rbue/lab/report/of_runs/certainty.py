"""The most and least certain test images of a run, with the class probabilities of every sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rbue.call_sites import evaluating
from rbue.errors import RbueError
from rbue.lab.report.of_runs.answers import Answers
from rbue.lab.report.page import Bar, Block, Card, Cards
from rbue.lab.runs.folders import other_stream
from rbue.lab.runs.networks import load_networks
from rbue.lab.training import Normalise
from rbue.sampling.collect import collect

SHOWN = 4
CLASSES = 3
Samples = NDArray[np.float64]


def certain_cards(answers: Answers, device: torch.device) -> tuple[list[Block], Exception | None]:
    """Cards of the least and of the most certain images, and why the spread of samples is not on them."""
    order = np.argsort(-answers.entropy, kind="stable")
    shown = min(SHOWN, len(order))
    least, most = order[:shown], order[::-1][:shown]
    samples: Samples | None = None
    trouble: Exception | None = None
    if has_spread(answers):
        try:
            samples = drawn_again(answers, np.concatenate([least, most]), device)
        except (RbueError, OSError) as error:
            trouble = error
    cards = [
        _card(answers, int(image), None if samples is None else samples[:, place])
        for place, image in enumerate([*least, *most])
    ]
    return [Cards("Least certain", cards[:shown]), Cards("Most certain", cards[shown:])], trouble


def has_spread(answers: Answers) -> bool:
    """Whether there is more than one sample of each image."""
    return bool(answers.record.result["samples"] > 1)


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
    seed = record.result["seed"]
    with evaluating(nn.ModuleList(networks)):
        stream = config.parsed.stream(networks, x, seed)
        found = collect(stream, x, numbers, record.result["samples"], seed=seed, return_samples=True)
    assert found.samples is not None
    samples: Samples = found.samples.double().cpu().numpy()
    return samples


def _card(answers: Answers, image: int, samples: Samples | None) -> Card:
    classes, label = answers.images.classes, int(answers.images.labels[image])
    probs = answers.probs[image]
    said = int(probs.argmax())
    bars = []
    for place in np.argsort(-probs, kind="stable")[:CLASSES]:
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
