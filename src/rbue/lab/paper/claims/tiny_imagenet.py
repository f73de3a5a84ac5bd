"""§4.3 on clean images: Table 3."""

from __future__ import annotations

from rbue.lab.paper.claims.cifar import OURS, better_uncertainty, cells, pairwise
from rbue.lab.paper.claims.judging import Claim, Numbers, Verdict, all_hold, compare
from rbue.lab.paper.experiments import DROPOUT, ENSEMBLE, MODELS

TINY = "tiny-imagenet"
NEAR = {"accuracy": 0.01, "ece": 0.01}
WORSE = {"accuracy": 0.02, "ece": 0.05}


def _similar(numbers: Numbers) -> Verdict:
    checks = []
    for model in ("resnet18", "densenet121"):
        for method in OURS:
            for measure, near in NEAR.items():
                own, other = (numbers.value(TINY, model, one, measure) for one in (method, ENSEMBLE))
                distance = None if own is None or other is None else abs(own - other)
                checks.append(compare(f"distance in {measure} of {method}, {model}", distance, "<=", near, measure))
    return all_hold(checks)


def _better_than_dropout(numbers: Numbers) -> Verdict:
    places = cells([TINY], ("resnet18", "densenet121"))
    return all_hold(pairwise(numbers, places, OURS, DROPOUT, {"accuracy": ">", "ece": "<"}))


def _slightly_worse_on_vgg(numbers: Numbers) -> Verdict:
    checks = list(pairwise(numbers, cells([TINY], ["vgg13"]), OURS, [ENSEMBLE], {"accuracy": "<", "ece": ">"}))
    for method in OURS:
        for measure, limit in WORSE.items():
            own, other = (numbers.value(TINY, "vgg13", one, measure) for one in (method, ENSEMBLE))
            distance = None if own is None or other is None else abs(own - other)
            checks.append(compare(f"distance in {measure} of {method}", distance, "<=", limit, measure))
    return all_hold(checks)


def _vgg_generalises_poorly(numbers: Numbers) -> Verdict:
    own = numbers.value(TINY, "vgg13", "single", "accuracy")
    behind = None if own is None else own + 0.05
    others = ("resnet18", "densenet121")
    return all_hold(
        compare(
            f"{model} and VGG-13 + 5 points", numbers.value(TINY, model, "single", "accuracy"), ">=", behind, "accuracy"
        )
        for model in others
    )


def _time_four_times_smaller(numbers: Numbers) -> Verdict:
    checks = []
    for model in MODELS:
        ensemble = numbers.value(TINY, model, ENSEMBLE, "training_seconds")
        for method in OURS:
            own = numbers.value(TINY, model, method, "training_seconds")
            ratio = None if own is None or ensemble is None else ensemble / own
            checks.append(compare(f"ensemble's training in trainings of {method}, {model}", ratio, ">=", 3.5))
    return all_hold(checks)


def _time_of_a_single(numbers: Numbers) -> Verdict:
    checks = []
    for model in MODELS:
        single = numbers.value(TINY, model, "single", "training_seconds")
        for method in OURS:
            own = numbers.value(TINY, model, method, "training_seconds")
            limit = None if single is None else 1.1 * single
            checks.append(
                compare(f"training of {method} and 1.1 × Single, {model}", own, "<=", limit, "training_seconds")
            )
    return all_hold(checks)


CLAIMS = (
    Claim(
        "tiny-similar-to-ensemble",
        "4.3",
        "the performance of our methods is similar to Deep Ensemble … on both ResNet-18 and DenseNet-121",
        "Each of our rows lies within one percentage point of accuracy and 0.01 of ECE of Deep Ensemble.",
        _similar,
    ),
    Claim(
        "tiny-better-than-dropout",
        "4.3",
        "and significantly better than MC-Dropout in terms of accuracy and ECE",
        "Each of our rows has a higher accuracy and a lower ECE than both rows of MC-Dropout on ResNet-18 and "
        "DenseNet-121; equal is not better. (Significance needs repetitions, which the paper does not report.)",
        _better_than_dropout,
    ),
    Claim(
        "tiny-vgg-slightly-worse",
        "4.3",
        "the performance on VGG-13 model is slightly worse",
        "Each of our rows is worse than Deep Ensemble in both, by at most two percentage points and 0.05 of ECE.",
        _slightly_worse_on_vgg,
    ),
    Claim(
        "tiny-vgg-generalises-poorly",
        "4.3",
        "VGG model has poor generalization ability for large datasets",
        "VGG-13's Single is at least five percentage points less accurate than each other network's.",
        _vgg_generalises_poorly,
    ),
    Claim(
        "tiny-four-times-less-time",
        "4.3",
        "with a training time … four times smaller than that of Deep Ensemble",
        "Deep Ensemble trains at least 3.5 times as long as each of our rows, on each network.",
        _time_four_times_smaller,
    ),
    Claim(
        "tiny-time-of-a-single",
        "4.3",
        "and nearly the same as that of a single model",
        "None of our rows trains more than 10 % longer than Single.",
        _time_of_a_single,
    ),
    Claim(
        "p02-q08-tiny",
        "4.3",
        "the uncertainty quality of MC-DropReLU is better than that of MC-Dropout [p=0.2, q=0.8]",
        "Lower ECE for q=0.8 than for p=0.2 on each network.",
        lambda numbers: better_uncertainty([TINY], numbers),
    ),
)
