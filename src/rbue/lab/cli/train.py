"""``rbue train``: train the networks of one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from rbue.lab.cli.options import MethodName, Selection, check_engine, device_named, takes_selection
from rbue.lab.cli.output import AsJson, duration, number, percent, print_json, say, table
from rbue.lab.cli.progress import training_progress
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.training import train_run
from rbue.lab.training.distribution import is_first
from rbue.lab.training.engines import ENGINES

WAY = "How it is trained (the network is the same)"
EXAMPLE = "Example: rbue train --data digits --model small_cnn --method mc-droprelu:0.9"


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EXAMPLE)(takes_selection(train))


def train(
    selection: Selection,
    method: MethodName = "single",
    engine: Annotated[str, typer.Option(help=f"How steps run: {', '.join(ENGINES)}.", rich_help_panel=WAY)] = "auto",
    together: Annotated[
        int, typer.Option(min=1, help="Members of an ensemble trained side by side.", rich_help_panel=WAY)
    ] = 1,
    shard_mib: Annotated[
        int | None, typer.Option(min=1, help="Largest size of a file of weights.", rich_help_panel=WAY)
    ] = None,
    json: AsJson = False,
) -> None:
    """Train a network with a method, continue where it was stopped, or report that it is done.

    The last line is the run folder. An ensemble reuses members that were trained before with the same settings. Under
    torchrun every process trains on its part of each batch.
    """
    check_engine(engine)
    config = selection.config(method)
    way = Way(engine, together, shard_mib)
    networks = trained(config, selection.runs, device_named(selection.device), way)
    if not is_first():
        return
    run = RunFolder.of(config, selection.runs).path
    if json:
        content = [{"run": one.folder.path, "outcome": one.outcome, **one.training} for one in networks]
        print_json({"run": run, "config": config.as_json(), "networks": content})
        return
    rows = []
    for one in networks:
        entry = one.training
        shown = [number(entry["loss"]), percent(entry["accuracy"]), f"{entry['parameters']:,}"]
        name = f"{one.config.method} seed {one.config.seed}"
        rows.append([name, one.outcome, str(entry["epochs"]), *shown, duration(entry["seconds"])])
    numbers = ("epochs", "loss", "train accuracy", "parameters", "time")
    table(f"{config.model} on {config.data}", ("network", "", *numbers), rows, right=numbers)
    say(str(run))


@dataclass(frozen=True)
class Way:
    """How a run is trained; none of it changes what is trained."""

    engine: str = "auto"
    together: int = 1
    shard_mib: int | None = None


@dataclass(frozen=True)
class Trained:
    """One network of a run: where it is, what training came to, and whether that happened now."""

    config: RunConfig
    folder: RunFolder
    outcome: str
    training: dict[str, Any]


def trained(config: RunConfig, root: Path, device: torch.device, way: Way | None = None) -> list[Trained]:
    """Train what is missing of a run and say what happened to each of its networks."""
    way = way or Way()
    members = config.members()
    before = [_outcome(RunFolder.of(member, root)) for member in members]
    with training_progress() as report:
        folders = train_run(
            config, root, device, report, engine=way.engine, together=way.together, shard_mib=way.shard_mib
        )
    if not is_first():
        return []
    return [
        Trained(member, folder, outcome, folder.read("training"))
        for member, folder, outcome in zip(members, folders, before, strict=True)
    ]


def _outcome(folder: RunFolder) -> str:
    """What training is going to do with a folder."""
    if folder.read("training") is not None:
        return "done already"
    return "continued" if folder.state.exists() else "trained"
