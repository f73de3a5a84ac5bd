"""Add trials of a search to ``results/search.json``: ``search_table.py RUN...``, trained with ``--holdout``.

A row has a trial's settings, its scores on the held-out training images, clean and corrupted, and its seconds. Choices
are made by these rows, never by test images. A trial that is there already is replaced.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from rbue import metrics
from rbue.calibration import Temperature, cross_fitted
from rbue.errors import RbueError
from rbue.files import read_json, write_json
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import images_of
from rbue.lab.runs.probabilities import read_probs

RESULT = Path(__file__).parents[1] / "results" / "search.json"
SCORES = ("accuracy", "ece", "nll", "brier", "aurc")
CORRUPTED = ("accuracy", "ece", "nll", "mutual_information")
SCALED = CORRUPTED[:3]
SHOWN = ("label_smoothing", "cutout", "mixup", "noise", "augmix", "average", "weight_decay", "epochs")


def row(folder: RunFolder) -> dict[str, Any]:
    """The trial in a run folder, with every measurement on held-out images."""
    measured = folder.entries("validation")
    if not measured:
        raise RbueError(f"{folder.path} has no validation.json; run `rbue evaluate {folder.path} --split validation`.")
    config = folder.read("config")
    held_out = {key: {name: one[name] for name in SCORES} for key, one in measured.items()}
    *_, last = held_out.values()
    last.update(scaled(folder, config))
    shift = folder.read("validation_shift")
    return {
        "run": folder.path.name,
        "config": config,
        "held_out": held_out,
        "corrupted": {} if shift is None else corrupted(shift["rows"]),
        "training_seconds": folder.read("training")["seconds"],
        "environment": list(measured.values())[-1]["environment"],
    }


def scaled(folder: RunFolder, config: dict[str, Any]) -> dict[str, Any]:
    """The temperature that the stored probabilities ask for, and their scores when each fifth gets that of the rest."""
    images = images_of(RunConfig.from_json(config), "validation")
    probs, labels = torch.from_numpy(read_probs(folder.validation_probs)).double(), torch.from_numpy(images.labels)
    crossed = cross_fitted(probs, labels, folds=5).probs
    return {
        "temperature": Temperature.fit(probs, labels).value,
        "scaled": {name: float(getattr(metrics, name)(crossed, labels)) for name in SCALED},
    }


def corrupted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the corrupted sets, and over those with noise, which are the hardest to be calibrated on."""
    settings: dict[str, list[dict[str, Any]]] = {}
    for one in rows:
        asked = {name: one.get(name) for name in ("samples_asked", "seed", "draws", "augment")}
        settings.setdefault(
            ",".join(f"{name}={value}" for name, value in asked.items() if value is not None), []
        ).append(one)
    return {key or "plain": means(found) for key, found in settings.items()}


def means(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Those of one setting."""
    noisy = [one for one in rows if one["corruption"].endswith("_noise")]
    return {
        "sets": len(rows),
        "severities": sorted({one["severity"] for one in rows}),
        "mean": {name: fmean(one[name] for one in rows) for name in CORRUPTED},
        "noise": {name: fmean(one[name] for one in noisy) for name in CORRUPTED},
    }


def described(config: dict[str, Any]) -> str:
    """The method, and what its recipe has on."""
    recipe = config["recipe"]
    return ", ".join([config["method"], *(f"{name} {recipe[name]}" for name in SHOWN if name in recipe)])


def show(rows: list[dict[str, Any]]) -> None:
    """Print all trials."""
    table = Table(title="held-out images", title_justify="left")
    for heading in ("trial", "measured", *SCORES, "NLL under noise"):
        table.add_column(heading, justify="left" if heading in ("trial", "measured") else "right")
    for one in rows:
        for place, (key, scores) in enumerate(one["held_out"].items()):
            trial = "" if place else f"{described(one['config'])}"
            table.add_row(trial, key, *(f"{scores[name]:.4f}" for name in SCORES))
            if "scaled" in scores:
                table.add_row(
                    "", f"... T {scores['temperature']:.3f}", *(f"{scores['scaled'][name]:.4f}" for name in SCALED)
                )
        for key, damaged in one["corrupted"].items():
            numbers = [f"{damaged['mean'][name]:.4f}" for name in SCALED]
            table.add_row("", f"corrupted: {key}", *numbers, "", "", f"{damaged['noise']['nll']:.3f}")
    Console(width=200).print(table)


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
    show(sorted(rows.values(), key=lambda one: min(scores["nll"] for scores in one["held_out"].values())))


if __name__ == "__main__":
    main()
