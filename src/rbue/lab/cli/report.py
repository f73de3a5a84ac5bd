"""``rbue report``: what the runs came to, as one page or as tables."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from rbue.errors import InvalidInput
from rbue.files import write_bytes
from rbue.lab.cli.finding import find_run
from rbue.lab.cli.options import DeviceName, RunsFolder, device_named
from rbue.lab.cli.output import AsJson, print_json, remark, say
from rbue.lab.cli.progress import working
from rbue.lab.paper.numbers import paper_value
from rbue.lab.report.run_records import read_records
from rbue.lab.report.run_report import Report, report_on
from rbue.lab.report.tables import csv_table
from rbue.lab.runs.folders import RunFolder, find_runs

EXAMPLE = "Example: rbue report runs -o report.html\n\nExample: rbue report runs/digits/small_cnn -o table.tex"


class Form(str, Enum):
    """What a report can be written as."""

    html = "html"
    md = "md"
    latex = "latex"
    csv = "csv"


SUFFIXES = {".html": Form.html, ".htm": Form.html, ".md": Form.md, ".tex": Form.latex, ".csv": Form.csv}


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog=EXAMPLE)(report)


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
    chosen = form or form_of(output)
    place = device_named(device)
    records = read_records(folders_named(where, runs))
    with working(f"reporting on {len(records)} run{'s' if len(records) != 1 else ''}"):
        made = report_on(records, paper_value, pictures=chosen is Form.html, device=place)
        write_bytes(output, as_text(made, chosen).encode())
    if json:
        measured = [str(record.folder.path) for record in records if record.results]
        print_json({"report": output, "format": chosen.value, "runs": measured, "missing": made.missing})
        return
    for sentence in made.missing:
        remark(f"missing: {sentence}")
    say(str(output))


def form_of(path: Path) -> Form:
    """What a file of this name is written as."""
    if path.suffix not in SUFFIXES:
        raise InvalidInput(
            f"the report cannot be written to {path}; end its name in {', '.join(SUFFIXES)}, or give --format."
        )
    return SUFFIXES[path.suffix]


def as_text(report: Report, form: Form) -> str:
    """The content of the file."""
    if form is Form.csv:
        return csv_table(report.runs)
    return {Form.html: report.page.html, Form.md: report.page.markdown, Form.latex: report.page.latex}[form]()


def folders_named(where: list[str], root: Path) -> list[RunFolder]:
    """The runs that folders, parents of folders and ids name, each once."""
    found: dict[Path, RunFolder] = {}
    for text in where:
        path = Path(text).expanduser()
        inside = list(find_runs(path)) if path.is_dir() else [find_run(text, root)]
        if not inside:
            raise InvalidInput(f"there is no run in {text} yet; `rbue train` or `rbue compare` makes one.")
        for run in inside:
            found.setdefault(run.path.resolve(), run)
    return list(found.values())
