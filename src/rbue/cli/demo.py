"""``rbue demo``: the library at work, in a few minutes and without a network."""

from __future__ import annotations

import typer


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog="Example: rbue demo")(demo)


def demo() -> None:
    """Show the library at work on the digits that come with it; needs no data and no network."""
    from rbue import demo as demonstration  # it imports what no other verb needs

    demonstration.main()
