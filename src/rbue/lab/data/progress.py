"""How long work tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable

# What is being done, how much of it is done, and how much there is (None where that is not known).
Progress = Callable[[str, int, "int | None"], None]


def silent(what: str, done: int, total: int | None) -> None:
    """Say nothing."""
