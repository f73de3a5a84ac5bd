"""What a claim is, and how it is judged: a small predicate over numbers, the paper's own or measured ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from rbue.lab.paper.experiments import SHIFT_MODEL
from rbue.lab.paper.numbers import paper_value

SHOWN = 3
CASES = "Behind a verdict stands how many of the sentence's cases have numbers, not in how many it holds."
ROUNDING = 1e-9
"""Differences below this come from arithmetic, not from measurements."""

SHORT = 360.0
"""Times below this would be 0.0 hours."""


class Numbers(Protocol):
    """Where a predicate looks numbers up."""

    def value(self, data: str, model: str, method: str, measure: str, table: str | None = None) -> float | None:
        """A clean measurement."""

    def shift(self, data: str, model: str, method: str, measure: str, severity: int) -> float | None:
        """A median over corruptions."""

    @property
    def severities(self) -> tuple[int, ...]:
        """The severities that there are."""

    @property
    def shift_model(self) -> str:
        """The network that was measured under corruptions."""


class PaperNumbers:
    """The paper's tables; its figures under corruptions give no numbers."""

    severities = (1, 2, 3, 4, 5)
    shift_model = SHIFT_MODEL

    def value(self, data: str, model: str, method: str, measure: str, table: str | None = None) -> float | None:
        """What a table prints."""
        return paper_value(data, model, method, measure, table)

    def shift(self, data: str, model: str, method: str, measure: str, severity: int) -> float | None:
        """Nothing."""
        return None


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds; None where the numbers to tell are missing.

    Attributes:
        holds: the verdict.
        why: what decides it.
        missing: the word for None, such as ``not measured``.
        known: how many of its cases have numbers.
        cases: how many it has; 0 if it is not decided by cases.
        fewest_runs: the fewest repetitions behind any of its numbers; None if they come from no runs.
    """

    holds: bool | None
    why: str = ""
    missing: str = "not measured"
    known: int = 0
    cases: int = 0
    fewest_runs: int | None = None

    @property
    def word(self) -> str:
        """``true``, ``false``, or why there is no verdict."""
        return self.missing if self.holds is None else str(self.holds).lower()

    @property
    def covered_word(self) -> str:
        """The word with the cases that have numbers: ``false, 4 of 24 cases``; without one, with those that lack some.

        >>> print(Verdict(None, known=4, cases=24).covered_word)
        not measured (20 of 24 cases lack numbers)
        """
        if not self.known:
            return self.word
        if self.holds is None:
            return f"{self.word} ({self.cases - self.known} of {self.cases} cases lack numbers)"
        return f"{self.word}, {self.known} of {self.cases} case{'s' if self.cases != 1 else ''}"

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        words = {"verdict": self.word, "why": self.why}
        return {**words, "known": self.known, "cases": self.cases, "fewest_runs": self.fewest_runs}

    def __str__(self) -> str:
        return f"{self.covered_word}: {self.why}" if self.why else self.covered_word


Predicate = Callable[[Numbers], Verdict]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that can be true or false.

    Attributes:
        id: a short name.
        section: where it stands.
        quote: its words, or the part of them that matters.
        reading: what exactly is checked.
        holds: the check.
        across_data: whether it compares data sets, which a quick run does not have.
        paper_holds: the check for the paper's own numbers where it differs.
    """

    id: str
    section: str
    quote: str
    reading: str
    holds: Predicate
    across_data: bool = False
    paper_holds: Predicate | None = None


@dataclass(frozen=True)
class Judged:
    """A claim with both verdicts."""

    claim: Claim
    paper: Verdict
    measured: Verdict

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        claim = self.claim
        words = {"id": claim.id, "section": claim.section, "quote": claim.quote, "reading": claim.reading}
        sides = {"paper": self.paper, "measured": self.measured}
        return {**words, **{side: one.as_json() for side, one in sides.items()}}


@dataclass(frozen=True)
class Check:
    """One case of a claim: what it is, and whether it holds; None if a number is missing."""

    what: str
    holds: bool | None


def all_hold(checks: Iterable[Check]) -> Verdict:
    """True if every case holds, false with examples as soon as one does not, undecided if only numbers are missing."""
    seen = list(checks)
    wrong = [check.what for check in seen if check.holds is False]
    absent = sum(check.holds is None for check in seen)
    known = len(seen) - absent
    holds: bool | None
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        holds, why = False, f"not in {len(wrong)} of {known} cases: {'; '.join(wrong[:SHOWN])}{more}"
    elif absent:
        holds, why = None, f"{absent} of {len(seen)} cases lack a number"
    else:
        holds, why = True, f"in all {known} cases" + (f": {seen[0].what}" if known == 1 else "")
    return Verdict(holds, why, known=known, cases=len(seen))


def compare(what: str, left: float | None, sign: str, right: float | None, measure: str = "") -> Check:
    """One comparison, such as ``compare("vgg13", 0.93, ">", 0.94)``, worded with its numbers."""
    if left is None or right is None:
        return Check(what, None)
    holds = {
        ">": left > right + ROUNDING,
        "<": left < right - ROUNDING,
        ">=": left >= right - ROUNDING,
        "<=": left <= right + ROUNDING,
        "=": abs(left - right) <= ROUNDING,
    }[sign]
    return Check(f"{what}: {shown(measure, left)} against {shown(measure, right)}", holds)


def shown(measure: str, value: float) -> str:
    """A number in a sentence."""
    if measure == "accuracy":
        return f"{100 * value:.2f} %"
    if measure == "training_seconds":
        return f"{value / 3600:.2f} h" if value >= SHORT else f"{value:.1f} s"
    return f"{value:.4g}"


def best(numbers: Numbers, data: str, model: str, methods: Iterable[str], measure: str) -> float | None:
    """The best value of several methods: the greatest accuracy or diversity, the least of anything else."""
    values = [numbers.value(data, model, method, measure) for method in methods]
    found = [value for value in values if value is not None]
    if len(found) < len(values):
        return None
    return max(found) if measure == "accuracy" or measure.endswith(("jsd", "dis")) else min(found)
