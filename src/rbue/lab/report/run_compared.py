"""A group of runs with what is stored of their answers, what chance does to it, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rbue.errors import RbueError
from rbue.lab.environment import default_device
from rbue.lab.report import figures
from rbue.lab.report.chance import Resampled, listed, resample, verdict
from rbue.lab.report.page import Block, FigureBlock, Fold
from rbue.lab.report.run_answers import Answers, NoImages, TestImages
from rbue.lab.report.run_records import Record, RunGroup
from rbue.lab.runs.folders import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Gaps:
    """What is missing, gathered while the report is made.

    Attributes:
        without_weights: runs whose samples cannot be drawn again.
    """

    def __init__(self, known: Sequence[str] = ()) -> None:
        self._known = list(known)
        self.without_weights: list[Record] = []

    def of_run(self, record: Record, trouble: str) -> None:
        """Note what is missing of one run, without this machine's folders, which mean nothing to another reader."""
        self._known.append(f"`{record.name}`: {trouble.replace(f'{record.root}/', '')}")

    def once(self, sentence: str) -> None:
        """Note what is missing of many runs alike."""
        if sentence not in self._known:
            self._known.append(sentence)

    def sentences(self) -> list[str]:
        """One sentence for each thing that is missing."""
        runs = self.without_weights
        if not runs:
            return self._known
        names = listed([record.name for record in runs])
        whose, folders = ("their", "folders") if len(runs) > 1 else ("its", "folder")
        return [
            *self._known,
            f"the weights of {names} are not kept in {whose} {folders}: what was measured is "
            f"reported, but the samples of {whose} most and least certain images cannot be drawn.",
        ]


@dataclass(frozen=True)
class Compared:
    """A group of runs and what is stored of their answers.

    Attributes:
        group: the runs.
        answers: method -> the answers of each of its runs, for methods all of whose runs have them here.
        device: where samples are drawn again.
        gaps: takes what is missing.
    """

    group: RunGroup
    answers: dict[str, list[Answers]]
    device: torch.device
    gaps: Gaps

    @cached_property
    def chance(self) -> dict[str, Resampled]:
        """What chance does to each measure; empty without stored answers."""
        if not self.answers:
            return {}
        labels = next(iter(self.answers.values()))[0].images.labels
        return resample({name: [one.probs for one in found] for name, found in self.answers.items()}, labels)

    @cached_property
    def verdict(self) -> str:
        """What the comparison came to."""
        if not self.chance:
            return (
                "Chance cannot be told from a difference: that takes the stored answers of these runs and their images."
            )
        left_out = [f"`{name}`" for name in self.group.methods if name not in self.answers]
        lack = "without stored answers about these images"
        more = f" {lack.capitalize()} {left_out[0]} is not compared." if len(left_out) == 1 else ""
        more = f" {len(left_out)} methods {lack} are not compared." if len(left_out) > 1 else more
        return verdict(self.chance) + more

    @cached_property
    def first(self) -> list[Answers]:
        """The answers of the first run of each method."""
        return [found[0] for found in self.answers.values()]

    @cached_property
    def featured(self) -> Answers:
        """The method of the best likelihood, which is shown open."""
        return self.answers[self.chance["nll"].ahead[0]][0]

    def folds(self, blocks: Callable[[Answers], Sequence[Block]]) -> list[Block]:
        """Blocks of every method, each behind a line that opens it; the featured one comes first and is open."""
        order = sorted(self.first, key=lambda one: one is not self.featured)
        return [Fold(one.method, blocks(one), open=one is self.featured) for one in order]


def compare_answers(
    group: RunGroup, images: TestImages | None, device: torch.device | None = None, gaps: Gaps | None = None
) -> Compared:
    """A group with the answers that are stored of it, if there are images; why others are not is added to the gaps."""
    gaps = gaps or Gaps()
    answers: dict[str, list[Answers]] = {}
    for method, records in group.methods.items():
        if images is None:
            break
        found = []
        for record in records:
            try:
                found.append(replace(images.answers(record), label=method))
            except NoImages as error:
                gaps.once(str(error))
            except RbueError as error:
                gaps.of_run(record, str(error))
        if len(found) == len(records):
            answers[method] = found
    return Compared(group, answers, device or default_device(), gaps)


# What several sections need


def stored(record: Record, read: Callable[[RunFolder], Any], without: Any) -> Any:
    """What a folder holds beside its results; a file that cannot be read is as good as none."""
    try:
        return read(record.folder)
    except (RbueError, OSError, KeyError, TypeError, ValueError):
        return without


def column_figure(figure: Figure) -> Figure:
    """A figure in the size of a column, whose letters can be read on a phone too."""
    figure.set_size_inches(4.2, 3.4)
    return figure


def entropy_pair(title: str, groups: Mapping[str, NDArray[np.float64]], of: Answers) -> FigureBlock:
    """Entropies of two groups of answers, with their means in words."""
    means = "; ".join(
        f"{len(one):,} {name}, mean {one.mean():.3f} nats" if len(one) else f"0 {name}" for name, one in groups.items()
    )
    figure = figures.histogram_pair(groups, math.log(of.probs.shape[1]), label=title)
    return FigureBlock(figure, f"Entropy of the answers of {of.method}: {means}.")
