"""Converted networks inside, beside and after one another keep to their own ReLUs and their own bits."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from style_networks import SharedReluResNet, images, mlp, rows, run
from torch import Tensor, nn
from torch.nn import functional as F

import rbue


class Outer(nn.Module):
    """A network around another: a ReLU before it, one after it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.fc = nn.Linear(3, 20)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        before = F.relu(x)
        inner = self.inner(x)
        return {"before": before, "inner": inner, "after": F.relu(self.fc(inner))}


def random_parts(network: nn.Module) -> set[str]:
    """Which outputs change from call to call when everything before them is the same."""
    rbue_free = -1 - torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    first, second = network(rbue_free), network(rbue_free)
    return {name for name in first if not torch.equal(first[name], second[name])}


@pytest.mark.parametrize("inner_first", [True, False])
@pytest.mark.parametrize("example", [True, False])
def test_each_network_owns_its_sites_in_either_order_of_conversion(inner_first: bool, example: bool) -> None:
    torch.manual_seed(0)
    inner = mlp()
    outer = Outer(inner)
    order: list[nn.Module] = [inner, outer] if inner_first else [outer, inner]
    for network in order:
        rbue.convert(network, rbue.DropReLU(0.5), example=rows() if example else None)
    with rbue.mode(inner, "plain"):
        assert random_parts(outer) == {"before", "after"}
    with rbue.mode(outer, "plain"):
        assert random_parts(outer) == {"inner", "after"}
    with rbue.mode(outer, "plain"), rbue.mode(inner, "plain"):
        assert random_parts(outer) == set()
    assert random_parts(outer) == {"before", "inner", "after"}


def test_inner_draws_what_it_draws_alone_and_outer_too() -> None:
    torch.manual_seed(0)
    inner = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows())
    outer = rbue.convert(Outer(inner), rbue.RReLU(), example=rows())
    rbue.seed(inner, 1)
    alone = inner(rows())
    rbue.seed(inner, 1)
    rbue.seed(outer, 2)
    out = outer(rows())
    assert torch.equal(out["inner"], alone)
    assert torch.equal(out["before"], rbue.functional.rrelu(rows(), seed=2, site=rbue.sites(outer, rows())[0].number))


def test_sites_of_a_converted_part_are_not_listed_for_the_whole() -> None:
    inner = mlp()
    outer = Outer(inner)
    assert [site.name for site in rbue.sites(outer, rows())] == ["(root)", "inner.1", "inner.3", "(root)[1]"]
    rbue.convert(inner, rbue.DropReLU(0.5))
    assert [site.name for site in rbue.sites(outer, rows())] == ["(root)", "(root)[1]"]
    rbue.revert(inner)
    assert len(rbue.sites(outer, rows())) == 4


@pytest.mark.parametrize("inner_first", [True, False])
def test_reverting_one_leaves_the_other(inner_first: bool) -> None:
    torch.manual_seed(0)
    inner = mlp()
    outer = Outer(inner)
    kinds = [type(module) for module in outer.modules()]
    rbue.convert(outer, rbue.DropReLU(0.5))
    rbue.convert(inner, rbue.DropReLU(0.5))
    first, second = (inner, outer) if inner_first else (outer, inner)
    rbue.revert(first)
    # a part that gives up its own conversion belongs to the whole again
    assert random_parts(outer) == ({"before", "inner", "after"} if inner_first else {"inner", "after"})
    rbue.revert(second)
    assert random_parts(outer) == set()
    assert [type(module) for module in outer.modules()] == kinds


def test_whole_whose_only_relus_are_in_a_converted_part_runs() -> None:
    inner = mlp()
    outer = nn.Sequential(inner, nn.Softmax(1))
    rbue.convert(outer, rbue.DropReLU(0.5))
    rbue.convert(inner, rbue.DropReLU(0.5))
    assert not torch.equal(outer(rows()), outer(rows()))


class Calls(nn.Module):
    """A ReLU, another network that is not a submodule, and a ReLU again."""

    def __init__(self, other: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.__dict__["other"] = other

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.fc(F.relu(self.fc(x)) + self.other(x)))


@pytest.mark.parametrize("where", ["all", [0, 1]])
def test_network_calling_another_by_closure_keeps_its_numbers(where: str | list[int]) -> None:
    torch.manual_seed(0)
    other = rbue.convert(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), rbue.DropReLU(0.5))
    network = Calls(lambda x: 0 * other(x))
    rbue.convert(network, rbue.DropReLU(0.5), where=where, example=rows())
    rbue.seed(network, 1)
    with_call = network(rows())
    network.__dict__["other"] = torch.zeros_like
    rbue.seed(network, 1)
    assert torch.equal(network(rows()), with_call)


def test_network_may_call_its_own_copy() -> None:
    torch.manual_seed(0)
    student = Calls(torch.zeros_like)
    rbue.convert(student, rbue.DropReLU(0.5), where=[0, 1], example=rows())
    teacher = copy.deepcopy(student)
    rbue.seed(student, 1)
    rbue.seed(teacher, 2)
    expected = teacher(rows())
    seen: list[Tensor] = []

    def ask_teacher(x: Tensor) -> Tensor:
        seen.append(teacher(x))
        return torch.zeros_like(x)

    alone = student(rows())
    student.__dict__["other"] = ask_teacher
    rbue.seed(student, 1)
    rbue.seed(teacher, 2)
    assert torch.equal(student(rows()), alone)
    assert torch.equal(seen[0], expected)


def test_interleaved_networks_do_not_disturb_each_other() -> None:
    """As in a GAN: both run by turns inside one forward, and both learn from one loss."""
    one = rbue.convert(mlp(1), rbue.DropReLU(0.5), example=rows())
    two = rbue.convert(mlp(2), rbue.RReLU(), where="last", example=rows())

    def outputs(interleaved: bool) -> list[Tensor]:
        rbue.seed(one, 1)
        rbue.seed(two, 2)
        if interleaved:
            return [network(rows()) for _ in range(3) for network in (one, two)]
        first, second = ([network(rows()) for _ in range(3)] for network in (one, two))
        return [out for pair in zip(first, second, strict=True) for out in pair]

    for a, b in zip(outputs(True), outputs(False), strict=True):
        assert torch.equal(a, b)


def test_module_shared_by_two_converted_networks() -> None:
    trunk = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    one, two = nn.Sequential(trunk, nn.Linear(8, 3)), nn.Sequential(trunk, nn.ReLU())
    rbue.convert(one, rbue.DropReLU(0.5), example=rows())
    rbue.convert(two, rbue.DropReLU(1.0), example=rows())
    assert not torch.equal(one(rows()), one(rows()))
    assert torch.equal(two(rows()), two(rows()))
    assert torch.equal(trunk(rows()), trunk(rows()))
    rbue.revert(two)
    assert not torch.equal(one(rows()), one(rows()))
    rbue.revert(one)
    assert type(trunk[1]) is nn.ReLU
    assert torch.equal(one(rows()), one(rows()))


def test_threads_do_not_cross() -> None:
    networks = [rbue.convert(SharedReluResNet().eval(), rbue.DropReLU(0.5), example=images()) for _ in range(4)]

    def sequence(index: int) -> Tensor:
        rbue.seed(networks[index], index)
        return torch.stack([run(networks[index], images()) for _ in range(5)])

    expected = [sequence(index) for index in range(4)]
    found: dict[int, Tensor] = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: sequence(i)})) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[index], expected[index]) for index in range(4))


def test_one_network_in_many_threads_is_random_in_each() -> None:
    network = rbue.convert(SharedReluResNet().eval(), rbue.DropReLU(0.5))
    found: list[Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(run(network, images()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with rbue.mode(network, "plain"):
        plain = run(network, images())
    assert len(found) == 4
    assert not any(torch.equal(out, plain) for out in found)


class PassesOn(nn.Module):
    """A wrapper with the attributes of what it wraps, as adapters of language models are."""

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped, self.head = wrapped, nn.Linear(3, 3)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("wrapped"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.wrapped(x)))


def test_wrapper_with_the_attributes_of_a_converted_network_can_be_converted() -> None:
    inner = rbue.convert(mlp(), rbue.DropReLU(0.5))
    network = rbue.convert(PassesOn(inner), rbue.DropReLU(0.5), example=rows())
    assert not torch.equal(network(rows()), network(rows()))
    assert not any("_rbue" in name for name in network.state_dict())
    rbue.revert(rbue.revert(network).wrapped)
    assert torch.equal(network(rows()), network(rows()))


class SetsToo(PassesOn):
    """As the wrapper of Lightning's Fabric, which also sets the attributes of the network inside."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name not in ("wrapped", "head") and "wrapped" in self._modules:
            setattr(self.wrapped, name, value)


def test_wrapper_that_sets_attributes_of_the_network_inside_leaves_it_as_it_is() -> None:
    inner = mlp()
    network = rbue.convert(SetsToo(inner), rbue.DropReLU(0.5), example=rows())
    rbue.predict(network, rows(), samples=3)
    assert inner.training
    assert network.training
    rbue.revert(network)
    assert (type(inner), type(network)) == (type(mlp()), SetsToo)
    assert torch.equal(network(rows()), network(rows()))
