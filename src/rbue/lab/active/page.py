"""The page of active learning: learning curves, the labels they need, and what is saved against random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rbue.lab.active.curves import ActiveRun, Comparison, Curve, Spread
from rbue.lab.report.figure_style import (
    METHOD_COLOURS,
    OTHER_COLOUR,
    Look,
    dress,
    legend,
    looks,
    new_figure,
    percent_ticks,
)
from rbue.lab.report.page import (
    Block,
    Bullets,
    FigureBlock,
    FigureGrid,
    Fold,
    Heading,
    Notice,
    Page,
    Section,
    TableBlock,
    Text,
)
from rbue.lab.report.run_records import recipe_changes
from rbue.lab.report.run_tables import METHOD, provenance_table, source_from_run
from rbue.lab.report.tables import Cell, Column, Row, Table, counted, duration, percent, points, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS = {
    "random": Look(METHOD_COLOURS["single"], "D", (0, (5, 2))),
    "entropy": Look(METHOD_COLOURS["mc-dropout"], "s"),
    "margin": Look(METHOD_COLOURS["svi"], "v"),
    "variation-ratio": Look(OTHER_COLOUR, "P"),
    "bald": Look(METHOD_COLOURS["mc-droprelu"], "o"),
    "batch-bald": Look(METHOD_COLOURS["deep-ensemble"], "*"),
    "core-set": Look(METHOD_COLOURS["mc-rrelu"], "^"),
}
"""How acquisitions are drawn, where they and not methods are compared: colours that the page knows in both modes."""

_MEASURES = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}
_ACQUIRE = Column("acquire", "acquisition", numeric=False)
_SEEDS = Column("seeds", "seeds", text=whole, about="Runs from other first labels: mean ± standard deviation.")


def draw_spread(axes: Axes, labels: Sequence[int], found: Sequence[Spread], look: Look, name: str) -> None:
    """A line through the means, and a band of one standard deviation to each side."""
    low, high = ([one.mean + sign * (one.std or 0.0) for one in found] for sign in (-1, 1))
    axes.fill_between(labels, low, high, color=look.colour, alpha=0.18, linewidth=0)
    axes.plot(labels, [one.mean for one in found], **look.of_line, linewidth=1.6, markersize=4, label=name)


def dress_labels(axes: Axes, y: str) -> None:
    """A measurement against labels."""
    dress(axes, x="labels", y=y)
    axes.xaxis.set_major_formatter(lambda labels, _: f"{labels:,.0f}")


def _limits(found: Iterable[Spread], top: float | None = None) -> tuple[float, float]:
    """Room for all of them and their bands, at most up to a ``top``."""
    ends = [one.mean + sign * (one.std or 0.0) for one in found for sign in (-1, 1)]
    room = 0.04 * (max(ends) - min(ends)) or 0.01
    return min(ends) - room, (max(ends) if top is None else min(max(ends), top)) + room


def _gains(group: Comparison) -> FigureGrid:
    """Percentage points above random, seed by seed: a figure a method, a line an acquisition.

    In the curves themselves a point is small beside what more labels give.
    """
    found = [(curve, random) for curve in group.curves if (random := group.compared_with(curve)) is not None]
    gained = {curve.name: [_times_100(one) for one in curve.gained_over_rounds(random)] for curve, random in found}
    limits = _limits([one for line in gained.values() for one in line])
    figures = []
    for method in dict.fromkeys(curve.method for curve, _ in found):
        figure: Figure = new_figure(4.2, 3.2)
        axes = figure.subplots()
        parts = []
        for curve in (curve for curve, _ in found if curve.method == method):
            line = gained[curve.name]
            draw_spread(axes, curve.labels[: len(line)], line, LOOKS[curve.acquire], curve.acquire)
            parts.append(f"{curve.name} {line[-1].mean:+.1f} with {curve.labels[len(line) - 1]:,} labels")
        axes.axhline(0, **{**LOOKS["random"].of_line, "marker": ""}, linewidth=1.6, label="random")
        axes.set_ylim(*limits)
        dress_labels(axes, "points above random")
        legend(axes, loc="best")
        words = f"Percentage points of accuracy above random: {'; '.join(parts)}."
        figures.append(FigureBlock(figure, words, caption=method))
    return FigureGrid(figures)


def _times_100(one: Spread) -> Spread:
    return Spread(tuple(100 * value for value in one.values), one.of)


def _figures(group: Comparison, measure: str, by: str = "method") -> FigureGrid:
    """A measurement against labels: a figure a method, a line an acquisition; or, ``by`` ``acquire``, the other way."""
    spreads = (one for curve in group.curves for one in curve.over_rounds(measure))
    limits = _limits(spreads, 1.0 if measure == "accuracy" else None)
    captions, line, styles = group.methods, "acquire", LOOKS
    if by == "acquire":
        captions, line, styles = group.acquisitions, "method", looks(group.methods)
    figures = []
    for caption in captions:
        curves = [curve for curve in group.curves if getattr(curve, by) == caption]
        figure: Figure = new_figure(4.2, 3.2)
        axes = figure.subplots()
        for curve in curves:
            name = getattr(curve, line)
            draw_spread(axes, curve.labels, curve.over_rounds(measure), styles[name], name)
        axes.set_ylim(*limits)
        dress_labels(axes, _MEASURES[measure])
        if measure == "accuracy":
            percent_ticks(axes.yaxis)
        legend(axes, loc="lower right" if measure == "accuracy" else "upper right")
        figures.append(FigureBlock(figure, _described(curves, measure), caption=caption))
    return FigureGrid(figures)


def _described(curves: Sequence[Curve], measure: str) -> str:
    """What a figure shows, for those who do not see it."""
    parts = []
    for curve in curves:
        first, last = (curve.at(place, measure).mean for place in (0, -1))
        shown = [percent(value, 1, " ") if measure == "accuracy" else f"{value:.3f}" for value in (first, last)]
        parts.append(
            f"{curve.name} from {shown[0]} with {curve.labels[0]} labels to {shown[1]} with {curve.labels[-1]}"
        )
    return f"{_MEASURES[measure]} against labels: {'; '.join(parts)}."


def needed_table(group: Comparison) -> Table:
    """How far each curve came, and the labels it needs for some accuracies."""
    rows = []
    for curve in group.curves:
        row: dict[str, Any] = {"method": curve.method, "acquire": curve.acquire, "seeds": len(curve.runs)}
        row |= {"mean": _cell(curve.mean_over_rounds()), "last": _cell(curve.at(-1, "accuracy"))}
        row |= {_key(level): _needed_cell(curve.needed(level), curve.labels[0]) for level in group.levels}
        rows.append(row)
    columns = (
        METHOD,
        _ACQUIRE,
        _SEEDS,
        Column("mean", "mean accuracy", "higher", percent, points, "Over all rounds: the area under the curve."),
        Column("last", "last accuracy", "higher", percent, points, "Of the round with the most labels."),
        *_level_columns(
            *(group.levels, "for", "Labels with which a seed first reaches {}, between rounds by a straight line."),
            better="lower",
            text=whole,
        ),
    )
    return Table(columns, rows, f"{group.title}: accuracy, and the labels needed for some accuracies")


def _probabilities_table(group: Comparison) -> Table:
    """How good the probabilities are in the last round."""
    rows: list[Row] = [
        {
            "method": curve.method,
            "acquire": curve.acquire,
            "labels": curve.labels[-1],
            "nll": _cell(curve.at(-1, "nll")),
            "ece": _cell(curve.at(-1, "ece")),
        }
        for curve in group.curves
    ]
    columns = (
        METHOD,
        _ACQUIRE,
        Column("labels", "labels", text=whole),
        Column("nll", "NLL", "lower", about="Negative log-likelihood of the right answer, in nats."),
        Column("ece", "ECE", "lower", about="Expected calibration error over 30 bins."),
    )
    return Table(columns, rows, f"{group.title}: the last round")


def saved_table(group: Comparison) -> Table | None:
    """What each acquisition gains on random with the same method; None where there is nothing to compare."""
    rows: list[Row] = []
    for curve in group.curves:
        random = group.compared_with(curve)
        if random is None:
            continue
        gained = curve.gained(random)
        above = sum(value > 0 for value in gained.values)
        row: dict[str, Any] = {"method": curve.method, "acquire": curve.acquire, "above": f"{above} of {gained.of}"}
        row |= {"gained": _cell(gained), "end": _end_cell(curve, random)}
        row |= {_key(level): _saved_cell(curve, random, level) for level in group.levels}
        rows.append(row)
    if not rows:
        return None
    columns = (
        METHOD,
        _ACQUIRE,
        Column(
            "above",
            "seeds above",
            numeric=False,
            about="Seeds whose mean accuracy is above random's. By chance alone all of n seeds lie on one side with a "
            "probability of 2^(1-n): 1 in 4 for three seeds, 1 in 16 for five.",
        ),
        Column(
            "gained",
            "accuracy gained",
            text=points,
            about="Percentage points above random, mean over all rounds; ± is the standard deviation over seeds.",
            spread=lambda std: f"{100 * std:.2f}",
        ),
        Column(
            "end",
            "saved at the end",
            text=signed,
            spread=whole,
            about="Labels saved at the accuracy with which random of the same method and seed ends. 'Under' is at most "
            "that: the curve does not get there with all its labels in every seed.",
        ),
        *_level_columns(
            group.levels,
            "saved at",
            "Labels that random needs more for the same accuracy, seed by seed; a minus is a loss. 'Over' is at least "
            "that: random does not get there with all its labels in every seed. A curve that 'falls short' does not "
            "get there itself.",
            text=signed,
            spread=whole,
        ),
    )
    return Table(columns, rows, f"{group.title}: labels saved against random at equal accuracy")


def signed(labels: float) -> str:
    """A difference of labels; what rounds to 0 is no loss."""
    return f"{round(labels):+,}".replace("-", "−")


def _level_columns(levels: Sequence[float], heading: str, about: str, **look: Any) -> Iterator[Column]:
    """One column an accuracy; the first says what they are about."""
    for level in levels:
        words = about.format(_level(level)) if level == levels[0] else ""
        yield Column(_key(level), f"{heading} {_level(level)}", about=words, **look)


def _key(level: float) -> str:
    return f"at_{level:g}"


def _level(level: float) -> str:
    return f"{100 * level:g}\u00a0%"


def _cell(spread: Spread) -> Cell:
    return Cell(spread.mean, std=spread.std)


def _needed_cell(spread: Spread, first: int) -> Cell:
    if not spread.values:
        return Cell("not reached")
    if not spread.complete:
        return Cell(f"in {len(spread.values)} of {spread.of} seeds")
    if set(spread.values) == {float(first)}:
        return Cell(f"at most {first:,}")
    return _cell(spread)


def _saved_cell(curve: Curve, random: Curve, level: float) -> Cell:
    spread = curve.saved(random, level)
    if spread.complete:
        return _cell(spread)
    least = curve.saved_at_least(random, level)
    if least is not None:
        return Cell(f"over {signed(least)}")
    both = any(other.needed(level) is None for _, other in curve.pairs(random))
    return Cell("both fall short" if both else f"{curve.acquire} falls short")


def _end_cell(curve: Curve, random: Curve) -> Cell:
    spread = curve.saved_in_the_end(random)
    return _cell(spread) if spread.complete else Cell(f"under {signed(curve.saved_in_the_end_at_most(random))}")


def active_page(comparisons: Sequence[Comparison], left_out: Sequence[str] = ()) -> Page:
    """The page of some comparisons, with what is not in it."""
    notice = [Section("What is missing", [Notice("Not every run is in this page", left_out)])] if left_out else []
    sections: list[Section] = []
    for group in comparisons:
        parts = _parts(group)
        if len(comparisons) == 1:
            sections += [Section(title, blocks) for title, blocks in parts]
        else:
            blocks = [block for title, inside in parts for block in (Heading(title), *inside)]
            sections.append(Section(group.title, blocks))
    runs = [run for group in comparisons for curve in group.curves for run in curve.runs]
    origin = Section("Where each number comes from", [TableBlock(_provenance(runs))], "provenance")
    title = f"{comparisons[0].title}: what to label next" if len(comparisons) == 1 else "What to label next"
    curves = sum(len(group.curves) for group in comparisons)
    lead = f"{counted(curves, 'learning curve')} from {counted(len(runs), 'run')} of active learning."
    return Page(title, [*notice, *sections, origin], lead)


def _parts(group: Comparison) -> list[tuple[str, list[Block]]]:
    seeds = sorted({len(curve.runs) for curve in group.curves})
    few = " With one seed there is no band." if seeds == [1] else ""
    words = (
        "Lines are means over seeds; the bands reach one standard deviation to each side. All curves of a seed begin "
        f"with the same labelled images.{few}"
    )
    saved = saved_table(group)
    parts: list[tuple[str, list[Block]]] = [("Learning curves", [Text(words), _figures(group, "accuracy")])]
    if len(group.methods) > 1:
        parts.append(("The methods side by side", [_figures(group, "accuracy", by="acquire")]))
    parts.append(("Labels needed", [TableBlock(needed_table(group), explain=True)]))
    if saved is not None:
        caution = (
            "Each seed is compared with random of the same seed and method. Divide a standard deviation by the root of "
            "the number of seeds: a mean that is not at least three times that may well be chance."
        )
        parts.append(("Labels saved against random", [Text(caution), _gains(group), TableBlock(saved, explain=True)]))
    else:
        words = "No method has runs of `random` and of another acquisition with a common seed."
        parts.append(("Labels saved against random", [Text(words)]))
    others: list[Block] = [TableBlock(_probabilities_table(group), explain=True)]
    for measure in ("nll", "ece"):
        others.append(Fold(f"{_MEASURES[measure]} against labels", [_figures(group, measure)]))
    parts.append(("Probabilities on the way", others))
    parts.append(("Settings", [Bullets(_settings(group))]))
    return parts


def _settings(group: Comparison) -> list[str]:
    config, recipe = group.config, group.config.run.recipe
    if config.steps is None:
        length = f"{counted(recipe.epochs, 'epoch')} over the labelled images"
    else:
        length = f"{config.steps:,} steps (rounded up to whole epochs)"
    rounds = sorted({len(curve.labels) - 1 for curve in group.curves})
    pool = "all images without a label" if config.pool is None else f"{config.pool:,} of them, drawn anew each round"
    seeds = sorted({run.config.run.seed for curve in group.curves for run in curve.runs})
    times = [sum(sum(one["seconds"].values()) for one in run.rounds) for c in group.curves for run in c.runs]
    learned = [curve.at(-1, "train_accuracy").mean for curve in group.curves]
    width = "" if config.run.width == 1 else f", width {config.run.width:g}"
    average = [] if recipe.average is None else [f"{recipe.average.upper()} of the weights"]
    more = "".join(f", {one}" for one in (*average, *recipe_changes(config.run)))
    return [
        f"Network and data: {group.title}{width}; measured on its test images.",
        f"First labels: {config.start:,}, as many of each class as can be, else at random; the same for all curves of "
        "a seed.",
        f"Rounds: {' or '.join(map(str, rounds))} acquisitions of {config.take:,} images; candidates are {pool}.",
        f"Training: in every round from a new initialisation, each network {length}, in even batches of at most "
        f"{recipe.batch} at a learning rate of {recipe.learning_rate:g}{more}; the same recipe for all methods.",
        f"Accuracy in training, under augmentation and a method's own randomness, in the last round: "
        f"{percent(min(learned))} to {percent(max(learned))}. Where it is low, networks had too few steps for the hard "
        "images that others than random pick, and more may turn the comparison round.",
        f"Samples: {config.samples} for each image, or as many as a method has.",
        f"Seeds: {', '.join(map(str, seeds))}.",
        f"Time of a run: {duration(min(times))} to {duration(max(times))}.",
    ]


def _provenance(runs: Sequence[ActiveRun]) -> Table:
    sources = []
    for run in runs:
        config, last = run.config, run.rounds[-1]
        found = {"samples": last["samples"], "environment": run.environment}
        sources.append(
            source_from_run(run.name, f"{config.run.method}, {config.acquire}", config.run.seed, found, run.environment)
        )
    table = provenance_table(sources)
    columns = [column for column in table.columns if column.key not in ("sample_seed", "data")]
    rows = [{key: cell for key, cell in row.items() if key not in ("sample_seed", "data")} for row in table.rows]
    return Table(columns, rows, table.caption)
