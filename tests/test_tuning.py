"""``rbue.tune``: what it tries, what it chooses, and that nothing of it is left after ``revert``."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rbue
from rbue import metrics
from rbue.calibration import Temperature
from rbue.call_sites.inputs import as_batch
from rbue.tuning import NEW_STATISTICS, PLAIN, _last_block, _layers_that_vary


def clouds(count, seed):
    """Ten noisy classes of 6x6 pictures, which overlap."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = torch.randint(10, (count,), generator=generator)
    return centres[y] + 1.6 * torch.randn(count, 1, 6, 6, generator=generator), y


def block(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10))
    network = nn.Sequential(block(1, 16), nn.Sequential(block(16, 32), block(32, 32)), pooled)
    x, y = clouds(2000, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    for _ in range(4):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    return network.eval()


@pytest.fixture
def network(trained):
    return copy.deepcopy(trained)


@pytest.fixture(scope="module")
def validation():
    return clouds(600, 2)


@pytest.fixture(scope="module")
def tuned(trained, validation):
    return rbue.tune(copy.deepcopy(trained), validation, clouds(500, 3)[0], samples=10)


def test_the_best_is_chosen_by_what_was_measured(tuned, validation):
    allowed = [one for one in tuned.tried if one.allowed]
    least = min(allowed, key=lambda one: one.scaled_nll)
    for one in allowed[: allowed.index(tuned.best) + 1]:  # the first that is not clearly worse
        difference = one.losses - least.losses
        assert (difference.mean() > difference.std() / 600**0.5) == (one is not tuned.best)
        assert one.losses.mean() == pytest.approx(one.scaled_nll, rel=1e-4)
    assert all(one.accuracy >= tuned.tried[0].accuracy - 0.002 for one in allowed)
    assert [one.where for one in tuned.tried[:2]] == [PLAIN, NEW_STATISTICS]
    assert {one.where for one in tuned.tried[2:]} == {"last", "all"}  # the last block is the last site here
    drawn = rbue.predict(tuned.network, validation[0], samples=10, temperature=False)
    found = (metrics.accuracy, metrics.nll, metrics.ece)
    stated = tuned.best.accuracy, tuned.best.nll, tuned.best.ece
    assert [float(one(drawn.probs, validation[1])) for one in found] == pytest.approx(stated, abs=1e-5)
    assert Temperature.fit(drawn.probs, validation[1]).value == pytest.approx(tuned.best.temperature, rel=1e-3)


def test_the_network_has_its_temperature(tuned, validation):
    scaled = rbue.predict(tuned.network, validation[0], samples=10)
    assert scaled.temperature == tuned.best.temperature
    assert rbue.predict(tuned.network, validation[0], samples=10, temperature=False).temperature == 1


def test_any_candidate_can_be_used_and_all_of_it_undone(trained, network, validation):
    x, before = validation[0], trained(validation[0])
    state = copy.deepcopy(network.state_dict())
    tuned = rbue.tune(network, validation, where=["all"], q=[0.9], samples=4)
    for one in tuned.tried:
        used = tuned.use(one)
        drawn = rbue.predict(used, x, samples=4, temperature=False)
        assert float(metrics.nll(drawn.probs, validation[1])) == pytest.approx(one.nll, abs=1e-5)
    tuned.revert()
    assert not rbue.conversion(network)
    assert network(x).equal(before)
    assert all(value.equal(state[name]) for name, value in network.state_dict().items())


def test_statistics_make_up_for_dropped_relus(network, validation):
    plain = rbue.convert(copy.deepcopy(network), rbue.DropReLU(0.3), example=validation[0])
    lost = float(metrics.nll(rbue.predict(plain, validation[0], samples=10).probs, validation[1]))
    found = rbue.tune(network, validation, where=["all"], q=[0.3], samples=10).tried[-1]
    assert found.q == 0.3
    assert found.nll < 0.75 * lost


def test_a_network_that_is_hurt_stays_plain_and_says_so():
    """Without BatchNorm, and with so many dropped ReLUs that it cannot answer."""
    torch.manual_seed(0)
    x, y = clouds(1500, 1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    held = clouds(400, 2)
    tuned = rbue.tune(network, held, where=["all"], q=[0.3], samples=4)
    assert [one.where for one in tuned.tried] == [PLAIN, "all"]
    assert tuned.best.where == PLAIN
    assert "plain network with a temperature is best" in repr(tuned)
    rows = []
    network[1].register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    drawn = rbue.predict(network, held[0])
    assert sum(rows) < 5 * len(held[0])  # a hundred equal passes would be a waste
    expected = Temperature(tuned.best.temperature)(network(held[0]).softmax(1))
    torch.testing.assert_close(drawn.probs, expected, rtol=1e-4, atol=1e-5)
    assert drawn.mutual_information.max() < 1e-6


def test_loaders_are_the_same_as_tensors(trained, validation):
    pairs = DataLoader(TensorDataset(*validation), batch_size=130)
    settings = {"where": ["last"], "q": [0.9], "samples": 4}
    one = rbue.tune(copy.deepcopy(trained), validation, **settings)
    other = rbue.tune(copy.deepcopy(trained), pairs, **settings)
    for a, b in zip(one.tried, other.tried, strict=True):
        assert (a.accuracy, a.nll, a.ece) == pytest.approx((b.accuracy, b.nll, b.ece), rel=0.05)


def test_only_layers_behind_a_random_site_are_estimated_again(network, validation):
    x = as_batch(validation[0][:32])
    expected = {0: ["1.0.1", "1.1.1"], 1: ["1.1.1"], 2: [], 3: []}
    for where, layers in expected.items():
        rbue.convert(network, rbue.DropReLU(0.5), where=where, example=x)
        assert _layers_that_vary(network, x) == layers


def test_the_last_block_is_a_module_with_several_sites(network, validation):
    assert [site.name for site in _last_block(rbue.sites(network, validation[0][:2]))] == ["2.3"]
    nested = nn.Sequential(network[0], network[1], nn.Sequential(block(32, 8), block(8, 8)))
    assert [site.name for site in _last_block(rbue.sites(nested, validation[0][:2]))] == ["2.0.2", "2.1.2"]


def test_a_gelu_network_gets_dropactivation():
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.GELU(), nn.Linear(8, 10))
    tuned = rbue.tune(network, clouds(100, 0), where=["all"], q=[0.98], samples=2, max_accuracy_loss=1)
    tuned.use(tuned.tried[-1])
    assert rbue.conversion(network).activation == rbue.DropActivation(0.98)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda x, y: {"validation": x}, "validation must be a pair .* but holds Tensor"),
        (lambda x, y: {"validation": (x, y[:-1])}, "has 600 images but 599 labels"),
        (lambda x, y: {"validation": (x, y), "max_accuracy_loss": 2}, "max_accuracy_loss .* not 2"),
        (lambda x, y: {"validation": []}, "the loader gave no batch"),
        (lambda x, y: {"validation": (x, y), "where": ["layer9"]}, "where='layer9' picks none"),
    ],
)
def test_mistakes_are_named_and_leave_the_network_alone(given, message, trained, network, validation):
    with pytest.raises(rbue.InvalidInput, match=message):
        rbue.tune(network, **given(*validation))
    assert not rbue.conversion(network)
    assert network(validation[0]).equal(trained(validation[0]))


def test_a_converted_network_is_refused(network, validation):
    rbue.convert(network, rbue.DropReLU(0.9), example=validation[0])
    with pytest.raises(rbue.InvalidInput, match="this one is converted; revert it first"):
        rbue.tune(network, validation)
