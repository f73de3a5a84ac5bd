"""``rbue train``: train a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbue.lab.cli.options import ENGINES, MethodName, Selection, check_engine, device_named
from rbue.lab.cli.output import AsJson, duration, number, percent, print_json, say, table, training_progress
from rbue.lab.processes import is_first

if TYPE_CHECKING:
    import torch

    from rbue.lab.runs.folders import RunConfig, RunFolder

of_way = partial(typer.Option, rich_help_panel="How it is trained (the network is the same)")
Together = Annotated[int, of_way(min=1, help="Members of an ensemble trained side by side.")]


def train(
    selection: Selection,
    method: MethodName = "single",
    engine: Annotated[str, of_way(help=f"How steps run: {ENGINES}.")] = "auto",
    together: Together = 1,
    shard_mib: Annotated[int | None, of_way(min=1, help="Largest size of a file of weights.")] = None,
    json: AsJson = False,
) -> None:
    """Train a network with a method, continue where it was stopped, or report that it is done.

    The last line is the run folder. An ensemble reuses members that were trained before with the same settings. Under
    torchrun every process trains on its part of each batch.
    """
    from rbue.lab.runs.folders import RunFolder

    check_engine(engine)
    config = selection.config(method)
    device = device_named(selection.device)
    networks = trained(config, selection.runs, device, engine=engine, together=together, shard_mib=shard_mib)
    if not is_first():
        return
    run = RunFolder.of(config, selection.runs).path
    if json:
        content = [{"run": one.path, "outcome": outcome, **one.read("training")} for _, one, outcome in networks]
        print_json({"run": run, "config": config.as_json(), "networks": content})
        return
    rows = []
    for member, folder, outcome in networks:
        entry = folder.read("training")
        shown = [number(entry["loss"]), percent(entry["accuracy"]), f"{entry['parameters']:,}"]
        name = f"{member.method} seed {member.seed}"
        rows.append([name, outcome, str(entry["epochs"]), *shown, duration(entry["seconds"])])
    numbers = ("epochs", "loss", "train accuracy", "parameters", "time")
    table(f"{config.model} on {config.data}", ("network", "", *numbers), rows, right=numbers)
    say(run)


def trained(config: RunConfig, root: Path, device: torch.device, **how: Any) -> list[tuple[RunConfig, RunFolder, str]]:
    """Train what is missing of a run, as :func:`train_run` does, and say what happened to each of its networks."""
    from rbue.lab.runs.folders import RunFolder
    from rbue.lab.runs.training import train_run

    members = config.trainings()
    before = [_outcome(RunFolder.of(member, root)) for member in members]
    with training_progress() as report:
        folders = train_run(config, root, device, report, **how)
    return list(zip(members, folders, before, strict=True))


def _outcome(folder: RunFolder) -> str:
    """What training is going to do with a folder; damaged weights are refused."""
    from rbue.lab.training.checkpoint import read_weights

    if folder.is_trained:
        if folder.has_weights:  # else they are kept elsewhere
            read_weights(folder.path)
        return "done already"
    return "continued" if folder.state.exists() else "trained"
