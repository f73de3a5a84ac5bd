"""``rbue train``, ``compare`` and ``demo``: train a run, several methods for one table, or all of them on digits."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from rbue.errors import InvalidInput, RbueError
from rbue.files import write_bytes
from rbue.lab.cli.options import MethodName, RunsFolder, Samples, Selection, check_engine, device_named
from rbue.lab.cli.output import (
    AsJson,
    as_json,
    as_markup,
    complain,
    duration,
    methods_table,
    number,
    percent,
    print_json,
    print_methods,
    remark,
    say,
    stdout,
    table,
    training_progress,
    working,
)
from rbue.lab.cli.runs import is_readable
from rbue.lab.methods import list_methods, split_specs
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import evaluate_run
from rbue.lab.runs.training import train_run
from rbue.lab.training.engines import ENGINES
from rbue.lab.training.step import is_first

PAPER_METHODS = ("deep-ensemble", "mc-dropout", "mc-droprelu", "mc-rrelu", "single", "svi")
"""What the paper compares; the methods that it discusses beside them are asked for by name."""
WAY = "How it is trained (the network is the same)"


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
    device = device_named(selection.device)
    networks = trained(config, selection.runs, device, engine=engine, together=together, shard_mib=shard_mib)
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
class Trained:
    """One network of a run: where it is, what training came to, and whether that happened now."""

    config: RunConfig
    folder: RunFolder
    outcome: str
    training: dict[str, Any]


def trained(config: RunConfig, root: Path, device: torch.device, **how: Any) -> list[Trained]:
    """Train what is missing of a run, as :func:`train_run` does, and say what happened to each of its networks."""
    members = config.members()
    before = [_outcome(RunFolder.of(member, root)) for member in members]
    with training_progress() as report:
        folders = train_run(config, root, device, report, **how)
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


Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One measurement: what it is called, which end is the better one, how it is written."""

    key: str
    heading: str
    best: Callable[[Sequence[float]], float]
    text: Callable[[float | None], str] = number

    @property
    def title(self) -> str:
        """The heading, with an arrow towards the better values."""
        return f"{self.heading} {'↑' if self.best is max else '↓'}"

    def cell(self, row: Row) -> str:
        """The measurement in a row; of a run without any, the first column says so."""
        if "trouble" not in row:
            return self.text(row[self.key])
        return str(row["trouble"]) if self is COLUMNS[0] else number(None)


COLUMNS = (
    Column("accuracy", "accuracy", max, lambda value: percent(value or 0.0)),
    Column("ece", "ECE", min),
    Column("nll", "NLL", min),
    Column("mean_jsd", "Mean-JSD", max),
    Column("mean_dis", "Mean-DIS", max),
    Column("parameters", "parameters", min, lambda value: f"{value:,}"),
    Column("training_seconds", "training", min, lambda value: duration(value or 0.0)),
)


def compare(
    selection: Selection,
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Methods, separated by commas or spaces.", show_default="the six of the paper"),
    ] = None,
    samples: Samples = 100,
    sample_seed: Annotated[int, typer.Option(help="Seed of the random passes.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the table to a .md, .csv or .json file too."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Train what is missing, measure every method in the same way, and show one table.

    All methods share the data, the network, the recipe and the seed. The best value of each column is marked. A method
    that cannot be measured is named, and the others are measured all the same.
    """
    configs = [selection.config(method) for method in split_methods(methods)]
    configs = list({config.method: config for config in configs}.values())
    write = writer_for(output) if output is not None else None
    device = device_named(selection.device)
    rows: list[Row] = []
    errors: list[RbueError] = []
    for place, config in enumerate(configs, 1):
        remark(f"{place} of {len(configs)}: {config.method}")
        folder = RunFolder.of(config, selection.runs)
        try:
            trained(config, selection.runs, device)
            with working(f"evaluating {config.method}"):
                result = evaluate_run(config, selection.runs, device, samples=samples, seed=sample_seed)
        except InvalidInput:
            raise
        except RbueError as error:
            errors.append(error)
            result = {
                **dict.fromkeys(column.key for column in COLUMNS),
                "trouble": _trouble(folder),
                "error": str(error),
            }
        rows.append({"method": config.method, **result, "run": str(folder.path)})
    if len(errors) == len(rows):
        raise errors[0]
    if output is not None and write is not None:
        write_bytes(output, write(rows).encode())
    if json:
        print_json({"methods": rows})
    else:
        _show(f"{selection.model} on {selection.data}, seed {selection.seed}, up to {samples} samples", rows)
        say(str(output if output is not None else selection.runs))
    if errors:
        for earlier in errors[:-1]:
            complain(str(earlier))
        raise errors[-1]


def _trouble(folder: RunFolder) -> str:
    """What stands in the table for a run that could not be measured."""
    return "failed" if all(is_readable(folder, name) for name in ("results", "training")) else "unreadable"


def split_methods(text: str | None) -> list[str]:
    """The method specs in a list; those of the paper if there is none."""
    specs = [*PAPER_METHODS] if text is None else split_specs(text)
    if not specs:
        raise InvalidInput(f"--methods names no method; there are {', '.join(list_methods())}.")
    return specs


def best_values(rows: Sequence[Row]) -> dict[str, float]:
    """The best value of each column in which the methods differ."""
    best = {}
    for column in COLUMNS:
        values = [row[column.key] for row in rows if row[column.key] is not None and math.isfinite(row[column.key])]
        if len(set(values)) > 1:
            best[column.key] = column.best(values)
    return best


def writer_for(path: Path) -> Callable[[Sequence[Row]], str]:
    """How a file of this name is written."""
    writers = {".md": markdown, ".csv": comma_separated, ".json": lambda rows: as_json({"methods": list(rows)})}
    if path.suffix not in writers:
        raise InvalidInput(f"the table cannot be written to {path}; its name must end in {', '.join(writers)}.")
    return writers[path.suffix]


def markdown(rows: Sequence[Row]) -> str:
    """The table for a page; the best values are bold."""
    best = best_values(rows)
    lines = [["method", *(column.title for column in COLUMNS)], ["---", *("---:" for _ in COLUMNS)]]
    for row in rows:
        cells = [(column.cell(row), _is_best(row, column, best)) for column in COLUMNS]
        lines.append([row["method"], *(f"**{text}**" if bold else text for text, bold in cells)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def comma_separated(rows: Sequence[Row]) -> str:
    """The table for a spreadsheet, numbers unrounded."""
    names = ["method", *(column.key for column in COLUMNS)]
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(names)
    table.writerows([["" if row[name] is None else row[name] for name in names] for row in rows])
    return buffer.getvalue()


def _is_best(row: Row, column: Column, best: dict[str, float]) -> bool:
    return column.key in best and row[column.key] == best[column.key]


def _show(title: str, rows: Sequence[Row]) -> None:
    best = best_values(rows)
    console = stdout()
    shown = methods_table(console)
    headings = [column.title.replace(" ", "\n") for column in COLUMNS]
    for heading in headings:
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = [
            f"[bold green]{column.cell(row)}*[/]" if _is_best(row, column, best) else f"{column.cell(row)} "
            for column in COLUMNS
        ]
        shown.add_row(as_markup(row["method"]), *cells)
    console.print(f"[bold]{as_markup(title)}[/bold]", soft_wrap=True)
    print_methods(console, shown, less_important=headings[:1:-1])
    console.print("[dim]* best of its column; – a method with one sample has no diversity[/dim]")


def demo(runs: RunsFolder = Path("runs/demo")) -> None:
    """Show the library at work on the digits that come with it; needs no data and no network.

    First what random ReLUs do to a network that was trained without them, then all six methods, trained and measured
    alike. The last line is where the runs and the table were written.
    """
    from rbue.lab import demo as demonstration  # it imports what no other verb needs

    demonstration.main()
    say("")
    compare(Selection(runs=runs), output=runs / "comparison.md")
