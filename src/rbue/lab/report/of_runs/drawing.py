"""The figures of one group of runs, from stored answers."""

from __future__ import annotations

from collections.abc import Sequence

from rbue.lab.methods.mc_droprelu import MCDropReLU
from rbue.lab.report import figures
from rbue.lab.report.figures.plane import PlanePoint
from rbue.lab.report.of_runs.answers import Answers
from rbue.lab.report.of_runs.reading import Group
from rbue.lab.report.page import Block, FigureBlock, FigureGrid, Text
from rbue.lab.report.tables import Table


def calibration(answers: Sequence[Answers]) -> list[Block]:
    """Reliability diagrams, one a method."""
    drawn = []
    for one in answers:
        diagram, ece = one.reliability(), one.record.result["ece"]
        figure = figures.reliability_diagram(
            *(diagram.edges, diagram.counts, diagram.confidence, diagram.accuracy),
            label=one.method,
            note=f"ECE {ece:.4f}",
        )
        sure = float(one.probs.max(1).mean())
        alt = (
            f"Reliability diagram of {one.method}: mean confidence {sure:.3f}, accuracy {one.correct.mean():.3f}, "
            f"ECE {ece:.4f}."
        )
        drawn.append(FigureBlock(figure, alt))
    words = (
        "Each bar holds the answers of one range of confidence and is as tall as the share of them that is right; "
        "the dot on it stands at their mean confidence. Bars that end below the dashed line are overconfident, bars "
        "above it underconfident. The small bars below show how many answers each range holds: ranges with "
        "few answers jump about."
    )
    return [Text(words), FigureGrid(drawn)]


def selective(answers: Sequence[Answers]) -> list[Block]:
    """Risk-coverage curves in one figure."""
    figure = figures.risk_coverage_curves({one.method: tuple(one.risk_coverage()) for one in answers})  # type: ignore[misc]
    areas = "; ".join(f"{one.method} {one.record.result['aurc']:.4f}" for one in answers if "aurc" in one.record.result)
    alt = f"Risk-coverage curves of {len(answers)} methods. Area under each: {areas}."
    words = (
        "A network may decline to answer. If only the surest images are answered, this is how many answers are wrong."
    )
    return [Text(words), FigureBlock(figure, alt, "Lower is better; at the right end every image is answered.")]


def entropies(answers: Sequence[Answers]) -> list[Block]:
    """Histograms of entropy, one figure a method."""
    drawn = []
    for one in answers:
        right, wrong = (one.entropy[chosen] for chosen in (one.correct, ~one.correct))
        means = [f"{part.mean():.3f}" if len(part) else "none" for part in (right, wrong)]
        alt = (
            f"Entropy of the answers of {one.method}: mean {means[0]} nats for {len(right)} right answers, "
            f"{means[1]} for {len(wrong)} wrong ones."
        )
        figure = figures.entropy_histograms(one.entropy, one.correct, one.probs.shape[1], label=one.method)
        drawn.append(FigureBlock(figure, alt))
    words = (
        "Uncertainty is worth something where wrong answers have more of it than right ones. Each histogram is a share "
        "of its own group, so that a handful of wrong answers is as visible as hundreds of right ones."
    )
    return [Text(words), FigureGrid(drawn)]


def plane(group: Group, table: Table) -> list[Block]:
    """Accuracy and ECE of all methods as points; empty for fewer than two."""
    points = []
    for (method, records), row in zip(group.methods.items(), table.rows, strict=True):
        numbers = {column.key: table.cell(row, column).number for column in table.columns}
        accuracy, ece = numbers["accuracy"], numbers["ece"]
        if accuracy is not None and ece is not None:
            kind = records[0].settings.parsed
            points.append(PlanePoint(method, accuracy, ece, kind.q if isinstance(kind, MCDropReLU) else None))
    if len(points) < 2:
        return []
    if sum(point.q is not None for point in points) < 2:
        points = [point._replace(q=None) for point in points]
    alt = (
        "Accuracy against ECE. " + "; ".join(f"{one.label}: {one.accuracy:.4f}, {one.ece:.4f}" for one in points) + "."
    )
    return [FigureBlock(figures.accuracy_ece_plane(points), alt, "The bottom right corner is the place to be.")]


def more_samples(group: Group) -> list[Block]:
    """Accuracy and ECE against the number of samples, where runs were measured with several; else empty."""
    curves = {}
    for method, records in group.methods.items():
        results = [one for one in records[0].results.values() if one["seed"] == records[0].result["seed"]]
        entries = [entry for result in results for entry in (*(result.get("by_samples") or ()), result)]
        curve = {entry["samples"]: {key: entry[key] for key in ("accuracy", "ece")} for entry in entries}
        if len(curve) > 1:
            curves[method] = curve
    if not curves:
        return []
    alt = "Accuracy and ECE against the number of samples: " + "; ".join(
        f"{method} with {', '.join(map(str, sorted(curve)))} samples" for method, curve in curves.items()
    )
    return [FigureBlock(figures.lines_against_samples(curves), f"{alt}.", wide=True)]
