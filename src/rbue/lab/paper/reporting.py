"""The report of the paper's experiments as files: Markdown, CSV, and the data of every figure.

More can be plugged in: a *renderer* takes what was gathered and gives files by name, as :func:`plain_files` does, and
:func:`rbue.lab.paper.page.page_files` for the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from rbue.files import write_bytes
from rbue.lab.paper.drawings import COLUMNS
from rbue.lab.paper.gathering import ExperimentData, GatheredCell
from rbue.lab.paper.settings import QUICK
from rbue.lab.report.tables import csv_rows, markdown_rows

Renderer = Callable[[Sequence[ExperimentData]], Mapping[str, bytes]]
TITLE = "# The paper's tables and figures, measured\n\n"
HEADINGS = {key: column.heading for key, column in COLUMNS.items()}
HEADINGS |= {"accuracy": "accuracy (%)", "training_seconds": "training time"}
QUICK_WARNING = (
    f"**Quick run**: small stand-ins on {QUICK.data} at width {QUICK.width}. It shows that everything works; its "
    "numbers are no evidence about the paper, whose values stand beside them only to show where they go."
)


def text_of(measure: str, value: float) -> str:
    """A value as it is written in a table."""
    return f"{100 * value:.2f}" if measure == "accuracy" else COLUMNS[measure].text(value)


def cell_text(measure: str, cell: GatheredCell) -> str:
    """``95.12 ± 0.10 (paper 95.32, -0.20)``, as far as there is something to write."""
    text = "–"
    if cell.measured is not None:
        text = text_of(measure, cell.measured.mean)
        if cell.measured.deviation is not None:
            text += f" ± {text_of(measure, cell.measured.deviation)}"
    if cell.paper is None:
        return text
    printed = COLUMNS[measure].printed
    beside = f"paper {printed(cell.paper) if printed else text_of(measure, cell.paper)}"
    if cell.difference is not None:
        beside += f", {'-' if cell.difference < 0 else '+'}{text_of(measure, abs(cell.difference))}"
    return f"{text} ({beside})"


def shown_measures(gathered: ExperimentData) -> tuple[str, ...]:
    """The columns of an experiment's table: those it draws, else accuracy and ECE."""
    drawn = [measure for drawing in gathered.experiment.drawings for measure in drawing.measures]
    return tuple(dict.fromkeys(one for one in drawn if one in HEADINGS)) or ("accuracy", "ece")


def markdown(gathered: ExperimentData) -> str:
    """One experiment as a section of a page, or as a line if it was not run."""
    experiment = gathered.experiment
    if not gathered.has_something:
        return f"{gathered.line}\n"
    lines = [f"## {experiment.id}: {experiment.title}", "", f"{experiment.place} of the paper."]
    if gathered.scale == QUICK.name:
        lines += ["", QUICK_WARNING]
    notes = (*experiment.notes, *gathered.stated)
    lines += ["", *(f"- {note}" for note in notes)] if notes else []
    there = [row for row in gathered.rows if row.has_numbers]
    if there:
        measures = shown_measures(gathered)
        heads = ["network", "method", *(HEADINGS[measure] for measure in measures)]
        rows = [
            [row.model, row.method, *(cell_text(measure, row.cells[measure]) for measure in measures)] for row in there
        ]
        lines += ["", markdown_rows(heads, rows).rstrip()]
        if "training_seconds" in measures and gathered.trained is not None:
            lines += ["", gathered.trained.note()]
    lines += _medians(gathered)
    if gathered.illustration is not None:
        lines += ["", f"Data for the figure: {', '.join(gathered.illustration)}."]
    if gathered.missing:
        lines += ["", f"Missing: {'; '.join(gathered.missing)}. `{gathered.command}` continues."]
    return "\n".join(lines) + "\n"


def comma_separated(gathered: Iterable[ExperimentData]) -> str:
    """Every number of the experiments, unrounded, one line each."""
    names = ["experiment", "scale", "data", "model", "method", "measure"]
    names += ["mean", "deviation", "repetitions", "paper", "difference", "runs"]
    lines = []
    for one in gathered:
        for row in one.rows:
            for measure, cell in row.cells.items():
                place = [one.experiment.id, one.scale, one.data, row.model, row.method, measure]
                found = cell.measured
                seen = [found.mean, found.deviation, len(found.values)] if found else [None, None, 0]
                lines.append([*place, *seen, cell.paper, cell.difference, " ".join(found.runs) if found else ""])
    return csv_rows(names, lines)


def _medians(gathered: ExperimentData) -> list[str]:
    """The median over corruptions of each method at each severity."""
    lines: list[str] = []
    for measure, by_method in gathered.corrupted.items():
        severities = sorted({severity for table in by_method.values() for severity in table})
        if not severities:
            continue
        rows = [
            [method, *(text_of(measure, median(table[one])) if one in table else "–" for one in severities)]
            for method, table in by_method.items()
        ]
        heads = [f"median {HEADINGS[measure]} over corruptions", *(f"severity {one}" for one in severities)]
        lines += ["", markdown_rows(heads, rows).rstrip()]
    return lines


def plain_files(gathered: Sequence[ExperimentData]) -> dict[str, bytes]:
    """The report as Markdown, CSV and JSON."""
    quick = any(one.scale == QUICK.name for one in gathered)
    page = TITLE + (f"{QUICK_WARNING}\n\n" if quick else "") + "\n".join(markdown(one) for one in gathered)
    files = {"report.md": page, "report.csv": comma_separated(gathered)}
    files |= {f"data/{one.experiment.id}.json": json.dumps(asdict(one), indent=1) + "\n" for one in gathered}
    return {name: content.encode() for name, content in files.items()}


def write_report(
    gathered: Sequence[ExperimentData], folder: Path, renderers: Sequence[Renderer] = (plain_files,)
) -> list[Path]:
    """Write the files of every renderer, each whole or not at all."""
    written = []
    for render in renderers:
        for name, content in render(gathered).items():
            write_bytes(folder / name, content)
            written.append(folder / name)
    return written
