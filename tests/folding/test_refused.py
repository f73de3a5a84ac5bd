"""What cannot be folded is refused with a way out, and a copy that differs is not returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from folding_networks import Pair, assert_near, images, made, run, small, small_images
from torch import Tensor, nn
from torch.nn import functional as F

import rbue


@pytest.mark.parametrize(
    "wrap",
    [
        lambda network: torch.compile(network, backend="eager"),
        nn.DataParallel,
        lambda network: nn.Sequential(nn.DataParallel(network)),
        lambda network: nn.Sequential(torch.compile(network, backend="eager")),
    ],
    ids=["compile", "DataParallel", "DataParallel inside", "compile inside"],
)
def test_wrapped_networks_are_refused(wrap: Callable) -> None:
    with pytest.raises(rbue.InvalidInput, match=r"before torch\.compile or DataParallel, and wrap the copy"):
        rbue.fold_batchnorm(wrap(made(small)), small_images())


def test_network_compiled_in_place_is_refused() -> None:
    network = made(small)
    network[4].compile(backend="eager")
    with pytest.raises(rbue.InvalidInput, match=r"4 is compiled or wrapped \(Linear\)"):
        rbue.fold_batchnorm(network, small_images())


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (small_images().to("meta"), "example is on meta but the network is on cpu; move one to the other"),
        ([small_images()], "not list"),
        (small_images()[:0], r"its shape is \(0, 3, 8, 8\)"),
        (small_images() / 0, "NaN or infinity"),
    ],
    ids=["device", "list", "empty", "infinite"],
)
def test_bad_examples_are_refused(example: Any, message: str) -> None:
    with pytest.raises(rbue.InvalidInput, match=message):
        rbue.fold_batchnorm(made(small), example)


def test_something_else_than_a_network_is_refused() -> None:
    with pytest.raises(rbue.InvalidInput, match="not function"):
        rbue.fold_batchnorm(run, images())


class Remembers(Pair):
    """Every call gives something else."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.calls * super().forward(x)


class RemembersInADict(Remembers):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x, "features": super().forward(x)}


class RemembersBesideAMask(Remembers):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super().forward(x), torch.full_like(x, -1e9)], 1)


class HoldsItsNormInAList(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [self.conv, self.norm]

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


class AsksItsNorm(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.norm.num_features


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Remembers, "Remembers gives other outputs with its BatchNorm folded, by more than 0.001"),
        (RemembersInADict, "RemembersInADict gives other outputs"),
        (RemembersBesideAMask, "RemembersBesideAMask gives other outputs"),
        (HoldsItsNormInAList, "HoldsItsNormInAList gives other outputs"),
        (AsksItsNorm, "AsksItsNorm does not run without its BatchNorm .*num_features"),
    ],
)
def test_copy_that_differs_is_not_returned(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(rbue.RbueError, match=message):
        rbue.fold_batchnorm(made(build), images())


def test_network_with_noise_of_its_own_is_compared_under_the_same_noise() -> None:
    class Noisy(Pair):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(super().forward(x), 0.5, training=True)

    network = made(Noisy)
    assert not torch.equal(run(network, images()), run(network, images()))
    folded = rbue.fold_batchnorm(network, images())
    torch.manual_seed(1)
    expected = run(network, images())
    torch.manual_seed(1)
    assert_near(run(folded, images()), expected)
