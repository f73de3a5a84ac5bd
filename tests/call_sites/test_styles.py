"""What must hold for networks in every style: found, random, repeatable, and undone without a trace."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from style_networks import STYLES, Style, images, run
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

import rbue

pytestmark = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)


def anatomy(network: nn.Module) -> list[tuple[str, Any, list[str]]]:
    """Everything a conversion might leave behind: classes and attributes of all modules."""
    return [(path, type(module), sorted(module.__dict__)) for path, module in network.named_modules()]


def test_sites_are_those_counted_by_hand(style: Style) -> None:
    network = style.make()
    before = anatomy(network)
    table = rbue.sites(network, images())
    assert len(table) == style.sites
    assert len({(site.path, site.call) for site in table}) == style.sites
    assert anatomy(network) == before


@pytest.mark.parametrize("activation", [rbue.DropReLU(0.5), rbue.RReLU()])
@pytest.mark.parametrize("example", [None, images()], ids=["no example", "example"])
def test_convert_then_revert_is_the_identity(style: Style, activation: Any, example: Any) -> None:
    network, x = style.make(), images()
    expected, before = run(network, x), anatomy(network)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    buffers = [name for name, _ in network.named_buffers()]

    converted = rbue.convert(network, activation, example=example)
    assert converted is network
    assert list(network.state_dict()) == list(state)
    run(network, x)
    assert rbue.revert(network) is network

    assert torch.equal(run(network, x), expected)
    assert anatomy(network) == before
    assert [name for name, _ in network.named_buffers()] == buffers
    assert list(network.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


def test_every_listed_site_is_random(style: Style) -> None:
    network, x = style.make(), images()
    expected = run(network, x)
    for index in range(style.sites):
        rbue.convert(network, rbue.DropReLU(0.1), where=[index], example=x)  # enough to get through a max-pooling
        rbue.seed(network, 0)  # under some seeds a max-pooling hides what was dropped
        assert not torch.equal(run(network, x), expected), f"site {index}"
    rbue.revert(network)
    assert torch.equal(run(network, x), expected)


def test_no_site_changes_anything_at_q_one(style: Style) -> None:
    network, x = style.make(), images()
    with torch.enable_grad():  # keeps the transformer layer off its fused path, on both sides
        expected = network(x.clone())
        rbue.convert(network, rbue.DropReLU(1.0))
        out = network(x.clone())
    assert all(torch.equal(a, b) for a, b in zip(_tensors(out), _tensors(expected), strict=True))


def _tensors(output: Any) -> list[torch.Tensor]:
    return [output] if isinstance(output, torch.Tensor) else [v for v in output.values() if v is not None]


@pytest.mark.parametrize("training", [False, True])
def test_calls_differ_and_a_seed_repeats_them(style: Style, training: bool) -> None:
    network, x = style.make(), images()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # torch's own randomness is not ours to repeat
    for module in network.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    # torch's power iteration and BatchNorm change state in training mode: restore it between runs
    state = copy.deepcopy(network.state_dict())
    rbue.convert(network, rbue.DropReLU(0.5), example=x).train(training)

    def outputs() -> list[torch.Tensor]:
        network.load_state_dict(state)
        rbue.seed(network, 7)
        return [run(network, x) for _ in range(3)]

    first, again = outputs(), outputs()
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    rbue.seed(network, 8)
    assert not torch.equal(run(network, x), first[0])


def test_modes(style: Style) -> None:
    network, x = style.make(), images()
    plain = run(network, x)
    rbue.convert(network, rbue.DropReLU(0.5))
    with rbue.mode(network, "plain"):
        assert torch.equal(run(network, x), plain)
    with rbue.mode(network, "mean"):
        mean = run(network, x)
        assert torch.equal(run(network, x), mean)
        with rbue.mode(network, "random"):
            assert not torch.equal(run(network, x), mean)
        assert torch.equal(run(network, x), mean)
    assert not torch.equal(mean, plain)
    assert not torch.equal(run(network, x), plain)


def pickled(network: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(network))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_duplicates_are_converted_and_independent(style: Style, duplicate: Any) -> None:
    network, x = style.make(), images()
    if duplicate is pickled and any(map(is_parametrized, network.modules())):
        pytest.skip("torch refuses to pickle parametrised modules")
    plain = run(network, x)
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    other = duplicate(network)
    assert list(other.state_dict()) == list(network.state_dict())
    rbue.seed(network, 3)
    rbue.seed(other, 3)
    first = run(network, x)
    run(network, x)
    assert torch.equal(run(other, x), first)
    rbue.revert(other)
    assert torch.equal(run(other, x), plain)
    assert not torch.equal(run(network, x), plain)


def test_training_step_has_finite_gradients_everywhere(style: Style) -> None:
    network = style.make().train()
    rbue.convert(network, rbue.DropReLU(0.5))
    out = network(images())
    _tensors(out)[-1].square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name


def test_forward_leaves_torch_random_numbers_alone(style: Style) -> None:
    network = style.make()
    rbue.convert(network, rbue.DropReLU(0.5), example=images())
    before = torch.get_rng_state()
    run(network, images())
    assert torch.equal(torch.get_rng_state(), before)
