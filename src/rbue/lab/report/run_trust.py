"""Which answers to trust: a threshold on the confidence, what it promises, and what it does to unseen images."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rbue.decisions import abstaining
from rbue.errors import RbueWarning
from rbue.lab.report import figures
from rbue.lab.report.chance import CONFIDENCE
from rbue.lab.report.page import Block, Columns, FigureBlock, FigureGrid, Fold, TableBlock, Text
from rbue.lab.report.run_compared import Compared, column_figure, entropy_pair
from rbue.lab.report.run_tables import METHOD
from rbue.lab.report.tables import Cell, Column, Row, Table, percent
from rbue.metrics.sets import binomial_interval


@dataclass(frozen=True)
class Rule:
    """A threshold fitted on one half of the test images, and what it does to the other half.

    Attributes:
        fitted: the threshold.
        images: in the other half.
        answered: how many of them lie above it.
        wrong: how many of those are wrong.
    """

    fitted: abstaining.Abstaining
    images: int
    answered: int
    wrong: int

    @property
    def coverage(self) -> float:
        """The share that is answered."""
        return self.answered / self.images

    @property
    def risk(self) -> float | None:
        """The share of the answered that is wrong."""
        return self.wrong / self.answered if self.answered else None

    def sentence(self, method: str) -> str:
        """What the rule means."""
        allowed, surely = f"at most {100 * self.fitted.risk:g} %", f"with {100 * self.fitted.confidence:g} % confidence"
        if self.fitted.threshold == math.inf:
            return f"No threshold on the confidence of `{method}` keeps wrong answers to {allowed}, {surely}."
        every = self.fitted.threshold == -math.inf
        what = "all images" if every else f"images with a confidence above {_below_one(self.fitted.threshold)}"
        share = f" ({100 * self.risk:.1f} %)" if self.risk is not None else ""
        return (
            f"Let `{method}` answer {what}: on images like these, {allowed} of its answers are wrong, {surely}. That "
            f"was fitted on {self.fitted.images:,} of the test images. Of the other {self.images:,} it answers "
            f"{100 * self.coverage:.0f} % and is wrong on {self.wrong} of these {self.answered:,}{share}."
        )


RISKS = (0.05, 0.1, 0.2)
"""Error rates to allow: the first that the number of images can promise, whatever their labels."""


def abstaining_rule(confidence: NDArray[np.float64], correct: NDArray[np.bool_]) -> Rule | None:
    """Fit a threshold on one random half of the images and count what it does on the other; None for too few."""
    half = np.random.default_rng(0).permutation(len(correct)) % 2 == 0
    needed = [math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-risk)) for risk in RISKS]
    risk = next((risk for risk, count in zip(RISKS, needed, strict=True) if half.sum() >= count), None)
    if risk is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RbueWarning)  # that nothing is answered is said in a sentence
        fitted = abstaining.fit(confidence[half], correct[half], risk, CONFIDENCE)
    answered = fitted(confidence[~half]).numpy()
    return Rule(fitted, int((~half).sum()), int(answered.sum()), int((answered & ~correct[~half]).sum()))


_RULE = (
    METHOD,
    Column("threshold", "answer above", text=lambda value: _below_one(value), about="Threshold on the confidence."),
    Column("coverage", "answered", text=lambda value: percent(value, 1), about="Share of the other half, answered."),
    Column(
        "wrong", "wrong", text=lambda value: percent(value, 1), about="Wrong answers among these, on the other half."
    ),
)


def trust_blocks(this: Compared) -> list[Block]:
    """Risk-coverage curves with a threshold, its meaning, and entropies of right and of wrong answers."""
    if not this.first:
        return []
    rules = {one.method: abstaining_rule(one.confidence, one.correct) for one in this.first}
    found = {method: rule for method, rule in rules.items() if rule is not None}
    chosen = {name: (rule.coverage, rule.risk) for name, rule in found.items() if rule.risk is not None}
    figure = figures.risk_coverage_curves(
        {one.method: tuple(one.risk_coverage()) for one in this.first},  # type: ignore[misc]
        allowed=next(iter(found.values())).fitted.risk if found else None,
        chosen=chosen,
    )
    areas = "; ".join(
        f"{one.method} {one.record.result['aurc']:.4f}" for one in this.first if "aurc" in one.record.result
    )
    alt = f"Risk-coverage curves of {len(this.first)} methods. Area under each: {areas}."
    rings = "" if not chosen else " Rings: the thresholds, on the half of the images that they have not seen."
    words: list[Block] = [
        Text(
            "A network may decline to answer. If only the surest images are answered, the curve shows how many of "
            "these answers are wrong."
        )
    ]
    if found:
        featured = this.featured.method
        words.append(Text(found[featured].sentence(featured)))
        words.append(TableBlock(_rule_table(found), explain=True))
    else:
        words.append(Text(f"{len(this.featured.correct)} images are too few to fit a threshold on half of them."))
    curves = FigureBlock(
        column_figure(figure), alt, f"Lower is better; at the right end every image is answered.{rings}"
    )
    pairs = [
        entropy_pair(one.method, {"right": one.entropy[one.correct], "wrong": one.entropy[~one.correct]}, one)
        for one in this.first
    ]
    parted = (
        "Uncertainty is worth something where wrong answers have more of it than right ones. Each histogram is a share "
        "of its own group, so that a handful of wrong answers is as visible as hundreds of right ones."
    )
    return [
        Columns([[curves], words]),
        Fold("Entropy of right and of wrong answers", [Text(parted), FigureGrid(pairs)]),
    ]


def _rule_table(rules: Mapping[str, Rule]) -> Table:
    rows: list[Row] = []
    for method, rule in rules.items():
        silent = Cell(None, why="nothing is answered")
        wrong = silent
        if rule.answered:
            low, high = binomial_interval(torch.tensor(rule.wrong), torch.tensor(rule.answered), CONFIDENCE)
            wrong = Cell(rule.risk, interval=(float(low), float(high)))
        fitted = rule.fitted.threshold
        threshold = "everything" if fitted == -math.inf else Cell(fitted) if fitted < math.inf else silent
        rows.append({"method": method, "threshold": threshold, "coverage": rule.coverage, "wrong": wrong})
    first = next(iter(rules.values()))
    caption = (
        f"Thresholds for at most {100 * first.fitted.risk:g} % wrong answers with {100 * CONFIDENCE:g} % confidence, "
        "fitted on one half of the test images, measured on the other"
    )
    return Table(_RULE, rows, caption)


def _below_one(value: float) -> str:
    """A confidence with as many digits as show that it is below 1."""
    digits = next((number for number in (2, 3, 4) if float(f"{value:.{number}f}") < 1), 4)
    return f"{value:.{digits}f}"
