"""A plain user's training loop on a converted network: new masks each step, and it learns."""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import pytest
import torch
from style_networks import images, mlp, rows, run
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import rbue
from rbue.errors import InvalidInput, RbueWarning


def moons(count: int = 256) -> tuple[Tensor, Tensor]:
    """Two interleaved half circles, which no linear network separates."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2
    angle = torch.pi * torch.rand(count, generator=generator)
    x = torch.stack([angle.cos() + labels, (1 - 2 * labels) * angle.sin() + 0.5 * labels], 1)
    return 2 * (x + 0.05 * torch.randn(count, 2, generator=generator) - x.mean(0)), labels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


def train(model: nn.Module, steps: int) -> list[float]:
    x, y = moons()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("activation", [rbue.DropReLU(0.9), rbue.RReLU()])
def test_converted_network_learns(activation: rbue.DropReLU | rbue.RReLU) -> None:
    model = rbue.convert(network(), activation)
    rbue.seed(model, 0)
    losses = train(model, 300)
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
    x, y = moons()
    accuracy = (rbue.predict(model.eval(), x, samples=20).label == y).float().mean()
    assert accuracy > 0.97


def test_linear_network_does_not_learn_the_same_problem() -> None:
    """So that the test above says something: at q=0 there is no ReLU left."""
    model = rbue.convert(network(), rbue.DropReLU(0.0))
    train(model, 300)
    x, y = moons()
    assert (model(x).argmax(1) == y).float().mean() < 0.95


def test_each_step_has_new_masks_and_a_seed_repeats_the_run() -> None:
    runs = []
    for _ in range(2):
        model = rbue.convert(network(), rbue.DropReLU(0.5))
        rbue.seed(model, 3)
        runs.append(train(model, 5))
    assert runs[0] == runs[1]
    frozen = rbue.convert(network(), rbue.DropReLU(0.5))
    x, y = moons()
    optimiser = torch.optim.SGD(frozen.parameters(), lr=0.0)
    losses = set()
    for _ in range(5):
        loss = F.cross_entropy(frozen(x), y)
        loss.backward()
        optimiser.step()
        losses.add(float(loss.detach()))
    assert len(losses) == 5


def test_a_seed_repeats_the_run_whatever_torchs_default_device_is() -> None:
    model, x, outputs = rbue.convert(mlp(), rbue.DropReLU(0.5)), rows(), []
    for device in ("cpu", "meta"):
        with torch.device(device):
            rbue.seed(model, 3)
            outputs.append(run(model, x))
    assert torch.equal(*outputs)


def test_two_conversions_start_with_different_bits_and_manual_seed_repeats_them() -> None:
    outputs = [run(rbue.convert(mlp(), rbue.DropReLU(0.5)), rows()) for _ in range(2)]
    assert not torch.equal(*outputs)
    repeated = []
    for _ in range(2):
        torch.manual_seed(4)
        repeated.append(run(rbue.convert(mlp(), rbue.DropReLU(0.5)), rows()))
    assert torch.equal(*repeated)


@pytest.mark.parametrize("training", [False, True])
def test_training_step_leaves_torch_random_numbers_alone(training: bool) -> None:
    model = rbue.convert(network(), rbue.RReLU()).train(training)
    before = torch.get_rng_state()
    model(moons()[0]).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_gradient_accumulation_and_double_backward() -> None:
    model = rbue.convert(mlp(), rbue.DropReLU(0.5))
    x = rows().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    assert bool(x.grad.any())


def test_channels_last_training_step() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3)).to(
        memory_format=torch.channels_last
    )
    rbue.convert(model, rbue.DropReLU(0.5))
    grads = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        rbue.seed(model, 1)
        model.zero_grad()
        model(images().contiguous(memory_format=memory_format)).square().sum().backward()
        grads.append(model[0].weight.grad.clone())
    assert torch.allclose(*grads, atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_compiled_network_learns() -> None:
    torch._dynamo.reset()
    model = rbue.convert(network(), rbue.DropReLU(0.9))
    rbue.seed(model, 0)
    losses = train(torch.compile(model), 300)
    assert len(set(losses)) == 300
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
    x, y = moons()
    assert (rbue.predict(model.eval(), x, samples=20).label == y).float().mean() > 0.97


class OwnReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0] > 0)


class Decorated(OwnReLU):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)


class InTwoSteps(OwnReLU):
    @staticmethod
    def forward(x):
        return x.clamp(min=0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)


class Inherited(InTwoSteps):
    pass


class ByAutograd(OwnReLU):
    """Its backward asks autograd, which knows the slopes."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.out = ctx.x.clamp(min=0)
        return ctx.out.detach()

    @staticmethod
    def backward(ctx, gradient):
        return torch.autograd.grad(ctx.out, ctx.x, gradient)


class WithOwnReLU(nn.Module):
    def __init__(self, function=OwnReLU):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 8), nn.Linear(8, 2), function

    def forward(self, x):
        return self.last(self.function.apply(self.first(x)))


@pytest.mark.parametrize(
    ("function", "name"),
    [(OwnReLU, "OwnReLU"), (Decorated, "Decorated"), (InTwoSteps, "InTwoSteps"), (Inherited, "InTwoSteps")],
)
def test_a_relu_whose_backward_is_the_users_is_warned_of_once_and_only_in_training(function, name):
    x = torch.randn(4, 6)
    network = rbue.convert(WithOwnReLU(function), rbue.DropReLU(0.5), example=x)
    with torch.no_grad():
        network(x)
    rbue.predict(network, x, samples=2)
    with pytest.warns(RbueWarning, match=rf"the ReLU at .* is random, but the gradients of {name} around it are not"):
        network(x)
    network(x)
    rbue.convert(WithOwnReLU(ByAutograd), rbue.DropReLU(0.5), example=x)(x).sum().backward()


class Checkpointed(nn.Module):
    def __init__(self, inside, reentrant):
        super().__init__()
        self.inside, self.reentrant = inside, reentrant

    def forward(self, x):
        return checkpoint(self.inside, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_relu_is_not_warned_of(reentrant):
    """Its backward runs it again, with the same masks."""
    x = torch.randn(4, 6)
    network = nn.Sequential(nn.Linear(6, 8), Checkpointed(nn.ReLU(), reentrant))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of torch's, in the pass that looks for sites without gradients
        warnings.simplefilter("error", RbueWarning)
        rbue.convert(network, rbue.DropReLU(0.5), example=x)(x).sum().backward()


class Graph:
    """As those of torch_geometric: tensors by name, and no Mapping."""

    __slots__ = ("x",)

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def keys(self) -> list[str]:
        return ["x"]

    def __iter__(self) -> Any:
        return iter([("x", self.x)])


class OfAGraph(nn.Sequential):
    def forward(self, graph: Graph) -> Tensor:
        return super().forward(graph.x)


def test_a_network_of_an_object_is_random_and_a_seed_repeats_it() -> None:
    graph, plain = Graph(moons()[0]), network()
    model = rbue.convert(OfAGraph(*plain), rbue.DropReLU(0.5), where="last", example=graph)
    rbue.seed(model, 0)
    first, second = model(graph), model(graph)
    assert not torch.equal(first, second)
    assert not torch.equal(first[:128] - plain(graph.x)[:128], first[128:] - plain(graph.x)[128:])
    rbue.seed(model, 0)
    assert torch.equal(model(graph), first)
    assert torch.equal(rbue.revert(model)(graph), plain(graph.x))


class OfADeque(nn.Sequential):
    def forward(self, parts: deque[Tensor]) -> Tensor:
        return super().forward(parts[0])


def test_a_container_that_torch_knows_has_the_rows_of_its_first_tensor() -> None:
    x, plain = moons()[0], rbue.convert(network(), rbue.DropReLU(0.5))
    model = rbue.convert(OfADeque(*network()), rbue.DropReLU(0.5))
    rbue.seed(plain, 0)
    rbue.seed(model, 0)
    assert torch.equal(model(deque([x])), plain(x))
    weights = model.state_dict()
    model.to("meta").load_state_dict(weights, assign=True)
    assert model(deque([x])).device == x.device  # what counts its calls has come there, too


@pytest.mark.parametrize("loader", [False, True])
def test_an_object_cannot_be_cut_into_images(loader: bool) -> None:
    graph = Graph(moons()[0])
    model = rbue.convert(OfAGraph(*network()), rbue.DropReLU(0.5))
    with pytest.raises(InvalidInput, match=r"x is a Graph, which does not say .*, average plain calls"):
        rbue.predict(model, [graph] if loader else graph, samples=2)
