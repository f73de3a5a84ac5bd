"""TreeNet: members are networks with one trunk, and branches train as networks alone."""

import pytest
import torch
from tiny_training import X, fresh, network, samples
from torch import nn
from torch.nn import functional as F

from rbue.errors import InvalidInput
from rbue.lab.methods import TrainingProgress, parse
from rbue.lab.methods.treenet import Branches, units
from rbue.lab.models import create

PROGRESS = TrainingProgress(torch.tensor(0.0), 48)
Y = torch.tensor([0, 1, 2, 0, 1])


def alone(tree, member, plain):
    """A plain network of the trunk and one branch."""
    branches = {path for path, module in tree.network.named_modules() if isinstance(module, Branches)}
    state = {}
    for name, value in tree.network.state_dict().items():
        path = next((one for one in branches if name.startswith(f"{one}.members.")), None)
        if path is None:
            state[name] = value
        elif name.startswith(f"{path}.members.{member}."):
            state[name.replace(f"{path}.members.{member}", path, 1)] = value
    plain.load_state_dict(state)
    return plain


def test_members_are_networks_with_the_same_trunk():
    tree = fresh("treenet:3").eval()
    expected = torch.stack([alone(tree, member, network()).eval()(X).softmax(1) for member in range(3)])
    torch.testing.assert_close(samples("treenet:3", tree, 3), expected)
    assert (expected[0] - expected[1]).abs().max() > 1e-3


def test_branches_get_the_gradient_of_a_network_alone_and_the_trunk_the_mean():
    tree = fresh("treenet:2").train()
    networks = [alone(tree, member, network()).train() for member in range(2)]
    parse("treenet:2").loss(tree, X, Y, PROGRESS)[0].backward()
    for one in networks:
        F.cross_entropy(one(X), Y).backward()
    for member, one in enumerate(networks):
        found = tree.network[8].members[member].weight.grad
        torch.testing.assert_close(found, one[8].weight.grad, rtol=1e-4, atol=1e-6)
    mean = (networks[0][0].weight.grad + networks[1][0].weight.grad) / 2
    torch.testing.assert_close(tree.network[0].weight.grad, mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("resnet18", "stages.2"),
        ("vgg13", "stages.3"),
        ("small_cnn", "conv3"),
        pytest.param("densenet121", "blocks.3", marks=pytest.mark.slow),
    ],
)
def test_where_the_networks_of_the_laboratory_branch(name, first):
    torch.manual_seed(0)
    tree = parse("treenet:2").prepare(create(name, 10, 1, 0.125), X).eval()
    found = [path for path, module in tree.network.named_modules() if isinstance(module, Branches)]
    assert found[0] == first
    assert found[-1] == "head"
    expected = torch.stack([alone(tree, member, create(name, 10, 1, 0.125)).eval()(X) for member in (0, 1)], 1)
    scale = expected.abs().max()  # far below 1 in a deep network whose statistics are still 0 and 1
    torch.testing.assert_close(tree(X) / scale, expected / scale, rtol=1e-3, atol=1e-3)
    assert (expected[:, 0] - expected[:, 1]).abs().max() > 0.1 * scale


@pytest.mark.parametrize(("shared", "first"), [(0, "0"), (0.2, "1"), (0.5, "4"), (0.99, "8")])
def test_the_part_that_is_shared_is_a_setting(shared, first):
    assert units(network(), X) == ["0", "1", "3", "4", "8"]
    tree = parse(f"treenet:2,{shared}").prepare(network(), X)
    assert next(path for path, one in tree.network.named_modules() if isinstance(one, Branches)) == first


class Odd(nn.Module):
    """Declared from its end, with a part for training alone; counts its calls."""

    def __init__(self):
        super().__init__()
        self.head, self.beside, self.first = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(36, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        x = self.first(x.flatten(1))
        return self.head(x) + (self.beside(x) if self.training else 0)


def test_units_are_those_that_a_prediction_calls_in_its_order():
    odd = Odd()
    assert units(odd, X) == ["first", "head"]
    assert odd.calls == 0


def test_first_weights_of_branches_differ_and_are_of_one_distribution():
    torch.manual_seed(0)
    tree = parse("treenet:2,0").prepare(nn.Sequential(nn.Flatten(), nn.Linear(36, 100)), X)
    first, second = (member.weight for member in tree.network[1].members)
    assert not first.equal(second)
    assert second.std().item() == pytest.approx(first.std().item(), rel=0.05)


class PassingBy(nn.Module):
    """The trunk's features reach the head beside the branches."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(36, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        x = self.a(x.flatten(1))
        return self.c(self.b(x)) + x


class AcrossRows(PassingBy):
    """Adds the rows before to each."""

    def forward(self, x):
        return self.c(self.b(self.a(x.flatten(1)))).cumsum(0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (AcrossRows, r"cannot branch AcrossRows after 0\.5 of its parts, since something passes by them"),
        (PassingBy, r"cannot branch PassingBy after 0\.5 of its parts \("),
        (lambda: nn.Sequential(nn.Flatten()), "Sequential has no parts with weights"),
    ],
)
def test_networks_that_cannot_branch_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        parse("treenet:2").prepare(make(), X)


def test_settings_out_of_range_are_refused():
    with pytest.raises(InvalidInput, match=r"shared of treenet must be .* not 1\.0"):
        parse("treenet:4,1")
