"""§4.5: the position of DropReLU (Table 6) and its rate (the figure of the plane)."""

from __future__ import annotations

from collections.abc import Sequence

from rbue.lab.paper.claims.judging import ROUNDING, Check, Claim, Numbers, Verdict, all_hold, best, compare
from rbue.lab.paper.experiments import DROPOUT, DROPRELU, ENSEMBLE, MODELS, POSITIONS
from rbue.lab.paper.numbers import POSITION_TABLE, TABLES

PLACE = ("tiny-imagenet", "densenet121")
PLANE = ("cifar10", "resnet18")
NEAR = {"accuracy": 0.01, "ece": 0.01}


def _better_than_rrelu(numbers: Numbers) -> Verdict:
    checks = []
    for data in TABLES.values():
        for model in MODELS:
            for measure, sign in (("accuracy", ">"), ("ece", "<=")):
                own = best(numbers, data, model, DROPRELU, measure)
                other = numbers.value(data, model, "mc-rrelu", measure)
                checks.append(
                    compare(f"best {measure} over q and MC-RReLU, {model} on {data}", own, sign, other, measure)
                )
    return all_hold(checks)


def _all_against_one(measure: str, sign: str, numbers: Numbers) -> Verdict:
    everywhere, *single = (numbers.value(*PLACE, method, measure, POSITION_TABLE) for method in POSITIONS)
    return all_hold(
        compare(f"{measure} with all and with only the {name}", everywhere, sign, other, measure)
        for name, other in zip(("last", "first"), single, strict=True)
    )


def _extra_time(numbers: Numbers, data: str, model: str) -> float | None:
    own, single = (numbers.value(data, model, method, "training_seconds") for method in ("mc-droprelu:0.9", "single"))
    return None if own is None or single is None else own - single


def _extra_time_grows(numbers: Numbers) -> Verdict:
    checks = []
    for model in MODELS:
        extra = [_extra_time(numbers, data, model) for data in ("tiny-imagenet", "cifar10")]
        checks.append(
            compare(f"extra time of {model}, TinyImageNet and CIFAR-10", extra[0], ">", extra[1], "training_seconds")
        )
    for data in TABLES.values():
        extra = [_extra_time(numbers, data, model) for model in ("densenet121", "vgg13")]
        checks.append(
            compare(f"extra time on {data}, DenseNet-121 and VGG-13", extra[0], ">", extra[1], "training_seconds")
        )
    return all_hold(checks)


def _some_rate(numbers: Numbers, holds: Sequence[Sequence[Check]]) -> Verdict:
    """True if all checks of one rate hold."""
    verdicts = [all_hold(checks) for checks in holds]
    known, cases = sum(one.known for one in verdicts), sum(one.cases for one in verdicts)
    for rate, verdict in zip(DROPRELU, verdicts, strict=True):
        if verdict.holds:
            return Verdict(True, f"{rate} does", known=known, cases=cases)
    if any(verdict.holds is None for verdict in verdicts):
        return Verdict(None, "numbers are missing", known=known, cases=cases)
    return Verdict(False, f"no q does; {DROPRELU[-1]}: {verdicts[-1].why}", known=known, cases=cases)


def _better_than_dropout(numbers: Numbers) -> Verdict:
    return _some_rate(
        numbers,
        [
            [
                compare(
                    f"{measure} against {other}",
                    numbers.value(*PLANE, rate, measure),
                    sign,
                    numbers.value(*PLANE, other, measure),
                    measure,
                )
                for other in DROPOUT
                for measure, sign in (("accuracy", ">"), ("ece", "<"))
            ]
            for rate in DROPRELU
        ],
    )


def _close_to_ensemble(numbers: Numbers) -> Verdict:
    holds = []
    for rate in DROPRELU:
        checks = []
        for measure, near in NEAR.items():
            own, other = (numbers.value(*PLANE, method, measure) for method in (rate, ENSEMBLE))
            distance = None if own is None or other is None else abs(own - other)
            checks.append(compare(f"distance in {measure}", distance, "<=", near, measure))
        holds.append(checks)
    return _some_rate(numbers, holds)


def _best_is_not_best_calibrated(numbers: Numbers) -> Verdict:
    found = [(numbers.value(*PLANE, rate, "accuracy"), numbers.value(*PLANE, rate, "ece")) for rate in DROPRELU]
    known = [(accuracy, ece) for accuracy, ece in found if accuracy is not None and ece is not None]
    if len(known) < len(found):
        return Verdict(None, "numbers are missing", cases=1)
    highest = max(accuracy for accuracy, _ in known)
    own = min(ece for accuracy, ece in known if accuracy >= highest - ROUNDING)
    return all_hold(
        [compare("ECE of the most accurate q and the smallest ECE", own, ">", min(ece for _, ece in known))]
    )


CLAIMS = (
    Claim(
        "droprelu-better-than-rrelu",
        "4.5",
        "the performance of MC-DropReLU is better than that of MC-RReLU",
        "On each data set and network the best accuracy over q is higher, and the best ECE not higher than MC-RReLU's.",
        _better_than_rrelu,
    ),
    Claim(
        "more-layers-diversity",
        "4.5",
        "the more DropReLU layers, the greater the diversity of the final results",
        "Mean-JSD is larger with DropReLU everywhere than with the last or first one only. Table 6 has no diversity.",
        lambda numbers: _all_against_one("mean_jsd", ">", numbers),
    ),
    Claim(
        "more-layers-ece",
        "4.5",
        "and the better the model calibration metric ECE",
        "ECE is smaller with DropReLU everywhere than with the last or the first one only.",
        lambda numbers: _all_against_one("ece", "<", numbers),
    ),
    Claim(
        "more-layers-time",
        "4.5",
        "the more DropReLU layers … will lead to the increase of training time",
        "Training takes longer with DropReLU everywhere than with the last or the first one only.",
        lambda numbers: _all_against_one("training_seconds", ">", numbers),
    ),
    Claim(
        "extra-time-grows",
        "4.5",
        "this part of the increased training time will increase with the model and dataset size",
        "The time of q=0.9 beyond Single's is longer on TinyImageNet than on CIFAR-10 for each network, and longer for "
        "DenseNet-121 than for VGG-13 on each set (the deeper network; VGG-13 has more weights).",
        _extra_time_grows,
        across_data=True,
    ),
    Claim(
        "plane-better-than-dropout",
        "4.5",
        "the optimal MC-DropReLU configuration … can provide better performance than MC-Dropout",
        "Some q of the tables has a higher accuracy and a lower ECE than both MC-Dropout rows (ResNet-18, CIFAR-10).",
        _better_than_dropout,
    ),
    Claim(
        "plane-close-to-ensemble",
        "4.5",
        "and performance close to Deep Ensemble",
        "Some q of the tables lies within one percentage point of accuracy and 0.01 of ECE (ResNet-18, CIFAR-10).",
        _close_to_ensemble,
    ),
    Claim(
        "plane-ece-not-smallest",
        "4.5",
        "the ECE of the configuration depicted by the yellow star is not the smallest",
        "No q with the highest accuracy is one with the smallest ECE. (The figure's numbers are not given; the tables "
        "round ECE to two digits.)",
        _best_is_not_best_calibrated,
        paper_holds=lambda _: Verdict(None, "at two printed digits the most accurate q ties with the smallest ECE"),
    ),
)
