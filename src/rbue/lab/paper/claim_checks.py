"""Checks of sentences that need more than comparisons of numbers that are looked up (:mod:`rbue.lab.paper.claims`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from rbue import variance
from rbue.lab import data
from rbue.lab.paper.experiments import DIVERSE, DROPRELU, MODELS, SWEEP
from rbue.lab.paper.judging import ROUNDING, Check, Look, Numbers, Predicate, Verdict, all_hold, compare

CIFAR = ("cifar10", "cifar100")
SIMULATIONS = 20_000
ERRORS = 4.0
"""A simulation contradicts a formula that it misses by more standard errors than this."""

RATES = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9)


@cache
def layer() -> Tensor:
    """The inputs that formulas of §3.4 are tried on: 64 standard normal numbers, so of both signs."""
    return torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@cache
def _simulation(kind: variance.Kind, name: str, rate: float, positive: bool = False) -> tuple[float, float]:
    """A simulated variance and its standard error."""
    x = layer().relu() if positive else layer()
    seen = variance.simulate(x, kind, samples=SIMULATIONS, **{name: rate})  # type: ignore[arg-type]
    return float(seen.variance), float(seen.standard_error)


def formula_agrees(kind: variance.Kind, name: str, formula: Callable[..., Tensor]) -> Predicate:
    """Whether a formula agrees with a simulation at every rate."""

    def check(rate: float) -> Check:
        mean, error = _simulation(kind, name, rate)
        value = float(formula(layer(), **{name: rate}))
        what = f"{name}={rate}: the formula gives {value:.4g}, the simulation {mean:.4g} ± {error:.2g}"
        return Check(what, abs(value - mean) <= ERRORS * error)

    return lambda _: all_hold(map(check, RATES))


def epsilon(q: float) -> float:
    """The variance of ``Σ Q·ReLU(x)``, in closed form: dropout of the positive half, kept with probability q."""
    return float(variance.dropout(layer().relu(), p=1 - q))


def epsilon_cannot_be_calculated(_: Numbers) -> Verdict:
    """Whether the closed form of ε misses a simulation."""

    def check(q: float) -> Check:
        mean, error = _simulation("dropout", "p", 1 - q, positive=True)
        text = f"q={q}: q(1-q)·Σ_(x>0) x² = {epsilon(q):.4g}, simulated {mean:.4g}"
        return Check(text, abs(epsilon(q) - mean) > ERRORS * error)

    return all_hold(map(check, RATES))


def more_variance(formula: Callable[..., Tensor]) -> Predicate:
    """Whether DropReLU has more variance than dropout wherever q is at most 1 - p."""

    def check(p: float, q: float) -> Check:
        ours, dropout = float(formula(layer(), q=q)), float(variance.dropout(layer(), p=p))
        return compare(f"p={p}, q={q}: DropReLU against dropout", ours, ">", dropout)

    return lambda _: all_hold(check(p, q) for p in RATES for q in RATES if q <= 1 - p + ROUNDING)


def counts(train: int, test: int, **classes: int) -> Predicate:
    """Whether the published sets have these numbers of images and classes."""

    def check(name: str) -> Check:
        known = data.get(name)
        found = (len(known.classes), *(known.published(split, "official").count for split in ("train", "test")))
        what = f"{name}: {found[0]} classes, {found[1]:,} + {found[2]:,} images"
        return Check(what, found == (classes[name], train, test))

    return lambda _: all_hold(map(check, classes))


def not_in_tables(_: Numbers) -> Verdict:
    """No verdict, as the paper prints no number for it."""
    return Verdict(None, "stated in the text only")


def rates_differ(numbers: Numbers) -> Verdict:
    """Whether no one q is the most accurate for all networks of a set."""

    def most_accurate(name: str, model: str) -> list[str]:
        """The most accurate of the four q, several if they tie; none if a number is missing."""
        look = Look(numbers, {"data": name, "model": model, "measure": "accuracy"})
        return [rate for rate in DROPRELU if look(rate) >= look.best(DROPRELU) - ROUNDING]

    def check(name: str) -> Check:
        found = {model: most_accurate(name, model) for model in MODELS}
        text = ", ".join(f"{model} {' or '.join(rates) or None}" for model, rates in found.items())
        differ = not set(DROPRELU).intersection(*found.values())
        return Check(f"{name}: {text}", differ if all(found.values()) else None)

    return all_hold(map(check, CIFAR))


def _in_the_plane(numbers: Numbers, methods: Sequence[str], *measures: str) -> list[tuple[float, float]]:
    """Two numbers of each method that has both."""
    rows = [[numbers.value("cifar10", "resnet18", method, measure) for measure in measures] for method in methods]
    return [(one, two) for one, two in rows if one is not None and two is not None]


def diversity_helps(numbers: Numbers) -> Verdict:
    """Whether more diverse methods have a lower ECE more often than not, pair by pair."""
    known = _in_the_plane(numbers, DIVERSE, "mean_jsd", "ece")
    if len(known) < len(DIVERSE):
        return Verdict(None, f"{len(DIVERSE) - len(known)} of {len(DIVERSE)} methods lack a number", cases=1)
    # Kendall's count of pairs: ties in either number say nothing.
    agree = sum(
        ((one[0] > two[0]) - (one[0] < two[0])) * ((one[1] > two[1]) - (one[1] < two[1]))
        for place, one in enumerate(known)
        for two in known[place + 1 :]
    )
    return Verdict(agree < 0, f"pairs ordered alike minus pairs ordered oppositely: {agree} of 21", known=1, cases=1)


def best_is_not_best_calibrated(numbers: Numbers) -> Verdict:
    """Whether the most accurate q has another ECE than the smallest."""
    known = _in_the_plane(numbers, DROPRELU, "accuracy", "ece")
    if len(known) < len(DROPRELU):
        return Verdict(None, "numbers are missing", cases=1)
    known = _in_the_plane(numbers, SWEEP, "accuracy", "ece")  # the tables have four of them
    highest = max(accuracy for accuracy, _ in known)
    own = min(ece for accuracy, ece in known if accuracy >= highest - ROUNDING)
    least = min(ece for _, ece in known)
    return all_hold([compare("ECE of the most accurate q and the smallest ECE", own, ">", least)])
