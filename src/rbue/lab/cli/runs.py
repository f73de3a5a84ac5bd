"""``rbue runs`` and ``rbue report``: what has been trained and measured."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rbue.errors import InvalidInput, RbueError
from rbue.files import write_bytes
from rbue.lab.cli.options import RUN_HELP, DeviceName, RunsFolder, device_named, find_run
from rbue.lab.cli.output import (
    AsJson,
    duration,
    facts,
    number,
    percent,
    print_json,
    remark,
    say,
    table,
    visible,
    working,
)
from rbue.lab.own_code import NotNamed
from rbue.lab.report.tables import csv_table

if TYPE_CHECKING:
    import torch

    from rbue.lab.report.run_records import Record
    from rbue.lab.runs.folders import RunConfig, RunFolder

app = typer.Typer(no_args_is_help=True, help="List, show and remove trained runs.", epilog="Example: rbue runs list")

RunName = Annotated[str, typer.Argument(help=RUN_HELP)]
BROKEN, ASKS, MEASURED, TRAINED = "cannot be read", "asks for other code", "measured", "trained"
HELD_OUT = "measured (held-out)"
"""Measured on the images that were held out, and not on test images."""

_SHOWN_APART = ("data", "environment", "by_samples")
"""Parts of a result that are no list of names and values."""


@app.command("list", epilog="Example: rbue runs list --runs runs")
def list_(runs: RunsFolder = Path("runs"), json: AsJson = False) -> None:
    """List all runs with their settings, state and accuracy."""
    from rbue.lab.runs.folders import find_runs

    rows = [_summary(run) for run in find_runs(runs)]
    if json:
        print_json({"runs": rows})
        return
    if not rows:
        remark(f"there are no runs in {runs} yet; `rbue train` makes one.")
        return
    cells = [
        (
            row["id"],
            row["data"],
            row["model"],
            row["method"],
            str(row["seed"]),
            _marked(row["state"], row["weights"], row.get("augment")),
            percent(row["accuracy"]) if row["accuracy"] is not None else number(None),
        )
        for row in rows
    ]
    headings = ("id", "data", "model", "method", "seed", "state", "accuracy")
    less_important = ("model", "data", "seed", "state")
    table(f"Runs in {runs}", headings, cells, right=("seed", "accuracy"), less_important=less_important)


@app.command(epilog="Example: rbue runs show runs/digits/small_cnn/single-seed0-4f9d2c1a")
def show(run: RunName, runs: RunsFolder = Path("runs"), json: AsJson = False) -> None:
    """Show one run: settings, training, results and the machine it was made on."""
    folder = find_run(run, runs)
    names = ("environment", "training", "results")
    content = {"run": folder.path, "config": folder.config().as_json(), **{name: folder.read(name) for name in names}}
    if held_out := folder.read("validation"):
        content["validation"] = held_out
    if json:
        print_json(content)
        return
    say(folder.path)
    say("")
    state = _state(folder)
    facts([("state", _marked(state, _has_weights(folder, state))), *_pairs(content["config"])])
    training = content["training"]
    if training is not None:
        say("\ntraining")
        kept = {name: value for name, value in training.items() if name not in ("data", "seconds")}
        facts([("  time", duration(training["seconds"])), *_pairs(kept, "  ")])
    measured = {f"results with {key}": result for key, result in (content["results"] or {}).items()}
    measured |= {f"held-out images with {key}": result for key, result in (held_out or {}).items()}
    for heading, result in measured.items():
        say(f"\n{heading}")
        facts(_pairs({name: value for name, value in result.items() if name not in _SHOWN_APART}, "  "))
        if result.get("by_samples"):
            say("\n  with fewer samples")
            facts(
                (f"    {one['samples']}", f"accuracy {percent(one['accuracy'])}, ECE {number(one['ece'])}")
                for one in result["by_samples"]
            )
    if content["environment"] is not None:
        say("\nenvironment")
        facts(_pairs(content["environment"], "  "))


@app.command(epilog="Example: rbue runs remove 4f9d2c1a --yes")
def remove(
    run: RunName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    runs: RunsFolder = Path("runs"),
    json: AsJson = False,
) -> None:
    """Remove a run folder with its weights and results."""
    from rbue.lab.runs.folders import settings_and_root

    folder = find_run(run, runs)
    config, root = settings_and_root(folder)  # refuses a folder that is not a run of ours
    users = _runs_of_its_weights(config, root)
    if users:
        names = ", ".join(path.name for path in users)
        remark(f"{folder.path.name} trained networks of {names}, which cannot be measured again without it.")
    if not yes:
        if json or not sys.stdin.isatty():
            raise InvalidInput(f"{folder.path} would be removed for good; add --yes if that is meant.")
        typer.confirm(f"Remove {visible(str(folder.path))} for good?", abort=True, err=True)
    with folder.locked(wait=0):
        _remove(folder.path, root)
    if json:
        print_json({"removed": folder.path, "networks_of": users})
    else:
        say(f"removed {folder.path}")


def _runs_of_its_weights(config: RunConfig, root: Path) -> list[Path]:
    """Other runs that have networks of this one: ensembles, and methods that draw from another's network."""
    from rbue.lab.runs.folders import find_runs

    found = []
    for run in find_runs(root):
        with suppress(RbueError):  # a folder that cannot be read
            other = run.config()
            if other != config and config in other.trainings():
                found.append(run.path)
    return found


def _remove(path: Path, root: Path) -> None:
    """Take a run away in one step, then delete it, and the folders above it if they are empty now."""
    aside = path.with_name(f"{path.name}.removed")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        (aside / "config.json").unlink()  # from here on no longer a run, even if the rest is interrupted
        shutil.rmtree(aside)
    except OSError as error:
        raise RbueError(f"{path} could not be removed ({error.strerror}).") from error
    for parent in (path.parent, path.parent.parent):
        if parent.resolve() != root.resolve() and not any(parent.iterdir()):
            parent.rmdir()


def _summary(run: RunFolder) -> dict[str, Any]:
    """One row; a folder that cannot be read is a row too."""
    entry: dict[str, Any] = {"run": str(run.path), "id": run.path.name.rpartition("-")[2]}
    try:
        config = run.config()
    except RbueError as error:
        unknown = dict.fromkeys(("data", "model", "method", "seed"), "?")
        state = ASKS if isinstance(error, NotNamed) else BROKEN
        return {**entry, **unknown, "state": state, "weights": None, "accuracy": None}
    chosen = {"data": config.data, "model": config.model, "method": config.method, "seed": config.seed}
    broken = [name for name in ("results", "training", "validation") if not is_readable(run, name)]
    if broken:
        return {**entry, **chosen, "state": f"{broken[0]}.json {BROKEN}", "weights": None, "accuracy": None}
    results = list((run.read("results") or {}).values())
    state, accuracy = _state(run), results[-1]["accuracy"] if results else None
    augment = {name: results[-1][name] for name in ("augment",) if results and results[-1].get(name)}
    return {**entry, **chosen, "state": state, "weights": _has_weights(run, state), "accuracy": accuracy, **augment}


def is_readable(run: RunFolder, name: str) -> bool:
    """Whether ``<name>.json`` is what this package writes, or not there."""
    try:
        content = run.read(name) or {}
    except RbueError:
        return False
    if not isinstance(content, dict):
        return False
    return name == "training" or all(isinstance(one, dict) and "accuracy" in one for one in content.values())


def _state(run: RunFolder) -> str:
    if run.read("results"):
        return MEASURED
    if run.read("validation"):
        return HELD_OUT
    config = run.config()
    if run.read("training") is not None:
        return TRAINED
    if config.trainings() != [config]:
        return "weights of another run" if config.parsed.networks == 1 else f"{config.parsed.networks} networks"
    from rbue.lab.training.trainer import read_log

    return f"epoch {len(read_log(run.log))} of {config.recipe.epochs}"


def _has_weights(run: RunFolder, state: str) -> bool | None:
    """Whether all networks of a run that had them are here; None while there is nothing to expect."""
    from rbue.lab.runs.folders import has_weights

    return has_weights(run.config(), run.root) if state in (MEASURED, HELD_OUT, TRAINED) else None


def _marked(state: str, weights: bool | None, augment: str | None = None) -> str:
    state += f" (augmented: {augment})" if augment else ""
    return f"{state}, no weights" if weights is False else state


def _pairs(content: dict[str, Any], indent: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], list):
            first, *others = ("  ".join(map(number, row)) for row in value)
            pairs += [(f"{indent}{name}", first), *(("", row) for row in others)]
        elif isinstance(value, dict):
            pairs += [(f"{indent}{name}", ""), *_pairs(value, f"{indent}  ")]
        else:
            pairs.append((f"{indent}{name.replace('_', ' ')}", _text(value)))
    return pairs


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "–" if value is None else str(value)


class Form(StrEnum):
    """What a report can be written as."""

    html = "html"
    md = "md"
    latex = "latex"
    csv = "csv"


SUFFIXES = {".html": Form.html, ".htm": Form.html, ".md": Form.md, ".tex": Form.latex, ".csv": Form.csv}


def report(
    where: Annotated[
        list[str], typer.Argument(metavar="RUNS", help="Run folders, folders that contain runs, or ids of runs.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .html, .md, .tex or .csv.")] = Path(
        "report.html"
    ),
    form: Annotated[
        Form | None, typer.Option("--format", help="What to write.", show_default="by the name of the file")
    ] = None,
    runs: RunsFolder = Path("runs"),
    device: DeviceName = None,
    json: AsJson = False,
) -> None:
    """Write what the runs came to: a page with tables, diagrams and images that needs no network, or tables only.

    What is not finished or not measured is named in the report. Nothing is trained or measured.
    """
    from rbue.lab.paper.numbers import paper_value
    from rbue.lab.report.run_records import read_records
    from rbue.lab.report.run_report import report_on

    chosen = form or form_of(output)
    place = device_named(device)
    records = read_records(folders_named(where, runs))
    with working(f"reporting on {len(records)} run{'s' if len(records) != 1 else ''}"):
        made = report_on(
            records, paper_value, pictures=chosen is Form.html, answers=chosen is not Form.csv, device=place
        )
        page = made.page
        others = {Form.md: page.markdown, Form.latex: page.latex, Form.csv: lambda: csv_table(made.runs)}
        write_bytes(output, others.get(chosen, page.html)().encode())
    if json:
        measured = [str(record.folder.path) for record in records if record.results]
        print_json({"report": output, "format": chosen.value, "runs": measured, "missing": made.missing})
        return
    for sentence in made.missing:
        remark(f"missing: {sentence}")
    say(output)


def write_page(records: Sequence[Record], path: Path, device: torch.device, lead: str = "") -> None:
    """The page of some runs, as ``rbue report`` writes it, with other words at its top if there are any."""
    from rbue.lab.paper.numbers import paper_value
    from rbue.lab.report.run_report import report_on

    with working("writing the page"):
        write_bytes(path, report_on(records, paper_value, device=device, lead=lead).page.html().encode())


def form_of(path: Path) -> Form:
    """What a file of this name is written as."""
    if path.suffix not in SUFFIXES:
        raise InvalidInput(
            f"the report cannot be written to {path}; end its name in {', '.join(SUFFIXES)}, or give --format."
        )
    return SUFFIXES[path.suffix]


def folders_named(where: list[str], root: Path) -> list[RunFolder]:
    """The runs that folders, parents of folders and ids name, each once."""
    from rbue.lab.runs.folders import find_runs

    found: dict[Path, RunFolder] = {}
    for text in where:
        path = Path(text).expanduser()
        inside = list(find_runs(path)) if path.is_dir() else [find_run(text, root)]
        if not inside:
            raise InvalidInput(f"there is no run in {text} yet; `rbue train` or `rbue compare` makes one.")
        for run in inside:
            found.setdefault(run.path.resolve(), run)
    return list(found.values())
