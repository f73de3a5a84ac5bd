"""§3.4, the variance of a layer's sum: the paper's formulas against exact values and a simulation.

The verdict "by its own numbers" puts numbers into the paper's formulas; the verdict "here" uses the exact variance,
which the simulation confirms (:mod:`rbue.variance`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from rbue import variance
from rbue.lab.paper.claims.judging import Check, Claim, Numbers, Verdict, all_hold, compare

SIMULATIONS = 20_000
ERRORS = 4.0
"""A simulation contradicts a formula that it misses by more standard errors than this."""

RATES = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9)
Formula = Callable[[Tensor, float], Tensor]


@cache
def layer() -> Tensor:
    """The inputs that formulas are tried on: 64 standard normal numbers, so of both signs."""
    return torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _dropout_formula(_: Numbers) -> Verdict:
    return _simulated("dropout", "p", lambda x, p: variance.dropout(x, p=p))


def _droprelu_formula(_: Numbers) -> Verdict:
    return _simulated("drop_relu", "q", lambda x, q: variance.drop_relu_paper(x, q=q))


def _simulated(kind: variance.Kind, name: str, formula: Formula) -> Verdict:
    """Whether a formula agrees with a simulation at every rate."""
    checks = []
    for rate in RATES:
        mean, error = _simulation(kind, name, rate)
        value = float(formula(layer(), rate))
        what = f"{name}={rate}: the formula gives {value:.4g}, the simulation {mean:.4g} ± {error:.2g}"
        checks.append(Check(what, abs(value - mean) <= ERRORS * error))
    return all_hold(checks)


@cache
def _simulation(kind: variance.Kind, name: str, rate: float, positive: bool = False) -> tuple[float, float]:
    """A simulated variance and its standard error."""
    x = layer().relu() if positive else layer()
    seen = variance.simulate(x, kind, samples=SIMULATIONS, **{name: rate})  # type: ignore[arg-type]
    return float(seen.variance), float(seen.standard_error)


def _epsilon_is_positive(_: Numbers) -> Verdict:
    return all_hold(compare(f"q={q}", _epsilon(q), ">", 0.0) for q in RATES)


def _epsilon(q: float) -> float:
    """The variance of ``Σ Q·ReLU(x)``, in closed form: dropout of the positive half, kept with probability q."""
    return float(variance.dropout(layer().relu(), p=1 - q))


def _epsilon_cannot_be_calculated(_: Numbers) -> Verdict:
    checks = []
    for q in RATES:
        mean, error = _simulation("dropout", "p", 1 - q, positive=True)
        agrees = abs(_epsilon(q) - mean) <= ERRORS * error
        text = f"q={q}: q(1-q)·Σ_(x>0) x² = {_epsilon(q):.4g}, simulated {mean:.4g}"
        checks.append(Check(text, not agrees))
    return all_hold(checks)


def _more_variance(formula: Formula) -> Verdict:
    checks = []
    for p in RATES:
        for q in (rate for rate in RATES if rate <= 1 - p + 1e-9):
            ours, dropout = float(formula(layer(), q)), float(variance.dropout(layer(), p=p))
            checks.append(compare(f"p={p}, q={q}: DropReLU against dropout", ours, ">", dropout))
    return all_hold(checks)


def _experiments_prove_it(numbers: Numbers) -> Verdict:
    def diversity(method: str, measure: str) -> float | None:
        return numbers.value("cifar10", "resnet18", method, measure)

    return all_hold(
        compare(
            f"{measure}, q=0.8 against p=0.2",
            diversity("mc-droprelu:0.8", measure),
            ">",
            diversity("mc-dropout:0.2", measure),
        )
        for measure in ("mean_jsd", "max_jsd", "mean_dis", "max_dis")
    )


CLAIMS = (
    Claim(
        "variance-dropout",
        "3.4",
        "Var(f_Dropout) = p(1-p) Σ x²",
        "The formula agrees with a simulation of an unscaled dropout layer within four standard errors.",
        _dropout_formula,
    ),
    Claim(
        "variance-droprelu",
        "3.4",
        "Var(f_DropReLU) = q(1-q) Σ x² + ε",
        "The formula, with ε = Var(Σ Q·ReLU(x)) as defined there, agrees with a simulation. (It leaves out the "
        "covariance of its two terms, which contain the same Q.)",
        _droprelu_formula,
    ),
    Claim(
        "epsilon-positive",
        "3.4",
        "it can be guaranteed that it is always greater than 0",
        "ε > 0 for 0 < q < 1 on a layer with at least one positive input (elsewhere it is 0).",
        _epsilon_is_positive,
    ),
    Claim(
        "epsilon-incalculable",
        "3.4",
        "This cannot be calculated",
        "No closed form of ε agrees with a simulation; tried is q(1-q)·Σ_(x>0) x².",
        _epsilon_cannot_be_calculated,
    ),
    Claim(
        "more-variance",
        "3.4",
        "when q ≤ 1-p, the variance of the output of DropReLU is always greater than [that] of Dropout",
        "For p and q from 0.1 to 0.9 with q ≤ 1-p, on inputs of both signs. By its own numbers: the paper's formula; "
        "here: the exact variance q(1-q)·Σ_(x<0) x².",
        lambda _: _more_variance(lambda x, q: variance.drop_relu(x, q=q)),
        paper_holds=lambda _: _more_variance(lambda x, q: variance.drop_relu_paper(x, q=q)),
    ),
    Claim(
        "experiments-prove-diversity",
        "3.4",
        "the experimental results also prove this conclusion",
        "At p=0.2 and q=0.8, MC-DropReLU is more diverse than MC-Dropout in Mean- and Max-JSD and DIS (ResNet-18). "
        "That it is more diverse does not prove the reason given.",
        _experiments_prove_it,
    ),
)
