"""What the page "Decisions" shows of active learning: a table and a picture of the runs in ``results/runs/active``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from result_tables import ROOT, table

from rbue.lab.active.curves import ActiveRun, Spread, as_json, compare, read_runs
from rbue.lab.active.loop import find_active
from rbue.lab.active.page import LOOKS, draw_spread, dress_labels, signed
from rbue.lab.report.figure_style import INK, TITLE, legend, new_figure
from rbue.lab.report.tables import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGE = "label-next"
Found = Mapping[str, Any]


def measured() -> list[ActiveRun]:
    """Every run that is kept."""
    return read_runs(find_active(ROOT / "results" / "runs" / "active"))[0]


def comparison(runs: Sequence[ActiveRun]) -> Found:
    """The one with the most curves."""
    return max(as_json(compare(runs)[0]), key=lambda one: len(one["curves"]))


def part(found: Found) -> list[str]:
    """The part of the page: what was measured, the picture, the table."""
    methods = dict.fromkeys(curve["method"] for curve in found["curves"])
    words = f"Accuracy against labels of {', '.join(methods)}; below it the points above random."
    return [*_protocol(found), "", f"![{words}](images/{IMAGE}.webp)", "", *_table(found), "", *_legend(found)]


def _protocol(found: Found) -> list[str]:
    settings, recipe = found["settings"], found["settings"]["recipe"]
    width = "" if settings["width"] == 1 else f" of width {settings['width']:g}"
    length = f"{settings['steps']:,} steps" if settings["steps"] else f"{recipe['epochs']} epochs"
    pool = "all others" if settings["pool"] is None else f"{settings['pool']:,} random ones"
    places = dict.fromkeys(f"{one.get('gpu') or one['cpu']}, torch {one['torch']}" for one in found["environments"])
    samples = dict.fromkeys(str(curve["samples"]) for curve in found["curves"])
    return [
        f"Measured with `{settings['model']}`{width} on `{settings['data']}`: {settings['start']:,} labels at first,",
        f"{settings['take']:,} more after each round, chosen among {pool}. Every round trains new networks for",
        f"{length} in batches of {recipe['batch']}. An image has {' or '.join(samples)} samples.",
        f"{' and '.join(places)}.",
    ]


def _table(found: Found) -> list[str]:
    curves, last = found["curves"], min(curve["labels"][-1] for curve in found["curves"])  # all have so many
    against = [curve["labels_saved"] for curve in curves if curve["labels_saved"] is not None]
    level = max((one for one in against[0] if all(saved[one]["mean"] is not None for saved in against)), key=float)
    heads = ["method", "acquisition", f"accuracy with {last:,} labels, %", "on those labels, %", "points above random"]
    heads += [f"labels saved at {100 * float(level):g} %", "labels saved at the end"]
    rows = []
    for curve in curves:
        at = curve["labels"].index(last)
        cells = [f"`{curve['method']}`", f"`{curve['acquire']}`"]
        cells += [_points(curve[name][at]) for name in ("accuracy", "train_accuracy")]
        if curve["labels_saved"] is None:
            cells += ["–"] * 3
        else:
            saved = [curve["labels_saved"][level], curve["labels_saved_at_the_end"]]
            cells += [_points(curve["accuracy_gained"], "+"), *map(_saved, saved)]
        rows.append([cell.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}") for cell in cells])
    return table(heads, rows)


def _legend(found: Found) -> list[str]:
    seeds = {len(curve["seeds"]) for curve in found["curves"]}
    return [
        f"Mean ± standard deviation over {counted(seeds, 'seed')}, each compared with random of the same seed and",
        "method. Points are means over all rounds. 'At the end' is at the accuracy with which random ends; 'under' is",
        "a bound, where not every seed gets there.",
    ]


def _points(one: Found, sign: str = "") -> str:
    """An accuracy or a difference, in percent."""
    mean = f"{round(100 * one['mean'], 1) + 0.0:{sign}.1f}".replace("-", "−")  # + 0.0: no negative zero
    return mean if one["std"] is None else f"{mean} ± {100 * one['std']:.1f}"


def _saved(one: Found) -> str:
    if one["mean"] is not None:
        return signed(one["mean"]) + ("" if one["std"] is None else f" ± {one['std']:,.0f}")
    return f"under {signed(one['at_most'])}"


def picture(found: Found) -> Figure:
    """A column a method: its curves, and how far they are above random."""
    methods = list(dict.fromkeys(curve["method"] for curve in found["curves"]))
    figure = new_figure(3.2 * len(methods), 4.9)
    grid = figure.subplots(2, len(methods), sharex=True, sharey="row", squeeze=False, height_ratios=(1.3, 1))
    for method, (above, below) in zip(methods, grid.T, strict=True):
        for curve in (one for one in found["curves"] if one["method"] == method):
            look, name = LOOKS[curve["acquire"]], curve["acquire"]
            draw_spread(above, curve["labels"], [_spread(one, 100) for one in curve["accuracy"]], look, name)
            gained = [_spread(one, 100) for one in curve["gained_over_rounds"] or ()]
            if gained:
                draw_spread(below, curve["labels"][: len(gained)], gained, look, name)
        below.axhline(0, **{**LOOKS["random"].of_line, "marker": ""}, linewidth=1.6)
        dress_labels(above, "accuracy, %" if method == methods[0] else "")
        dress_labels(below, "points above random" if method == methods[0] else "")
        above.set_xlabel("")
        above.set_title(method, color=INK, fontsize=TITLE, loc="left")
    legend(grid[0, 0], loc="lower right")
    return figure


def _spread(one: Found, times: float) -> Spread:
    return Spread(tuple(times * value for value in one["values"]), one["seeds"])
