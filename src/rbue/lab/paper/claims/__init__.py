"""The sentences of §3.4 and §4 that can be true or false, against the paper's own numbers and against measured ones.

Left out are definitions, citations of other papers' results and sentences about intentions. How a sentence is read is
part of each claim: words such as "similar" need a number to be checked, and the number is stated.
"""

from __future__ import annotations

from dataclasses import replace

from rbue.lab.paper.claims import cifar, costs, diversity, position, preparation, shift, theory, tiny_imagenet
from rbue.lab.paper.claims.judging import CASES, Check, Claim, Judged, Numbers, PaperNumbers, Verdict
from rbue.lab.paper.claims.repetitions import Watched, single_runs_note
from rbue.lab.paper.results import Measured

CLAIMS: tuple[Claim, ...] = (
    *theory.CLAIMS,
    *preparation.CLAIMS,
    *cifar.CLAIMS,
    *costs.CLAIMS,
    *shift.CIFAR_CLAIMS,
    *tiny_imagenet.CLAIMS,
    *shift.TINY_CLAIMS,
    *diversity.CLAIMS,
    *position.CLAIMS,
)


def judge(claim: Claim, measured: Numbers, paper: Numbers | None = None) -> Judged:
    """Both verdicts on one claim."""
    own = (claim.paper_holds or claim.holds)(paper or PaperNumbers())
    return Judged(claim, replace(own, missing="not in its tables"), _here(claim, measured))


def _here(claim: Claim, measured: Numbers) -> Verdict:
    if not isinstance(measured, Measured):
        return claim.holds(measured)
    if claim.across_data and measured.settings.quick:
        return Verdict(None, "a quick run has one data set in place of three")
    watched = Watched(measured)
    found = claim.holds(watched)
    return replace(found, fewest_runs=watched.fewest_runs)


def judge_all(measured: Numbers, paper: Numbers | None = None) -> list[Judged]:
    """Both verdicts on every claim."""
    return [judge(claim, measured, paper) for claim in CLAIMS]


__all__ = [
    "CASES",
    "CLAIMS",
    "Check",
    "Claim",
    "Judged",
    "Numbers",
    "PaperNumbers",
    "Verdict",
    "judge",
    "judge_all",
    "single_runs_note",
]
