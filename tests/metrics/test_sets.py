import numpy as np
import pytest
import torch
from scipy.stats import beta, binom

from rbue.errors import InvalidInput
from rbue.metrics import _binomial, binomial_interval, coverage_by_class, coverage_by_size, set_coverage, set_size


def test_distribution_function_equals_scipys():
    rng = np.random.default_rng(0)
    n = np.concatenate([rng.integers(1, 30, 500), rng.integers(1, 20_000, 500)])
    p = rng.random(1000) * np.where(rng.random(1000) < 0.5, 1, 0.05)
    k = np.clip(np.round(n * p + 3 * rng.normal(size=1000) * np.sqrt(n * p * (1 - p))), 0, n)
    found = _binomial.cdf(*(torch.from_numpy(values) for values in (k, n, p)))
    np.testing.assert_allclose(found.numpy(), binom.cdf(k, n, p), rtol=1e-9, atol=1e-13)


def test_distribution_function_at_its_edges():
    found = _binomial.cdf(
        torch.tensor([-1, 5, 0, 3, 3, 0]),
        torch.tensor([5, 5, 0, 5, 5, 5]),
        torch.tensor([0.5, 0.5, 0.5, 0.0, 1.0, 1.0]),
    )
    assert found.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0]


def test_interval_equals_that_of_the_beta_distribution():
    k, n = (
        torch.from_numpy(values) for values in np.array([(k, n) for n in (1, 7, 60, 999) for k in range(0, n + 1, 3)]).T
    )
    lower, upper = binomial_interval(k, n, 0.9)
    k, n = k.numpy(), n.numpy()
    low = np.where(k > 0, beta.ppf(0.05, np.maximum(k, 1), n - k + 1), 0.0)
    high = np.where(k < n, beta.ppf(0.95, k + 1, np.maximum(n - k, 1)), 1.0)
    np.testing.assert_allclose(lower.numpy(), low, atol=1e-12)
    np.testing.assert_allclose(upper.numpy(), high, atol=1e-12)
    assert [end.item() for end in binomial_interval(torch.tensor(0), torch.tensor(0))] == [0.0, 1.0]


def test_coverage_and_size_equal_a_loop():
    rng = np.random.default_rng(0)
    sets, labels = rng.random((200, 4)) < 0.6, rng.integers(0, 3, 200)  # class 3 does not occur
    held = np.array([sets[i, labels[i]] for i in range(200)])
    given = torch.from_numpy(sets), torch.from_numpy(labels)
    assert set_coverage(*given).item() == pytest.approx(held.mean())
    assert set_size(given[0]).item() == pytest.approx(sets.sum(1).mean())
    found = coverage_by_class(*given)
    for label in range(3):
        of_class = held[labels == label]
        low, high = beta.ppf(
            [0.025, 0.975], [of_class.sum(), of_class.sum() + 1], [(~of_class).sum() + 1, (~of_class).sum()]
        )
        expected = [of_class.mean(), low, high, len(of_class)]
        assert [float(part[label]) for part in found] == pytest.approx(expected, abs=1e-12)
    assert found.coverage[3].isnan()
    assert [float(part[3]) for part in found[1:]] == [0.0, 1.0, 0]
    sizes = sets.sum(1)
    for edges, strata in ((None, [[0], [1], [2], [3], [4]]), ([1, 2], [[0, 1], [2], [3, 4]])):
        found = coverage_by_size(*given, edges=edges)
        assert found.images.tolist() == [int(np.isin(sizes, one).sum()) for one in strata]
        assert found.coverage.tolist() == pytest.approx([held[np.isin(sizes, one)].mean() for one in strata])


def test_errors():
    sets, labels = torch.ones(3, 2, dtype=torch.bool), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(InvalidInput, match=r"torch.int64 of shape \(3, 2\)"):
        set_size(sets.long())
    with pytest.raises(InvalidInput, match="labels holds 2"):
        set_coverage(sets, labels + 2)
    with pytest.raises(InvalidInput, match=r"edges is \[1, 1\]"):
        coverage_by_size(sets, labels, edges=[1, 1])
    with pytest.raises(InvalidInput, match="holds 5 of 3 trials"):
        binomial_interval(torch.tensor(5), torch.tensor(3))
    for confidence in (0, 1):
        with pytest.raises(InvalidInput, match=f"confidence is {confidence}"):
            binomial_interval(torch.tensor(1), torch.tensor(3), confidence=confidence)
    for trials in (3, torch.tensor([3])):
        for given in ((torch.tensor(1), trials), (trials, torch.tensor(1))):
            with pytest.raises(InvalidInput, match="successes and trials differ in kind or shape"):
                binomial_interval(*given)
    for edges in ([-1, 1], [0, 2]):
        with pytest.raises(InvalidInput, match="give rising sizes from 0 to 1"):
            coverage_by_size(sets, labels, edges=edges)
    for wrong, said in ((sets.tolist(), "list"), (sets[0], r"\(2,\)"), (sets[:0], r"\(0, 2\)")):
        with pytest.raises(InvalidInput, match=f"sets is .*{said}; give booleans"):
            set_size(wrong)
