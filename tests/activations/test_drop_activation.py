"""DropActivation: every activation, every backend, the same bits; and an activation of one's own by its formula."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rbue
from rbue import random_stream
from rbue.activations import Activation, SiteCall
from rbue.activations.calls import read_relu

Q = 0.7
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "hardswish": F.hardswish,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 0.7),
    "mish": F.mish,
    "tanh": torch.tanh,
    "tensor-tanh": lambda x: x.tanh(),
    "relu": F.relu,
}
MODULES = [
    nn.GELU(),
    nn.GELU("tanh"),
    nn.SiLU(),
    nn.Hardswish(),
    nn.LeakyReLU(),
    nn.PReLU(5),
    nn.ELU(),
    nn.Mish(),
    nn.Tanh(),
]


QUICK = [nn.GELU(), nn.PReLU(5)]
"""A function without a parameter and one with some: the compiler takes others alike, and for long."""


class Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def converted(function: Callable[[Tensor], Tensor], x: Tensor, q: float = Q) -> nn.Module:
    network = rbue.convert(Applied(function), rbue.DropActivation(q), example=x)
    rbue.seed(network, 3)
    return network


def dropped(x: Tensor, seed: int = 3, site: int = 0) -> Tensor:
    """Where the first sample of a network's only site drops its activation, by the definition of the stream."""
    state = random_stream.seed_state(seed)
    zero = torch.zeros(1, dtype=torch.int32)
    for word in (zero, torch.arange(len(x), dtype=torch.int32), random_stream.number(site)):
        state = random_stream.absorb(state.unsqueeze(-1) if state.dim() == 1 else state, word)
    k1, k2 = state.unsqueeze(-1)
    words = random_stream.bits(random_stream.element_table(x[0].numel()), k1, k2)
    return (words < random_stream.threshold(1 - Q)).view(x.shape)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_activation_or_the_input(name, dtype, make_x):
    x = make_x(4, 3, 5, 5, dtype=dtype)
    out = converted(FUNCTIONS[name], x)(x)
    expected = torch.where(dropped(x), x, FUNCTIONS[name](x))
    assert torch.equal(out, expected)
    assert 0.2 < dropped(x).float().mean() < 0.4


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_modules_and_batches_agree(module, make_x):
    x = make_x(6, 5, 4)
    network = rbue.convert(nn.Sequential(copy.deepcopy(module)), rbue.DropActivation(Q), example=x)
    rbue.seed(network, 3)
    whole = network(x).detach()
    for part in (slice(0, 1), slice(2, 6)):
        found = rbue.predict(
            network, x[part], samples=1, seed=3, index=torch.arange(6)[part], outputs="logits", draws="independent"
        )
        assert torch.allclose(found.probs, whole[part].softmax(1), atol=1e-6)


@pytest.mark.parametrize("modules", [QUICK, *(pytest.param([one], marks=pytest.mark.slow) for one in MODULES)], ids=str)
def test_compilers_agree(modules, make_x):
    x = make_x(6, 5, 4)
    network = rbue.convert(nn.Sequential(*copy.deepcopy(modules)), rbue.DropActivation(Q), example=x)
    rbue.seed(network, 3)
    whole = network(x).detach()
    torch._dynamo.reset()
    rbue.seed(network, 3)
    assert torch.allclose(torch.compile(network, backend="aot_eager", fullgraph=True)(x), whole)


def test_with_q_0_every_word_passes_the_input_on(make_x):
    x = make_x(6, 5)
    words = torch.full(x.shape, 2**31 - 1, dtype=torch.int32)
    out = rbue.DropActivation(0.0).formula(x, words, SiteCall("F.gelu", x, function=F.gelu))
    assert out.equal(x)
    assert out is not x


def test_vmapped_is_the_same(make_x):
    x = make_x(5, 8)
    network = converted(F.gelu, x)
    rows = torch.vmap(lambda one: network(one.unsqueeze(0)), randomness="same")(x)
    rbue.seed(network, 3)
    assert rows[0].equal(network(x[:1]))


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_gradients(module, make_x):
    x = (make_x(2, 5, 2, dtype=torch.float64) * 2).requires_grad_()
    network = rbue.convert(copy.deepcopy(module).double(), rbue.DropActivation(Q), example=x)

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        rbue.seed(network, 3)
        return network(x) if not weights else torch.func.functional_call(network, {"weight": weights[0]}, (x,))

    inputs = (x, *(one.detach().clone().requires_grad_() for one in network.parameters()))
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("function", [F.gelu, F.silu, F.mish, F.elu, lambda x: F.leaky_relu(x, 0.1)])
def test_backward_keeps_what_the_plain_activation_keeps(function, make_x):
    x = make_x(4, 3, 8, 8).requires_grad_()

    def kept(network: Callable[[Tensor], Tensor]) -> int:
        sizes: list[int] = []
        pack = lambda one: sizes.append(one.numel() * one.element_size()) or one  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
            network(x)
        return sum(sizes)

    assert kept(converted(function, x)) <= kept(function)


@pytest.mark.parametrize(
    "inplace",
    [lambda x: F.silu(x, inplace=True), lambda x: F.elu_(x), lambda x: x.tanh_(), lambda x: F.leaky_relu_(x, 0.3)],
)
def test_in_place_forms_write_into_their_input(inplace, make_x):
    leaf = make_x(4, 6).requires_grad_()
    network = converted(inplace, leaf.detach().clone())
    given = leaf * 1
    out = network(given)
    assert out.data_ptr() == given.data_ptr()
    plain = inplace(leaf.detach().clone())
    assert torch.allclose(out, torch.where(dropped(leaf), leaf, plain))
    out.sum().backward()
    assert leaf.grad[dropped(leaf)].eq(1).all()


def test_extreme_probabilities(make_x):
    x = make_x(4, 6)
    assert converted(F.gelu, x, 1.0)(x).equal(F.gelu(x))
    assert converted(F.gelu, x, 0.0)(x).equal(x)
    with pytest.raises(rbue.InvalidInput, match=r"an activation is kept .* not 1\.5"):
        rbue.DropActivation(1.5)


def test_a_channel_is_kept_or_dropped_as_one(make_x):
    x = make_x(6, 40, 5, 5)
    network = rbue.convert(Applied(F.silu), rbue.DropActivation(Q, "channel"), example=x)
    passed = (network(x) == x).flatten(2)
    assert passed.all(2).equal(passed.any(2))
    assert 0 < passed.all(2).float().mean() < 1
    with pytest.raises(rbue.InvalidInput, match="mask must be 'element' or 'channel', not 'pixel'"):
        rbue.DropActivation(Q, "pixel")


@pytest.mark.parametrize("mask", ["element", "channel"])
def test_a_relu_is_that_of_droprelu(mask, make_x):
    x = make_x(6, 4, 5, 5)
    ours = rbue.convert(nn.Sequential(nn.ReLU6()), rbue.DropReLU(Q, mask), example=x)
    other = rbue.convert(nn.Sequential(nn.ReLU6()), rbue.DropActivation(Q, mask), example=x)
    for network in (ours, other):
        rbue.seed(network, 1)
    assert ours(x).equal(other(x))


def test_moments_and_the_mean_mode(make_x):
    x = make_x(1, 12, dtype=torch.float64).expand(20_000, 12)  # every row draws for itself
    network = rbue.convert(Applied(F.silu), rbue.DropActivation(Q), example=x)
    call = rbue.DropActivation(Q).read(F.silu, (x,), {})
    rbue.seed(network, 0)
    draws = network(x)
    assert torch.allclose(draws.mean(0), rbue.DropActivation(Q).mean(x, call)[0], atol=0.02)
    assert torch.allclose(draws.var(0), rbue.DropActivation(Q).variance(x, call)[0], atol=0.02)
    with rbue.mode(network, "mean"):
        assert torch.allclose(network(x), Q * F.silu(x) + (1 - Q) * x)


def gelu_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))


def test_a_gelu_network_learns_with_it():
    network = gelu_network()
    x = torch.randn(400, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    rbue.convert(network, rbue.DropActivation(0.9), example=x)
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
    test = torch.randn(400, 2)
    prediction = rbue.predict(network, test, samples=30)
    assert (prediction.label == (test[:, 0] * test[:, 1] > 0)).float().mean() > 0.93
    assert prediction.variance.sum() > 0


@pytest.mark.parametrize("where", ["all", "last"])
def test_samples_are_those_of_plain_calls(where, make_x):
    network, x = gelu_network(), make_x(5, 2)
    rbue.convert(network, rbue.DropActivation(0.8), where=where, example=x)
    found = rbue.predict(network, x, samples=6, seed=4, return_samples=True, draws="independent")
    rbue.seed(network, 4)
    with torch.no_grad():
        expected = torch.stack([network(x).softmax(1) for _ in range(6)])
    assert torch.allclose(found.samples, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["vit", "convnext"])
def test_convert_and_revert_networks_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "vit":
        config = transformers.ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
        )
        network = transformers.ViTForImageClassification(config).eval()
    else:
        config = transformers.ConvNextConfig(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 2, 1], image_size=32)
        network = transformers.ConvNextForImageClassification(config).eval()
    x = torch.randn(3, 3, 32, 32)
    before = network(x).logits
    keys = list(network.state_dict())
    rbue.convert(network, rbue.DropActivation(0.8), example=x)
    assert list(network.state_dict()) == keys
    found = rbue.predict(network, x, samples=4, seed=1, return_samples=True, draws="independent")
    assert float(found.variance.max()) > 0
    rbue.seed(network, 1)
    with torch.no_grad():
        expected = torch.stack([network(x).logits.softmax(1) for _ in range(4)])
    assert torch.allclose(found.samples, expected, atol=1e-5)
    network(x).logits.sum().backward()
    rbue.revert(network)
    assert network(x).logits.equal(before)


def test_sites_lists_them(make_x):
    table = rbue.sites(gelu_network(), make_x(2, 2), rbue.DropActivation())
    assert [(site.name, site.form) for site in table] == [("1", "F.gelu"), ("3", "F.gelu")]
    with pytest.raises(rbue.ConversionError, match=r"it uses GELU instead; use rbue\.DropActivation"):
        rbue.sites(gelu_network(), make_x(2, 2))


@dataclass(frozen=True)
class NoisyReLU(Activation):
    """An activation of one's own: ReLU plus a step up or down."""

    size: float = 0.1

    def read(self, func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> SiteCall | None:
        return read_relu(func, args, kwargs)

    def formula(self, x: Tensor, words: Tensor, call: SiteCall) -> Tensor:
        return call.plain(x) + torch.where(words < 0, self.size, -self.size)

    def mean(self, x: Tensor, call: SiteCall) -> Tensor:
        return call.plain(x)

    def variance(self, x: Tensor, call: SiteCall) -> Tensor:
        return torch.full_like(x, self.size**2)


def test_an_activation_of_ones_own_needs_its_formula_alone(make_x):
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), make_x(5, 4)
    rbue.convert(network, NoisyReLU(), example=x)
    rbue.seed(network, 2)
    eager = network(x)
    eager.sum().backward()
    found = rbue.predict(network, x, samples=3, seed=2, return_samples=True, draws="independent")
    assert torch.allclose(found.samples[0], eager.softmax(1), atol=1e-6)
    assert not torch.allclose(found.samples[0], found.samples[1])
    torch._dynamo.reset()
    rbue.seed(network, 2)
    assert torch.allclose(torch.compile(network, backend="aot_eager", fullgraph=True)(x), eager, atol=1e-6)
    with rbue.mode(network, "mean"), rbue.mode(network, "plain"):
        plain = network(x)
    with rbue.mode(network, "mean"):
        assert torch.allclose(network(x), plain)
