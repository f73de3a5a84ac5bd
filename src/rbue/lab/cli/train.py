"""``rbue train`` and ``compare``: train a run, or several methods for one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbue.errors import InvalidInput, RbueError
from rbue.files import write_bytes
from rbue.lab.cli.options import (
    ENGINES,
    Address,
    Cpus,
    EngineName,
    Gpus,
    MethodName,
    Samples,
    Selection,
    Workers,
    check_engine,
    device_named,
    tasks_on,
)
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
    training_lines,
    training_progress,
    working,
)
from rbue.lab.cli.runs import is_readable, write_page
from rbue.lab.processes import is_first

if TYPE_CHECKING:
    import torch

    from rbue.lab.executors import Executor
    from rbue.lab.report.run_records import Record
    from rbue.lab.runs.folders import RunConfig, RunFolder

PAPER_METHODS = ("deep-ensemble", "mc-dropout", "mc-droprelu", "mc-rrelu", "single", "svi")
"""What the paper compares; the methods that it discusses beside them are asked for by name."""
WAY = "How it is trained (the network is the same)"


def train(
    selection: Selection,
    method: MethodName = "single",
    engine: Annotated[str, typer.Option(help=f"How steps run: {ENGINES}.", rich_help_panel=WAY)] = "auto",
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
    from rbue.lab.runs.folders import RunFolder

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
    from rbue.lab.runs.folders import RunFolder
    from rbue.lab.runs.training import train_run

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
        typer.Option("--output", "-o", help="Write a page (.html), or the table (.md, .csv, .json), to a file too."),
    ] = None,
    engine: EngineName = "local",
    workers: Workers = None,
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    json: AsJson = False,
) -> None:
    """Train what is missing, measure every method in the same way, and show one table.

    All methods share the data, the network, the recipe and the seed. A value is marked where it is better than all
    others by more than chance, and a sentence says what the comparison came to. A method that cannot be measured is
    named, and the others are measured all the same.
    """
    from rbue.lab.report.run_records import read_records
    from rbue.lab.runs.folders import RunFolder, result_key
    from rbue.lab.runs.measuring import evaluate_run

    configs = [selection.config(method) for method in split_methods(methods)]
    configs = list({config.method: config for config in configs}.values())
    if output is not None:
        check_output(output)
    failed: dict[RunConfig, RbueError] = {}
    with tasks_on(engine, address, cpus, gpus, selection.device, workers) as executor:
        if engine != "local":  # what is done there is found done below
            failed = _spread(configs, selection.runs.absolute(), executor, samples, sample_seed)
    device = device_named(None if engine == "ray" else selection.device)
    rows: list[Row] = []
    errors: list[RbueError] = []
    for place, config in enumerate(configs, 1):
        remark(f"{place} of {len(configs)}: {config.method}")
        folder = RunFolder.of(config, selection.runs)
        try:
            if config in failed:
                raise failed[config]
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
    if not is_first():
        return
    records = read_records(RunFolder(Path(row["run"])) for row in rows if "trouble" not in row)
    records = [record.measured_as(result_key(samples, sample_seed)) for record in records]
    marks = read_marks(records, len(rows))
    if output is not None and output.suffix == PAGE:
        write_page(records, output, device)
    elif output is not None:
        write_bytes(output, WRITERS[output.suffix](rows, marks).encode())
    if json:
        print_json({"methods": rows})
    else:
        _show(f"{selection.model} on {selection.data}, seed {selection.seed}, up to {samples} samples", rows, marks)
        say(str(output if output is not None else selection.runs))
    if errors:
        for earlier in errors[:-1]:
            complain(str(earlier))
        raise errors[-1]


def _spread(
    configs: Sequence[RunConfig], root: Path, executor: Executor, samples: int, seed: int
) -> dict[RunConfig, RbueError]:
    """Train every network that is missing, each once, then measure the runs; gives the errors of those that failed."""
    from rbue.lab.executors import in_order
    from rbue.lab.runs.measuring import evaluate_run
    from rbue.lab.runs.training import missing_networks

    failed: dict[RunConfig, RbueError] = {}
    train = partial(_train, root=root, device=executor.device)
    networks = in_order(missing_networks(configs, root), lambda one: remark(f"training {one.method} seed {one.seed}"))
    for network, _, error in executor.each(train, networks):
        if error is not None:
            failed |= {config: error for config in configs if network in config.members()}
    evaluate = partial(evaluate_run, root=root, device=executor.device, samples=samples, seed=seed)
    runs = in_order(
        [config for config in configs if config not in failed], lambda one: remark(f"evaluating {one.method}")
    )
    for config, _, error in executor.each(evaluate, runs):
        if error is not None:
            failed[config] = error
    return failed


def _train(config: RunConfig, root: Path, device: torch.device) -> None:
    """Train a network in another process, which tells of its epochs."""
    from rbue.lab.runs.training import train_run

    with training_lines() as report:
        train_run(config, root, device, report)


def _trouble(folder: RunFolder) -> str:
    """What stands in the table for a run that could not be measured."""
    return "failed" if all(is_readable(folder, name) for name in ("results", "training")) else "unreadable"


def split_methods(text: str | None) -> list[str]:
    """The method specs in a list; those of the paper if there is none."""
    from rbue.lab.methods import list_methods, split_specs

    specs = [*PAPER_METHODS] if text is None else split_specs(text)
    if not specs:
        raise InvalidInput(f"--methods names no method; there are {', '.join(list_methods())}.")
    return specs


@dataclass(frozen=True)
class Marks:
    """What of a comparison is more than chance: the values to mark, as (method, key), and a sentence."""

    best: frozenset[tuple[str, str]] = frozenset()
    verdict: str = ""

    def cell(self, row: Row, column: Column, form: str) -> str:
        """A measurement, in a form if it is marked."""
        text = column.cell(row)
        return form.format(text) if (row["method"], column.key) in self.best else text


def read_marks(records: Sequence[Record], methods: int) -> Marks:
    """Judge the runs of a comparison by their stored answers; nothing is marked beside methods that have none."""
    from rbue.lab.report.run_answers import TestImages
    from rbue.lab.report.run_compared import compare_answers
    from rbue.lab.report.run_records import group_records

    groups = group_records(records)
    if not groups:
        return Marks()
    this = compare_answers(groups[0], TestImages())
    best = {
        (method, key)
        for key, chance in this.chance.items()
        for method in chance.methods
        if len(chance.methods) == methods and chance.is_best(method)
    }
    return Marks(frozenset(best), this.verdict)


def markdown(rows: Sequence[Row], marks: Marks) -> str:
    """The table for a page, what is better than all others by more than chance in bold, and the verdict."""
    from rbue.lab.report.tables import markdown_rows

    headings = ["method", *(column.title for column in COLUMNS)]
    cells = [[row["method"], *(marks.cell(row, column, "**{}**") for column in COLUMNS)] for row in rows]
    return f"{markdown_rows(headings, cells, right=headings[1:])}\n{marks.verdict}\n"


def comma_separated(rows: Sequence[Row], marks: Marks) -> str:
    """The table for a spreadsheet, numbers unrounded."""
    from rbue.lab.report.tables import csv_rows

    names = ["method", *(column.key for column in COLUMNS)]
    return csv_rows(names, ([row[name] for name in names] for row in rows))


PAGE = ".html"
WRITERS: dict[str, Callable[[Sequence[Row], Marks], str]] = {
    ".md": markdown,
    ".csv": comma_separated,
    ".json": lambda rows, _: as_json({"methods": list(rows)}),
}
"""How a file of this name is written."""


def check_output(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is trained."""
    if path.suffix not in (PAGE, *WRITERS):
        names = ", ".join((PAGE, *WRITERS))
        raise InvalidInput(f"the comparison cannot be written to {path}; its name must end in {names}.")


def _show(title: str, rows: Sequence[Row], marks: Marks) -> None:
    console = stdout()
    shown = methods_table(console)
    headings = [column.title.replace(" ", "\n") for column in COLUMNS]
    for heading in headings:
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = (marks.cell(row, column, "[bold green]{}*[/]") for column in COLUMNS)
        shown.add_row(as_markup(row["method"]), *(cell if cell.endswith("[/]") else f"{cell} " for cell in cells))
    console.print(f"[bold]{as_markup(title)}[/bold]", soft_wrap=True)
    print_methods(console, shown, less_important=headings[:1:-1])
    star = "* better than all others by more than chance; " if marks.best else ""
    console.print(f"[dim]{star}– a method with one sample has no diversity[/dim]", soft_wrap=True)
    console.print(as_markup(marks.verdict), soft_wrap=True)
