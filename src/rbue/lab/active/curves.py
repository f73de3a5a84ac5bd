"""Learning curves over seeds, and how many labels they need: folders of active learning, compared.

A curve is one method with one acquisition. Curves are compared where everything else is the same: data, network,
recipe, steps, first labels, samples. For a seed, the labels needed for an accuracy lie where its accuracies, joined by
straight lines, first reach it. What is saved against random is the difference of that between two curves of one method,
seed by seed, as those begin with the same labels: at some accuracies, and at the one that random has in the end.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rbue.errors import RbueError
from rbue.lab.active.loop import ActiveConfig, Round, read_active
from rbue.lab.active.picking import ACQUISITIONS
from rbue.lab.report.run_records import setting_words
from rbue.lab.runs.folders import RunFolder

_MOST_LEVELS = 5
_KEPT = ("accuracy", "nll", "ece", "train_accuracy")
"""What is told of every round."""

_GRIDS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""Steps of accuracies that people like to read, the coarsest first."""


@dataclass(frozen=True)
class ActiveRun:
    """One seed of a curve."""

    folder: RunFolder
    config: ActiveConfig
    rounds: list[Round]
    environment: dict[str, Any]

    @property
    def name(self) -> str:
        """Data, network and folder: the same on every machine."""
        return "/".join(self.folder.path.absolute().parts[-3:])

    @property
    def labels(self) -> list[int]:
        """How many images had labels in each round."""
        return [one["labels"] for one in self.rounds]

    def values(self, measure: str) -> list[float]:
        """A measurement of each round."""
        return [one[measure] for one in self.rounds]

    def needed(self, accuracy: float) -> float | None:
        """The labels with which an accuracy is first reached; None if it never is.

        At the first labels already, it is their number: fewer might do.
        """
        labels, found = self.labels, self.values("accuracy")
        for place, value in enumerate(found):
            if value >= accuracy:
                if place == 0:
                    return float(labels[0])
                part = (accuracy - found[place - 1]) / (value - found[place - 1])
                return labels[place - 1] + part * (labels[place] - labels[place - 1])
        return None


@dataclass(frozen=True)
class Spread:
    """A number over seeds; ``values`` has only those that have it, ``of`` counts all."""

    values: tuple[float, ...]
    of: int

    @property
    def complete(self) -> bool:
        """Whether every seed has it: a mean over the others alone would be too good."""
        return 0 < len(self.values) == self.of

    @property
    def mean(self) -> float:
        """Over the seeds that have it."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def as_json(self) -> dict[str, Any]:
        """Mean and standard deviation only where every seed has it."""
        whole = self.complete
        numbers = {"mean": self.mean if whole else None, "std": self.std if whole else None}
        return {**numbers, "values": list(self.values), "seeds": self.of}


@dataclass(frozen=True)
class Curve:
    """One method with one acquisition, over seeds that have equally many rounds."""

    method: str
    acquire: str
    runs: tuple[ActiveRun, ...]

    @property
    def name(self) -> str:
        """For a table or a legend."""
        return f"{self.method}, {self.acquire}"

    @property
    def labels(self) -> list[int]:
        """How many images had labels in each round."""
        return self.runs[0].labels

    def at(self, round_: int, measure: str) -> Spread:
        """A measurement of a round, counted from the end if negative."""
        return Spread(tuple(run.values(measure)[round_] for run in self.runs), len(self.runs))

    def over_rounds(self, measure: str) -> list[Spread]:
        """A measurement of every round."""
        return [self.at(place, measure) for place in range(len(self.labels))]

    def mean_over_rounds(self) -> Spread:
        """The mean accuracy of each seed's rounds: the area under its curve."""
        return Spread(tuple(statistics.fmean(run.values("accuracy")) for run in self.runs), len(self.runs))

    def needed(self, accuracy: float) -> Spread:
        """The labels needed for an accuracy."""
        found = [run.needed(accuracy) for run in self.runs]
        return Spread(tuple(one for one in found if one is not None), len(found))

    def pairs(self, other: Curve) -> list[tuple[ActiveRun, ActiveRun]]:
        """The runs of this curve and of another that have the same seed."""
        others = {run.config.run.seed: run for run in other.runs}
        seeds = [(run, run.config.run.seed) for run in self.runs]
        return [(run, others[seed]) for run, seed in seeds if seed in others]

    def gained(self, random: Curve) -> Spread:
        """Accuracy above that of another curve, mean over the rounds that both have, seed by seed."""
        rounds = min(len(self.labels), len(random.labels))
        pairs = self.pairs(random)
        means = [[statistics.fmean(run.values("accuracy")[:rounds]) for run in pair] for pair in pairs]
        return Spread(tuple(own - other for own, other in means), len(pairs))

    def gained_over_rounds(self, random: Curve) -> list[Spread]:
        """Accuracy above that of another curve in every round that both have, seed by seed."""
        pairs = [(run.values("accuracy"), other.values("accuracy")) for run, other in self.pairs(random)]
        return [
            Spread(tuple(own[place] - other[place] for own, other in pairs), len(pairs))
            for place in range(min(len(self.labels), len(random.labels)))
        ]

    def saved(self, random: Curve, accuracy: float) -> Spread:
        """Labels that another curve needs more for an accuracy, seed by seed, where both reach it."""
        pairs = [(run.needed(accuracy), other.needed(accuracy)) for run, other in self.pairs(random)]
        return Spread(tuple(o - own for own, o in pairs if own is not None and o is not None), len(pairs))

    def saved_at_least(self, random: Curve, accuracy: float) -> float | None:
        """The same where the other curve need not get there: it needs more than all of its labels then.

        The mean over seeds; None where this curve itself does not get there in every seed.
        """
        pairs = [(run.needed(accuracy), other.needed(accuracy), other.labels[-1]) for run, other in self.pairs(random)]
        if not pairs or any(own is None for own, _, _ in pairs):
            return None
        return statistics.fmean((last if other is None else other) - (own or 0.0) for own, other, last in pairs)

    def saved_in_the_end(self, random: Curve) -> Spread:
        """Labels saved at the accuracy that the other curve of a seed ends with, which is another one in each seed."""
        found = self._in_the_end(random)
        return Spread(tuple(other - own for own, other, _ in found if own is not None), len(found))

    def saved_in_the_end_at_most(self, random: Curve) -> float:
        """The same, mean over seeds, where this curve need not get there: it needs more than all of its labels then."""
        found = self._in_the_end(random)
        return statistics.fmean(other - (last if own is None else own) for own, other, last in found)

    def _in_the_end(self, random: Curve) -> list[tuple[float | None, float, int]]:
        """Labels needed for the accuracy with which another curve ends: here, there; and how many there are here."""
        pairs = [(run, other, other.values("accuracy")[-1]) for run, other in self.pairs(random)]
        return [(run.needed(end), other.needed(end) or 0.0, run.labels[-1]) for run, other, end in pairs]


@dataclass(frozen=True)
class Comparison:
    """Curves that differ in method and acquisition only; labels are compared at the accuracies ``asked`` for."""

    curves: tuple[Curve, ...]
    asked: tuple[float, ...] = ()
    apart: str = ""
    """What tells it from other comparisons of the same network and data."""

    @property
    def config(self) -> ActiveConfig:
        """The settings that all of them share, beside a method, an acquisition and a seed."""
        return self.curves[0].runs[0].config

    @property
    def title(self) -> str:
        """Network and data, and what tells it from others of these."""
        return ", ".join(filter(None, [f"{self.config.run.model} on {self.config.run.data}", self.apart]))

    @property
    def methods(self) -> list[str]:
        """In the order of the curves."""
        return list(dict.fromkeys(curve.method for curve in self.curves))

    @property
    def acquisitions(self) -> list[str]:
        """The plainest first."""
        return sorted({curve.acquire for curve in self.curves}, key=list(ACQUISITIONS).index)

    def random_of(self, method: str) -> Curve | None:
        """What the other curves of a method are compared with."""
        return next((one for one in self.curves if (one.method, one.acquire) == (method, "random")), None)

    def compared_with(self, curve: Curve) -> Curve | None:
        """Random of the same method, if it has seeds of this curve, which is another one."""
        random = self.random_of(curve.method)
        return random if random is not None and random is not curve and curve.pairs(random) else None

    @cached_property
    def levels(self) -> list[float]:
        """Accuracies to compare labels at; without any asked for, round ones from the lowest start to the best curve.

        That one reaches all of them, in every seed.
        """
        if self.asked:
            return list(self.asked)
        low = min(curve.at(0, "accuracy").mean for curve in self.curves)
        high = max(min(max(run.values("accuracy")) for run in curve.runs) for curve in self.curves)
        for step in _GRIDS:
            found = [round(k * step, 4) for k in range(int(low / step) + 1, int(high / step + 1e-9) + 1)]
            if len(found) >= 3:
                return found[-_MOST_LEVELS:]
        return []


def compare(runs: Sequence[ActiveRun], asked: Sequence[float] = ()) -> tuple[list[Comparison], list[str]]:
    """Runs in groups that can be compared; and a sentence for each run that is left out.

    A run with fewer rounds than others of its curve is still under way: a mean over other seeds in every round would
    be no curve.
    """
    groups: dict[str, dict[tuple[str, str], list[ActiveRun]]] = {}
    left_out = []
    for run in runs:
        if not run.rounds:
            left_out.append(f"`{run.name}` has no finished round yet.")
            continue
        shared = run.config.as_json()
        curve = shared.pop("method"), shared.pop("acquire")
        del shared["seed"]
        groups.setdefault(json.dumps(shared, sort_keys=True), {}).setdefault(curve, []).append(run)
    comparisons = []
    for group in groups.values():
        curves = []
        for (method, acquire), found in group.items():
            most = max(len(run.rounds) for run in found)
            left_out += [
                f"`{run.name}` has {len(run.rounds)} of {most} rounds." for run in found if len(run.rounds) < most
            ]
            whole = [run for run in found if len(run.rounds) == most]
            curves.append(Curve(method, acquire, tuple(sorted(whole, key=lambda run: run.config.run.seed))))
        order = list(ACQUISITIONS)
        first = list(dict.fromkeys(curve.method for curve in curves))
        curves.sort(key=lambda curve: (first.index(curve.method), order.index(curve.acquire)))
        comparisons.append(Comparison(tuple(curves), tuple(asked)))
    return _told_apart(comparisons), left_out


def _told_apart(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same, each with the settings in which those of one network and data set differ."""
    settings = []
    for one in comparisons:
        flat = one.config.as_json()
        flat |= flat.pop("recipe")
        settings.append({name: value for name, value in flat.items() if name not in ("method", "acquire", "seed")})
    found = []
    for one, own in zip(comparisons, settings, strict=True):
        alike = [other for other in settings if (other["model"], other["data"]) == (own["model"], own["data"])]
        names = dict.fromkeys(name for other in alike for name in other)
        differ = [name for name in names if any(other.get(name) != own.get(name) for other in alike)]
        words = [setting_words(name, own.get(name)) for name in differ]
        found.append(replace(one, apart=", ".join(words)))
    return found


def read_runs(folders: Sequence[RunFolder]) -> tuple[list[ActiveRun], list[str]]:
    """The runs in some folders, and a sentence for each that cannot be read."""
    runs, trouble = [], []
    for folder in folders:
        try:
            runs.append(ActiveRun(folder, *read_active(folder)))
        except RbueError as error:
            trouble.append(str(error))
    return runs, trouble


def as_json(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Everything that is known of comparisons, for scripts."""
    document = []
    for group in comparisons:
        curves = []
        for curve in group.curves:
            random = group.compared_with(curve)
            curves.append(
                {
                    "method": curve.method,
                    "acquire": curve.acquire,
                    "seeds": [run.config.run.seed for run in curve.runs],
                    "runs": [run.folder.path for run in curve.runs],
                    "labels": curve.labels,
                    **{name: [one.as_json() for one in curve.over_rounds(name)] for name in _KEPT},
                    "mean_accuracy": curve.mean_over_rounds().as_json(),
                    "labels_needed": {f"{level:g}": curve.needed(level).as_json() for level in group.levels},
                    "accuracy_gained": random and curve.gained(random).as_json(),
                    "gained_over_rounds": random and [one.as_json() for one in curve.gained_over_rounds(random)],
                    "labels_saved": random and {f"{one:g}": _saved_json(curve, random, one) for one in group.levels},
                    "labels_saved_at_the_end": random and _end_json(curve, random),
                    "seconds": _seconds(curve),
                    "samples": curve.runs[0].rounds[-1]["samples"],
                }
            )
        shared = group.config.as_json()
        for name in ("method", "acquire", "seed"):
            del shared[name]
        environments = [run.environment for curve in group.curves for run in curve.runs]
        distinct = [one for place, one in enumerate(environments) if one not in environments[:place]]
        document.append({"settings": shared, "levels": group.levels, "environments": distinct, "curves": curves})
    return document


def _saved_json(curve: Curve, random: Curve, level: float) -> dict[str, Any]:
    return {**curve.saved(random, level).as_json(), "at_least": curve.saved_at_least(random, level)}


def _end_json(curve: Curve, random: Curve) -> dict[str, Any]:
    return {**curve.saved_in_the_end(random).as_json(), "at_most": curve.saved_in_the_end_at_most(random)}


def _seconds(curve: Curve) -> dict[str, float]:
    """What all rounds of all seeds took, by what was done."""
    rounds = [one["seconds"] for run in curve.runs for one in run.rounds]
    return {part: sum(one.get(part, 0.0) for one in rounds) for part in ("training", "measuring", "acquiring")}
