"""Help texts whose paragraphs fill the terminal, however wide it is."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class Flowing(TyperGroup):
    """A group of verbs; typer keeps the line breaks of a docstring but in its first paragraph, here none is kept."""

    def get_command(self, ctx: Any, name: str) -> Any:
        """The verb, with each paragraph of its help in one line."""
        verb = super().get_command(ctx, name)
        if verb is not None and verb.help:
            verb.help = "\n\n".join(" ".join(part.split()) for part in verb.help.split("\n\n"))
        return verb
