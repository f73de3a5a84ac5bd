"""Packed-Ensemble: one network of groups is the narrow networks it stands for, and trains as they would."""

import math

import pytest
import torch
from tiny_training import X, fresh, network, samples
from torch import nn
from torch.nn import functional as F

from rbue.errors import InvalidInput
from rbue.lab.methods import TrainingProgress, parse
from rbue.lab.models import create, parameters

PROGRESS = TrainingProgress(torch.tensor(0.0), 48)
Y = torch.tensor([0, 1, 2, 0, 1])


def alone(packed, member, narrow):
    """A network of a member's width, with its part of every tensor."""
    own = narrow.state_dict()
    for name, value in packed.network.state_dict().items():
        if "num_batches" not in name:
            own[name] = value.unflatten(0, (packed.members, -1))[member].reshape(own[name].shape)
    narrow.load_state_dict(own)
    return narrow


def shaken(packed):
    torch.manual_seed(3)
    for name, tensor in packed.state_dict().items():
        if "num_batches" not in name:
            tensor += 0.2 * torch.rand(tensor.shape)
    return packed.eval()


def test_one_pass_is_that_of_separate_networks_of_half_the_width():
    packed = shaken(fresh("packed-ensemble:4"))
    expected = torch.stack([alone(packed, member, network(width=4)).eval()(X).softmax(1) for member in range(4)])
    torch.testing.assert_close(samples("packed-ensemble:4", packed, 4), expected)
    assert (expected[0] - expected[1]).abs().max() > 0.01


def test_each_member_gets_the_gradient_it_would_get_alone():
    packed = fresh("packed-ensemble:4").train()
    narrow = [alone(packed, member, network(width=4)).train() for member in range(4)]
    loss, _ = parse("packed-ensemble:4").loss(packed, X, Y, PROGRESS)
    loss.backward()
    for member, one in enumerate(narrow):
        F.cross_entropy(one(X), Y).backward()
        for name, parameter in packed.network.named_parameters():
            found = parameter.grad.unflatten(0, (4, -1))[member]
            expected = one.get_parameter(name).grad
            torch.testing.assert_close(found.reshape(expected.shape), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("name", "width"), [("resnet18", 0.25), ("vgg13", 0.25), ("small_cnn", 1.0)])
def test_the_networks_of_the_laboratory(name, width):
    packed = shaken(parse("packed-ensemble:4").prepare(create(name, 10, 1, width), X))
    # Matrices have as many weights as before, vectors such as BatchNorm's twice as many.
    assert parameters(packed) == pytest.approx(parameters(create(name, 10, 1, width)), rel=0.06)
    for member in (0, 3):
        expected = alone(packed, member, create(name, 10, 1, width / 2)).eval()(X)
        torch.testing.assert_close(packed(X)[:, member], expected, rtol=1e-3, atol=1e-4)


def test_first_weights_are_scaled_to_the_width_of_a_member():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3, bias=False), nn.Flatten(), nn.Linear(256, 5))
    before = [net[place].weight.std().item() for place in (0, 1, 3)]
    packed = parse("packed-ensemble:4,1.0").prepare(net, torch.zeros(1, 3, 6, 6)).network
    assert [packed[place].weight.std().item() / std for place, std in zip((0, 1, 3), before, strict=True)] == (
        pytest.approx([math.sqrt(4)] * 3, rel=0.05)
    )
    assert packed[1].weight.shape == (64, 16, 3, 3)
    assert packed[3].weight.shape == (4, 5, 64)
    assert packed[0].bias.shape == (64,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: create("densenet121", 10, 1, 0.125), "cannot divide DenseNet121 among 4 members: it joins or mixes"),
        (lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, groups=8)), r"cannot divide Sequential .* \("),
        (lambda: nn.Sequential(nn.Flatten()), "calls no nn.Conv2d or nn.Linear to divide among members"),
    ],
)
def test_networks_that_cannot_be_divided_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        parse("packed-ensemble:4").prepare(make(), X)


def test_settings_out_of_range_are_refused():
    with pytest.raises(InvalidInput, match=r"alpha of packed-ensemble must be a number above 0, not -1\.0"):
        parse("packed-ensemble:4,-1")
