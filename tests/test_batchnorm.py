"""``update_bn``: statistics by hand, nothing else changed, and a way back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import rbue
from rbue.errors import InvalidInput

X = torch.randn(50, 3, 6, 6, generator=torch.Generator().manual_seed(0))
Q = 0.7


def converted(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)
    network = nn.Sequential(*layers, *more)
    return rbue.convert(network, rbue.DropReLU(Q), example=X[:2])


def by_hand(network: nn.Sequential, batches: list[Tensor], seed: int) -> list[Tensor]:
    """Mean and variance of what enters both layers, weighted by the batches' sizes, with the bits of each image."""
    (site,) = rbue.sites(network, X[:2])
    first, second, start = [], [], 0
    for x in batches:
        numbers = torch.arange(start, start + len(x))
        start += len(x)
        before = network[0](x)
        normed = F.batch_norm(before, None, None, network[1].weight, network[1].bias, training=True)
        random = rbue.functional.drop_relu(normed, Q, seed=seed, sample=0, image=numbers, site=site.number)
        first.append(before)
        second.append(network[3](random))
    sizes = torch.tensor([float(len(x)) for x in batches])
    found = []
    for inputs in (first, second):
        for of in (lambda x: x.mean((0, 2, 3)), lambda x: x.transpose(0, 1).flatten(1).var(1)):
            found.append((torch.stack([of(x) for x in inputs]) * sizes[:, None]).sum(0) / sizes.sum())
    return found


def statistics(network: nn.Module) -> list[Tensor]:
    layers = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    return [value.clone() for layer in layers for value in (layer.running_mean, layer.running_var)]


def same_state(network: nn.Module, state: dict[str, Tensor]) -> bool:
    found = network.state_dict()
    return found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize("seed", [0, 2**40 + 3])
@pytest.mark.parametrize(
    ("given", "batches"),
    [
        (X, [X]),
        (list(X.split(20)), list(X.split(20))),
        (DataLoader(TensorDataset(X, torch.zeros(50)), batch_size=20), list(X.split(20))),
    ],
    ids=["tensor", "uneven batches", "loader of pairs"],
)
def test_statistics_are_those_of_the_set(given, batches, seed):
    network = converted()
    network[1].running_mean.fill_(torch.nan)  # what was there before does not matter
    network[4].running_var.fill_(7.0)
    with torch.no_grad():
        expected = by_hand(network, batches, seed)
    rbue.update_bn(network, given, seed=seed)
    for found, value in zip(statistics(network), expected, strict=True):
        torch.testing.assert_close(found, value)


def test_a_tensor_is_cut_into_pieces_of_almost_one_size():
    network, sizes = converted(), []
    network[0].register_forward_hook(lambda _, inputs, out: sizes.append(len(inputs[0])))
    rbue.update_bn(network, X[:41], batch_size=20)  # not 20, 20 and a single one, which BatchNorm might refuse
    assert sizes == [14, 14, 13]
    assert network[1].num_batches_tracked == 3


def test_nothing_but_the_statistics_changes():
    network = converted(nn.Dropout(0.5)).train()
    network[2].eval()
    flags = [module.training for module in network.modules()]
    other = copy.deepcopy(network)
    rbue.seed(network, 5)
    rbue.seed(other, 5)
    network(X[:4]), other(X[:4])
    during = []
    network[5].register_forward_hook(lambda layer, *_: during.append((layer.training, network[1].training)))
    given, numbers = X.clone(), torch.get_rng_state()
    rbue.update_bn(network, given)
    assert during == [(False, True)]  # dropout is off, BatchNorm is in training
    assert [module.training for module in network.modules()] == flags
    assert (network[1].momentum, network[4].momentum) == (0.3, 0.1)
    assert not network[1]._forward_pre_hooks
    assert torch.equal(given, X)
    assert torch.equal(torch.get_rng_state(), numbers)
    for layer in (1, 4):
        network[layer].load_state_dict(other[layer].state_dict())
    for one in (network, other):
        one.eval()
    assert torch.equal(network(X[:4]), other(X[:4]))  # its own calls count on


@pytest.mark.parametrize("mode", ["plain", "mean"])
def test_the_sites_are_random_in_every_mode(mode):
    network, other = converted(), converted()
    rbue.update_bn(network, X)
    with rbue.mode(other, mode):
        rbue.update_bn(other, X)
    assert same_state(other, network.state_dict())


@pytest.mark.parametrize("wrap", [lambda net: net, AveragedModel, nn.DataParallel], ids=["none", "average", "parallel"])
def test_it_can_be_undone(wrap):
    model = wrap(converted())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    before = rbue.update_bn(model, X)
    assert len(before) == 6
    assert not same_state(model, state)
    model.load_state_dict(before, strict=False)
    assert same_state(model, state)


def test_torchs_averaged_model_gets_the_statistics_of_its_network():
    network = converted()
    averaged = AveragedModel(network)
    for _ in range(3):
        averaged.update_parameters(network)
    rbue.update_bn(averaged, X, seed=3)
    rbue.update_bn(network, X, seed=3)
    for found, expected in zip(statistics(averaged), statistics(network), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_layer_that_is_called_twice_has_seen_both_inputs():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x):
            return self.norm(x) + self.norm(input=10 * x)

    network, x = Twice(), torch.randn(60, 2, dtype=torch.float64)
    network.double()
    rbue.update_bn(network, x.split(30))
    torch.testing.assert_close(network.norm.running_mean, torch.cat([x, 10 * x]).mean(0))
    parts = [part.var(0) * scale for part in x.split(30) for scale in (1, 100)]
    torch.testing.assert_close(network.norm.running_var, torch.stack(parts).mean(0))


def test_a_network_may_change_its_input_in_place():
    network, given = nn.Sequential(nn.ReLU(inplace=True), nn.BatchNorm2d(3)), X.clone()
    rbue.update_bn(network, [given])
    assert torch.equal(given, X)
    assert network[1].running_mean.min() > 0.1


class WithHead(nn.Module):
    """A second head that runs in training alone, and one layer without statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.none = nn.BatchNorm1d(2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, affine=False)
        self.none.running_mean = self.none.running_var = None
        self.head.running_mean.fill_(3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.none(self.body(x)) + (self.head(x) if self.training else 0)


def test_layers_that_no_pass_reaches_keep_theirs():
    network = WithHead()
    before = rbue.update_bn(network, torch.tensor([[1.0, 5.0], [3.0, 9.0]]))
    assert network.body.running_mean.tolist() == [2, 7]
    assert network.head.running_mean.tolist() == [3, 3]
    assert {name.partition(".")[0] for name in before} == {"body", "head"}


def test_a_layer_by_itself_has_its_own_names():
    assert set(rbue.update_bn(nn.BatchNorm1d(2), torch.randn(4, 2))) < set(nn.BatchNorm1d(2).state_dict())


def test_a_layer_that_is_not_there_is_named():
    with pytest.raises(InvalidInput, match="layers names '7', but the network has no BatchNorm layer there"):
        rbue.update_bn(converted(), X, layers=["1", "7"])


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.norm(F.relu(x) if y is None else F.relu(x) + y)


def test_a_loader_may_yield_several_inputs_as_the_example_has_them():
    x = torch.ones(4, 2)
    network = rbue.convert(Sum(), rbue.DropReLU(Q), example=(x, x))
    rbue.update_bn(network, [(x, 2 * x, torch.zeros(4))])
    assert network.norm.running_mean.tolist() == [3, 3]


def test_an_error_of_the_network_is_its_own():
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        rbue.update_bn(nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm1d(3)), X)


def test_a_network_without_statistics_is_left_alone():
    def unread():
        raise AssertionError
        yield

    assert rbue.update_bn(nn.Linear(2, 2), unread()) == {}


def broken():
    yield X[:20]
    raise KeyboardInterrupt("enough")


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (broken(), KeyboardInterrupt, "enough"),
        ([], InvalidInput, "the loader gave no batch"),
        ([{"image": X}], InvalidInput, "the entry 'image', which Sequential does not take; it takes input"),
        (["image"], InvalidInput, "must yield tensors"),
        ([X[:20], X[:0]], InvalidInput, "at least one image"),
        (X[:0], InvalidInput, "at least one image"),
        (X.double(), RuntimeError, "type"),
        ([X[:20], X[20:] / 0], InvalidInput, "BatchNorm at 1 came out as NaN or infinity, so they stay as they were"),
    ],
    ids=["stopped", "empty", "dicts", "words", "no image", "no image at all", "another type", "NaN"],
)
def test_what_fails_leaves_everything_as_it_was(given, error, said):
    network = converted()
    state, flags = copy.deepcopy(network.state_dict()), [module.training for module in network.modules()]
    with pytest.raises(error, match=said):
        rbue.update_bn(network, given)
    assert same_state(network, state)
    assert [module.training for module in network.modules()] == flags
    assert (network[1].momentum, len(network[1]._forward_pre_hooks)) == (0.3, 0)


def test_a_batch_that_cannot_be_normalised_is_explained():
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3))
    with pytest.raises(InvalidInput, match=r"a batch of shape \(1, 3, 6, 6\); give more images .* drop_last=True"):
        rbue.update_bn(network, X[:3].split(1))


def test_one_image_alone_joins_the_batch_before_it():
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3))
    rbue.update_bn(network, TensorDataset(X[:65]))  # read in batches of 64
    found = statistics(network)
    rbue.update_bn(network, X[:65])
    for one, other in zip(found, statistics(network), strict=True):
        torch.testing.assert_close(one, other)
    sizes = []
    network = nn.Sequential(nn.BatchNorm2d(3))
    network[0].register_forward_hook(lambda _, inputs, out: sizes.append(len(inputs[0])))
    rbue.update_bn(network, [*X[:2].split(1), X[:4], X[:1, :, :5]])  # not two alone, nor one of another shape
    assert sizes == [1, 1, 4, 1]


@pytest.mark.parametrize("size", [0, 2.5, True])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InvalidInput, match="batch_size is"):
        rbue.update_bn(converted(), X, batch_size=size)
