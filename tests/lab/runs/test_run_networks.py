"""What is found out about a network before it is trained."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.nn import functional as F

import rbue
from rbue.errors import InvalidInput
from rbue.lab import data
from rbue.lab.runs.networks import check_fits, draws_from_torch


class Functional(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.layer, self.p = nn.Linear(6, 2), p

    def forward(self, x):
        return self.layer(F.dropout(x, self.p, self.training))


def random_relus():
    return rbue.convert(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), rbue.DropReLU(0.5))


@pytest.mark.parametrize(
    ("make", "draws"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)), False),
        (random_relus, False),
        (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2)), True),
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.RReLU(), nn.Linear(8, 2)), True),
        (lambda: Functional(0.5), True),
        (lambda: Functional(0.0), False),
        (lambda: nn.Linear(7, 2), True),
    ],
    ids=["plain", "random ReLUs", "dropout", "rrelu", "functional", "functional off", "cannot be watched"],
)
def test_networks_that_draw_from_torch_are_seen_and_stay_as_they_are(make, draws):
    network, x = make().eval(), torch.randn(2, 6)  # it is asked how it trains, whatever its mode
    before, generator = {name: value.clone() for name, value in network.state_dict().items()}, torch.get_rng_state()
    assert draws_from_torch(network, x) is draws
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


class Returning(nn.Module):
    """Class scores of digits, in some form."""

    def __init__(self, form, classes=10):
        super().__init__()
        self.form, self.layer = form, nn.Linear(64, classes)

    def forward(self, x):
        return self.form(self.layer(x.flatten(1)))


@pytest.mark.parametrize(
    "form",
    [
        lambda y: y,
        lambda y: {"logits": y, "features": y[:1]},
        lambda y: SimpleNamespace(logits=y),
        lambda y: {"out": y},
    ],
    ids=["tensor", "dict", "object", "out"],
)
def test_scores_may_come_in_an_object(form):
    images = data.load("digits", "test")
    check_fits(Returning(form), "net", (1, 8, 8), images)
    with pytest.raises(InvalidInput, match=r"net returned an output of shape \(2, 9\) for two images .* \(2, 10\)"):
        check_fits(Returning(form, classes=9), "net", (1, 8, 8), images)


@pytest.mark.parametrize(("form", "kind"), [(lambda y: (y, y), "tuple"), (lambda y: None, "NoneType")])
def test_an_output_without_scores_is_refused(form, kind):
    with pytest.raises(InvalidInput, match=f"an output of type {kind} .* or an object or dict with such 'logits'"):
        check_fits(Returning(form), "net", (1, 8, 8), data.load("digits", "test"))


def fits(network, batch=2):
    check_fits(network, "net", (1, 8, 8), data.load("digits", "test"), batch)


def normed(norm):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), norm, nn.Flatten(), nn.Linear(1, 10))


def state_of(network):
    """All that a pass could change, but Python's own attributes."""
    buffers = {name: (id(buffer), buffer.clone()) for name, buffer in network.named_buffers()}
    flags = [module.training for module in network.modules()]
    return buffers, flags, torch.get_rng_state()


def test_a_network_that_fails_only_in_training_is_refused():
    message = (
        r"^net cannot be trained on images of 1x8x8 as in digits \(ValueError: Expected more than 1 spatial .*data\.$"
    )
    with pytest.raises(InvalidInput, match=message):
        fits(normed(nn.InstanceNorm2d(1, track_running_stats=True)))
    fits(normed(nn.BatchNorm2d(1)))


class Loud(nn.Module):
    """Its error has two lines, and what a terminal obeys."""

    def forward(self, x):
        raise ValueError("a bad\n \x1b[2Jnumber")


def test_what_a_network_says_is_one_line_without_what_a_terminal_obeys():
    with pytest.raises(InvalidInput, match=r"in digits \(ValueError: a bad \\x1b\[2Jnumber\); mend it"):
        fits(Loud())


class Picky(nn.Module):
    """In training it draws numbers, and needs so many images, or gradients."""

    def __init__(self, rows=1, gradients=False):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm2d(1), nn.Linear(64, 10)
        self.frozen = nn.BatchNorm1d(10).eval()
        self.rows, self.gradients = rows, gradients

    def forward(self, x):
        if self.training:
            torch.rand(())
            assert len(x) >= self.rows, "too few"
        scores = self.frozen(self.layer(self.norm(x).flatten(1)))
        assert scores.requires_grad or not (self.training and self.gradients), "no gradients"
        return scores


@pytest.mark.parametrize("network", [Picky(), Picky(rows=4), Picky(gradients=True), Picky(rows=9)])
def test_the_training_pass_leaves_no_trace(network):
    buffers, flags, generator = state_of(network)
    with pytest.raises(InvalidInput, match="AssertionError: too few") if network.rows == 9 else nullcontext():
        fits(network, batch=8)
    for name, (place, content) in state_of(network)[0].items():
        assert place == buffers[name][0]
        assert torch.equal(content, buffers[name][1])
    assert state_of(network)[1] == flags == [True, True, True, False]
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_batch_has_no_more_images_than_there_are():
    images = data.load("digits", "test")
    few = images.take(np.arange(5), "test", None)
    check_fits(Picky(rows=5), "net", (1, 8, 8), few, 10**12)
    with pytest.raises(InvalidInput, match="too few"):
        check_fits(Picky(rows=6), "net", (1, 8, 8), few, 10**12)


def test_where_several_processes_train_a_pass_is_not_tried(monkeypatch):
    """SyncBatchNorm needs the GPU that it is moved to later."""
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    fits(normed(nn.SyncBatchNorm(1)))


def with_buffer(content, persistent=True):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    network.register_buffer("extra", content, persistent)
    return network


SPARSE, LARGE = torch.eye(3).to_sparse(), torch.ones(3, dtype=torch.complex128)


@pytest.mark.parametrize(("content", "kind"), [(SPARSE, "torch.sparse_coo"), (LARGE, "torch.complex128")])
def test_a_buffer_that_cannot_be_saved_is_named(content, kind):
    with pytest.raises(InvalidInput, match=rf"net keeps a tensor .* runs cannot save \('extra', {kind}\); make it"):
        fits(with_buffer(content))


@pytest.mark.parametrize("content", [SPARSE, LARGE])
def test_a_buffer_that_is_not_saved_may_be_of_any_type(content):
    fits(with_buffer(content, persistent=False))


@pytest.mark.parametrize(
    "content",
    [
        torch.ones(1).expand(4),
        torch.tensor([torch.nan]).expand(4),
        torch.ones(2, 3).t(),
        torch.empty(0, 3),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(2).to(torch.float8_e4m3fn),
        torch.tensor([True]),
        torch.tensor(3, dtype=torch.uint64),
    ],
    ids=["expanded", "expanded nan", "transposed", "empty", "complex64", "float8", "bool", "uint64"],
)
def test_a_buffer_that_can_be_saved_is_no_obstacle(content):
    network = with_buffer(content)
    fits(network)
    assert network.extra is content
    back = load(save({"extra": content.contiguous()}))["extra"]
    assert torch.equal(back.flatten().view(torch.uint8), content.contiguous().flatten().view(torch.uint8))
