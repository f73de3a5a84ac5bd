"""On which runs a verdict rests, and on how many."""

from __future__ import annotations

from collections.abc import Iterable

from rbue.lab.paper.claims.judging import Judged
from rbue.lab.paper.results import Measured

THE_SAME_IN_EVERY_RUN = ("parameters", "relative_size")


class Watched:
    """Measured numbers of the networks asked for, and the fewest repetitions behind any that was looked up."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.fewest_runs: int | None = None

    def value(self, data: str, model: str, method: str, measure: str, table: str | None = None) -> float | None:
        """A clean measurement."""
        asked = self.measured.settings.models
        if asked is not None and model not in asked:
            return None
        if measure not in THE_SAME_IN_EVERY_RUN:
            found = self.measured.summary(data, model, method, measure)
            self._note(0 if found is None else len(found.values))
        return self.measured.value(data, model, method, measure, table)

    def shift(self, data: str, model: str, method: str, measure: str, severity: int) -> float | None:
        """A median over corruptions."""
        self._note(self.measured.corrupted_runs(data, model, method, severity))
        return self.measured.shift(data, model, method, measure, severity)

    @property
    def severities(self) -> tuple[int, ...]:
        """The severities that there are."""
        return self.measured.severities

    @property
    def shift_model(self) -> str:
        """The network that was measured under corruptions."""
        return self.measured.shift_model

    def _note(self, runs: int) -> None:
        if runs:
            self.fewest_runs = min(runs, self.fewest_runs or runs)


def single_runs_note(judged: Iterable[Judged]) -> str:
    """A sentence on the verdicts here that rest on one run a case; empty if none does."""
    count = sum(one.measured.holds is not None and one.measured.fewest_runs == 1 for one in judged)
    if not count:
        return ""
    verdicts = "1 verdict here rests" if count == 1 else f"{count} verdicts here rest"
    return (
        f"{verdicts} on one run a case, or on some such cases: runs with other seeds differ, and so do reruns of one "
        "seed on a GPU, so that a small difference can turn."
    )
