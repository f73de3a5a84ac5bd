"""``rbue calibrate``: measured runs after temperature scaling."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rbue.lab.cli.finding import HELP, find_run, settings_and_root
from rbue.lab.cli.options import RunsFolder
from rbue.lab.cli.output import AsJson, percent, print_json, remark, say, table
from rbue.lab.cli.progress import working
from rbue.lab.cli.shift import labels_for
from rbue.lab.runs.folders import RunFolder
from rbue.lab.runs.measuring import at_a_bound, calibrate_run

EXAMPLE = "Example: rbue calibrate runs/digits/small_cnn/*\n\nExample: rbue calibrate 4f9d2c1a 0b1e55d2"
SCORES = {"ECE": "ece", "NLL": "nll", "Brier": "brier"}


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EXAMPLE)(calibrate)


def calibrate(
    where: Annotated[list[str], typer.Argument(metavar="RUN...", help=HELP)],
    runs: RunsFolder = Path("runs"),
    json: AsJson = False,
) -> None:
    """Say what one temperature would do to measured runs; no network is needed. The paper does not do this.

    The log of the stored mean probabilities is divided by a temperature. Each half of the test images gets the one
    that fits the other half best (a two-fold cross-fit), so accuracy stays as it is and no image is scaled by its own
    label. Scores before and after are kept in the run folder.
    """
    named = [settings_and_root(find_run(text, runs)) for text in where]
    roots = {root.resolve(): root for _, root in reversed(named)}
    found = list(dict.fromkeys((config, roots[root.resolve()]) for config, root in named))
    made: list[tuple[str, dict[str, Any]]] = []
    for config, root in found:
        with working(f"calibrating {config.method} on {config.data}"):
            made.append(calibrate_run(config, root))
    files = [RunFolder.of(config, root).path / "calibration.json" for config, root in found]
    if json:
        documents = [
            {"run": file.parent, "config": config.as_json(), "measurement": key, "calibration": entry}
            for file, (config, _), (key, entry) in zip(files, found, made, strict=True)
        ]
        print_json({"runs": documents})
        return
    labels = labels_for([config for config, _ in found])
    for name in dict.fromkeys(config.data for config, _ in found):
        rows = [
            _row(label, entry)
            for (config, _), label, (_, entry) in zip(found, labels, made, strict=True)
            if config.data == name
        ]
        numbers = ("temperatures", "accuracy", *SCORES)
        title = f"{name} after temperature scaling (two-fold cross-fit on the test set; not in the paper)"
        table(title, ("method", *numbers), rows, right=numbers)
    for label, (_, entry) in zip(labels, made, strict=True):
        if at_a_bound(entry):
            low, high = entry["bounds"]
            remark(f"note: no temperature from {low:g} to {high:g} is best for {label}; a bound is used.")
    for file in files:
        say(str(file))


def _row(label: str, entry: dict[str, Any]) -> tuple[str, ...]:
    before, after = entry["before"], entry["after"]
    temperatures = ", ".join(f"{one:.3f}" for one in entry["temperatures"])
    scores = (f"{before[key]:.4f} → {after[key]:.4f}" for key in SCORES.values())
    return (label, temperatures, percent(after["accuracy"]), *scores)
