"""What is not in a report, in sentences; what is the same of many runs is one of them."""

from __future__ import annotations

from collections.abc import Sequence

from rbue.lab.report.of_runs.reading import Record


class Gaps:
    """What is missing, gathered while the report is made.

    Attributes:
        without_weights: runs whose samples cannot be drawn again.
    """

    def __init__(self, known: Sequence[str] = ()) -> None:
        self._known = list(known)
        self.without_weights: list[Record] = []

    def of_run(self, record: Record, trouble: str) -> None:
        """Note what is missing of one run, without this machine's folders, which mean nothing to another reader."""
        self._known.append(f"`{record.name}`: {trouble.replace(f'{record.root}/', '')}")

    def sentences(self) -> list[str]:
        """One sentence for each thing that is missing."""
        runs = self.without_weights
        if not runs:
            return self._known
        *first, last = (f"`{record.name}`" for record in runs)
        names, whose = (f"{', '.join(first)} and {last}", "their") if first else (last, "its")
        return [
            *self._known,
            f"the weights of {names} are not kept in {whose} folder{'s' if first else ''}: what was measured is "
            f"reported, but the samples of {whose} most and least certain images cannot be drawn.",
        ]
