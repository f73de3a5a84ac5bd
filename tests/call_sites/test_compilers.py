"""Compiled and exported networks draw the bits that the network draws uncompiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from style_networks import STYLES, Branching, SharedReluResNet, Style, images, mlp, rows, run, scores
from torch import Tensor, nn
from torch.nn import functional as F

import rbue

FAST = {"backend": "aot_eager"}  # traces and differentiates as the default does, without its C++ compiler


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_same_bits(network: nn.Module, compiled: Any, x: Tensor) -> None:
    """Three calls each, with new bits at every call."""
    found = []
    for model in (network, compiled):
        rbue.seed(network, 5)
        found.append([run(model, x) for _ in range(3)])
    eager, others = found
    for a, b in zip(eager, others, strict=True):
        assert torch.allclose(a, b, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(others[0], others[1], atol=1e-3)
    assert not torch.allclose(others[1], others[2], atol=1e-3)


def gradients(network: nn.Module, model: Any, x: Tensor) -> list[Tensor]:
    rbue.seed(network, 5)
    network.zero_grad()
    scores(model(x.clone())).square().sum().backward()
    return [p.grad.clone() for p in network.parameters()]


QUICK = ("functional",)


def styles() -> list[Any]:
    return [
        pytest.param(style, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, style in STYLES.items()
    ]


@pytest.mark.parametrize("style", styles())
def test_compiled_network_draws_the_same_bits_in_one_graph(style: Style) -> None:
    network, x = style.make(), images()
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    fullgraph = not style.build.__name__.startswith("transformers")  # their own code breaks the graph
    assert_same_bits(network, torch.compile(network, fullgraph=fullgraph, **FAST), x)


ACTIVATIONS = [rbue.DropReLU(0.5), rbue.RReLU()]


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", ["shared module", "in-place statements", "ReLU6", "dense concatenation"])
def test_compiled_gradients_are_the_same(name: str, activation: Any) -> None:
    network, x = STYLES[name].make(), images()
    rbue.convert(network, activation, example=x)
    compiled = torch.compile(network, fullgraph=True, **FAST)
    for a, b in zip(gradients(network, network, x), gradients(network, compiled, x), strict=True):
        assert torch.allclose(a, b, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("activation", [pytest.param(rbue.DropReLU(0.5), marks=pytest.mark.slow), rbue.RReLU()])
def test_compiled_gradients_belong_to_their_own_forward(activation: Any) -> None:
    """Other calls and seeds between a forward and its backward do not reach the masks computed again there."""
    network, x = rbue.convert(mlp(), activation, example=rows()), rows()
    found = []
    for model in (network, torch.compile(network, fullgraph=True, **FAST)):
        rbue.seed(network, 5)
        first, second = model(x), model(x)
        rbue.seed(network, 6)
        model(x)
        network.zero_grad()
        (first.square().sum() - 2 * second.square().sum()).backward()
        found.append([p.grad.clone() for p in network.parameters()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))


def test_default_backend_draws_the_same_bits() -> None:
    network = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows())
    assert_same_bits(network, torch.compile(network, fullgraph=True), rows())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared module", "in-place statements"])
def test_default_backend_trains_with_the_same_gradients(name: str) -> None:
    network, x = STYLES[name].make(), images()
    rbue.convert(network, rbue.RReLU(), example=x)
    compiled = torch.compile(network, fullgraph=True)
    assert_same_bits(network, compiled, x)
    for a, b in zip(gradients(network, network, x), gradients(network, compiled, x), strict=True):
        assert torch.allclose(a, b, atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_converting_a_network_that_is_already_compiled_and_reverting_it() -> None:
    network = mlp()
    compiled = torch.compile(network, **FAST)
    plain = run(compiled, rows())
    keys = list(compiled.state_dict())
    assert rbue.convert(compiled, rbue.DropReLU(0.5), example=rows()) is compiled
    assert list(compiled.state_dict()) == keys
    assert_same_bits(network, compiled, rows())
    with rbue.mode(compiled, "plain"):
        assert torch.equal(run(compiled, rows()), plain)
    assert rbue.revert(compiled) is compiled
    assert torch.equal(run(compiled, rows()), plain)


def test_network_compiled_in_place() -> None:
    network = mlp()
    plain = run(network, rows())
    network.compile(**FAST)
    assert len(rbue.sites(network, rows())) == 2
    rbue.convert(network, rbue.DropReLU(0.5), example=rows())
    assert not torch.equal(run(network, rows()), run(network, rows()))
    rbue.revert(network)
    assert torch.allclose(run(network, rows()), plain)


class OwnCall(nn.Sequential):
    """Takes rows of any shape, by a ``__call__`` of its own."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x.flatten(1)).abs()


def test_network_compiled_in_place_keeps_its_own_call() -> None:
    network, x = OwnCall(*mlp()), rows().unflatten(1, (2, -1))
    graphs = torch._dynamo.testing.CompileCounterWithBackend("eager")
    network.compile(backend=graphs)
    assert len(rbue.sites(network, x)) == 2
    rbue.convert(network, rbue.DropReLU(0.5), where="last", example=x)
    found = rbue.predict(network, x, samples=4, outputs="values")
    assert graphs.frame_count == 0  # what comes before the last site is shared
    network._compiled_call_impl = None
    assert found.mean.equal(rbue.predict(network, x, samples=4, outputs="values").mean)


@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    [pytest.param(True, id="compiled first"), pytest.param(False, id="converted first", marks=pytest.mark.slow)],
)
def test_compiled_part_of_a_network(before: bool) -> None:
    torch.manual_seed(0)
    network, reference, x = SharedReluResNet().eval(), SharedReluResNet().eval(), images()
    reference.load_state_dict(network.state_dict())
    if before:
        network.layers[1] = torch.compile(network.layers[1], **FAST)
        assert len(rbue.sites(network, x)) == 7
    rbue.convert(network, rbue.DropReLU(0.5), where="last", example=x)
    if not before:
        network.layers[1] = torch.compile(network.layers[1], **FAST)
    outputs = [run(network, x) for _ in range(3)]
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-4)
    assert not torch.allclose(outputs[1], outputs[2], atol=1e-4)
    rbue.revert(network)
    assert torch.allclose(run(network, x), run(reference, x), atol=1e-5)


class CompiledForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 3)
        self.relu = nn.ReLU()

    def plain_forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.relu(self.fc1(x)) - 0.1))

    forward = torch.compile(plain_forward, **FAST)


class PlainForward(CompiledForward):
    forward = CompiledForward.plain_forward


def test_network_whose_forward_is_compiled_in_its_class() -> None:
    torch.manual_seed(0)
    network, plain = CompiledForward(), PlainForward()
    plain.load_state_dict(network.state_dict())
    assert rbue.sites(network, rows()) == rbue.sites(plain, rows())
    for model in (network, plain):
        rbue.convert(model, rbue.DropReLU(0.5), where=[1], example=rows())
        rbue.seed(model, 3)
    for _ in range(2):
        assert torch.allclose(run(network, rows()), run(plain, rows()), atol=1e-5)
    assert not torch.allclose(run(network, rows()), run(network, rows()), atol=1e-4)


class Breaks(nn.Module):
    """A graph break in the root, in a part, or at a value read from a tensor."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.fc = nn.Linear(4, 4)
        self.part = BreakingPart(where == "part")
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(F.relu(self.fc(x)))
        if self.where == "root":
            torch._dynamo.graph_break()
        if self.where == "value" and x.sum().item() > 1e9:
            x = x * 2
        return self.relu(self.part(x) - 0.1)


class BreakingPart(nn.Module):
    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc(x))
        if self.breaks:
            torch._dynamo.graph_break()
        return F.relu(self.fc(x))


@pytest.mark.slow
@pytest.mark.parametrize("training", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    ("where", "placement"),
    [
        ("part", "all"),
        pytest.param("root", [0, 2, 5], marks=pytest.mark.slow),
        pytest.param("value", "all", marks=pytest.mark.slow),
    ],
)
def test_graph_breaks_change_nothing(where: str, placement: Any, training: bool) -> None:
    torch.manual_seed(0)
    network = Breaks(where)
    rbue.convert(network, rbue.DropReLU(0.5), where=placement, example=rows())
    compiled = torch.compile(network, **FAST)
    if training:
        for a, b in zip(gradients(network, network, rows()), gradients(network, compiled, rows()), strict=True):
            assert torch.allclose(a, b, atol=1e-5)
    else:
        assert_same_bits(network, compiled, rows(60))


def test_new_calls_do_not_compile_again() -> None:
    network = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows())
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(network, backend=counter, fullgraph=True)
    for seed in range(12):
        rbue.seed(network, seed)
        compiled(rows())
        compiled(rows())
    assert counter.frame_count == 1


@pytest.mark.slow
def test_modes_of_a_compiled_network() -> None:
    network = mlp()
    plain = run(network, rows())
    compiled = torch.compile(rbue.convert(network, rbue.DropReLU(0.5), example=rows()), **FAST)
    run(compiled, rows())
    with rbue.mode(compiled, "plain"):
        assert torch.equal(run(compiled, rows()), plain)
    with rbue.mode(network, "mean"):
        mean = run(network, rows())
        assert torch.allclose(run(compiled, rows()), mean, atol=1e-6)
    assert not torch.allclose(run(compiled, rows()), mean)


@pytest.mark.slow
def test_compiled_branches_keep_their_numbers() -> None:
    torch.manual_seed(0)
    network = Branching().eval()
    rbue.convert(network, rbue.DropReLU(0.5), example=images())
    compiled = torch.compile(network, fullgraph=True, **FAST)
    for network.use_early in (True, False):
        for size in (16, 8):
            rbue.seed(network, 1)
            expected = run(network, images(size=size))
            rbue.seed(network, 1)
            assert torch.allclose(run(compiled, images(size=size)), expected, atol=1e-5)


@pytest.mark.slow
def test_nested_converted_networks_compile() -> None:
    torch.manual_seed(0)
    inner = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows())
    outer = nn.Sequential(inner, nn.Linear(3, 8), nn.ReLU())
    rbue.convert(outer, rbue.RReLU(), example=rows())
    found = []
    for model in (outer, torch.compile(outer, fullgraph=True, **FAST)):
        rbue.seed(inner, 1)
        rbue.seed(outer, 2)
        found.append([run(model, rows()) for _ in range(2)])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))


@pytest.mark.slow
def test_unreached_site_is_warned_about_in_compiled_code() -> None:
    class Longer(nn.Module):
        more = False

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(x)
            return F.relu(x - 1) if self.more else x

    network = rbue.convert(Longer(), rbue.DropReLU(0.5), where=[0], example=rows())
    network.more = True
    with pytest.warns(rbue.RbueWarning, match=r"\(root\)\[1\]"):
        torch.compile(network, **FAST)(rows())


def assert_exported_same_bits(network: nn.Module, x: Tensor, strict: bool) -> None:
    rbue.seed(network, 5)
    exported = torch.export.export(network, (x,), strict=strict).module()
    assert_same_bits(network, exported, x)  # both count their calls in the one buffer


@pytest.mark.parametrize(
    ("strict", "activation"), [(False, ACTIVATIONS[0]), pytest.param(True, ACTIVATIONS[1], marks=pytest.mark.slow)]
)
def test_exported_program_draws_new_bits_at_each_call(strict: bool, activation: Any) -> None:
    assert_exported_same_bits(rbue.convert(mlp(), activation, example=rows()), rows(), strict)


@pytest.mark.slow
def test_exported_convolutional_network() -> None:
    network = STYLES["shared module"].make()
    assert_exported_same_bits(rbue.convert(network, rbue.DropReLU(0.5), example=images()), images(), strict=False)


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and sees branches that are the same for every input
def test_traced_network_draws_new_bits_at_each_call() -> None:
    network = rbue.convert(mlp(), rbue.DropReLU(0.5))
    traced = torch.jit.trace(network, rows(), check_trace=False)
    ones = torch.ones_like(torch.cat([rows(), rows()]))
    first, second = traced(ones), traced(ones)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[-1])


def test_exporting_leaves_the_network_random_and_its_counter_alone() -> None:
    network = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows())
    rbue.seed(network, 5)
    expected = run(network, rows())
    rbue.seed(network, 5)
    torch.export.export(network, (rows(),))
    assert torch.equal(run(network, rows()), expected)


class SkipAndNorm(nn.Module):
    """A random gradient that BatchNorm reads more than once, and a sum of two gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.stem(x))
        return self.head(F.relu(self.norm(self.conv(y)) + y).mean((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("activation", [rbue.DropReLU(0.6), rbue.RReLU()], ids=["drop", "rrelu"])
@pytest.mark.parametrize("of_input", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("of_weights", [torch.contiguous_format, torch.channels_last], ids=str)
def test_compiled_gradients_are_right_in_every_memory_format(activation, of_input, of_weights) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8).contiguous(memory_format=of_input)
    network = rbue.convert(SkipAndNorm().to(memory_format=of_weights), activation, example=x)
    gradients = []
    for model in (network, torch.compile(network, fullgraph=True, dynamic=False)):
        rbue.seed(network, 3)
        loss = F.cross_entropy(model(x), torch.arange(4))
        gradients.append(torch.autograd.grad(loss, list(network.parameters())))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
