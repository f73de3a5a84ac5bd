"""Blocks of the figures that compare no runs: curves, networks, one prediction, noisy images, the variance."""

from __future__ import annotations

from typing import Any

import numpy as np

from rbue.lab.paper.definitions import Drawing
from rbue.lab.paper.page.shown import Shown, name_of
from rbue.lab.report import illustrations as figures
from rbue.lab.report.page import Block, Bullets, FigureBlock, Fold, TableBlock
from rbue.lab.report.tables import Cell, Column, Table
from rbue.lab.runs.folders import RunConfig


def curves(shown: Shown, drawing: Drawing) -> list[Block]:
    """ReLU, DropReLU and RReLU."""
    content = _content(shown)
    numbers = {name: content[name] for name in ("q", "lower", "upper")}
    slopes = f"{numbers['lower']:.3g} to {numbers['upper']:.3g}"
    alt = (
        f"Output against input: ReLU; DropReLU, which is a ReLU with probability {numbers['q']:g} and the identity "
        f"otherwise; RReLU, whose slope for negative inputs is drawn from {slopes}."
    )
    caption = f"{drawing.caption} Drawn with q = {numbers['q']:g} and slopes from {slopes}."
    return [FigureBlock(figures.activation_curves(**numbers), alt, caption, wide=True)]


def network(shown: Shown, drawing: Drawing) -> list[Block]:
    """A small network with each activation."""
    content = {name: value for name, value in _content(shown).items() if name in _NETWORK}
    alt = (
        f"Networks with layers of {', '.join(map(str, content['layers']))} neurons with {', '.join(content['kinds'])}; "
        "each hidden neuron shows the curve that one random pass drew for it."
    )
    caption = f"{drawing.caption} Drawn with q = {content['q']:g}; a scheme, not a trained network."
    return [FigureBlock(figures.network_drawing(**content), alt, caption, wide=True)]


def framework(shown: Shown, drawing: Drawing) -> list[Block]:
    """One real prediction."""
    content = _content(shown)
    samples, classes = np.asarray(content["samples"]), content["classes"]
    mean = samples.mean(0)
    said = classes[int(mean.argmax())]
    alt = (
        f"A test image of {content['truth']}, the class probabilities of some of its {len(samples)} random passes, and "
        f"their mean: {said} with {mean.max():.3f}, entropy {content['entropy']:.3f} nats."
    )
    caption = (
        f"{drawing.caption} Test image {content['image_number']}, labelled {content['truth']}, in {len(samples)} "
        f"passes of `{name_of(RunConfig.from_json(content['run']))}`."
    )
    figure = figures.framework(np.asarray(content["image"], dtype=np.uint8), samples, classes)
    return [FigureBlock(figure, alt, caption, wide=True)]


def images(shown: Shown, drawing: Drawing) -> list[Block]:
    """Images at growing severities."""
    content = _content(shown)
    rows = [[np.asarray(image, dtype=np.uint8) for image in row] for row in content["images"]]
    severities = content["severities"]
    captions = ["clean" if number == 0 else f"severity {number}" for number in severities]
    alt = f"{len(rows)} test images of {content['data']} at severities {', '.join(map(str, severities))} of shot noise."
    caption = f"{drawing.caption} The first test images of {content['data']}."
    return [FigureBlock(figures.image_rows(rows, captions), alt, caption, wide=True)]


def variance(shown: Shown, drawing: Drawing) -> list[Block]:
    """The paper's formula, the exact value and a simulation."""
    content = _content(shown)
    layer = content["layer"]
    numbers: dict[str, Any] = {name: np.asarray(content[name], dtype=float) for name in _VARIANCES}
    gap = float(np.max(np.abs(numbers["simulated"] - numbers["exact"]) / numbers["error"]))
    ratio = float(np.median(numbers["paper"] / numbers["exact"]))
    found = [
        f"The simulation never lies further than {gap:.1f} of its standard errors from the exact value.",
        f"The paper's formula gives {ratio:.2f} times the exact value for this layer.",
    ]
    caption = (
        f"{drawing.caption} {layer['inputs']} inputs ({layer['distribution']}), {layer['simulations']:,} simulated "
        "draws for each q."
    )
    figure = figures.variance_against_q(**numbers)
    return [
        FigureBlock(figure, f"Variance of a layer's sum against q. {' '.join(found)}", caption),
        Bullets(found),
        Fold("The variances as numbers", [TableBlock(_variance_table(numbers, caption))]),
    ]


_NETWORK = ("kinds", "layers", "q", "lower", "upper")
_VARIANCES = ("q", "paper", "exact", "simulated", "error", "dropout")


def _variance_table(numbers: dict[str, Any], caption: str) -> Table:
    columns = (
        Column("q", "q", text="{:.2f}".format),
        Column("paper", "formula of the paper", text="{:.2f}".format),
        Column("exact", "exact", text="{:.2f}".format),
        Column("simulated", "simulated ± standard error", text="{:.2f}".format),
        Column("dropout", "dropout, p = 1 − q", text="{:.2f}".format),
    )
    rows = []
    for place, q in enumerate(numbers["q"]):
        row: dict[str, Cell | float] = {name: float(numbers[name][place]) for name in ("paper", "exact", "dropout")}
        spread = float(numbers["error"][place])
        rows.append({"q": float(q), **row, "simulated": Cell(float(numbers["simulated"][place]), deviation=spread)})
    return Table(columns, rows, caption)


def _content(shown: Shown) -> dict[str, Any]:
    assert shown.gathered.illustration is not None
    return shown.gathered.illustration
