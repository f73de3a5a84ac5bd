"""A progress bar over samples of images."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class SampleProgress:
    """Counts drawn samples on standard error; plain silence where that is not a terminal."""

    def __init__(self, samples: int, images: int | None) -> None:
        columns = (
            TextColumn("sampling"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("sampling", total=None if images is None else samples * images)

    def advance(self, drawn: int) -> None:
        """Note samples drawn, or found not to be needed."""
        self._progress.advance(self._task, drawn)

    def __enter__(self) -> SampleProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
