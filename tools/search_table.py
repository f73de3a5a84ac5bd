"""Add trials of a search to ``results/search.json``: ``search_table.py RUN...``, trained with ``--holdout``.

A row has a trial's settings, its scores on the held-out training images and its seconds. Choices are made by these
rows, never by test images. A trial that is there already is replaced.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rbue.errors import RbueError
from rbue.files import read_json, write_json
from rbue.lab.runs.folders import RunFolder

RESULT = Path(__file__).parents[1] / "results" / "search.json"
SCORES = ("accuracy", "ece", "nll", "brier", "aurc")


def row(folder: RunFolder) -> dict[str, Any]:
    """The trial in a run folder, by its last measurement on held-out images."""
    measured = folder.entries("validation")
    if not measured:
        raise RbueError(f"{folder.path} has no validation.json; run `rbue evaluate {folder.path} --split validation`.")
    key, result = list(measured.items())[-1]
    training = folder.read("training")
    return {
        "run": folder.path.name,
        "config": folder.read("config"),
        "measurement": key,
        "held_out": {name: result[name] for name in SCORES},
        "training_seconds": training["seconds"],
        "environment": result["environment"],
    }


def main() -> None:
    """Add what is given, and show all trials, the best first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="*")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {one["run"]: one for one in read_json(RESULT)} if RESULT.exists() else {}
    for path in options.run:
        found = row(RunFolder(path))
        rows[found["run"]] = found
    if options.run:
        write_json(RESULT, list(rows.values()))
    table = Table(title="held-out images", title_justify="left")
    for heading in ("trial", *SCORES, "seconds"):
        table.add_column(heading, justify="left" if heading == "trial" else "right")
    for one in sorted(rows.values(), key=lambda one: float(one["held_out"]["nll"])):
        scores = (f"{one['held_out'][name]:.4f}" for name in SCORES)
        table.add_row(one["run"], *scores, f"{one['training_seconds']:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
