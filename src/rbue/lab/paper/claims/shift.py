"""§4.2 and §4.3 under corruptions. The paper shows figures without numbers, so only measured ones can tell.

All medians are over the 19 corruptions on DenseNet-121, the paper's network, or on the one that was asked for. The
paper's six boxes are read as p=0.2 and q=0.9.
"""

from __future__ import annotations

from rbue.lab.paper.claims.judging import Claim, Numbers, Verdict, all_hold, compare
from rbue.lab.paper.experiments import ENSEMBLE, SIX

OURS = ("mc-droprelu:0.9", "mc-rrelu")
OTHERS = ("single", "mc-dropout:0.2", "svi")
NEAR = {"accuracy": 0.01, "ece": 0.01}


def _growing_advantage(data: str, numbers: Numbers) -> Verdict:
    first, last = numbers.severities[0], numbers.severities[-1]
    checks = []
    for ours in OURS:
        gaps = [_gap(numbers, data, severity, "mc-dropout:0.2", ours) for severity in (first, last)]
        checks.append(
            compare(f"ECE of MC-Dropout minus {ours}, {_at(numbers, last)} and {first}", gaps[1], ">", gaps[0])
        )
    return all_hold(checks)


def _gap(numbers: Numbers, data: str, severity: int, other: str, ours: str) -> float | None:
    values = [numbers.shift(data, numbers.shift_model, method, "ece", severity) for method in (other, ours)]
    return None if values[0] is None or values[1] is None else values[0] - values[1]


def _at(numbers: Numbers, severity: int) -> str:
    return f"{numbers.shift_model}, severity {severity}"


def _on_par(data: str, numbers: Numbers) -> Verdict:
    checks = []
    for severity in numbers.severities:
        for ours in OURS:
            for measure, near in NEAR.items():
                own, other = (
                    numbers.shift(data, numbers.shift_model, one, measure, severity) for one in (ours, ENSEMBLE)
                )
                behind = None if own is None or other is None else (own - other) * (1 if measure == "ece" else -1)
                checks.append(
                    compare(f"{ours} behind in median {measure}, {_at(numbers, severity)}", behind, "<=", near, measure)
                )
    return all_hold(checks)


def _outperform(data: str, measures: dict[str, str], others: tuple[str, ...], numbers: Numbers) -> Verdict:
    checks = []
    for severity in numbers.severities:
        for ours in OURS:
            for other in others:
                for measure, sign in measures.items():
                    values = [numbers.shift(data, numbers.shift_model, one, measure, severity) for one in (ours, other)]
                    what = f"median {measure} of {ours} and {other}, {_at(numbers, severity)}"
                    checks.append(compare(what, values[0], sign, values[1], measure))
    return all_hold(checks)


def _ensemble_is_lowest(data: str, numbers: Numbers) -> Verdict:
    checks = []
    for severity in numbers.severities:
        for other in (*OURS, *OTHERS):
            values = [numbers.shift(data, numbers.shift_model, one, "ece", severity) for one in (ENSEMBLE, other)]
            what = f"median ECE of {ENSEMBLE} and {other}, {_at(numbers, severity)}"
            checks.append(compare(what, values[0], "<", values[1]))
    return all_hold(checks)


def _exceeds_ensemble(data: str, numbers: Numbers) -> Verdict:
    checks = []
    for severity in numbers.severities:
        values = [
            numbers.shift(data, numbers.shift_model, one, "ece", severity) for one in ("mc-droprelu:0.9", ENSEMBLE)
        ]
        what = f"median ECE of q=0.9 and {ENSEMBLE}, {_at(numbers, severity)}"
        checks.append(compare(what, values[0], "<", values[1]))
    return all_hold(checks)


def _wider_gaps(numbers: Numbers) -> Verdict:
    checks = []
    for severity in numbers.severities:
        tiny, cifar = (_range(numbers, data, severity) for data in ("tiny-imagenet", "cifar10"))
        what = f"range of median ECE, TinyImageNet and CIFAR-10, {_at(numbers, severity)}"
        checks.append(compare(what, tiny, ">", cifar))
    return all_hold(checks)


def _range(numbers: Numbers, data: str, severity: int) -> float | None:
    values = [numbers.shift(data, numbers.shift_model, method, "ece", severity) for method in SIX]
    found = [value for value in values if value is not None]
    return max(found) - min(found) if len(found) == len(values) else None


CIFAR_CLAIMS = (
    Claim(
        "shift-growing-advantage",
        "4.2",
        "as the severity of the perturbations increases, the advantages of our methods are becoming more obvious",
        "The median ECE of MC-Dropout minus that of each of ours is larger at the highest severity than at the lowest.",
        lambda numbers: _growing_advantage("cifar10", numbers),
    ),
    Claim(
        "shift-on-par",
        "4.2",
        "Our methods perform on par with Deep Ensemble [under corruptions]",
        "At every severity the medians of ours are at most one percentage point of accuracy and 0.01 of ECE worse.",
        lambda numbers: _on_par("cifar10", numbers),
    ),
    Claim(
        "shift-outperform",
        "4.2",
        "and consistently outperform MC-Dropout and SVI",
        "At every severity ours have the higher median accuracy and the lower median ECE.",
        lambda numbers: _outperform("cifar10", {"accuracy": ">", "ece": "<"}, ("mc-dropout:0.2", "svi"), numbers),
    ),
    Claim(
        "shift-ensemble-lowest",
        "4.2",
        "the ECE of Deep Ensemble is the lowest under different noise intensities",
        "At every severity its median ECE is below that of the five other methods.",
        lambda numbers: _ensemble_is_lowest("cifar10", numbers),
    ),
    Claim(
        "shift-others-higher",
        "4.2",
        "Single model, MC-Dropout, and SVI all have higher ECE than our methods",
        "At every severity, by medians; then ours are also the closest to Deep Ensemble, as the sentence before says.",
        lambda numbers: _outperform("cifar10", {"ece": "<"}, OTHERS, numbers),
    ),
)

TINY_CLAIMS = (
    Claim(
        "shift-gap-more-obvious",
        "4.3",
        "On TinyImageNet, the ECE gap between methods is more obvious than on CIFAR10",
        "At every severity the range of the six methods' median ECE is wider on TinyImageNet.",
        _wider_gaps,
        across_data=True,
    ),
    Claim(
        "shift-exceeds-ensemble",
        "4.3",
        "MC-DropReLU(0.9) exceeds Deep Ensemble in ECE at all noise intensities",
        "At every severity its median ECE on TinyImageNet is the lower one.",
        lambda numbers: _exceeds_ensemble("tiny-imagenet", numbers),
    ),
)
