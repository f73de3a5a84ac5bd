"""Samples that share a pass share no mask, and what two images show of a network is not taken for all of it."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rbue
from rbue import models
from rbue.sampling.passes import StackedPasses


class OfWeights(nn.Module):
    """A ReLU of something made from weights has no rows of images; one mask would serve a whole pass."""

    def __init__(self, rows=64):
        super().__init__()
        self.first, self.weight, self.head = nn.Linear(8, 16), nn.Parameter(torch.randn(rows, 16)), nn.Linear(rows, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.first(x)) @ F.relu(self.weight * 1.5).t())


def drawn_one_by_one(net, x, samples):
    rbue.seed(net.eval(), 0)
    with torch.no_grad():
        return torch.stack([net(x) for _ in range(samples)]).softmax(2)


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
@pytest.mark.parametrize(("rows", "images", "samples"), [(64, 1, 16), (64, 4, 16), (75, 3, 25), (64, 3, 10)])
def test_a_relu_of_weights_is_drawn_anew_for_each_sample(rows, images, samples):
    torch.manual_seed(0)
    net, x = OfWeights(rows), torch.randn(images, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    found = rbue.predict(net, x, samples=samples, return_samples=True)
    assert found.samples.std(0).max() > 0.01
    torch.testing.assert_close(found.samples, drawn_one_by_one(net, x, samples))


class AdaptiveAdjacency(nn.Module):
    """The graph is made of weights; its ReLU changes the scores by less than a thousandth."""

    def __init__(self):
        super().__init__()
        self.nodes, self.first, self.head = nn.Parameter(torch.randn(32, 6)), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        graph = F.softmax(F.relu(self.nodes @ self.nodes.t()), 1)
        return self.head(torch.tanh(self.first(graph @ x)).mean(1))


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
def test_samples_that_differ_by_little_are_different():
    torch.manual_seed(0)
    net, x = AdaptiveAdjacency(), torch.randn(2, 32, 4)
    rbue.convert(net, rbue.DropReLU(0.8), example=x)
    found = rbue.predict(net, x, samples=16, return_samples=True)
    assert found.samples.std(0).max() > 1e-5
    torch.testing.assert_close(found.samples, drawn_one_by_one(net, x, 16), atol=1e-7, rtol=0)


def test_a_head_of_zeros_says_nothing_about_the_trained_one():
    torch.manual_seed(0)
    net, x = OfWeights(), torch.randn(1, 8)
    trained = copy.deepcopy(net.head)
    nn.init.zeros_(net.head.weight)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    rbue.predict(net, x, samples=16)
    net.head.load_state_dict(trained.state_dict())
    found = rbue.predict(net, x, samples=16, return_samples=True)
    torch.testing.assert_close(found.samples, drawn_one_by_one(net, x, 16))


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.exit, self.second, self.head = (
            nn.Linear(n, m) for n, m in ((8, 16), (16, 4), (16, 16), (16, 4))
        )

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.exit(h) if x.abs().max() < 0.5 else self.head(F.relu(self.second(h)))


def test_images_that_leave_before_the_first_random_site_are_predicted_too():
    torch.manual_seed(0)
    net, x = EarlyExit(), torch.randn(9, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rbue.predict(net, [x, x / 100], samples=5)
    with torch.no_grad():
        torch.testing.assert_close(found.probs[9:], net(x / 100).softmax(1))


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x):
        return self.head(F.relu(self.first(x.transpose(0, 1))).mean(0))


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
def test_batches_and_ranks_draw_apart_where_rows_are_not_images(monkeypatch):
    torch.manual_seed(0)
    net, x = TimeFirst(), torch.randn(3, 10, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    found = rbue.predict(net, [x, x], samples=5, return_samples=True).samples
    assert not torch.equal(found[:, :3], found[:, 3:])
    torch.testing.assert_close(found[:, :3], drawn_one_by_one(net, x, 5))
    rbue.seed(net, 0)
    here = net(x)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    rbue.seed(net, 0)
    assert not torch.equal(net(x), here)


PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def stacks(name, activation, precision, device):
    torch.manual_seed(0)
    x = torch.randn(3, 3, 32, 32, device=device)
    net = models.create(name, classes=10).to(device).eval()
    rbue.convert(net, activation, example=x)
    return StackedPasses(net.to(PRECISIONS[precision]), x.to(PRECISIONS[precision]), seed=0).plan.stack


@pytest.mark.parametrize(
    "activation", [rbue.DropReLU(0.9), rbue.RReLU(), rbue.Dropout(0.2)], ids=["drop", "rrelu", "dropout"]
)
@pytest.mark.parametrize("name", ["small_cnn", "vgg13", "resnet18"])
def test_samples_of_common_networks_share_passes(name, activation):
    assert stacks(name, activation, "float32", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "activation", [rbue.DropReLU(0.9), rbue.RReLU(), rbue.Dropout(0.2)], ids=["drop", "rrelu", "dropout"]
)
@pytest.mark.parametrize("name", ["vgg13", "resnet18", "densenet121"])
def test_samples_of_common_networks_share_passes_on_a_gpu(name, activation, precision):
    assert stacks(name, activation, precision, "cuda")


class WithNoise(nn.Module):
    """Draws random numbers of its own, so no two of its passes are the same."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x):
        return self.head(F.relu(self.first(x))) + torch.randn(len(x), 3) / 10


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
def test_a_network_with_random_numbers_of_its_own_may_share_passes():
    net, x = WithNoise(), torch.randn(3, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    assert StackedPasses(net, x, seed=0).plan.stack
