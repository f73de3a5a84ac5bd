"""§4.2: model size and training time in Tables 1 and 2."""

from __future__ import annotations

from rbue.lab.paper.claims.cifar import OURS, cells, half_of_ensemble, pairwise
from rbue.lab.paper.claims.judging import Claim, Numbers, Verdict, all_hold, compare
from rbue.lab.paper.experiments import DROPOUT

SLIGHTLY = 1.1


def _no_more_parameters(numbers: Numbers) -> Verdict:
    return all_hold(pairwise(numbers, cells(), OURS, ("single", *DROPOUT), {"parameters": "="}))


def _slower(numbers: Numbers) -> Verdict:
    return all_hold(pairwise(numbers, cells(), OURS, DROPOUT, {"training_seconds": ">="}))


def _slightly_slower(numbers: Numbers) -> Verdict:
    checks = []
    for data, model in cells():
        for method in OURS:
            for dropout in DROPOUT:
                own, other = (numbers.value(data, model, one, "training_seconds") for one in (method, dropout))
                limit = None if other is None else SLIGHTLY * other
                what = f"training of {method} and 1.1 × {dropout}, {model} on {data}"
                checks.append(compare(what, own, "<=", limit, "training_seconds"))
    return all_hold(checks)


def _much_faster_than_ensemble(numbers: Numbers) -> Verdict:
    checks = []
    for data, model in cells():
        for method in OURS:
            own, half = numbers.value(data, model, method, "training_seconds"), half_of_ensemble(numbers, data, model)
            checks.append(
                compare(
                    f"training of {method} and half an ensemble, {model} on {data}", own, "<=", half, "training_seconds"
                )
            )
    return all_hold(checks)


def _sampling_is_slower(numbers: Numbers) -> Verdict:
    place = ("tiny-imagenet", "densenet121")
    own = numbers.value(*place, "mc-droprelu:0.8,last", "training_seconds")
    return all_hold(
        compare(
            f"training with one DropReLU and with {method}",
            own,
            ">",
            numbers.value(*place, method, "training_seconds"),
            "training_seconds",
        )
        for method in DROPOUT
    )


CLAIMS = (
    Claim(
        "no-more-parameters",
        "4.2",
        "Our method does not add additional parameters compared to a single model and MC-Dropout",
        "Equally many trained numbers.",
        _no_more_parameters,
    ),
    Claim(
        "slower-than-dropout",
        "4.2",
        "in terms of training time, our methods are … slower than MC-Dropout",
        "None of our rows trains faster than MC-Dropout on a CIFAR set; equal at the printed precision passes.",
        _slower,
    ),
    Claim(
        "slightly-slower-than-dropout",
        "4.2",
        "our methods are slightly slower than MC-Dropout",
        "None of our rows takes more than 10 % longer than MC-Dropout on a CIFAR set.",
        _slightly_slower,
    ),
    Claim(
        "sampling-is-slower",
        "4.2",
        "the sampling on the random ReLU is slower than the sampling on dropout",
        "With one random place each, before the classifier, DropReLU trains longer than MC-Dropout (DenseNet-121 on "
        "TinyImageNet; the paper: Table 6 against Table 3).",
        _sampling_is_slower,
    ),
    Claim(
        "faster-than-ensemble",
        "4.2",
        "the overall time is still much faster than Deep Ensemble",
        "Each of our rows trains in at most half of Deep Ensemble's time on each CIFAR set and network.",
        _much_faster_than_ensemble,
    ),
)
