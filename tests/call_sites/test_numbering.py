"""A site is named by its module and its place among that module's calls; nothing else changes its bits."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from style_networks import Branching, SharedBlockLoop, SharedReluResNet, images, run
from torch import Tensor, nn
from torch.nn import functional as F

import rbue
from rbue.call_sites.table import Site, SiteTable, choose
from rbue.errors import InvalidInput


class Residual(nn.Module):
    """``a`` can be skipped; ``b`` is called ``loops`` times; the root has ReLUs before, between and after."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.ReLU(), nn.ReLU()
        self.skip_a, self.loops = False, 2

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = {"root 0": F.relu(x)}
        if not self.skip_a:
            found["a 0"] = self.a(x)
        for call in range(self.loops):
            found[f"b {call}"] = self.b(x)
        found["root 1"] = F.relu(x)
        return found


def negatives() -> Tensor:
    return -1 - torch.rand(3, 50, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("where", ["all", [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("change", [{"skip_a": True}, {"loops": 0}, {"loops": 1}, {"skip_a": True, "loops": 0}])
def test_skipped_branch_renumbers_nothing(where: Any, change: dict[str, Any]) -> None:
    network, x = Residual(), negatives()
    rbue.convert(network, rbue.DropReLU(0.5), where=where, example=x)
    rbue.seed(network, 5)
    everything = network(x)
    vars(network).update(change)
    rbue.seed(network, 5)
    some = network(x)
    assert set(some) < set(everything)
    assert all(torch.equal(value, everything[name]) for name, value in some.items())


def test_no_two_sites_share_their_bits() -> None:
    network = rbue.convert(Residual(), rbue.DropReLU(0.5), example=negatives())
    outputs = list(network(negatives()).values())
    assert len(outputs) == 5
    assert not any(torch.equal(a, b) for i, a in enumerate(outputs) for b in outputs[:i])


@pytest.mark.parametrize("with_example", [True, False])
def test_bits_are_those_of_the_functional_form(with_example: bool) -> None:
    network, x = Residual(), negatives()
    table = rbue.sites(network, x)
    rbue.convert(network, rbue.DropReLU(0.5), example=x if with_example else None)
    rbue.seed(network, 11)
    for sample in range(2):
        for site, out in zip(table, network(x).values(), strict=True):
            expected = rbue.functional.drop_relu(x, 0.5, seed=11, sample=sample, site=site.number)
            assert torch.equal(out, expected)


def test_placement_does_not_change_the_bits_of_the_chosen_sites() -> None:
    network, x = Residual(), negatives()
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    rbue.seed(network, 2)
    everything = list(network(x).values())
    rbue.convert(network, rbue.DropReLU(0.5), where=[1, 3], example=x)
    rbue.seed(network, 2)
    some = list(network(x).values())
    assert [torch.equal(a, b) for a, b in zip(some, everything, strict=True)] == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ("all", {0, 1, 2, 3, 4}),
        ("first", {0}),
        ("last", {4}),
        (2, {2}),
        (-2, {3}),
        (-5, {0}),
        ([0, -1], {0, 4}),
        ((1,), {1}),
        ("b*", {2, 3}),
        ("b", {2, 3}),
        ("b[[]1]", {3}),
        ("b[0]", {2}),
        ("(root)[0]", {0}),
        ("?", {1, 2, 3}),
        (lambda site: site.call == 1, {3, 4}),
        (lambda site: site.shape == (3, 50), {0, 1, 2, 3, 4}),
    ],
)
def test_placement_makes_exactly_the_chosen_sites_random(where: Any, chosen: set[int]) -> None:
    network, x = Residual(), negatives()
    rbue.convert(network, rbue.DropReLU(0.5), where=where, example=x)
    random = {index for index, out in enumerate(network(x).values()) if bool(out.any())}
    assert random == chosen


def test_sites_that_the_example_did_not_reach_are_random_under_all() -> None:
    network, x = Residual(), negatives()
    network.skip_a, network.loops = True, 0
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    network.skip_a, network.loops = False, 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(bool(out.any()) for out in network(x).values())


def test_sites_that_the_example_did_not_reach_stay_plain_with_one_warning_otherwise() -> None:
    network, x = Residual(), negatives()
    network.skip_a, network.loops = True, 1
    rbue.convert(network, rbue.DropReLU(0.5), where=[0, 1], example=x)
    network.skip_a, network.loops = False, 2
    with pytest.warns(rbue.RbueWarning) as record:
        found = network(x)
    assert [str(w.message).split(" was not reached")[0] for w in record] == ["the ReLU at a", "the ReLU at b[1]"]
    assert {name for name, out in found.items() if bool(out.any())} == {"root 0", "b 0"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(x)


def test_fewer_calls_in_a_module_where_some_were_chosen_are_warned_of_once() -> None:
    network, x = Residual(), negatives()
    rbue.convert(network, rbue.DropReLU(0.5), where=["b[1]", "a"], example=x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(x)
        network.skip_a, network.loops = True, 0  # modules that are not run at all
        network(x)
    network.loops = 1  # it could be either call
    with pytest.warns(rbue.RbueWarning, match="b ran 1 ReLU call and 2 for the example") as record:
        network(x), network(x)
    assert len(record) == 1


def test_shape_dependent_branch() -> None:
    network = Branching().eval()
    assert [site.name for site in rbue.sites(network, images(size=16))] == ["early.1", "(root)", "head.1"]
    assert [site.name for site in rbue.sites(network, images(size=8))] == ["early.1", "head.1"]
    network.use_early = False
    assert [site.name for site in rbue.sites(network, images(size=16))] == ["(root)", "head.1"]


def test_branch_without_a_relu_is_fine_once_the_network_has_shown_some() -> None:
    class Optional(nn.Module):
        def forward(self, x: Tensor, linear: bool = False) -> Tensor:
            return x if linear else F.relu(x)

    network, x = Optional(), negatives()
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    assert torch.equal(network(x, linear=True), x)


def test_shared_module_counts_its_calls() -> None:
    names = [site.name for site in rbue.sites(SharedReluResNet().eval(), images())]
    block = [f"layers.{i}.relu{call}" for i in range(2) for call in ("", "[1]", "[2]")]
    assert names == ["relu", *block]


def test_site_numbers_are_part_of_the_stream() -> None:
    """Other numbers would be other bits: they may change with random_stream.VERSION only."""
    numbers = [rbue.Site(0, path, call, "", ()).number for path in ("", "layer4.1.relu") for call in (0, 1, 5)]
    assert numbers == [0, 2654435769, 387276957, 232904638, 2887340407, 620181595]


def test_block_called_in_a_loop_counts_its_calls() -> None:
    names = [site.name for site in rbue.sites(SharedBlockLoop().eval(), images())]
    assert names == ["block", *[f"block[{call}]" for call in range(1, 6)]]


def test_module_at_two_paths_has_the_first_one() -> None:
    shared = nn.ReLU()
    network = nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared)
    assert [site.name for site in rbue.sites(network, torch.randn(2, 4))] == ["1", "1[1]"]
    rbue.convert(network, rbue.DropReLU(0.5), where="1[1]", example=torch.randn(2, 4))
    first = network[:2](torch.randn(2, 4))
    assert bool((first >= 0).all())


def test_part_that_fails_gives_its_place_back() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            F.relu(x)
            raise ValueError("broken")

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Fails()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.part(x)
            except ValueError:
                return F.relu(x)

    assert [site.name for site in rbue.sites(Catches(), negatives())] == ["part", "(root)"]


def test_numbers_do_not_depend_on_batch_or_memory_format() -> None:
    network, x = SharedReluResNet().eval(), images(5)
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    rbue.seed(network, 4)
    whole = run(network, x)
    rbue.seed(network, 4)
    assert torch.allclose(run(network, x[:2]), whole[:2], atol=1e-5)
    rbue.seed(network, 4)
    last = run(network, x.to(memory_format=torch.channels_last))
    assert torch.allclose(last, whole, atol=1e-5)


def test_relus_of_parameters_and_of_one_number_are_no_sites() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.tensor([0.5, -0.5]))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x) * F.relu(self.weights).sum() * F.relu(x.new_tensor(2.0))

    table = rbue.sites(Weighted(), negatives())
    assert [site.shape for site in table] == [(3, 50)]


def test_empty_batch_passes_through() -> None:
    network = rbue.convert(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), rbue.DropReLU(0.5))
    assert network(torch.empty(0, 4)).shape == (0, 4)


@pytest.mark.parametrize(
    ("paths", "picked"),
    [
        (["a", "c1", "c.0", "c.1"], ["c.0", "c.1"]),
        (["a", "a.0", "b", "b.0"], ["b", "b.0"]),
        (["a.0", "a.1", "a.2"], ["a.2"]),  # a module with all of them is no part: the last quarter, and at least one
        (["a", "b", "c", "d", "e", "f", "g", "h"], ["g", "h"]),
    ],
)
def test_the_last_block(paths: list[str], picked: list[str]) -> None:
    table = SiteTable(Site(k, path, 0, "F.relu", (2, 8)) for k, path in enumerate(paths))
    assert sorted(path for path, _ in choose(table, "last block")) == picked
    assert repr(table[:1]).splitlines() == repr(table).splitlines()[:2]
    assert len({table, SiteTable(table), table[:1], tuple(table)}) == 3
    with pytest.raises(InvalidInput, match="where='x' picks none") as error:
        choose(table, "x")
    assert "inside it" not in str(error.value)
