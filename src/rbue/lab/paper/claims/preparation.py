"""§4.1: the data sets, and the size of the models that the captions of Tables 1 to 3 state."""

from __future__ import annotations

from rbue.lab import data
from rbue.lab.paper.claims.judging import Check, Claim, Numbers, Verdict, all_hold, compare
from rbue.lab.paper.experiments import ENSEMBLE, METHODS, MODELS
from rbue.lab.paper.numbers import TABLES
from rbue.lab.paper.results import CORRUPTION_COUNT

CIFAR_COUNTS = {"cifar10": (10, 50_000, 10_000), "cifar100": (100, 50_000, 10_000)}
TINY_COUNTS = {"tiny-imagenet": (200, 100_000, 10_000)}


def _counts(expected: dict[str, tuple[int, int, int]]) -> Verdict:
    checks = []
    for name, (classes, train, test) in expected.items():
        known = data.get(name)
        found = (len(known.classes), *(known.published(split, "official").count for split in ("train", "test")))
        checks.append(
            Check(f"{name}: {found[0]} classes, {found[1]:,} + {found[2]:,} images", found == (classes, train, test))
        )
    return all_hold(checks)


def _not_in_tables(_: Numbers) -> Verdict:
    return Verdict(None, "stated in the text only")


def _ninety_five(_: Numbers) -> Verdict:
    return all_hold([compare("19 types at 5 severities", float(CORRUPTION_COUNT * 5), "=", 95.0)])


def _four_times(numbers: Numbers) -> Verdict:
    checks = []
    for table_data in TABLES.values():
        for model in MODELS:
            ensemble = numbers.value(table_data, model, ENSEMBLE, "parameters")
            for method in METHODS:
                if method != ENSEMBLE:
                    own = numbers.value(table_data, model, method, "parameters")
                    four = None if own is None else 4 * own
                    checks.append(compare(f"{table_data} {model}, ensemble against 4 × {method}", ensemble, "=", four))
    return all_hold(checks)


CLAIMS = (
    Claim(
        "cifar-counts",
        "4.1.1",
        "in 10 and 100 classes … 50000 training images and 10000 test images",
        "The published sets have these numbers of classes and images (from the registry, which checks the files).",
        lambda _: _counts(CIFAR_COUNTS),
        paper_holds=_not_in_tables,
    ),
    Claim(
        "tiny-counts",
        "4.1.1",
        "100000 training images, 10000 test images and 10000 validation images",
        "The published set has 200 classes, 100,000 training and 10,000 labelled validation images; the labels of its "
        "test images are not published and not looked at.",
        lambda _: _counts(TINY_COUNTS),
        paper_holds=_not_in_tables,
    ),
    Claim(
        "ninety-five",
        "4.1.1",
        "the CIFAR10-C and TinyImageNet-C datasets consist of 95 corruptions",
        "19 types at five severities are 95.",
        _ninety_five,
    ),
    Claim(
        "four-times-the-size",
        "Tables 1–3",
        "In terms of model size, Deep Ensemble is four times that of all other methods",
        "The trained numbers of Deep Ensemble are four times those of each other method. (SVI has a mean and a "
        "deviation for every weight.)",
        _four_times,
        paper_holds=_not_in_tables,
    ),
)
