"""The sections of a report of runs: each takes what is compared and gives blocks, or none where nothing is stored.

A section reads what the run folders hold: results, probabilities, logs, calibration, shift. A new one is a function and
a line in :data:`SECTIONS`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rbue import metrics
from rbue.decisions import abstaining
from rbue.errors import RbueError, RbueWarning
from rbue.lab.methods.mc_droprelu import MCDropReLU
from rbue.lab.report import figures
from rbue.lab.report.chance import CONFIDENCE, Resampled, resample, share_interval, verdict
from rbue.lab.report.page import Block, Columns, FigureBlock, FigureGrid, Fold, TableBlock, Text
from rbue.lab.report.run_answers import Answers, image_cards
from rbue.lab.report.run_records import Record, RunGroup
from rbue.lab.report.run_tables import METHOD
from rbue.lab.report.tables import Cell, Column, Row, Table, percent, whole
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.networks import NoWeights
from rbue.lab.runs.temperatures import FILE as CALIBRATION
from rbue.lab.runs.temperatures import at_a_bound, is_calibration_of
from rbue.lab.shift.rows import Setting, ShiftStore, by_severity
from rbue.lab.training.trainer import read_log


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

    def sentences(self) -> list[str]:
        """One sentence for each thing that is missing."""
        runs = self.without_weights
        if not runs:
            return self._known
        *first, last = (f"`{record.name}`" for record in runs)
        names, whose = (f"{', '.join(first)} and {last}", "their") if first else (last, "its")
        return [
            *self._known,
            f"the weights of {names} are not kept in {whose} folder{'s' if first else ''}: what was measured is "
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
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    gaps: Gaps = field(default_factory=Gaps)

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
            return "The answers of these runs are not stored here, so that chance cannot be told from a difference."
        left_out = [f"`{name}`" for name in self.group.methods if name not in self.answers]
        more = f" Without its stored answers {left_out[0]} is not compared." if len(left_out) == 1 else ""
        more = f" {len(left_out)} methods without stored answers are not compared." if len(left_out) > 1 else more
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


def interval_blocks(this: Compared, table: Table) -> list[Block]:
    """Accuracy, NLL and ECE with their intervals, and accuracy against ECE; empty for fewer than two methods."""
    if len(table.rows) < 2:
        return []
    columns = {column.key: column for column in table.columns}

    def cell(row: Row, key: str) -> Cell:
        return table.cell(row, columns[key])

    def name(row: Row) -> str:
        return str(cell(row, "method").value)

    panels = {}
    for key in ("accuracy", "nll", "ece"):
        found = [(name(row), cell(row, key)) for row in table.rows]
        panels[columns[key].heading] = [
            figures.Measured(label, one.number, one.interval) for label, one in found if one.number is not None
        ]
    shown = {heading: found for heading, found in panels.items() if found}
    forest = FigureBlock(
        figures.interval_panels(shown, percent=["accuracy"]),
        f"{', '.join(shown)} of each method with 95 % intervals, the numbers of the table.",
        "95 % intervals over the test images. Methods share these images, so that two can be told apart although their "
        "intervals overlap."
        if this.chance
        else "",
    )
    points = []
    for (method, records), row in zip(this.group.methods.items(), table.rows, strict=True):
        accuracy, ece, kind = cell(row, "accuracy").number, cell(row, "ece").number, records[0].settings.parsed
        if accuracy is not None and ece is not None:
            points.append(figures.PlanePoint(method, accuracy, ece, kind.q if isinstance(kind, MCDropReLU) else None))
    if sum(point.q is not None for point in points) < 2:
        points = [point._replace(q=None) for point in points]
    alt = "; ".join(f"{one.label}: {one.accuracy:.4f}, {one.ece:.4f}" for one in points)
    caption = "The bottom right corner is the place to be."
    plane = FigureBlock(_column(figures.accuracy_ece_plane(points)), f"Accuracy against ECE. {alt}.", caption)
    return [Columns([[forest], [plane]])] if points else [forest]


def _column(figure: Any) -> Any:
    """A figure in the size of a column, whose letters can be read on a phone too."""
    figure.set_size_inches(4.2, 3.4)
    return figure


# Which answers to trust


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
        promise = f"at most {100 * self.fitted.risk:g} % of them, with {100 * self.fitted.confidence:g} % confidence"
        if not math.isfinite(self.fitted.threshold):
            return f"No threshold on the confidence of `{method}` keeps its wrong answers to {promise}."
        every = self.answered == self.images
        what = "all images" if every else f"images with a confidence above {_below_one(self.fitted.threshold)}"
        return (
            f"Let `{method}` answer {what}: wrong are {promise}. That was fitted on {self.fitted.images:,} of the test "
            f"images. Of the other {self.images:,} it answers {100 * self.coverage:.0f} % and is wrong on {self.wrong} "
            f"of these {self.answered:,}{f' ({100 * self.risk:.1f} %)' if self.risk is not None else ''}."
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
    curves = FigureBlock(_column(figure), alt, f"Lower is better; at the right end every image is answered.{rings}")
    pairs = [
        _entropies(one.method, {"right": one.entropy[one.correct], "wrong": one.entropy[~one.correct]}, one)
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
            low, high = share_interval(rule.wrong, rule.answered)
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


def _entropies(title: str, groups: Mapping[str, NDArray[np.float64]], of: Answers) -> FigureBlock:
    means = "; ".join(
        f"{len(one):,} {name}, mean {one.mean():.3f} nats" if len(one) else f"0 {name}" for name, one in groups.items()
    )
    figure = figures.histogram_pair(groups, math.log(of.probs.shape[1]), label=title)
    return FigureBlock(figure, f"Entropy of the answers of {of.method}: {means}.")


def _below_one(value: float) -> str:
    """A confidence with as many digits as show that it is below 1."""
    digits = next((number for number in (2, 3, 4) if float(f"{value:.{number}f}") < 1), 4)
    return f"{value:.{digits}f}"


# Calibration


def calibration_blocks(this: Compared) -> list[Block]:
    """Reliability diagrams, and what a temperature would do, where `rbue calibrate` was run."""
    drawn = []
    for one in this.first:
        diagram, ece = one.reliability(), one.record.result["ece"]
        right = (diagram.accuracy * diagram.counts).nan_to_num().round()
        figure = figures.reliability_diagram(
            *(diagram.edges, diagram.counts, diagram.confidence, diagram.accuracy),
            label=one.method,
            note=f"ECE {ece:.4f}",
            intervals=share_interval(right, diagram.counts),
        )
        alt = (
            f"Reliability diagram of {one.method}: mean confidence {one.confidence.mean():.3f}, accuracy "
            f"{one.correct.mean():.3f}, ECE {ece:.4f}."
        )
        drawn.append(FigureBlock(figure, alt))
    words = Text(
        "Each bar holds the answers of one range of confidence and is as tall as the share of them that is right. The "
        "dot on it stands at their mean confidence, with the 95 % interval of the share. A bar is overconfident where "
        "the whole line lies below the dashed one, and underconfident where it lies above. The small bars below show "
        "how many answers each range holds."
    )
    table = _temperature_table(this.group)
    return [*([words, FigureGrid(drawn)] if drawn else []), *([TableBlock(table, explain=True)] if table.rows else [])]


_SCALED = (
    METHOD,
    Column(
        "temperature", "temperature", text="{:.2f}".format, about="Mean of those of both halves; above 1 it softens."
    ),
    *(
        Column(f"{when}_{key}", f"{name} {when}", about=f"{name} {when} scaling.")
        for key, name in (("ece", "ECE"), ("nll", "NLL"))
        for when in ("before", "after")
    ),
)


def _temperature_table(group: RunGroup) -> Table:
    rows: list[Row] = []
    for method, records in group.methods.items():
        key = list(records[0].results)[-1]
        entry = _stored(records[0], lambda folder: folder.entries(CALIBRATION), {}).get(key)
        if entry is None or not is_calibration_of(entry, records[0].result):
            continue
        mean = float(np.mean(entry["temperatures"]))
        scores = {f"{when}_{score}": entry[when][score] for when in ("before", "after") for score in ("ece", "nll")}
        bound = Cell(None, why="no temperature within the bounds is best")
        rows.append({"method": method, "temperature": bound if at_a_bound(entry) else Cell(mean), **scores})
    caption = "One temperature, fitted on the other half of the test images: what is left once a scale is mended"
    return Table(_SCALED, rows, caption)


def _stored(record: Record, read: Callable[[RunFolder], Any], without: Any) -> Any:
    """What a folder holds beside its results; a file that cannot be read is as good as none."""
    try:
        return read(record.folder)
    except (RbueError, OSError, KeyError, TypeError, ValueError):
        return without


# Where it is wrong

MATRIX_CLASSES = 30
"""A matrix of more classes cannot be read."""

_CLASS = (
    Column("class", "class", numeric=False),
    Column("images", "images", text=whole, about="Test images of the class."),
    Column("recall", "recall", text=lambda value: percent(value, 0), about="Share of its images answered right."),
    Column(
        "precision", "precision", text=lambda value: percent(value, 0), about="Share of such answers that is right."
    ),
    Column(
        "confusion", "most often taken for", numeric=False, about="The wrong answer given most often, and how often."
    ),
)


def error_blocks(this: Compared) -> list[Block]:
    """Confusion matrix and scores of each class, one fold a method."""
    return this.folds(_errors) if this.first else []


def _errors(one: Answers) -> list[Block]:
    classes, labels = one.images.classes, one.images.labels
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (labels, one.probs.argmax(1)), 1)
    table = TableBlock(_class_table(counts, classes), explain=True)
    if len(classes) > MATRIX_CLASSES:
        return [table]
    wrong = int(counts.sum() - np.trace(counts))
    figure = FigureBlock(
        figures.confusion_matrix(counts, classes),
        f"Confusion matrix of {one.method}: {wrong} of {counts.sum():,} images are off the diagonal.",
        "Rows are the labels, columns the answers; what is off the diagonal is wrong.",
        wide=len(classes) > 12,
    )
    return [Columns([[figure], [table]])]


def _class_table(counts: NDArray[np.int_], classes: Sequence[str]) -> Table:
    of_class, right, answered = counts.sum(1), counts.diagonal(), counts.sum(0)
    lows, highs = share_interval(right, of_class)
    rows: list[tuple[float, Row]] = []
    for place, name in enumerate(classes):
        images, hits = int(of_class[place]), int(right[place])
        if not images:
            continue
        wrong = counts[place].copy()
        wrong[place] = 0
        most = int(wrong.argmax())
        recall = hits / images
        row: Row = {
            "class": name,
            "images": images,
            "recall": Cell(recall, interval=(float(lows[place]), float(highs[place]))),
            "precision": hits / int(answered[place]) if answered[place] else Cell(None, why="it was never answered"),
            "confusion": f"{classes[most]} ({wrong[most]})" if wrong[most] else Cell(None, why="never wrong"),
        }
        rows.append((recall, row))
    rows.sort(key=lambda entry: entry[0])
    return Table(_CLASS, [row for _, row in rows], "Scores of each class with 95 % intervals, the worst first")


_CARDS = (
    "The three most probable classes of each image; the right one is underlined. A bar is the mean over all samples"
)
_LINES = ", the line on it the range that nine in ten samples lie in: a long line means that the samples disagree"


def image_blocks(this: Compared) -> list[Block]:
    """Surest mistakes, least and most certain images of every method."""
    if not this.first:
        return []
    has_lines = False

    def cards(one: Answers) -> list[Block]:
        nonlocal has_lines
        found, trouble = image_cards(one, this.device)
        if trouble is None:
            has_lines |= one.has_spread
        elif isinstance(trouble, NoWeights):
            this.gaps.without_weights.append(one.record)
        else:
            this.gaps.of_run(one.record, f"the samples of its most and least certain images cannot be drawn: {trouble}")
        if one.correct.all():
            return [Text(f"All {len(one.correct):,} answers are right."), *found]
        return found

    folds = this.folds(cards)
    return [Text(f"{_CARDS}{_LINES if has_lines else ''}."), *folds]


# Damaged images


def shift_blocks(this: Compared) -> list[Block]:
    """Accuracy, ECE and entropy on damaged images, on those sets that all runs with any were measured on."""
    rows = {}
    for method, records in this.group.methods.items():
        record, result = records[0], records[0].result
        setting = Setting(result["samples"], result["seed"], None, result.get("draws", "independent"))
        found = _stored(record, partial(_shift_rows, record.settings, setting), {})
        if found:
            rows[method] = found
    if not rows:
        return []
    variants = [{(cell, row["variant"]) for cell, row in found.items()} for found in rows.values()]
    shared = {cell for cell, _ in set.intersection(*variants)}
    if not shared:
        return [Text("The runs were not measured on the same damaged images, so that nothing of it can be compared.")]
    chosen = {method: [row for cell, row in found.items() if cell in shared] for method, found in rows.items()}
    clean = {method: this.group.methods[method][0].result for method in rows}
    measured = {
        key: {method: by_severity(found, key, clean[method]) for method, found in chosen.items()}
        for key in ("accuracy", "ece")
    }
    names = sorted({cell.corruption for cell in shared})
    listed = ", ".join(name.replace("_", " ") for name in names)
    kinds = f"{len(names)} corruption{'s' if len(names) != 1 else ''} ({listed})"
    absent = [f"`{method}`" for method in this.group.methods if method not in rows]
    caption = f"Clean and damaged test images: means over {kinds}"
    figure_of = {
        key: FigureBlock(
            _column(figures.severity_medians(measured[key], name, percent=key == "accuracy")),
            f"Median {name} of each method against the severity of the damage, the numbers of the table as medians.",
        )
        for key, name in (("accuracy", "accuracy"), ("ece", "ECE"))
    }
    blocks: list[Block] = [
        Columns([[figure_of["accuracy"]], [figure_of["ece"]]]),
        TableBlock(_shift_table(measured, caption)),
    ]
    if absent:
        blocks.append(Text(f"Not measured on damaged images: {', '.join(absent)}."))
    pairs = [pair for one in this.first if one.method in chosen and (pair := _damaged(one, chosen[one.method]))]
    if pairs:
        parted = (
            "An answer to a damaged image should be less sure. Entropy of the clean test images, and of the same "
            "images at the highest severity."
        )
        blocks += [Text(parted), FigureGrid(pairs)]
    return blocks


def _shift_rows(config: RunConfig, setting: Setting, folder: RunFolder) -> dict[Any, dict[str, Any]]:
    return dict(ShiftStore(folder).near(config, setting))


def _shift_table(measured: Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]], caption: str) -> Table:
    severities = sorted({level for found in measured["accuracy"].values() for level in found})
    columns = [METHOD]
    for key, name, text in (("accuracy", "accuracy", lambda value: percent(value, 1)), ("ece", "ECE", "{:.3f}".format)):
        columns += [
            Column(f"{key}{level}", f"{name}, {f'severity {level}' if level else 'clean'}", text=text)
            for level in severities
        ]
    rows: list[Row] = [
        {
            "method": method,
            **{
                f"{key}{level}": float(np.mean(found[method][level]))
                for key, found in measured.items()
                for level in severities
            },
        }
        for method in measured["accuracy"]
    ]
    return Table(columns, rows, caption)


def _damaged(one: Answers, rows: Sequence[Mapping[str, Any]]) -> FigureBlock | None:
    """Entropies of clean and of the most damaged images, if the probabilities of these are here."""
    most = max(row["severity"] for row in rows)
    worst = [row for row in rows if row["severity"] == most]
    stored = _stored(one.record, lambda folder: [ShiftStore(folder).probs_of(dict(row)) for row in worst], [None])
    if any(probs is None or probs.shape != one.probs.shape for probs in stored):
        return None
    damaged = metrics.entropy(torch.from_numpy(np.concatenate(stored)).double()).numpy()
    flags = torch.from_numpy(np.repeat([True, False], [len(damaged), len(one.entropy)]))
    auroc = float(metrics.auroc(torch.from_numpy(np.concatenate([damaged, one.entropy])), flags))
    block = _entropies(one.method, {"clean": one.entropy, "damaged": damaged}, one)
    words = "1 would part them, 0.5 not at all" if auroc >= 0.5 else "surer of damaged images than of clean ones"
    return FigureBlock(block.figure, f"{block.alt} AUROC {auroc:.3f}.", f"AUROC {auroc:.3f}: {words}.")


# Training


def training_blocks(this: Compared) -> list[Block]:
    """Loss and accuracy while training, and what more samples bring."""
    curves = {}
    for method, records in this.group.methods.items():
        log = _training_log(records[0])
        if log:
            curves[method] = {
                entry["epoch"] + 1: {str(key): float(entry[key]) for key in ("loss", "accuracy") if key in entry}
                for entry in log
            }
    drawn = []
    for key in ("loss", "accuracy") if curves else ():
        last = "; ".join(f"{method} {curve[max(curve)].get(key, math.nan):.4f}" for method, curve in curves.items())
        figure = figures.lines_against_samples(curves, {key: f"training {key}"}, x="epoch")
        drawn.append(FigureBlock(figure, f"Training {key} by epoch. At the end: {last}."))
    grid = [*drawn, *more_samples(this.group)]
    if not grid:
        return []
    words = (
        "Loss and accuracy on the training images as they were trained on, of an ensemble those of its first network"
    )
    more = ", and what more samples bring on the test images." if len(grid) > len(drawn) else "."
    return [Text(words + more if drawn else "What more samples bring on the test images."), FigureGrid(grid)]


def _training_log(record: Record) -> list[dict[str, Any]]:
    if record.root is None:
        return read_log(record.folder.log)
    return read_log(RunFolder.of(record.settings.members()[0], record.root).log)


def more_samples(group: RunGroup) -> list[FigureBlock]:
    """Accuracy and ECE against the number of samples, where runs were measured with several; else empty."""
    curves = {}
    for method, records in group.methods.items():
        results = [one for one in records[0].results.values() if one["seed"] == records[0].result["seed"]]
        entries = [entry for result in results for entry in (*(result.get("by_samples") or ()), result)]
        curve = {entry["samples"]: {key: entry[key] for key in ("accuracy", "ece")} for entry in entries}
        if len(curve) > 1:
            curves[method] = curve
    found = "; ".join(f"{name} with {', '.join(map(str, sorted(curve)))} samples" for name, curve in curves.items())
    return [
        FigureBlock(
            figures.lines_against_samples(curves, {key: name}), f"{name} against the number of samples: {found}."
        )
        for key, name in (("accuracy", "accuracy"), ("ece", "ECE"))
        if curves
    ]


SECTIONS: tuple[tuple[str, Callable[[Compared], list[Block]]], ...] = (
    ("Which answers to trust", trust_blocks),
    ("Calibration", calibration_blocks),
    ("Where it is wrong", error_blocks),
    ("Images to look at", image_blocks),
    ("Damaged images", shift_blocks),
    ("Training and samples", training_blocks),
)
"""What follows the comparison, in this order; a section without blocks is left out."""
