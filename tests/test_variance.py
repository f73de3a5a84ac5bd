import math
import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rbue import variance
from rbue.errors import InvalidInput

X = torch.tensor([[-1.0, 2.0, -0.5, 3.0, 0.0], [-2.0, -1.5, 0.5, -0.1, 0.3]], dtype=torch.float64)
CASES = [
    ("drop_relu", {"q": 0.8}),
    ("drop_relu", {"q": 0.5}),
    ("drop_relu", {"q": 0.05}),
    ("rrelu", {}),
    ("rrelu", {"lower": 0.0, "upper": 0.9}),
    ("dropout", {"p": 0.2}),
    ("dropout", {"p": 0.5, "scaled": True}),
]


def enumerated(values, q):
    """Mean and variance of the DropReLU sum over all 2^K keep patterns, weighted by their probabilities."""
    moments = [0.0, 0.0]
    for pattern in range(2 ** len(values)):
        weight, total = 1.0, 0.0
        for k, x in enumerate(values):
            kept = pattern >> k & 1
            weight *= q if kept else 1 - q
            total += max(x, 0.0) if kept else x
        moments[0] += weight * total
        moments[1] += weight * total**2
    return moments[1] - moments[0] ** 2


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(-5, 5), min_size=1, max_size=6), q=st.floats(0, 1))
def test_drop_relu_equals_the_sum_over_every_keep_pattern(values, q):
    exact = variance.drop_relu(torch.tensor(values, dtype=torch.float64), q).item()
    assert exact == pytest.approx(enumerated(values, q), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(-5, 5), min_size=1, max_size=6), q=st.floats(0, 1))
def test_the_paper_is_too_large_by_twice_epsilon(values, q):
    x = torch.tensor(values, dtype=torch.float64)
    epsilon = q * (1 - q) * sum(v * v for v in values if v > 0)
    difference = variance.drop_relu_paper(x, q) - variance.drop_relu(x, q)
    assert difference.item() == pytest.approx(2 * epsilon, abs=1e-9)


@pytest.mark.parametrize(("kind", "parameters"), CASES)
def test_simulation_agrees_with_the_closed_form(kind, parameters):
    seen = variance.simulate(X, kind, samples=40_000, seed=1, **parameters)
    exact = getattr(variance, kind)(X, **parameters)
    assert seen.variance.shape == exact.shape == (2,)
    assert (seen.standard_error > 0).all()
    assert ((seen.variance - exact).abs() < 4 * seen.standard_error).all()


def test_simulation_refutes_the_paper():
    seen = variance.simulate(X, "drop_relu", q=0.8, samples=40_000, seed=1)
    wrong = (seen.variance - variance.drop_relu_paper(X, 0.8)).abs() / seen.standard_error
    assert wrong[0] > 100
    assert wrong[1] > 10


def test_more_variance_than_dropout_does_not_follow_from_q_up_to_one_minus_p():
    # The paper's own setting, q = 0.8 and p = 0.2: equal on negative inputs, less where one is positive.
    assert variance.drop_relu(X, 0.8)[0] < variance.dropout(X, 0.2)[0]
    negative = -X.abs()
    torch.testing.assert_close(variance.drop_relu(negative, 0.8), variance.dropout(negative, 0.2))
    # Below p even the main term is less, although q <= 1 - p.
    assert (variance.drop_relu_paper(negative, 0.1) < variance.dropout(negative, 0.2)).all()


@pytest.mark.parametrize(
    ("kind", "parameters", "mean_of"),
    [
        ("drop_relu", {"q": 0.8}, lambda x: x.relu() - 0.2 * (-x).relu()),
        ("rrelu", {}, lambda x: x.relu() - (1 / 8 + 1 / 3) / 2 * (-x).relu()),
        ("dropout", {"p": 0.2}, lambda x: 0.8 * x),
        ("dropout", {"p": 0.2, "scaled": True}, lambda x: x),
    ],
)
def test_simulated_means(kind, parameters, mean_of):
    seen = variance.simulate(X, kind, samples=20_000, **parameters)
    standard_error = (seen.variance / seen.samples).sqrt()
    assert ((seen.mean - mean_of(X).sum(-1)).abs() < 4 * standard_error).all()


def test_standard_error_is_the_spread_of_repeated_estimates():
    x = X[:1].expand(400, -1)  # 400 independent estimates from one call
    seen = variance.simulate(x, "drop_relu", q=0.7, samples=500)
    assert seen.standard_error.mean().item() == pytest.approx(seen.variance.std().item(), rel=0.15)
    exact = variance.drop_relu(X[0], 0.7).item()
    assert seen.variance.mean().item() == pytest.approx(exact, abs=4 * seen.variance.std().item() / 20)


@pytest.mark.parametrize(("elements", "at_once"), [(70, 7), (5, 1)])  # of 10
def test_moments_equal_those_of_all_draws_at_once(elements, at_once, monkeypatch):
    drawn = []
    drawer = variance._drawer

    def spy(kind, parameters):
        draw = drawer(kind, parameters)
        return lambda x, uniform: drawn.append(draw(x, uniform)) or drawn[-1]

    monkeypatch.setattr(variance, "_drawer", spy)
    monkeypatch.setattr(variance, "_WORK_ELEMENTS", elements)
    seen = variance.simulate(X, "rrelu", samples=103)
    assert max(len(block) for block in drawn) == at_once
    sums = torch.cat(drawn).sum(-1)
    assert len(sums) == 103
    torch.testing.assert_close(seen.variance, sums.var(0))
    torch.testing.assert_close(seen.mean, sums.mean(0))
    central = sums - sums.mean(0)
    fourth, second = central.pow(4).mean(0), central.pow(2).mean(0)
    torch.testing.assert_close(seen.standard_error, ((fourth - 100 / 102 * second**2) / 103).sqrt())


def test_seed_alone_decides():
    state = torch.random.get_rng_state()
    first, again, other = (variance.simulate(X, "drop_relu", q=0.5, samples=100, seed=s).variance for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("q", [0, 1, 0.0, 1.0, Fraction(1)])
def test_no_randomness_no_variance(q):
    assert variance.drop_relu(X, q).tolist() == [0.0, 0.0]
    seen = variance.simulate(X, "drop_relu", q=q, samples=50)
    assert seen.variance.tolist() == pytest.approx([0.0, 0.0], abs=1e-20)
    assert seen.mean.tolist() == pytest.approx((X.relu() if q else X).sum(-1).tolist())
    assert variance.rrelu(X, Fraction(1, 4), 0.25).tolist() == [0.0, 0.0]


def test_torch_dropout_is_the_scaled_form():
    torch.manual_seed(0)
    x = X[0].float()
    sums = torch.nn.functional.dropout(x.expand(40_000, -1), p=0.3).sum(-1)
    assert variance.dropout(x, 0.3, scaled=True).item() == pytest.approx(sums.var().item(), rel=0.05)
    assert variance.dropout(x, 1.0, scaled=True).item() == 0.0
    assert variance.simulate(x, "dropout", p=1.0, scaled=True, samples=2).variance.item() == 0.0


def test_half_precision_is_summed_in_float64():
    x = torch.full((1000,), -300.0, dtype=torch.float16)
    assert variance.drop_relu(x, 0.5).item() == 0.25 * 1000 * 300**2
    assert variance.drop_relu(x, 0.5).dtype == torch.float64
    seen = variance.simulate(x.requires_grad_(), "drop_relu", q=0.0, samples=2)
    assert (seen.mean.item(), seen.variance.item()) == (-300_000, 0)
    assert not seen.mean.requires_grad


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: variance.drop_relu(X, 1.5), "q is 1.5"),
        (lambda: variance.drop_relu(X, math.nan), "q is nan"),
        (lambda: variance.drop_relu(X, "0.5"), "q is '0.5'"),
        (lambda: variance.drop_relu(X, True), "q is True"),
        (lambda: variance.drop_relu_paper(X, -0.1), "q is -0.1"),
        (lambda: variance.dropout(X, 2), "p is 2"),
        (lambda: variance.rrelu(X, 0.5, 0.1), "lower=0.5, upper=0.1"),
        (lambda: variance.rrelu(X, upper=math.inf), "upper=inf"),
        (lambda: variance.rrelu(X, lower="0"), "lower='0'"),
        (lambda: variance.drop_relu([1.0], 0.5), "is a list"),
        (lambda: variance.drop_relu_paper([1.0], 0.5), "is a list"),
        (lambda: variance.dropout(torch.tensor([1]), 0.5), "torch.int64"),
        (lambda: variance.rrelu(torch.tensor(-2.5)), "-2.5"),
        (lambda: variance.rrelu(torch.empty(3, 0)), "(3, 0)"),
        (lambda: variance.drop_relu(torch.tensor([0.0, math.nan]), 0.5), "the first at (1,)"),
        (lambda: variance.drop_relu(torch.tensor([0.0, math.inf]), 0.5), "inf at (1,)"),
        (lambda: variance.simulate(X, "relu"), "kind is 'relu'"),
        (lambda: variance.simulate(X, ["rrelu"]), "kind is ['rrelu']; give"),
        (lambda: variance.simulate(X, "drop_relu"), "drop_relu needs q"),
        (lambda: variance.simulate(X, "drop_relu", q=2), "q is 2"),
        (lambda: variance.simulate(X, "drop_relu", p=0.2), "drop_relu has no 'p'"),
        (lambda: variance.simulate(X, "dropout"), "dropout needs p"),
        (lambda: variance.simulate(X, "dropout", p=2), "p is 2"),
        (lambda: variance.simulate(X, "rrelu", q=0.2), "rrelu has no 'q'"),
        (lambda: variance.simulate(X, "rrelu", samples=1), "samples is 1"),
        (lambda: variance.simulate(X, "rrelu", seed=-1), "seed is -1"),
    ],
)
def test_bad_inputs(call, said):
    with pytest.raises(InvalidInput, match=re.escape(said)):
        call()
