"""``rbue compare``: several methods, each with one seed or more, in one table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbue.errors import InvalidInput, RbueError
from rbue.files import check_writable, write_bytes
from rbue.lab.cli.options import Augment, Draws, EngineName, Samples, Selection, Split, TaskOptions, device_named
from rbue.lab.cli.output import (
    AsJson,
    as_json,
    complain,
    duration,
    methods_table,
    number,
    percent,
    print_json,
    remark,
    say,
    training_lines,
    working,
)
from rbue.lab.cli.runs import is_readable, write_page
from rbue.lab.cli.train import trained
from rbue.lab.processes import is_first
from rbue.lab.report import tables

if TYPE_CHECKING:
    import torch

    from rbue.lab.executors import Executor
    from rbue.lab.report.chance import Resampled
    from rbue.lab.report.run_records import Record
    from rbue.lab.runs.folders import RunConfig, RunFolder

PAPER_METHODS = ("deep-ensemble", "mc-dropout", "mc-droprelu", "mc-rrelu", "single", "svi")
"""What the paper compares; the methods that it discusses beside them are asked for by name."""

Row = dict[str, Any]


class Column(tables.Column):
    """One measurement."""

    def cell(self, row: Row) -> str:
        """The measurement in a row; of a run without any, the first column says so."""
        if "trouble" in row:
            return str(row["trouble"]) if self is COLUMNS[0] else number(None)
        text, deviation = self.text(row[self.key]), row.get("deviations", {}).get(self.key)
        return text if deviation is None else f"{text.removesuffix(' %')} ± {self.text(deviation)}"


COLUMNS = (
    Column("accuracy", "accuracy", "higher", percent),
    Column("ece", "ECE", "lower", number),
    Column("nll", "NLL", "lower", number),
    Column("mean_jsd", "Mean-JSD", "higher", number),
    Column("mean_dis", "Mean-DIS", "higher", number),
    Column("parameters", "parameters", "lower", "{:,}".format),
    Column("training_seconds", "training", "lower", lambda value: duration(value or 0.0)),
)


def compare(
    selection: Selection,
    tasks: TaskOptions,
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Methods, separated by commas or spaces.", show_default="the six of the paper"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each method, from --seed on: mean and spread.")] = 1,
    samples: Samples = 100,
    sample_seed: Annotated[int, typer.Option(help="Seed of the random passes.")] = 0,
    split: Split = "test",
    draws: Draws = "independent",
    augment: Augment = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write a page (.html), or the table (.md, .csv, .json), to a file too."),
    ] = None,
    engine: EngineName = "local",
    json: AsJson = False,
) -> None:
    """Train what is missing, measure every method in the same way, and show one table.

    All methods share the data, the network, the recipe and the seeds; ensembles of different seeds share no member. A
    value is marked where it is better than all others by more than chance, and a sentence says what the comparison came
    to. A method that cannot be measured is named, and the others are measured all the same. To choose a method, compare
    on images that were held out (--holdout 1000 --split validation), and look at the test images once.
    """
    from rbue.lab.data import splits_here
    from rbue.lab.methods.base import naming_own
    from rbue.lab.report.run_records import read_records
    from rbue.lab.runs.folders import RunFolder
    from rbue.lab.runs.measuring import check_split, evaluate_run
    from rbue.lab.runs.passes import Passes

    passes = Passes(samples, sample_seed, draws=draws, augment=augment)
    how: dict[str, Any] = {"samples": samples, "seed": sample_seed, "split": split, "draws": draws, "augment": augment}
    firsts = {config.method: config for config in map(selection.config, split_methods(methods))}
    configs = [
        replace(config, seed=config.seed + number * config.parsed.networks)
        for config in firsts.values()
        for number in range(seeds)
    ]
    keys = [passes.of(config).key for config in configs]
    check_split(configs[0], split)
    if output is not None:
        check_output(output, split)
    if engine != "ray" and not any(RunFolder.of(config, selection.runs).path.exists() for config in configs):
        splits_here(selection.data)  # else every method would say what is wrong with it
    failed: dict[RunConfig, RbueError] = {}
    with tasks.on(engine, selection.device) as executor:
        if engine != "local":  # what is done there is found done below
            failed = _spread(configs, selection.runs.absolute(), executor, how)
    device = device_named(None if engine == "ray" else selection.device)
    measured: dict[str, list[Row]] = {method: [] for method in firsts}
    errors: list[RbueError] = []
    for place, (config, key) in enumerate(zip(configs, keys, strict=True), 1):
        name = f"{config.method} seed {config.seed}" if seeds > 1 else config.method
        remark(f"{place} of {len(configs)}: {name}")
        folder = RunFolder.of(config, selection.runs)
        try:
            if config in failed:
                raise failed[config]
            with naming_own(config.parsed, anywhere=True):
                trained(config, selection.runs, device)
                with working(f"evaluating {name}"):
                    result = evaluate_run(config, selection.runs, device, **how)
        except InvalidInput:
            raise
        except RbueError as error:
            errors.append(error)
            result = {
                **dict.fromkeys(column.key for column in COLUMNS),
                "trouble": _trouble(folder),
                "error": str(error),
            }
        measured[config.method].append({"method": config.method, **result, "run": str(folder.path), "measurement": key})
    rows = [_row(results) for results in measured.values()]
    if all("trouble" in row for row in rows):
        raise errors[0]
    if not is_first():
        return
    whole = {method: results for method, results in measured.items() if "trouble" not in _row(results)}
    shown = {Path(one["run"]): one["measurement"] for results in whole.values() for one in results}
    records = [one.measured_as(shown[one.folder.path]) for one in read_records(map(RunFolder, shown))]
    marks = read_marks(records, len(rows)) if split == "test" else held_out_marks(whole, configs[0], len(rows))
    if output is not None and output.suffix == PAGE:
        write_page(records, output, device)
    elif output is not None:
        write_bytes(output, WRITERS[output.suffix](rows, marks).encode())
    if json:
        print_json({"methods": rows})
    else:
        which = f"seed {selection.seed}" if seeds == 1 else f"{seeds} seeds"
        more = f", augmented by {passes.augment}" if passes.augment else ""
        images = selection.data if split == "test" else f"{selection.data} ({split})"
        _show(f"{selection.model} on {images}, {which}, up to {samples} samples{more}", rows, marks)
        say(output if output is not None else selection.runs)
    if errors:
        for earlier in errors[:-1]:
            complain(str(earlier))
        raise errors[-1]


def _row(results: Sequence[Row]) -> Row:
    """One method: its only result, or means over those of its seeds; one that has no result is its trouble."""
    trouble = next((one for one in results if "trouble" in one), None)
    if len(results) == 1 or trouble is not None:
        return trouble or results[0]
    row: Row = {"method": results[0]["method"]}
    deviations = {}
    for column in COLUMNS:
        values = [one[column.key] for one in results]
        row[column.key] = values[0] if len(set(values)) == 1 else None
        if row[column.key] is None and None not in values:
            row[column.key], deviations[column.key] = statistics.fmean(values), statistics.stdev(values)
    runs = [one["run"] for one in results]
    return {**row, "deviations": deviations, "runs": runs, "by_seed": list(results)}


def _spread(
    configs: Sequence[RunConfig], root: Path, executor: Executor, how: Mapping[str, Any]
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
            failed |= {config: error for config in configs if network in config.trainings()}
    evaluate = partial(evaluate_run, root=root, device=executor.device, **how)
    runs = in_order(
        [config for config in configs if config not in failed],
        lambda one: remark(f"evaluating {one.method} seed {one.seed}"),
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
    if len(groups) > 1:
        return Marks(verdict="These runs were not all trained and measured on the same images, so nothing is compared.")
    this = compare_answers(groups[0], TestImages())
    return Marks(_best(this.chance, methods), this.verdict)


def held_out_marks(found: Mapping[str, Sequence[Row]], config: RunConfig, methods: int) -> Marks:
    """The same of the results of each method on the images that were held out."""
    from rbue.lab.report.chance import resample, verdict
    from rbue.lab.runs.folders import RunFolder
    from rbue.lab.runs.measuring import images_of
    from rbue.lab.runs.probabilities import probs_of

    answers = {}
    for method, results in found.items():
        files = [RunFolder(Path(one["run"])).validation_probs for one in results]
        stored = [probs_of(file, one) if file.exists() else None for file, one in zip(files, results, strict=True)]
        if all(one is not None for one in stored):
            answers[method] = [one.astype(float) for one in stored if one is not None]
    chance = resample(answers, images_of(config, "validation").labels) if answers else {}
    return Marks(_best(chance, methods), verdict(chance) if chance else "")


def _best(measures: Mapping[str, Resampled], methods: int) -> frozenset[tuple[str, str]]:
    """What is better than all others by more than chance, as (method, key); nothing where a method is left out."""
    return frozenset(
        (method, key)
        for key, chance in measures.items()
        for method in chance.methods
        if len(chance.methods) == methods and chance.is_best(method)
    )


def markdown(rows: Sequence[Row], marks: Marks) -> str:
    """The table for a page, what is better than all others by more than chance in bold, and the verdict."""
    headings = ["method", *(column.title for column in COLUMNS)]
    cells = [[row["method"], *(marks.cell(row, column, "**{}**") for column in COLUMNS)] for row in rows]
    return f"{tables.markdown_rows(headings, cells, right=headings[1:])}\n{marks.verdict}\n"


def comma_separated(rows: Sequence[Row], marks: Marks) -> str:
    """The table for a spreadsheet, numbers unrounded."""
    names = ["method", *(column.key for column in COLUMNS)]
    cells = [[row[name] for name in names] for row in rows]
    if any("deviations" in row for row in rows):
        names += [f"{column.key}_std" for column in COLUMNS]
        for row, line in zip(rows, cells, strict=True):
            line += [row.get("deviations", {}).get(column.key) for column in COLUMNS]
    return tables.csv_rows(names, cells)


PAGE = ".html"
WRITERS: dict[str, Callable[[Sequence[Row], Marks], str]] = {
    ".md": markdown,
    ".csv": comma_separated,
    ".json": lambda rows, _: as_json({"methods": list(rows)}),
}
"""How a file of this name is written."""


def check_output(path: Path, split: str = "test") -> None:
    """Refuse a file that cannot be written, before anything is trained."""
    if path.suffix == PAGE and split != "test":
        names = ", ".join(WRITERS)
        raise InvalidInput(f"a page is about test images; with --split {split} the name of {path} must end in {names}.")
    if path.suffix not in (PAGE, *WRITERS):
        names = ", ".join((PAGE, *WRITERS))
        raise InvalidInput(f"the comparison cannot be written to {path}; its name must end in {names}.")
    check_writable(path)


def _show(title: str, rows: Sequence[Row], marks: Marks) -> None:
    headings = [column.title.replace(" ", "\n") for column in COLUMNS]
    methods = []
    for row in rows:
        cells = (marks.cell(row, column, "[bold green]{}*[/]") for column in COLUMNS)
        methods.append((row["method"], [[cell if cell.endswith("[/]") else f"{cell} " for cell in cells]]))
    alone = [row for row in rows if "trouble" not in row and row["mean_jsd"] is None]
    augmented = [row for row in rows if row.get("by_seed", [row])[0].get("augment")]
    unchanged = " of an image as it is" if any(row in augmented for row in alone) else ""
    notes = {
        "* better than all others by more than chance": marks.best,
        "± standard deviation over seeds": any("deviations" in row for row in rows),
        f"– a method with one sample{unchanged} has no diversity": alone,
        "Mean-JSD and Mean-DIS are those of plain passes": any(row not in alone for row in augmented),
    }
    note = "; ".join(note for note, applies in notes.items() if applies)
    methods_table(title, headings, methods, headings[:1:-1], note=note)
    say(marks.verdict)
    if "chance" in marks.verdict:
        remark("chance: that of the test images alone; another training would move the numbers too")
