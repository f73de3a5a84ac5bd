"""How a sentence of the paper is judged: by cases, each a comparison of two numbers, the paper's own or measured ones.

A claim says what it compares, and over which data sets, networks and methods:

>>> faster = Cases("{one} on {data}", "{one}", "<=", lambda look: look("deep-ensemble:4") / 2, data="cifar10",
...                model="vgg13", one=("svi", "mc-rrelu"), measure="training_seconds")
>>> print(every(faster)(PaperNumbers()))
true, 2 of 2 cases: in all 2 cases

A number that is missing leaves its case, and perhaps the claim, undecided.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from rbue.lab.paper.experiments import SHIFT_MODEL
from rbue.lab.paper.numbers import paper_value
from rbue.lab.paper.results import Measured
from rbue.lab.training.recipe import recipe_for
from rbue.sampling.adaptive import student_quantile

SHOWN = 3
CASES = "Behind a verdict stands how many of the sentence's cases have numbers, not in how many it holds."
ROUNDING = 1e-9
"""Differences below this come from arithmetic, not from measurements."""

SHORT = 360.0
"""Times below this would be 0.0 hours."""

THE_SAME_IN_EVERY_RUN = ("parameters", "relative_size")


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


class Watched:
    """Measured numbers of the networks asked for, some moved, and what was seen of those that were looked up.

    Attributes:
        fewest_runs: the fewest repetitions behind any.
        shortest: the epochs of the networks that were shortened most, and the paper's; None if none was.
        reach: how far the 95 % interval of each mean over several repetitions reaches to either side (Student's t).
    """

    def __init__(self, measured: Measured, moved: Mapping[tuple[Any, ...], float] | None = None) -> None:
        self.measured, self.moved = measured, moved or {}
        self.severities, self.shift_model = measured.severities, measured.shift_model
        self.fewest_runs: int | None = None
        self.shortest: tuple[int, int] | None = None
        self.reach: dict[tuple[Any, ...], float] = {}

    def value(self, data: str, model: str, method: str, measure: str, table: str | None = None) -> float | None:
        """A clean measurement."""
        asked = self.measured.settings.models
        if asked is not None and model not in asked:
            return None
        if measure not in THE_SAME_IN_EVERY_RUN:
            found = self.measured.summary(data, model, method, measure)
            self._note((data, model, method, measure), () if found is None else found.values)
        return self._moved((data, model, method, measure), self.measured.value(data, model, method, measure, table))

    def shift(self, data: str, model: str, method: str, measure: str, severity: int) -> float | None:
        """A median over corruptions."""
        place = (data, model, method, measure, severity)
        self._note(
            place, self.measured.shift_medians(*place), self.measured.corrupted_runs(data, model, method, severity)
        )
        return self._moved(place, self.measured.shift(*place))

    def _note(self, place: tuple[Any, ...], values: Sequence[float], runs: int | None = None) -> None:
        runs, count = len(values) if runs is None else runs, len(values)
        if runs:
            self.fewest_runs = min(runs, self.fewest_runs or runs)
            self._note_length(*place[:3])
        if count > 1:
            self.reach[place] = student_quantile(count - 1, 0.975) * statistics.stdev(values) / math.sqrt(count)

    def _note_length(self, data: str, model: str, method: str) -> None:
        config = self.measured.configs(data, model, method)[0]
        length = config.recipe.epochs, recipe_for(config.data).epochs
        if length[0] < length[1] and not self.measured.settings.quick:
            self.shortest = min(length, self.shortest or length, key=lambda one: one[0] / one[1])

    def _moved(self, place: tuple[Any, ...], value: float | None) -> float | None:
        return None if value is None else value + self.moved.get(place, 0.0)


Numbers = PaperNumbers | Watched | Measured
"""Where numbers are looked up."""


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
        turns: whether it is another if some mean over repetitions moves to an end of its 95 % interval. Of a single run
            there is no such interval.
        shortest: the epochs of its least trained networks, and the paper's; None if all were trained as long as there.
    """

    holds: bool | None
    why: str = ""
    missing: str = "not measured"
    known: int = 0
    cases: int = 0
    fewest_runs: int | None = None
    turns: bool = False
    shortest: tuple[int, int] | None = None

    @property
    def word(self) -> str:
        """``true``, ``false``, or why there is no verdict."""
        return self.missing if self.holds is None else str(self.holds).lower()

    @property
    def covered_word(self) -> str:
        """The word with the cases that have numbers: ``false, 4 of 24 cases``; without one, with those that lack some.

        >>> print(Verdict(None, known=4, cases=24).covered_word)
        not measured (20 of 24 cases lack numbers)
        >>> print(Verdict(False, known=4, cases=24, shortest=(10, 150)).covered_word)
        false, 4 of 24 cases, 10 of 150 epochs
        """
        if not self.known:
            return self.word
        if self.holds is None:
            return f"{self.word} ({self.cases - self.known} of {self.cases} cases lack numbers)"
        length = f", {self.shortest[0]} of {self.shortest[1]} epochs" if self.shortest else ""
        return f"{self.word}, {self.known} of {self.cases} case{'s' if self.cases != 1 else ''}{length}"

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        words = {"verdict": self.word, "why": self.why}
        counts = {"known": self.known, "cases": self.cases, "fewest_runs": self.fewest_runs}
        return {**words, **counts, "turns": self.turns, "shortest": self.shortest}

    def __str__(self) -> str:
        said = f"{self.covered_word}: {self.why}" if self.why else self.covered_word
        if self.holds is not None and self.fewest_runs == 1:
            return f"{said} (a single run of some method)"
        return f"{said} (turns within the 95 % interval of some mean over runs)" if self.turns else said


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
        return {**words, "paper": self.paper.as_json(), "measured": self.measured.as_json()}


def judge(claim: Claim, measured: Numbers) -> Judged:
    """Both verdicts on one claim."""
    own = (claim.paper_holds or claim.holds)(PaperNumbers())
    return Judged(claim, replace(own, missing="not in its tables"), _here(claim, measured))


def _here(claim: Claim, measured: Numbers) -> Verdict:
    if not isinstance(measured, Measured):
        return claim.holds(measured)
    if claim.across_data and measured.settings.quick:
        return Verdict(None, "a quick run has one data set in place of three")
    watched = Watched(measured)
    found = claim.holds(watched)
    moved = ({place: step} for place, reach in watched.reach.items() for step in (-reach, reach))
    turns = watched.fewest_runs != 1 and found.holds is not None
    turns = turns and any(claim.holds(Watched(measured, one)).holds is not found.holds for one in moved)
    return replace(found, fewest_runs=watched.fewest_runs, turns=turns, shortest=watched.shortest)


def is_shortened(one: Judged) -> bool:
    """Whether there is a verdict here that rests on networks with fewer epochs than the paper's."""
    return one.measured.holds is not None and one.measured.shortest is not None


def caveats(judged: Sequence[Judged]) -> str:
    """Sentences on the verdicts here that rest on few runs, or on shortened trainings; empty if none does."""
    alone = sum(one.measured.holds is not None and one.measured.fewest_runs == 1 for one in judged)
    turning = sum(one.measured.turns for one in judged)
    found = []
    if alone:
        found.append(
            f"{_verdicts(alone, 'rest')} on a single run of some method, even against a mean over several of another: "
            "runs with other seeds differ, and so do reruns of one seed on a GPU, so that a small difference can turn."
        )
    if turning:
        found.append(
            f"{_verdicts(turning, 'turn')} if the mean over the runs of some method lies at an end of its 95 % "
            "interval."
        )
    if shortened := sum(map(is_shortened, judged)):
        found.append(
            f"{_verdicts(shortened, 'rest')} on networks with fewer epochs than the paper's, and may hold for those "
            "only."
        )
    return " ".join(found)


def _verdicts(count: int, do: str) -> str:
    return f"1 verdict here {do}s" if count == 1 else f"{count} verdicts here {do}"


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


def compare(what: str, left: float, sign: str, right: float, measure: str = "") -> Check:
    """One comparison, such as ``compare("vgg13", 0.93, ">", 0.94)``, worded with its numbers; nan is a missing one."""
    if math.isnan(left) or math.isnan(right):
        return Check(what, None)
    holds = {
        ">": left > right + ROUNDING,
        "<": left < right - ROUNDING,
        ">=": left >= right - ROUNDING,
        "<=": left <= right + ROUNDING,
        "=": abs(left - right) <= ROUNDING,
    }[sign]
    return Check(f"{what}: {_shown(measure, left)} against {_shown(measure, right)}", holds)


def _shown(measure: str, value: float) -> str:
    if measure == "accuracy":
        return f"{100 * value:.2f} %"
    if measure == "training_seconds":
        return f"{value / 3600:.2f} h" if value >= SHORT else f"{value:.1f} s"
    return f"{value:.4g}"


# What a claim compares, and over what.

Operand = str | float | Mapping[str, float] | Callable[["Look"], float]
"""A method, a number, one number a measure, or what is computed from what is looked up; nan if a number is missing."""

Axis = str | Iterable[Any] | Callable[[Numbers], Any]
"""What a name of a case goes through: one text, several values, or what numbers give."""


@dataclass(frozen=True)
class Look:
    """Looks numbers up for one case: names such as ``data``, ``model``, ``measure`` and ``one`` with their values."""

    numbers: Numbers
    case: Mapping[str, Any]

    def __call__(self, method: str, **place: str) -> float:
        """The number of a method, which braces may take from the case; with a severity, a median over corruptions.

        ``place`` replaces a name of the case by a value, or by what the case has under another name.
        """
        case = {**self.case, **{name: self.case.get(value, value) for name, value in place.items()}}
        where = (case["data"], case["model"], method.format(**case), case["measure"])
        if "severity" in case:
            found = self.numbers.shift(*where, case["severity"])
        else:
            found = self.numbers.value(*where, case.get("table"))
        return math.nan if found is None else found

    def best(self, methods: Sequence[str]) -> float:
        """The greatest accuracy of some methods, the least of anything else."""
        values = [self(method) for method in methods]
        return float(np.max(values) if self.case["measure"] == "accuracy" else np.min(values))

    def width(self, methods: Sequence[str], **place: str) -> float:
        """How far the numbers of some methods lie apart."""
        return float(np.ptp([self(method, **place) for method in methods]))

    def behind(self, one: str, other: str) -> float:
        """How much worse one method is than another: less accurate, or more of anything else."""
        return (self(one) - self(other)) * (-1 if self.case["measure"] == "accuracy" else 1)

    def number(self, operand: Operand) -> float:
        """The value of an operand."""
        if isinstance(operand, str):
            return self(operand)
        if isinstance(operand, Mapping):
            return operand[self.case["measure"]]
        return operand(self) if callable(operand) else operand


class Cases:
    """Comparisons over all combinations of some values.

    Args:
        what: The words for one case, with its names in braces.
        left: What is compared.
        sign: How; or one sign a measure.
        right: With what.
        axes: The names of a case with their values; the last changes fastest. Signs or limits that are given by measure
            add their measures at the end.
    """

    def __init__(self, what: str, left: Operand, sign: str | Mapping[str, str], right: Operand, **axes: Axis) -> None:
        self.what, self.left, self.sign, self.right, self.axes = what, left, sign, right, axes
        for by_measure in (sign, right):
            if isinstance(by_measure, Mapping):
                self.axes["measure"] = tuple(by_measure)

    def checks(self, numbers: Numbers, outer: Mapping[str, Any]) -> Iterator[Check]:
        """Each comparison, within a case of the claim."""
        for inner in _combinations(self.axes, numbers):
            case = {**outer, **inner}
            look, measure = Look(numbers, case), case.get("measure", "")
            sign = self.sign if isinstance(self.sign, str) else self.sign[measure]
            yield compare(self.what.format(**case), look.number(self.left), sign, look.number(self.right), measure)


def _combinations(axes: Mapping[str, Axis], numbers: Numbers) -> Iterator[dict[str, Any]]:
    values = (axis(numbers) if callable(axis) else axis for axis in axes.values())
    lists = [[one] if isinstance(one, str) else list(one) for one in values]
    return (dict(zip(axes, combination, strict=True)) for combination in product(*lists))


def every(*groups: Cases, **outer: Axis) -> Predicate:
    """A claim that holds if all of its cases do: each group in turn, for each combination of ``outer``."""
    return lambda numbers: all_hold(
        check for case in _combinations(outer, numbers) for group in groups for check in group.checks(numbers, case)
    )


def some(methods: Sequence[str], group: Cases) -> Predicate:
    """A claim that holds if all cases do for one of the methods, which the group calls ``one``."""

    def holds(numbers: Numbers) -> Verdict:
        verdicts = {method: all_hold(group.checks(numbers, {"one": method})) for method in methods}
        counts = {name: sum(getattr(one, name) for one in verdicts.values()) for name in ("known", "cases")}
        for method, verdict in verdicts.items():
            if verdict.holds:
                return Verdict(True, f"{method} does", **counts)
        if any(verdict.holds is None for verdict in verdicts.values()):
            return Verdict(None, "numbers are missing", **counts)
        return Verdict(False, f"no q does; {methods[-1]}: {verdicts[methods[-1]].why}", **counts)

    return holds
