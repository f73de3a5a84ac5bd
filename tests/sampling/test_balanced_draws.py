"""Balanced draws: what each sample is, what a cycle is, and what becomes of means and statements about them."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import rbue
from numpy_stream import balanced_rows
from rbue import random_stream
from rbue.activations import Activation
from rbue.call_sites import conversion_of
from rbue.random_stream import Cycle, drop_cycle
from rbue.sampling.adaptive import Adaptive

ACTIVATIONS = [rbue.DropReLU(0.9), rbue.DropReLU(0.7), rbue.RReLU(), rbue.DropActivation(0.8), rbue.Dropout(0.25)]


class Shown(nn.Module):
    """A network whose outputs are what its first random site makes of minus one."""

    def __init__(self, width=64):
        super().__init__()
        self.width = width

    def forward(self, x):
        return torch.relu(-torch.ones(len(x), self.width, device=x.device) + 0 * x.mean())


def shown(activation, images=3, samples=20, seed=0, draws="balanced", width=64, index=None):
    """What was drawn, ``(S, B, width)``: 1 where a ReLU was dropped, or the slope."""
    network, x = rbue.convert(Shown(width), activation, example=torch.zeros(2, 1)), torch.zeros(images, 1)
    seen = []
    passes = rbue.sampling.stacking.StackedPasses(network, x, seed, None, draws)
    numbers = torch.arange(images, dtype=torch.int32) if index is None else index
    for _, _, out in passes(x, torch.arange(samples, dtype=torch.int32), numbers):
        seen.append(-out)
    return torch.cat(seen)


@pytest.mark.parametrize("activation", [rbue.DropReLU(0.9), rbue.DropReLU(0.85), rbue.RReLU(0.0, 1.0)], ids=str)
def test_the_words_are_those_of_the_documented_stream(activation):
    cycle = activation.cycle
    network = rbue.convert(Shown(), activation, example=torch.zeros(2, 1))
    (site,) = conversion_of(network).numbers
    found = shown(activation, samples=25, seed=2**40 + 3)
    for sample in range(25):
        words = torch.from_numpy(
            balanced_rows((3, 64), 2**40 + 3, sample, cycle.length, cycle.mirrored, site=site).copy()
        )
        assert (-found[sample]).equal(activation.forward(-torch.ones(3, 64), words)), sample


@pytest.mark.parametrize(
    ("q", "length"), [(0.9, 10), (0.95, 20), (0.8, 5), (0.5, 2), (0.1, 10), (0.85, 7), (0.99, 100), (0.75, 4)]
)
def test_lengths_of_cycles(q, length):
    for activation in (rbue.DropReLU(q), rbue.DropActivation(q), rbue.Dropout(round(1 - q, 3))):
        assert activation.cycle.length == length


@pytest.mark.parametrize("q", [0.0, 1.0])
def test_what_is_not_random_has_no_cycle(q):
    assert rbue.DropReLU(q).cycle == Cycle()


@pytest.mark.parametrize("q", [0.9, 0.95, 0.8, 0.5, 0.25])
def test_each_element_takes_the_rarer_branch_once_a_cycle(q):
    length = rbue.DropReLU(q).cycle.length
    dropped = shown(rbue.DropReLU(q), samples=3 * length, width=4096)
    once = (dropped if q >= 0.5 else 1 - dropped).unflatten(0, (3, length)).sum(1)
    assert once.eq(1).all()


def test_where_the_length_is_not_exact_the_count_is_one_of_two():
    dropped = shown(rbue.DropReLU(0.85), samples=7, width=4096).sum(0)  # 7 * 0.15 = 1.05
    assert set(dropped.unique().tolist()) == {1, 2}
    assert abs(dropped.mean() - 1.05) < 5 * (0.05 * 0.95 / dropped.numel()) ** 0.5


def test_slopes_come_in_pairs_with_the_mean_of_all():
    slopes = shown(rbue.RReLU(), samples=6, width=512).double()
    torch.testing.assert_close(
        slopes.unflatten(0, (3, 2)).mean(1), torch.full((3, 3, 512), rbue.RReLU().mean_slope, dtype=torch.float64)
    )
    assert not slopes[0].equal(slopes[2])


@pytest.mark.parametrize("sample", [0, 3, 9, 14])
def test_a_sample_alone_is_distributed_as_an_independent_one(sample):
    dropped = shown(rbue.DropReLU(0.9), images=8, samples=15, width=8192)[sample]
    count = int(dropped.sum())
    assert stats.binomtest(count, dropped.numel(), 0.1).pvalue > 1e-4
    by_image = dropped.sum(1).numpy()
    spread = ((by_image - 819.2) ** 2 / (8192 * 0.09)).sum()
    assert stats.chi2(8).sf(spread) > 1e-4
    slopes = shown(rbue.RReLU(0.0, 1.0), images=2, samples=15, width=8192)[sample]
    assert stats.kstest(slopes.flatten().numpy(), "uniform").pvalue > 1e-4


def correlation(a, b):
    return float(np.corrcoef(a.flatten().numpy(), b.flatten().numpy())[0, 1])


@pytest.mark.parametrize("activation", [rbue.DropReLU(0.9), rbue.RReLU(0.0, 1.0)], ids=str)
def test_elements_images_cycles_and_seeds_are_uncorrelated(activation):
    length = activation.cycle.length
    found = shown(activation, images=2, samples=length + 3, width=1 << 16)
    other = shown(activation, images=2, samples=3, width=1 << 16, seed=1)
    independent = shown(activation, images=2, samples=3, width=1 << 16, draws="independent")
    bound = 5 / (1 << 17) ** 0.5
    for sample in (0, 1):
        assert abs(correlation(found[sample, :, :-1], found[sample, :, 1:])) < bound  # neighbours
        assert abs(correlation(found[sample, 0], found[sample, 1])) < 1.5 * bound  # images
        assert abs(correlation(found[sample], found[length + sample])) < bound  # cycles
        assert abs(correlation(found[sample], found[length + (sample + 1) % length])) < bound
        assert abs(correlation(found[sample], other[sample])) < bound
        assert abs(correlation(found[sample], independent[sample])) < bound  # a domain of its own
        assert abs(correlation(found[sample], independent[0])) < bound


def test_sites_are_uncorrelated():
    class Two(nn.Module):
        def forward(self, x):
            minus = -torch.ones(len(x), 1 << 16) + 0 * x.mean()
            return torch.cat([torch.relu(minus), torch.relu(minus)], 1)

    network, x = rbue.convert(Two(), rbue.DropReLU(0.9), example=torch.zeros(2, 1)), torch.zeros(2, 1)
    passes = rbue.sampling.stacking.StackedPasses(network, x, 0, None, "balanced")
    ((_, _, out),) = passes(x, torch.arange(10, dtype=torch.int32), torch.arange(2, dtype=torch.int32))
    first, second = out.chunk(2, -1)
    assert abs(correlation(first[:1], second[:1])) < 5 / (1 << 17) ** 0.5
    assert second.sum(0).eq(-1).all()


@pytest.mark.parametrize("activation", [rbue.DropReLU(0.9), rbue.RReLU(), rbue.DropReLU(0.85)], ids=str)
def test_the_correlation_within_a_cycle_is_the_stated_one(activation):
    cycle = activation.cycle
    found = shown(activation, images=1, samples=cycle.length, width=1 << 17).flatten(1).double()
    pairs = np.corrcoef(found.numpy())[np.triu_indices(cycle.length, 1)]
    assert abs(pairs.mean() - cycle.correlation) < 0.003
    together = found - found.mean()
    products = together[:, ::2] * together[:, 1::2]  # what two elements do together
    pairs = np.corrcoef(products.numpy())[np.triu_indices(cycle.length, 1)]
    assert abs(pairs.mean() - cycle.correlation**2) < 0.01


def network(activation, where="all"):
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU() if not isinstance(activation, rbue.DropActivation) else nn.GELU(),
        nn.Conv2d(6, 6, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 4),
    ).eval()
    layers[-1].weight.data *= 6
    return rbue.convert(layers, activation, where=where, example=torch.zeros(2, 2, 6, 6))


X = torch.randn(7, 2, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("where", ["all", "last"])
def test_a_sample_is_the_same_however_it_is_drawn(activation, where):
    net = network(activation, where)
    whole = rbue.predict(net, X, samples=23, return_samples=True, memory=1 << 30).samples
    few = rbue.predict(net, X, samples=9, return_samples=True, memory=1 << 14).samples
    torch.testing.assert_close(few, whole[:9], rtol=1e-4, atol=1e-6)
    parts = [
        rbue.predict(net, X[[i]], samples=23, return_samples=True, index=torch.tensor([i])).samples for i in (0, 4)
    ]
    torch.testing.assert_close(torch.cat(parts, 1), whole[:, [0, 4]], rtol=1e-4, atol=1e-6)
    loader = rbue.predict(net, [X[:3], X[3:]], samples=23, return_samples=True).samples
    torch.testing.assert_close(loader, whole, rtol=1e-4, atol=1e-6)
    again = rbue.predict(copy.deepcopy(net), X, samples=23, return_samples=True).samples
    assert not whole.equal(rbue.predict(net, X, samples=23, return_samples=True, draws="independent").samples)
    torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("activation", "form"),
    [
        *((one, form) for one in ACTIVATIONS[:4] for form in ("torch operations", "float64")),
        (rbue.DropReLU(0.9), "compiled network"),
        *(pytest.param(one, "compiled network", marks=pytest.mark.slow) for one in ACTIVATIONS[2:4]),
    ],
    ids=str,
)
def test_backends_draw_the_same(activation, form, monkeypatch):
    net = network(activation)
    expected = rbue.predict(net, X, samples=12, return_samples=True).samples
    if form == "torch operations":
        monkeypatch.setattr(rbue.kernels.native, "library", lambda: None)
        found = rbue.predict(net, X, samples=12, return_samples=True).samples
    elif form == "compiled network":
        found = rbue.predict(torch.compile(net, backend="aot_eager"), X, samples=12, return_samples=True).samples
    else:
        found = rbue.predict(net.double(), X.double(), samples=12, return_samples=True).samples.float()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Kinds(rbue.activations.base.Randomness):
    """DropReLU before four channels, RReLU elsewhere: cycles of different lengths in one network."""

    noun, calls = "ReLU", rbue.DropReLU.calls
    cycle = rbue.DropReLU(0.8).cycle

    def read(self, func, args, kwargs):
        return rbue.DropReLU().read(func, args, kwargs)

    def at(self, call):
        return rbue.DropReLU(0.8) if call.x.shape[1] == 4 else rbue.RReLU()


def test_each_activation_has_its_own_cycle():
    class Both(nn.Module):
        def forward(self, x):
            return torch.cat([torch.relu(-x[:, :4]), torch.relu(-x)], 1)

    net, x = rbue.convert(Both(), Kinds(), example=torch.ones(2, 8)), torch.ones(3, 8)
    passes = rbue.sampling.stacking.StackedPasses(net, x, 0, None, "balanced")
    ((_, _, out),) = passes(x, torch.arange(10, dtype=torch.int32), torch.arange(3, dtype=torch.int32))
    assert out[..., :4].unflatten(0, (2, 5)).sum(1).eq(-1).all()
    pairs = out[..., 4:].unflatten(0, (5, 2)).mean(1)
    torch.testing.assert_close(pairs, torch.full_like(pairs, -rbue.RReLU().mean_slope))


def test_an_activation_without_a_cycle_draws_independently():
    class Noise(Activation):
        calls = rbue.DropReLU.calls

        def read(self, func, args, kwargs):
            return rbue.DropReLU().read(func, args, kwargs)

        def formula(self, x, words, call):
            return x + words.float() / 2**31

        def mean(self, x, call):
            return x

        def variance(self, x, call):
            return torch.full_like(x, 1 / 3)

    found = shown(Noise(), samples=4, width=1 << 15)
    assert abs(correlation(found[0], found[1])) < 0.02


@pytest.mark.parametrize(
    "activation", [rbue.DropReLU(0.9), pytest.param(rbue.DropReLU(0.8), marks=pytest.mark.slow), rbue.RReLU()], ids=str
)
def test_the_mean_is_unbiased_and_errs_less(activation):
    net, length = network(activation), activation.cycle.length
    limit = rbue.predict(net, X, samples=20000, seed=77, draws="independent").probs.double()
    errors = {}
    for draws in ("independent", "balanced"):
        means = torch.stack(
            [rbue.predict(net, X, samples=length, seed=s, draws=draws).probs.double() for s in range(60)]
        )
        errors[draws] = (means - limit).square().mean()
        off = (means.mean(0) - limit) / (means.std(0) / 60**0.5 + 1e-3)
        assert off.abs().max() < 5, draws
    assert errors["independent"] / errors["balanced"] > 2


def test_the_error_of_whole_and_partial_cycles_is_the_stated_one():
    """A linear network has no interactions: its error is first-order alone."""
    weights = torch.randn(64, generator=torch.Generator().manual_seed(0))
    found = (shown(rbue.DropReLU(0.9), images=3000, samples=20) * weights).sum(-1)  # (S, images)
    independent = (shown(rbue.DropReLU(0.9), images=3000, samples=20, draws="independent") * weights).sum(-1)
    cycle, limit = rbue.DropReLU(0.9).cycle, 0.1 * weights.sum()
    for samples in (1, 3, 5, 8, 10, 13, 15, 20):
        errors = [(one[:samples].mean(0) - limit).square().mean() for one in (found, independent)]
        expected = cycle.error(samples, 0.0)
        assert abs(errors[0] / errors[1] - expected) < 0.12 * max(expected, 0.01), samples
    assert cycle.error(7, 1.0) == pytest.approx(1 + 6 / 81)
    assert Cycle().error(7, 0.3) == 1


def test_the_variance_lies_nearer_the_truth():
    """Within a cycle samples differ more, by the factor 1 - correlation."""
    truth = 0.09
    spread = {
        draws: shown(rbue.DropReLU(0.9), images=400, samples=10, draws=draws).var(0, correction=0).double().mean()
        for draws in ("independent", "balanced")
    }
    assert float(spread["balanced"]) == pytest.approx(truth, rel=1e-3)
    assert float(spread["independent"]) == pytest.approx(truth * 0.9, rel=0.02)


def test_the_prediction_says_how_it_was_drawn():
    net = network(rbue.DropReLU(0.9))
    assert rbue.predict(net, X, samples=2).draws == "balanced"
    assert "2 balanced samples" in repr(rbue.predict(net, X, samples=2))
    for draws in ("independent", "balanced"):
        assert rbue.predict(net, [X[:3], X[3:]], samples=2, draws=draws).draws == draws  # of two batches
    rbue.seed(net, 5)
    plain = torch.stack([net(X) for _ in range(2)]).softmax(-1)
    found = rbue.predict(net, X, samples=2, seed=5, draws="independent", return_samples=True).samples
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-6)


def test_other_names_are_refused():
    with pytest.raises(rbue.errors.InvalidInput, match="draws must be 'balanced' or 'independent', not 'antithetic'"):
        rbue.predict(network(rbue.RReLU()), X, draws="antithetic")


def test_stopping_counts_on_the_balance():
    statistics = rbue.prediction.RunningStatistics(1, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    probs = 0.8 + 0.02 * torch.randn(10, 1, generator=generator)
    statistics.add(torch.tensor([0]), torch.stack([probs, 1 - probs], 2))
    rule = Adaptive(tolerance=0.012, interactions=0.25)
    rows = torch.tensor([0])
    assert not rule.settled(statistics, rows, 3)
    assert not rule.settled(statistics, rows, 3, Cycle(1000, -1 / 999))
    assert rule.settled(statistics, rows, 3, drop_cycle(0.1))
    assert not Adaptive(tolerance=0.012, interactions=1.0).settled(statistics, rows, 3, drop_cycle(0.1))


@pytest.mark.parametrize("part", [-0.1, 1.5, "x", float("nan")])
def test_interactions_are_a_part(part):
    with pytest.raises(rbue.errors.InvalidInput, match="interactions"):
        Adaptive(interactions=part)


@pytest.mark.parametrize("rare", [1e-9, 5e-324])
def test_long_cycles_stay_within_64_bits(rare):
    cycle = drop_cycle(rare)
    assert cycle.length == 1 << 16
    samples = [0, 1, cycle.length - 1, cycle.length, 2**31 - 1, 2**32 - 1]
    cycles, turns = random_stream.turns(random_stream.to_int32(torch.tensor(samples)), cycle)
    assert cycles.tolist() == [s // cycle.length for s in samples]
    assert [int(t) % 2**32 for t in turns] == [(s % cycle.length << 32) // cycle.length for s in samples]
