"""Folding makes a copy: what the network and the copy are afterwards."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
from folding_networks import Pair, assert_near, created, images, lived_in, made, run, small, small_images
from torch import Tensor, nn

import rbue
from rbue.call_sites import conversion_of


def test_network_is_untouched() -> None:
    network, x = rbue.convert(created("resnet18").train(), rbue.DropReLU(0.6), example=images()), images()
    network.stages[1].eval()
    network.head.weight.grad = torch.ones_like(network.head.weight)

    def state() -> list[Any]:
        return [
            [(name, value.clone(), id(value)) for name, value in network.named_parameters()],
            [(name, value.clone(), id(value)) for name, value in network.named_buffers()],
            [(name, type(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks), len(vars(m)))
             for name, m in network.named_modules()],
            [("rng", torch.get_rng_state()), ("mode", conversion_of(network).mode)],
            [("input", x.clone()), ("grad", network.head.weight.grad.clone())],
        ]  # fmt: skip

    before = state()
    rbue.fold_batchnorm(network, x)
    for old, new in zip(before, state(), strict=True):
        for one, other in zip(old, new, strict=True):
            for a, b in zip(one, other, strict=True):
                assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_example_is_kept_from_a_network_that_works_in_place() -> None:
    network, x = made(lambda: nn.Sequential(nn.ReLU(inplace=True), Pair())), images()
    rbue.fold_batchnorm(network, x)
    assert torch.equal(x, images())


def test_network_has_its_hooks_and_flags_back_after_a_failed_pass() -> None:
    network = made(small).train()
    with pytest.raises(RuntimeError):
        rbue.fold_batchnorm(network, images(size=5))
    assert all(module.training and not module._forward_hooks for module in network.modules())


def test_copy_is_in_evaluation_mode_everywhere() -> None:
    folded = rbue.fold_batchnorm(created("resnet18").train(), images())
    assert not any(module.training for module in folded.modules())


def test_state_dict_has_a_bias_more_and_no_batchnorm_and_loads_into_another_copy() -> None:
    network, x = made(small), small_images()
    folded = rbue.fold_batchnorm(network, x)
    keys = {"0.weight", "0.bias", "4.weight", "4.bias", "7.weight", "7.bias"}
    assert folded.state_dict().keys() == keys
    assert {name for name, _ in folded.named_parameters()} == keys
    other = rbue.fold_batchnorm(lived_in(small()), x)
    other.load_state_dict(folded.state_dict())
    assert torch.equal(run(other, x), run(folded, x))


@pytest.mark.parametrize("saved", ["pickle", "torch"])
def test_copy_can_be_pickled(saved: str) -> None:
    network, x = rbue.convert(created("small_cnn"), rbue.RReLU(), example=images()), images()
    folded = rbue.fold_batchnorm(network, x)
    if saved == "pickle":
        again = pickle.loads(pickle.dumps(folded))
    else:
        file = io.BytesIO()
        torch.save(folded, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
    expected = rbue.predict(folded, x, samples=4, return_samples=True).samples
    assert torch.equal(rbue.predict(again, x, samples=4, return_samples=True).samples, expected)


def test_gradients_flow_and_frozen_layers_stay_frozen() -> None:
    network, x = made(small), small_images().requires_grad_()
    network[0].requires_grad_(False)
    with torch.inference_mode():
        folded = rbue.fold_batchnorm(network, x)
    assert [p.requires_grad for p in folded.parameters()] == [False, False, True, True, True, True]
    expected = torch.autograd.grad(network(x).square().sum(), x)[0]
    assert_near(torch.autograd.grad(folded(x).square().sum(), x)[0], expected, 1e-4)
