"""What the page "Results" shows of the methods that the paper discusses, beside its own."""

from __future__ import annotations

from functools import partial
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

from result_tables import KEY, ROOT, RUNS, TITLES, Study, table

from rbue.lab.methods import parse
from rbue.lab.paper.experiments import METHODS, RELATED
from rbue.lab.report.figure_style import INK, METHOD_COLOURS, MUTED, OTHER_COLOUR, SMALL, dress, method_name, new_figure
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.training.trainer import read_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSTS = ROOT / "results" / "costs"
"""The same methods trained for a few epochs, one after the other and nothing beside them."""
STUDY = Study("cifar10", "resnet18", (*METHODS, *RELATED))
NAMES = {
    "snapshot-ensemble:4": "Snapshot Ensemble of 4",
    "treenet:4": "TreeNet of 4",
    "batch-ensemble:4": "BatchEnsemble of 4",
    "packed-ensemble:4": "Packed-Ensemble of 4",
    "swag": "SWAG",
    "sgld": "SGLD",
    "laplace": "Laplace",
}
"""Those that the paper does not measure."""
COSTLY = ((1.06, "epoch", "training"), (1.19, "stored_bytes", "storage"))
"""Where the picture has what a method costs, beside its axes, and how that is called."""

_COLUMNS = (
    *(("accuracy", 0.01, 2), ("ece", 1, 3), ("nll", 1, 3), ("scaled", 1, 3), ("mean_dis", 1, 3)),
    *(("epoch", 1, 2), ("stored_bytes", 1e6, 0), ("prediction_seconds", 1, 1)),
)
"""Name, unit and digits."""


def part() -> list[str]:
    """One table: how good each method is after the paper's epochs, and what it costs."""
    heads = ["method", "accuracy, %", "ECE", "NLL", "NLL with temperature", "Mean-DIS"]
    heads += ["an epoch, s", "stored, MB", "prediction, s"]
    cells = (
        (f"`{method}`", (_cell(row.get(name), *form) for name, *form in _COLUMNS)) for method, row in _rows().items()
    )
    return [*table(heads, [[name, *some] for name, some in cells]), "", *_cycles(), _last_epoch()]


def picture() -> Figure:
    """The NLL of each method, with and without a temperature, from the worst to the best, and what it costs."""
    rows = _rows()
    ordered = sorted(rows, key=lambda method: rows[method]["nll"])
    figure = new_figure(7.4, 0.7 + 0.24 * len(ordered))
    axes = figure.subplots()
    write = partial(axes.text, transform=axes.get_yaxis_transform(), fontsize=SMALL, ha="center")
    for line, method in enumerate(ordered):
        row, colour = rows[method], METHOD_COLOURS.get(method_name(method), OTHER_COLOUR)
        axes.plot([row["scaled"], row["nll"]], [line, line], color=colour, lw=1.2, alpha=0.5, zorder=1)
        axes.scatter(row["scaled"], line, s=26, facecolors="white", edgecolors=colour, zorder=2)
        axes.scatter(row["nll"], line, s=34, color=colour, lw=0, zorder=2)
        for place, name, _ in COSTLY:
            times = row.get(name, rows["single"][name]) / rows["single"][name]
            write(place, line, f"{times:.2g}", color=INK, va="center")
    for place, _, title in COSTLY:
        write(place, -1.1, f"{title} ×", color=MUTED, va="bottom")
    dress(axes, x="negative log-likelihood (less is better)", grid="x")
    axes.set_yticks(range(len(ordered)), [TITLES.get(method, NAMES.get(method, method)) for method in ordered])
    axes.set_ylim(len(ordered) - 0.4, -0.6)
    for name, face in (("as it is", MUTED), ("with a temperature", "white")):
        axes.scatter([], [], s=30, facecolors=face, edgecolors=MUTED, label=name)
    axes.legend(edgecolor="none", framealpha=1, fontsize=SMALL, labelcolor=MUTED, loc="upper right")
    return figure


def _rows() -> dict[str, dict[str, Any]]:
    """What is known of each method: its scores, its NLL after scaling, its costs."""
    found, costs, rows = STUDY.measured(), _costs(), {}
    for method in STUDY.methods:
        config, result = found.get(method, (STUDY.config(method), {}))
        scaled = (RunFolder.of(config, RUNS).read("calibration") or {}).get(KEY, {"after": {}})["after"]
        rows[method] = {**result, **costs.get(_kind(method), {}), "scaled": scaled.get("nll")}
    return rows


def _cycles() -> list[str]:
    """How far samples of one cycle of SGLD lie apart, and those of several."""
    config, result = STUDY.measured()["sgld"]
    per_cycle = parse(config.method).samples  # type: ignore[attr-defined]
    same: list[float] = []
    other: list[float] = []
    for (i, row), j in product(enumerate(result["dis"]), range(result["samples"])):
        if i < j:
            (same if i // per_cycle == j // per_cycle else other).append(100 * row[j])
    return [
        f"Two samples of SGLD disagree on {min(same):.1f} to {max(same):.1f} % of the images within a cycle, and on "
        f"{min(other):.1f} to {max(other):.1f} % between cycles."
    ]


def _last_epoch() -> str:
    """What the median epoch leaves out."""
    (path,) = (COSTS / STUDY.data / STUDY.model).glob("laplace-*")
    last = read_log(RunFolder(path).log)[-1]["seconds"]
    return f"The last epoch of Laplace, with its fit, took {last:.1f} s."


def _costs() -> dict[str, dict[str, float]]:
    """The time of an epoch, the median one; what is stored, and the time of predicting the test images."""
    costs = {}
    for path in sorted((COSTS / STUDY.data / STUDY.model).iterdir()):
        folder = RunFolder(path)
        config = RunConfig.from_json(folder.read("config"))
        result = (folder.read("results") or {}).get(KEY)
        if result is not None:  # an ensemble's further members have none
            logs = [read_log(RunFolder.of(member, COSTS).log) for member in config.trainings()]
            epoch = sum(median(one["seconds"] for one in log) for log in logs)
            sizes = {name: result[name] for name in ("stored_bytes", "prediction_seconds")}
            costs[_kind(config.method)] = {"epoch": epoch, **sizes}
    return costs


def _cell(value: float | None, unit: float, digits: int) -> str:
    return "–" if value is None else f"{value / unit:.{digits}f}"


def _kind(method: str) -> str:
    """A method without its probability, on which no cost depends; an ensemble has its number of members."""
    return method.partition(":")[0] if method.startswith("mc-") else method
