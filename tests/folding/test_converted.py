"""A folded network draws the samples of the converted network it came from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from folding_networks import ACTIVATIONS, Pair, assert_near, created, images, made, norms, run, small, small_images
from torch import Tensor, nn

import rbue
from rbue.call_sites import conversion_of


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_converted_networks_draw_the_same_samples(name: str, activation: Any) -> None:
    network, x = created(name), images()
    rbue.convert(network, activation, where=[0, 2, -1], example=x)
    folded = rbue.fold_batchnorm(network, x)
    assert norms(folded) < norms(network)
    ours, theirs = conversion_of(folded), conversion_of(network)
    assert (ours.activation, ours.sites, ours.chosen) == (theirs.activation, theirs.sites, theirs.chosen)
    expected = rbue.predict(network, x, samples=6, seed=11, return_samples=True).samples
    assert float(expected.std(0).max()) > 1e-3
    assert_near(rbue.predict(folded, x, samples=6, seed=11, return_samples=True).samples, expected, 1e-4)
    other = rbue.predict(folded, x, samples=6, seed=12, return_samples=True).samples
    assert float((other - expected).abs().max()) > 1e-3


@pytest.mark.parametrize("activation", ACTIVATIONS[:2], ids=lambda a: type(a).__name__)
def test_masks_are_the_same_element_by_element(activation: Any) -> None:
    network, x = rbue.convert(made(small), activation, example=small_images()), small_images()
    folded = rbue.fold_batchnorm(network, x)
    slopes: list[list[Tensor]] = []
    for part in (network, folded):
        seen: list[Tensor] = []
        for index in (2, 6):
            part[index].register_forward_hook(
                lambda m, args, out, seen=seen: seen.append(torch.where(args[0] < -1e-2, out / args[0], -1))
            )
        rbue.seed(part, 5)
        run(part, x)
        slopes.append(seen)
    for site in range(2):
        ours, theirs = slopes[1][site], slopes[0][site]
        both = (ours >= 0) & (theirs >= 0)
        assert int(both.sum()) > 20
        assert len(theirs[both].unique()) > 1
        assert float((ours - theirs)[both].abs().max()) < 1e-4


def test_plain_calls_go_on_with_the_same_bits_and_count_apart() -> None:
    network, x = rbue.convert(made(small), rbue.DropReLU(0.5)), small_images()
    rbue.seed(network, 3)
    run(network, x)
    folded = rbue.fold_batchnorm(network, x)
    second = run(folded, x)
    run(folded, x)
    assert_near(second, run(network, x))


def test_copy_is_independent_of_the_network() -> None:
    network, x = rbue.convert(made(small), rbue.DropReLU(0.5), example=small_images()), small_images()
    folded = rbue.fold_batchnorm(network, x)
    expected = rbue.predict(network, x, samples=4, return_samples=True).samples
    with rbue.mode(folded, "plain"):
        assert not torch.equal(run(network, x), run(network, x))
    rbue.revert(folded)
    assert [type(module) for module in folded.modules()] == [
        nn.Sequential, nn.Conv2d, nn.Identity, nn.ReLU, nn.Flatten, nn.Linear, nn.Identity, nn.ReLU, nn.Linear,
    ]  # fmt: skip
    assert_near(run(folded, x), run(made(small), x))
    assert torch.equal(rbue.predict(network, x, samples=4, return_samples=True).samples, expected)
    for parameter in folded.parameters():
        parameter.data.zero_()
    assert torch.equal(rbue.predict(network, x, samples=4, return_samples=True).samples, expected)


def test_copy_finds_out_anew_what_its_passes_cost() -> None:
    network, x = rbue.convert(created("resnet18"), rbue.DropReLU(0.5), example=images()), images()
    rbue.predict(network, x, samples=2)
    folded = rbue.fold_batchnorm(network, x)
    rbue.predict(folded, x, samples=2)
    (before,), (after,) = (conversion_of(one).plans.values() for one in (network, folded))
    assert before != after


def test_copy_made_inside_another_mode_is_random() -> None:
    network, x = rbue.convert(made(small), rbue.DropReLU(0.5)), small_images()
    with rbue.mode(network, "mean"):
        folded = rbue.fold_batchnorm(network, x)
        assert torch.equal(run(network, x), run(network, x))
    assert not torch.equal(run(folded, x), run(folded, x))


def test_converted_network_inside_another_one() -> None:
    network = made(lambda: nn.Sequential(Pair(), nn.ReLU(), nn.Sequential(Pair(), nn.ReLU())))
    rbue.convert(network[2], rbue.DropReLU(0.5), example=images())
    before = run(network, images())
    assert not torch.equal(run(network, images()), before)
    folded = rbue.fold_batchnorm(network, images())
    assert norms(folded) == 0
    for part in (network, folded):
        rbue.seed(part[2], 1)
    assert_near(run(folded, images()), run(network, images()))


def test_compiled_copy_predicts_the_same() -> None:
    network, x = rbue.convert(made(small), rbue.DropReLU(0.6), example=small_images()), small_images()
    folded = rbue.fold_batchnorm(network, x)
    expected = rbue.predict(network, x, samples=4, seed=2, return_samples=True).samples
    compiled = torch.compile(folded, backend="eager")
    assert_near(rbue.predict(compiled, x, samples=4, seed=2, return_samples=True).samples, expected)
