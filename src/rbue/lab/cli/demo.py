"""``rbue demo``: all methods on the digits that come with the library, and what random ReLUs do to a network."""

from __future__ import annotations

from pathlib import Path

import typer

from rbue.lab.cli import compare
from rbue.lab.cli.options import RunsFolder, Selection
from rbue.lab.cli.output import say


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog="Example: rbue demo")(demo)


def demo(runs: RunsFolder = Path("runs/demo")) -> None:
    """Show the library at work on the digits that come with it; needs no data and no network.

    First what random ReLUs do to a network that was trained without them, then all six methods, trained and measured
    alike. The last line is where the runs and the table were written.
    """
    from rbue.lab import demo as demonstration  # it imports what no other verb needs

    demonstration.main()
    say("")
    compare.compare(Selection(runs=runs), output=runs / "comparison.md")
