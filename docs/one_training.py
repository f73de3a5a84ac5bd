"""What the page "One training" shows: the table of finished networks, its picture, and the trials of the search."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import result_tables
from result_tables import EARLY, RECIPES, ROBUST, ROOT, TITLES, Study

from rbue.files import read_json
from rbue.lab.corruptions import CORRUPTIONS, SEVERITIES
from rbue.lab.methods.base import parse
from rbue.lab.report.figure_style import METHOD_COLOURS, MUTED, SMALL, TEXT, dress, method_name, new_figure
from rbue.lab.runs.folders import RunFolder
from rbue.lab.training.recipe import recipe_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIRST, SECOND = "mc-droprelu:0.98,all,channel", "mc-droprelu:0.99,all,channel"
CHOSEN = "mc-droprelu:0.995,all,channel[single]"
SHOWN = ("single", CHOSEN, "mc-droprelu:0.95", FIRST, SECOND, "deep-ensemble:4")
PUBLISHED = {"SWA": (95.38, 4.00), "SAM with SWA": (95.60, 3.56)}
"""Accuracy in percent and AURC in thousandths of the tables of the SURE project: 45,000 training images, 200 epochs."""


NOISES = [name for name in CORRUPTIONS if name.endswith("_noise")]
CLEAN = ("passes", "seeds", "accuracy, %", "ECE", "NLL", "AURC, ×10⁻³", "with a temperature: ECE", "NLL")
"""Heads of what is said of the clean test images."""
SETTINGS = {
    "weight_decay": "weight decay",
    "average": "average",
    "average_start": "averages from",
    "average_learning_rate": "learning rate of the average",
    "average_decay": "decay",
    "label_smoothing": "label smoothing",
    "augmix": "AugMix",
    "mixup": "mixup",
    "cutout": "cutout",
    "noise": "noise",
}
"""In words, what a trial may have otherwise than the recipe that the search began with."""

AREA = 60.0
"""Of the point of one training, in square points."""


@dataclass(frozen=True, eq=False)
class Row:
    """The runs of one method, recipe and kind of passes; the seeds of a run are all that differs.

    Attributes:
        clean: the measurement of each run on the test images.
        scaled: the same after a temperature, of each run that was asked for one.
        damaged: rows of each run on the corrupted test sets that it has.
    """

    method: str
    recipe: str
    augmented: bool
    clean: list[Mapping[str, Any]]
    scaled: list[Mapping[str, Any]]
    damaged: list[list[Mapping[str, Any]]]

    def whole(self, corruptions: Collection[str] = CORRUPTIONS) -> list[list[Mapping[str, Any]]]:
        """The rows of each run that has all test sets with these corruptions."""
        found = ([one for one in sets if one["corruption"] in corruptions] for sets in self.damaged)
        return [sets for sets in found if len(sets) == len(corruptions) * len(SEVERITIES)]

    @property
    def trainings(self) -> int:
        """Networks that have to be trained for it."""
        return parse(self.method).networks


def rows(study: Study, recipes: Sequence[str] = RECIPES) -> list[Row]:
    """Every row with these recipes that was measured, as far as this page shows it."""
    groups: dict[tuple[str, str], list[RunFolder]] = {}
    for recipe, method, folder in study.folders():
        if method in SHOWN:
            groups.setdefault((recipe, method), []).append(folder)
    order = [(recipe, method) for recipe in recipes for method in SHOWN]
    return [
        row
        for recipe, method in order
        if (recipe, method) in groups
        for augmented in (False, True)
        if (row := _row(method, recipe, augmented, groups[recipe, method])).clean
    ]


def _row(method: str, recipe: str, augmented: bool, folders: Iterable[RunFolder]) -> Row:
    clean, scaled, damaged = [], [], []
    for folder in folders:
        found = {key: one for key, one in folder.entries("results").items() if ("augment" in one) == augmented}
        clean += list(found.values())[-1:]
        asked = folder.entries("calibration").items()
        scaled += [one["after"] for key, one in asked if ("augment" in key) == augmented][-1:]
        sets = [one for one in (folder.read("shift") or {"rows": []})["rows"] if ("augment" in one) == augmented]
        damaged += [sets] * bool(sets)
    return Row(method, recipe, augmented, clean, scaled, damaged)


def _spread(values: list[float], digits: int, scale: float = 1.0) -> str:
    """The mean, with the standard deviation where there are several."""
    if not values:
        return "–"
    text = f"{scale * mean(values):.{digits}f}"
    # With spaces that do not break, or a narrow cell would have three lines.
    return (
        text if len(values) == 1 else f"{text}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{scale * stdev(values):.{digits}f}"
    )


def clean(study: Study, recipes: Sequence[str] = RECIPES) -> list[str]:
    """The test images; mean and standard deviation over seeds."""
    lines = [[row.recipe, _title(row), *_clean(row)] for row in rows(study, recipes)]
    for name, (accuracy, aurc) in PUBLISHED.items() if recipes == RECIPES else ():
        lines.append(["published", name, "plain", "", f"{accuracy:.2f}", "", "", f"{aurc:.2f}", "", ""])
    return result_tables.table(["recipe", "method", *CLEAN], lines)


def damaged(study: Study, recipes: Sequence[str] = RECIPES) -> list[str]:
    """All corrupted test images, and those with noise, of rows that have either; means likewise."""
    lines = []
    for row in rows(study, recipes):
        whole, noisy = row.whole(), row.whole(NOISES)
        if noisy:
            scores = (("accuracy", 1, 100), ("ece", 3, 1), ("nll", 3, 1))
            cells = [_spread([mean(one[name] for one in sets) for sets in whole], *how) for name, *how in scores]
            noise = _spread([mean(one["nll"] for one in sets) for sets in noisy], 2)
            passes = "augmented" if row.augmented else "plain"
            lines.append([row.recipe, _title(row), passes, str(len(whole)), *cells, str(len(noisy)), noise])
    heads = ["recipe", "method", "passes", "seeds", "accuracy, %", "ECE", "NLL", "noise: seeds", "NLL"]
    return result_tables.table(heads, lines)


def _title(row: Row) -> str:
    return f"**{TITLES[row.method]}**" if row.method == CHOSEN else TITLES[row.method]


def elsewhere(studies: Iterable[Study]) -> list[str]:
    """Clean test images of other data sets and networks, with the same recipes."""
    lines = [
        [f"{study.data}, {study.model}", row.recipe, TITLES[row.method], *_clean(row)]
        for study in studies
        for row in rows(study)
    ]
    return result_tables.table(["images, network", "recipe", "method", *CLEAN], lines)


def _clean(row: Row) -> list[str]:
    """The cells under the heads :data:`CLEAN`."""
    return [
        "augmented" if row.augmented else "plain",
        str(len(row.clean)),
        _spread([one["accuracy"] for one in row.clean], 2, 100),
        *(_spread([one[name] for one in row.clean], 4) for name in ("ece", "nll")),
        _spread([one["aurc"] for one in row.clean], 2, 1000),
        *(_spread([one[name] for one in row.scaled], 4) for name in ("ece", "nll")),
    ]


def temperatures(study: Study) -> list[str]:
    """What a temperature would do to the augmented passes of the strong recipes."""
    kept = [
        one
        for _, _, folder in study.folders()
        for key, one in folder.entries("calibration").items()
        if "augment" in key
    ]
    fitted = [value for one in kept for value in one["temperatures"]]
    change = max(abs(one["before"]["nll"] - one["after"]["nll"]) for one in kept)
    return [
        f"No temperature is used: with augmented passes it would be {min(fitted):.2f} to {max(fitted):.2f}, and change "
        f"the NLL by at most {change:.4f} (`rbue calibrate`)."
    ]


def brief(study: Study) -> list[str]:
    """What to give ``rbue train --recipe strong``, and what comes of it with augmented passes."""
    found = {(row.recipe, row.method): row for row in rows(study)}  # augmented passes where measured
    typed = (
        ("strong", "single", "`single`"),
        ("strong", CHOSEN, f"`{CHOSEN}`"),
        ("strong", SECOND, f"`{SECOND}`"),
        (ROBUST, SECOND, "the same, `--augmix 0.5`"),
        ("strong", "deep-ensemble:4", "`deep-ensemble:4`, four trainings"),
        ("paper", "deep-ensemble:4", "the same, `--recipe paper`, plain passes"),
    )
    heads = ["`--method`", "accuracy, %", "ECE", "NLL", "corrupted: accuracy, %", "ECE", "NLL"]
    return result_tables.table(heads, [[words, *_means(found[recipe, method])] for recipe, method, words in typed])


def headline(study: Study) -> list[str]:
    """Rows for the small table of README: the strong recipe with augmented passes, means over seeds."""
    found = {row.method: row for row in rows(study, ("strong",))}  # augmented passes where measured
    lines = []
    for method, title in {
        "single": "Single",
        CHOSEN: "**MC-DropReLU at test time, q = 0.995**",
        "deep-ensemble:4": "Deep Ensemble of 4",
    }.items():
        row = found[method]
        accuracy, ece, nll = (mean(one[name] for one in row.clean) for name in ("accuracy", "ece", "nll"))
        scores = f"{100 * accuracy:.2f} | {ece:.3f} | {nll:.3f}"
        lines.append(f"| *strong:* {title} | {scores} | {row.trainings} | {row.clean[0]['samples']} |")
    return lines


def _means(row: Row) -> list[str]:
    """Accuracy in percent, ECE and NLL of clean and of corrupted images, means over runs."""
    damaged = [{name: mean(one[name] for one in sets) for name in ("accuracy", "ece", "nll")} for sets in row.whole()]
    return [
        f"{scale * mean(one[name] for one in measured):.{digits}f}" if measured else "–"
        for measured, places in ((row.clean, (2, 4, 3)), (damaged, (1, 3, 3)))
        for (name, scale), digits in zip((("accuracy", 100), ("ece", 1), ("nll", 1)), places, strict=True)
    ]


def shared(study: Study) -> list[str]:
    """Augmented passes of the strong recipes, where all noises were measured, on the sets that their runs share."""
    found = rows(study, RECIPES + EARLY)
    compared = [row for row in found if row.recipe != "paper" and row.augmented and row.whole(NOISES)]
    runs = [{(one["corruption"], one["severity"]): one for one in sets} for row in compared for sets in row.damaged]
    common = set.intersection(*map(set, runs))
    blurs = {one for one in common if one[0].endswith("_blur")}
    lines = []
    for row in compared:
        cells = [f"{TITLES[row.method]}, {row.recipe}", str(len(row.damaged))]
        for some, scores in ((common, ("accuracy", "ece", "nll")), (blurs, ("ece", "nll"))):
            own = [[one for one in sets if (one["corruption"], one["severity"]) in some] for sets in row.damaged]
            for name in scores:
                digits, scale = (1, 100) if name == "accuracy" else (3, 1)
                cells.append(_spread([mean(one[name] for one in sets) for sets in own], digits, scale))
        lines.append(cells)
    heads = [f"{len(common)} of the corrupted sets", "seeds", "accuracy, %", "ECE", "NLL"]
    return result_tables.table([*heads, f"{len(blurs)} with blur: ECE", "NLL"], lines)


NAMES = {
    ("paper", "single"): ("Single", (0, 12), "center"),
    ("paper", "mc-droprelu:0.95"): ("MC-DropReLU 0.95", (10, -3), "left"),
    ("paper", "deep-ensemble:4"): ("Deep Ensemble\nof 4", (16, 0), "left"),
    ("strong", "single"): ("Single", (6, 12), "left"),
    ("strong", CHOSEN): ("Single, drawn with 0.995", (4, 21), "right"),
    ("strong", SECOND): ("MC-DropReLU 0.99\nby channel", (-36, -20), "right"),
    ("strong", "deep-ensemble:4"): ("Deep Ensemble of 4", (-22, -14), "right"),
}
"""What is written beside the plain passes of a row, where (in points) and on which side."""
CORRUPTED = NAMES | {
    ("strong", "single"): ("Single", (0, 13), "left"),
    ("strong", CHOSEN): ("Single, drawn with 0.995", (10, -7), "left"),
    ("strong", SECOND): ("MC-DropReLU 0.99\nby channel", (-14, -3), "right"),
}
"""The same on corrupted images."""
MARKERS = {ROBUST: "D", CHOSEN: "^"}
"""Of recipes and methods that are no circle."""


def picture(study: Study) -> Figure:
    """Accuracy against NLL, on clean and on corrupted images; the size of a point is the trainings it needs."""
    figure = new_figure(9.0, 4.1)
    clean, corrupted = figure.subplots(1, 2)
    found = rows(study)
    _points(clean, {row: [(100 * one["accuracy"], one["nll"]) for one in row.clean] for row in found}, NAMES)
    means = {
        row: [(100 * mean(one["accuracy"] for one in sets), mean(one["nll"] for one in sets)) for sets in row.whole()]
        for row in found
    }
    _points(corrupted, {row: places for row, places in means.items() if places}, CORRUPTED)
    dress(clean, title="Clean test images", x="accuracy, %", y="negative log-likelihood", grid="both")
    dress(corrupted, title="19 corruptions, 5 severities", x="accuracy, %", grid="both")
    for text, face, count, marker in (
        ("paper's recipe", "white", 1, "o"),
        ("strong recipe", MUTED, 1, "o"),
        ("with AugMix", MUTED, 1, MARKERS[ROBUST]),
        ("4 trainings", "white", 4, "o"),
    ):
        clean.scatter(
            [], [], s=AREA * count, facecolors=face, edgecolors=MUTED, linewidths=1.3, label=text, marker=marker
        )
    clean.plot([], [], color=MUTED, linewidth=1.0, marker=">", markersize=4, label="from plain to augmented passes")
    clean.legend(frameon=False, fontsize=SMALL, labelcolor=MUTED, loc="upper right", labelspacing=0.9)
    return figure


def _points(
    axes: Axes,
    places: Mapping[Row, list[tuple[float, float]]],
    names: Mapping[tuple[str, str], tuple[str, tuple[int, int], str]],
) -> None:
    """A point for each row, in the middle of its runs, which are faint; an arrow from plain to augmented passes."""
    plain: dict[tuple[str, str], tuple[float, ...]] = {}
    for row, runs in places.items():
        colour, key = METHOD_COLOURS[method_name(row.method)], (row.recipe, row.method)
        centre = tuple(mean(values) for values in zip(*runs, strict=True))
        if len(runs) > 1:
            axes.scatter(*zip(*runs, strict=True), s=12, color=colour, alpha=0.3, linewidths=0, zorder=1)
        face = "white" if row.recipe == "paper" else colour
        look = {"s": AREA * row.trainings, "facecolors": face, "edgecolors": colour, "linewidths": 1.3}
        axes.scatter(*centre, marker=_marker(row), zorder=3, **look)
        if row.augmented and key in plain:
            arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.0, "shrinkA": 5, "shrinkB": 5}
            axes.annotate("", centre, xytext=plain[key], arrowprops=arrow)
            continue
        plain[key] = centre
        if key in names:
            text, offset, side = names[key]
            look = {"ha": side, "va": "center", "color": colour, "fontsize": TEXT}
            axes.annotate(text, centre, xytext=offset, textcoords="offset points", **look)
    axes.margins(0.12)


def _marker(row: Row) -> str:
    return MARKERS.get(row.recipe, MARKERS.get(row.method, "o"))


def by_corruption(study: Study) -> Figure:
    """NLL under each corruption, mean over severities and seeds; the noises first."""
    figure = new_figure(7.2, 5.4)
    axes = figure.subplots()
    shown = {(row.recipe, row.method): row for row in rows(study) if row.whole()}  # augmented passes where measured
    names = sorted(CORRUPTIONS, key=lambda name: (name.endswith("_noise"), name), reverse=True)
    for place, ((recipe, method), row) in enumerate(shown.items()):
        nll = [mean(one["nll"] for sets in row.whole([name]) for one in sets) for name in names]
        colour = METHOD_COLOURS[method_name(method)]
        face = "white" if recipe == "paper" else colour
        label = f"{TITLES[method]}, {recipe}, {'augmented' if row.augmented else 'plain'}"
        look = {"s": 26, "facecolors": face, "edgecolors": colour, "linewidths": 1.2, "label": label}
        heights = [line + 0.1 * (place - (len(shown) - 1) / 2) for line in range(len(names))]  # none hides another
        axes.scatter(nll, heights, marker=_marker(row), zorder=3, **look)
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xticks([0.2, 0.5, 1, 2, 4], ["0.2", "0.5", "1", "2", "4"])
    axes.minorticks_off()
    dress(axes, x="negative log-likelihood, mean of five severities (log scale)", grid="both")
    figure.legend(frameon=False, fontsize=SMALL, labelcolor=MUTED, loc="outside upper left", ncols=2)
    return figure


def stages() -> list[str]:
    """What random ReLUs at test time change of trained networks, by where they are; means over networks."""
    found: dict[tuple[str, str, float], list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for one in read_json(ROOT / "results" / "draws_by_stage.json"):
        before, *after = one["rows"]
        method = one["config"]["method"]
        for row in after:
            if row["q"] != getattr(parse(method), "q", None):
                found.setdefault((method, row["where"], row["q"]), []).append((before, row))
    lines = [
        [f"`{method}`", f"`{where}`", f"{q:g}", str(len(pairs))]
        + [
            f"{scale * mean(after[images][name] - before[images][name] for before, after in pairs):+.{digits}f}"
            for images in ("clean", "noise")
            for name, scale, digits in (("accuracy", 100, 2), ("ece", 1, 3), ("nll", 1, 3))
        ]
        for (method, where, q), pairs in sorted(found.items(), key=_order)
    ]
    heads = ["trained with", "random ReLUs", "`q`", "networks", "clean: accuracy", "ECE", "NLL"]
    return result_tables.table([*heads, "noise: accuracy", "ECE", "NLL"], lines)


def _order(one: tuple[tuple[str, str, float], Any]) -> tuple[float, str, float]:
    (method, where, q), _ = one
    return -getattr(parse(method), "q", 1.0), where, -q


def search() -> list[str]:
    """The trials on held-out images, long trainings first, then by their NLL."""
    heads = ["trial", "epochs", "clean", "augmented passes", "corrupted", "corrupted, augmented passes", "noise, NLL"]
    trials = read_json(ROOT / "results" / "search.json")
    ordered = sorted(
        trials, key=lambda one: (-one["config"]["recipe"]["epochs"], min(e["nll"] for e in one["held_out"].values()))
    )
    return result_tables.table(heads, map(_trial, ordered))


def _trial(one: Mapping[str, Any]) -> list[str]:
    """A row: accuracy in percent, ECE and NLL in each cell; the last is of augmented passes, or of plain ones."""
    recipe = one["config"]["recipe"]
    usual = vars(recipe_for("cifar10", "strong", average_start=0.6))
    present = [(name, recipe[key]) for key, name in SETTINGS.items() if recipe.get(key, usual[key]) != usual[key]]
    extra = [name if value is True else f"{name} {value}" for name, value in present]

    def cell(scores: Mapping[str, float] | None) -> str:
        return "" if scores is None else f"{100 * scores['accuracy']:.2f} / {scores['ece']:.3f} / {scores['nll']:.3f}"

    def of(measured: Mapping[str, Any], augmented: bool) -> Any:
        return next((found for key, found in measured.items() if ("augment" in key) == augmented), None)

    damaged = [of(one["corrupted"], augmented) for augmented in (False, True)]
    noise = [f"{found['noise']['nll']:.2f}" for found in damaged if found]
    return [
        ", ".join([f"`{one['config']['method']}`", *extra]),
        str(recipe["epochs"]),
        *(cell(of(one["held_out"], augmented)) for augmented in (False, True)),
        *(cell(found and found["mean"]) for found in damaged),
        ", ".join(noise),
    ]
