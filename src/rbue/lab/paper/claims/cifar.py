"""§4.2 on clean images: accuracy and ECE in Tables 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rbue.lab.paper.claims.judging import ROUNDING, Check, Claim, Numbers, Verdict, all_hold, best, compare
from rbue.lab.paper.experiments import DROPOUT, DROPRELU, ENSEMBLE, METHODS, MODELS

OURS = ("mc-rrelu", *DROPRELU)
SETS = ("cifar10", "cifar100")
BETTER = {"accuracy": ">", "ece": "<", "training_seconds": "<"}
NEAR_ECE = 0.01


def cells(sets: Sequence[str] = SETS, models: Sequence[str] = MODELS) -> Iterator[tuple[str, str]]:
    """Every data set with every network."""
    return ((data, model) for data in sets for model in models)


def pairwise(
    numbers: Numbers,
    places: Iterator[tuple[str, str]],
    left: Sequence[str],
    right: Sequence[str],
    signs: dict[str, str],
) -> Iterator[Check]:
    """Compare every method of ``left`` with every one of ``right`` in each measure of ``signs``."""
    for data, model in places:
        for one in left:
            for other in right:
                for measure, sign in signs.items():
                    values = [numbers.value(data, model, method, measure) for method in (one, other)]
                    yield compare(
                        f"{measure} of {one} and {other}, {model} on {data}", values[0], sign, values[1], measure
                    )


def _on_par_and_cheaper(numbers: Numbers) -> Verdict:
    checks = []
    for data, model in cells():
        ours, ensemble = best(numbers, data, model, OURS, "ece"), numbers.value(data, model, ENSEMBLE, "ece")
        near = None if ensemble is None else ensemble + NEAR_ECE
        checks.append(compare(f"best ECE of ours, {model} on {data}", ours, "<=", near))
        for method in OURS:
            time = numbers.value(data, model, method, "training_seconds")
            checks.append(
                compare(
                    f"training of {method}, {model} on {data}",
                    time,
                    "<=",
                    half_of_ensemble(numbers, data, model),
                    "training_seconds",
                )
            )
    return all_hold(checks)


def half_of_ensemble(numbers: Numbers, data: str, model: str) -> float | None:
    """Half of Deep Ensemble's training time."""
    whole = numbers.value(data, model, ENSEMBLE, "training_seconds")
    return None if whole is None else whole / 2


def _closest_to_ensemble(numbers: Numbers) -> Verdict:
    others = [method for method in METHODS if method not in (*OURS, ENSEMBLE)]
    checks = []
    for data, model in cells():
        for measure, sign in (("accuracy", ">="), ("ece", "<=")):
            ours, rest = (best(numbers, data, model, methods, measure) for methods in (OURS, others))
            checks.append(
                compare(f"best {measure} of ours and of the others, {model} on {data}", ours, sign, rest, measure)
            )
    return all_hold(checks)


def _outperforms_dropout(numbers: Numbers) -> Verdict:
    return all_hold(pairwise(numbers, cells(), DROPRELU, DROPOUT, BETTER))


def _best_rate(models: Sequence[str], rate: str, numbers: Numbers) -> Verdict:
    others = [method for method in DROPRELU if method != rate]
    return all_hold(pairwise(numbers, cells(models=models), [rate], others, {"accuracy": ">=", "ece": "<="}))


def _rates_differ(numbers: Numbers) -> Verdict:
    checks = []
    for data in SETS:
        found = {model: _most_accurate(numbers, data, model) for model in MODELS}
        text = ", ".join(f"{model} {' or '.join(rates) or None}" for model, rates in found.items())
        differ = not set(DROPRELU).intersection(*found.values())
        checks.append(Check(f"{data}: {text}", differ if all(found.values()) else None))
    return all_hold(checks)


def _most_accurate(numbers: Numbers, data: str, model: str) -> list[str]:
    """The most accurate of the four q, several if they tie; none if a number is missing."""
    highest = best(numbers, data, model, DROPRELU, "accuracy")
    if highest is None:
        return []
    return [rate for rate in DROPRELU if (numbers.value(data, model, rate, "accuracy") or 0) >= highest - ROUNDING]


def better_uncertainty(sets: Sequence[str], numbers: Numbers) -> Verdict:
    """Whether q=0.8 has a smaller ECE than p=0.2 everywhere."""
    return all_hold(pairwise(numbers, cells(sets), ["mc-droprelu:0.8"], ["mc-dropout:0.2"], {"ece": "<"}))


def _svi_over_data(numbers: Numbers) -> Verdict:
    return _svi((("cifar10", "cifar100"),), numbers, across_models=False)


def _svi_over_models(numbers: Numbers) -> Verdict:
    return _svi(tuple((data, data) for data in SETS), numbers, across_models=True)


def _svi(sets: Sequence[tuple[str, str]], numbers: Numbers, across_models: bool) -> Verdict:
    checks = []
    for simple, complex_ in sets:
        for first, second in [("vgg13", "densenet121")] if across_models else [(model, model) for model in MODELS]:
            for measure, sign in (("accuracy", ">"), ("ece", "<")):
                values = (numbers.value(simple, first, "svi", measure), numbers.value(complex_, second, "svi", measure))
                what = f"SVI's {measure} of {first} on {simple} and {second} on {complex_}"
                checks.append(compare(what, values[0], sign, values[1], measure))
    return all_hold(checks)


CLAIMS = (
    Claim(
        "on-par-and-cheaper",
        "4.2",
        "reliable uncertainty estimates on par with Deep Ensemble at a significantly lower computational cost",
        f"On each CIFAR set and network the best ECE of our five rows is at most {NEAR_ECE} above Deep Ensemble's, and "
        "each of them trains in at most half its time.",
        _on_par_and_cheaper,
    ),
    Claim(
        "closest-to-ensemble",
        "4.2",
        "Even if our methods do not achieve the same effect as Deep Ensemble, they are the closest",
        "On each CIFAR set and network none of the other methods has a higher accuracy or a lower ECE than the best of "
        "our rows.",
        _closest_to_ensemble,
    ),
    Claim(
        "outperforms-dropout",
        "4.2",
        "MC-DropReLU outperforms MC-Dropout in all metrics regardless of the value of q",
        "For each CIFAR set, network, q and p: higher accuracy, lower ECE, shorter training; equal is not better.",
        _outperforms_dropout,
    ),
    Claim(
        "outperforms-dropout-weakly",
        "4.2",
        "MC-DropReLU outperforms MC-Dropout in all metrics regardless of the value of q",
        "The same read as kindly as possible: never a lower accuracy nor a higher ECE, times left out.",
        lambda numbers: all_hold(pairwise(numbers, cells(), DROPRELU, DROPOUT, {"accuracy": ">=", "ece": "<="})),
    ),
    Claim(
        "q-depends-on-model",
        "4.2",
        "there is still a slight difference in the effect of different q for different models",
        "On each CIFAR set none of the four q is the most accurate for all three networks; equal is the most accurate.",
        _rates_differ,
    ),
    Claim(
        "best-q-resnet-densenet",
        "4.2",
        "When q=0.95, the ResNet and DenseNet models will have good accuracy and calibration scores",
        "On both CIFAR sets no other q of the four has a higher accuracy or a lower ECE on these networks.",
        lambda numbers: _best_rate(("resnet18", "densenet121"), "mc-droprelu:0.95", numbers),
    ),
    Claim(
        "best-q-vgg",
        "4.2",
        "the VGG model will have better accuracy and calibration scores when q=0.9",
        "On both CIFAR sets no other q of the four has a higher accuracy or a lower ECE on VGG-13.",
        lambda numbers: _best_rate(("vgg13",), "mc-droprelu:0.9", numbers),
    ),
    Claim(
        "p02-q08-cifar",
        "4.2",
        "the uncertainty quality of MC-DropReLU is better than that of MC-Dropout [p=0.2, q=0.8]",
        "Lower ECE for q=0.8 than for p=0.2 on each CIFAR set and network; equal is not better.",
        lambda numbers: better_uncertainty(SETS, numbers),
    ),
    Claim(
        "svi-larger-data",
        "4.2",
        "accuracy and ECE of [SVI] deteriorate as the … dataset become more complex",
        "From CIFAR-10 to CIFAR-100 SVI's accuracy falls and its ECE rises on each network. (So do Single's.)",
        _svi_over_data,
        across_data=True,
    ),
    Claim(
        "svi-larger-model",
        "4.2",
        "accuracy and ECE of [SVI] deteriorate as the model … become more complex",
        "From VGG-13 to DenseNet-121 SVI's accuracy falls and its ECE rises on both CIFAR sets.",
        _svi_over_models,
    ),
)
