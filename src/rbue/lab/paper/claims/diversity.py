"""§4.4: Tables 4 and 5. The data set is not stated there; CIFAR-10 is assumed."""

from __future__ import annotations

from collections.abc import Sequence

from rbue.lab.paper.claims.judging import Check, Claim, Numbers, Verdict, all_hold, compare
from rbue.lab.paper.experiments import DIVERSE, DROPOUT, ENSEMBLE

OURS = ("mc-droprelu:0.8", "mc-droprelu:0.95", "mc-rrelu")
Q08 = "mc-droprelu:0.8"
JSD, DIS = ("mean_jsd", "max_jsd"), ("mean_dis", "max_dis")
SHARE = 0.8


def _value(numbers: Numbers, method: str, measure: str) -> float | None:
    return numbers.value("cifar10", "resnet18", method, measure)


def _more(numbers: Numbers, left: Sequence[str], right: Sequence[str], measures: Sequence[str]) -> list[Check]:
    return [
        compare(f"{measure} of {one} and {other}", _value(numbers, one, measure), ">", _value(numbers, other, measure))
        for measure in measures
        for one in left
        for other in right
    ]


def _order(first: str, second: str, measures: Sequence[str], numbers: Numbers) -> Verdict:
    rest = [method for method in DIVERSE if method not in (first, second)]
    return all_hold([*_more(numbers, [first], [second, *rest], measures), *_more(numbers, [second], rest, measures)])


def _jsd_of_q08(numbers: Numbers) -> Verdict:
    return all_hold([*_more(numbers, [Q08], DROPOUT, JSD), *_more(numbers, [ENSEMBLE], [Q08], JSD)])


def _dis_of_q08(numbers: Numbers) -> Verdict:
    return all_hold(_more(numbers, [Q08], [*DROPOUT, ENSEMBLE], DIS))


def _all_ours(numbers: Numbers) -> Verdict:
    return all_hold(_more(numbers, OURS, DROPOUT, (*JSD, *DIS)))


def _competitive(numbers: Numbers) -> Verdict:
    checks = []
    for measure in (*JSD, *DIS):
        ensemble = _value(numbers, ENSEMBLE, measure)
        limit = None if ensemble is None else SHARE * ensemble
        checks.append(compare(f"{measure} of q=0.8 and 0.8 × {ENSEMBLE}", _value(numbers, Q08, measure), ">=", limit))
    return all_hold(checks)


def _diversity_helps(numbers: Numbers) -> Verdict:
    pairs = [(_value(numbers, method, "mean_jsd"), _value(numbers, method, "ece")) for method in DIVERSE]
    known = [(jsd, ece) for jsd, ece in pairs if jsd is not None and ece is not None]
    if len(known) < len(pairs):
        return Verdict(None, f"{len(pairs) - len(known)} of {len(pairs)} methods lack a number", cases=1)
    # Kendall's count of pairs: ties in either number say nothing.
    agree = sum(
        ((one[0] > two[0]) - (one[0] < two[0])) * ((one[1] > two[1]) - (one[1] < two[1]))
        for place, one in enumerate(known)
        for two in known[place + 1 :]
    )
    return Verdict(agree < 0, f"pairs ordered alike minus pairs ordered oppositely: {agree} of 21", known=1, cases=1)


CLAIMS = (
    Claim(
        "diversity-helps",
        "4.4",
        "Better diversity … leads to a higher quality of the uncertainty estimates",
        "Over the seven rows a larger Mean-JSD goes with a smaller ECE more often than not (ResNet-18 on CIFAR-10).",
        _diversity_helps,
    ),
    Claim(
        "jsd-order",
        "4.4.1",
        "the diversity of Deep Ensemble is the best …, followed by MC-DropReLU(q=0.8)",
        "In Mean-JSD and Max-JSD among the seven rows.",
        lambda numbers: _order(ENSEMBLE, Q08, JSD, numbers),
    ),
    Claim(
        "jsd-between",
        "4.4.1",
        "better than MC-Dropout and slightly worse than Deep Ensemble in terms of the distance metric",
        "MC-DropReLU(0.8), of which the sentence before speaks, lies between them in Mean-JSD and Max-JSD.",
        _jsd_of_q08,
    ),
    Claim(
        "ours-more-diverse",
        "4.4",
        "the models obtained by our proposed sampling method are better than MC-Dropout [in diversity]",
        "Read for all of our rows: q=0.8, q=0.95 and MC-RReLU exceed both rows of MC-Dropout in all four measures.",
        _all_ours,
    ),
    Claim(
        "dis-order",
        "4.4.2",
        "the diversity of MC-DropReLU (q=0.8) is the best … followed by Deep Ensemble",
        "In Mean-DIS and Max-DIS among the seven rows.",
        lambda numbers: _order(Q08, ENSEMBLE, DIS, numbers),
    ),
    Claim(
        "dis-above",
        "4.4.2",
        "significantly better than MC-Dropout and slightly better than Deep Ensemble in … disagreement",
        "MC-DropReLU(0.8) exceeds both in Mean-DIS and Max-DIS.",
        _dis_of_q08,
    ),
    Claim(
        "diversity-competitive",
        "4.4.2",
        "our method is competitive with Deep Ensemble in terms of diversity",
        "MC-DropReLU(0.8) reaches at least 80 % of Deep Ensemble in each of the four measures.",
        _competitive,
    ),
)
