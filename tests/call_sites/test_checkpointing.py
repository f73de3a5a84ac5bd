"""Activation checkpointing computes a block twice; the second time must see the masks of the first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from style_networks import mlp, rows
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import rbue

ACTIVATIONS = [rbue.DropReLU(0.5), rbue.RReLU()]
Checkpoint = Callable[..., Any]
KEYWORDS = inspect.signature(checkpoint).parameters


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.relu(self.fc(F.relu(self.fc(x))))


class Net(nn.Module):
    """``wrap`` calls a function on a tensor, checkpointed or not; ``style`` says what it is given."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style
        self.stem = nn.Linear(4, 8)
        self.blocks = nn.Sequential(Block(), Block(), Block(), Block())
        self.head = nn.Linear(8, 3)
        self.wrap: Checkpoint = lambda function, x: function(x)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = getattr(self, self.style)(x)
        return self.head(F.relu(x))

    def modules_(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.wrap(block, x)
        return x

    def closures(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.wrap(lambda v, block=block: F.relu(block(v)) + F.relu(-v), x)
        return x

    def shared_block(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = F.relu(self.wrap(self.blocks[0], x))
        return x

    def nested(self, x: Tensor) -> Tensor:
        return self.wrap(lambda v: self.blocks[1](self.wrap(self.blocks[0], F.relu(v))), x)

    def parts_of_a_sequential(self, x: Tensor) -> Tensor:
        if self.wrap is plain:
            return self.blocks(x)
        return checkpoint_sequential(self.blocks, 2, x, use_reentrant=self.wrap is reentrant)


def plain(function: Callable, *args: Any) -> Any:
    return function(*args)


def reentrant(function: Callable, *args: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=True)


def not_reentrant(function: Callable, *args: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=False)


def gradients(network: nn.Module, loss: Tensor, x: Tensor) -> list[Tensor]:
    network.zero_grad()
    x.grad = None
    loss.backward()
    return [tensor.grad.clone() for tensor in (x, *network.parameters()) if tensor.grad is not None]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    """Up to the order in which gradients of one parameter are added up; another mask would change far more."""
    return len(one) == len(other) > 0 and all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one, other, strict=True))


STYLES = ["modules_", "closures", "shared_block", "nested", "parts_of_a_sequential"]
both_kinds = pytest.mark.parametrize("wrap", [reentrant, not_reentrant])
every_style = pytest.mark.parametrize("style", STYLES)


@both_kinds
@every_style
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("where", ["all", [1, 2, 4]])
def test_gradients_equal_those_without_checkpointing(wrap: Checkpoint, style: str, activation: Any, where: Any) -> None:
    torch.manual_seed(0)
    network, x = Net(style), rows().requires_grad_()
    rbue.convert(network, activation, where=where, example=x)
    found = []
    for network.wrap in (plain, wrap):
        rbue.seed(network, 3)
        out = network(x)
        found.append([out, *gradients(network, out.square().sum(), x)])
    assert equal(*found)


@both_kinds
@every_style
def test_two_forwards_before_one_backward(wrap: Checkpoint, style: str) -> None:
    torch.manual_seed(0)
    network, x = Net(style), rows().requires_grad_()
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    found = []
    for network.wrap in (plain, wrap):
        rbue.seed(network, 3)
        found.append(gradients(network, network(x).square().sum() + network(x).exp().sum(), x))
    assert equal(*found)


@both_kinds
@pytest.mark.parametrize("forwards", [1, 3])
def test_whole_network_checkpointed_from_outside(wrap: Checkpoint, forwards: int) -> None:
    network, x = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows()), rows().requires_grad_()
    found = []
    for call in (plain, wrap):
        rbue.seed(network, 3)

        def repeated(v: Tensor) -> Tensor:
            return sum(network(v).square().sum() for _ in range(forwards))

        found.append(gradients(network, call(repeated, x), x))
    assert equal(*found)


@both_kinds
def test_checkpointing_does_not_use_up_more_samples(wrap: Checkpoint) -> None:
    network, x = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows()), rows().requires_grad_()
    following = []
    for call in (plain, wrap):
        rbue.seed(network, 3)
        call(network, x).sum().backward()
        following.append(network(x))
    assert torch.equal(*following)


@both_kinds
def test_modes_are_remembered_until_backward(wrap: Checkpoint) -> None:
    torch.manual_seed(0)
    network, x = Net("closures"), rows().requires_grad_()
    rbue.convert(network, rbue.DropReLU(0.5))
    for mode in ("plain", "mean"):
        found = []
        for network.wrap in (plain, wrap):
            with rbue.mode(network, mode):
                loss = network(x).square().sum()
            found.append(gradients(network, loss, x))
        assert equal(*found)


@both_kinds
def test_a_plain_network_inside_a_random_one_stays_plain_until_backward(wrap: Checkpoint) -> None:
    torch.manual_seed(0)
    network, x = rbue.convert(Net("closures"), rbue.DropReLU(0.5)), rows().requires_grad_()
    around = rbue.convert(nn.Sequential(network, nn.ReLU()), rbue.DropReLU(0.5))
    found = []
    for network.wrap in (plain, wrap):
        rbue.seed(around, 3)
        with rbue.mode(network, "plain"):
            loss = around(x).square().sum()
        found.append(gradients(network, loss, x))
    assert equal(*found)


def test_a_second_backward_sees_the_same_masks() -> None:
    network, x = rbue.convert(Net("closures"), rbue.DropReLU(0.5)), rows().requires_grad_()
    network.wrap = not_reentrant
    loss = network(x).square().sum()
    one, other = (torch.autograd.grad(loss, x, retain_graph=True) for _ in range(2))
    assert torch.equal(*one, *other)


@both_kinds
def test_two_networks_in_one_checkpointed_block(wrap: Checkpoint) -> None:
    one, two = (rbue.convert(mlp(i), rbue.DropReLU(0.5), example=rows()) for i in (1, 2))
    both, x = nn.ModuleList([one, two]), rows().requires_grad_()
    found = []
    for call in (plain, wrap):
        rbue.seed(one, 1)
        rbue.seed(two, 2)
        loss = call(lambda v: (one(v) * two(v)).sum() + one(v).exp().sum(), x)
        found.append(gradients(both, loss, x))
    assert equal(*found)


@both_kinds
def test_backward_inside_another_converted_network(wrap: Checkpoint) -> None:
    """The recomputation of one network belongs to it, also while another one is in its forward."""
    torch.manual_seed(0)
    inner, x = Net("closures"), rows().requires_grad_()
    rbue.convert(inner, rbue.DropReLU(0.5))

    class Outer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            loss = F.relu(x).sum() + inner(x).square().sum()
            return F.relu(torch.autograd.grad(loss, x)[0] if wrap is not_reentrant else backward(loss))

    def backward(loss: Tensor) -> Tensor:
        x.grad = None
        loss.backward()
        return x.grad

    outer = rbue.convert(Outer(), rbue.DropReLU(0.5))
    found = []
    for inner.wrap in (plain, wrap):
        rbue.seed(inner, 3)
        rbue.seed(outer, 4)
        found.append(outer(x).detach())
    assert torch.equal(*found)


@both_kinds
def test_part_of_a_converted_network_used_by_itself_is_plain_both_times(wrap: Checkpoint) -> None:
    network, x = nn.Sequential(Block(), Block()), torch.randn(6, 8, requires_grad=True)
    expected = gradients(network[0], network[0](x).square().sum(), x)
    rbue.convert(network, rbue.DropReLU(0.5))
    assert equal(gradients(network[0], wrap(network[0], x).square().sum(), x), expected)


def test_given_contexts_are_entered_around_both_computations() -> None:
    entered: list[str] = []

    class Note:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            entered.append(self.name)

        def __exit__(self, *exception: object) -> None:
            entered.append("end of " + self.name)

    network = rbue.convert(mlp(), rbue.DropReLU(0.5))
    out = checkpoint(
        network, rows().requires_grad_(), use_reentrant=False, context_fn=lambda: (Note("first"), Note("again"))
    )
    assert entered == ["first", "end of first"]
    out.sum().backward()
    assert entered[2:] == ["again", "end of again"]


def test_torch_sees_the_context_of_selective_checkpointing_as_it_is() -> None:
    """It asks that of its class, whether saved tensors go through the hooks around it."""

    def hooked(network: nn.Module) -> int:
        packed: list[Tensor] = []

        def pack(x: Tensor) -> Tensor:
            packed.append(x)
            return x

        def contexts() -> Any:
            return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])

        hooks = {"respect_saved_tensors_hooks": True} if "respect_saved_tensors_hooks" in KEYWORDS else {}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            out = checkpoint(network, rows().requires_grad_(), use_reentrant=False, context_fn=contexts, **hooks)
        out.sum().backward()
        return len(packed)

    network = mlp()
    expected = hooked(network)
    assert hooked(rbue.convert(network, rbue.DropReLU(0.5))) == expected


@pytest.mark.skipif("respect_saved_tensors_hooks" not in KEYWORDS, reason="this torch has no such form")
def test_a_block_wrapped_once_and_called_later() -> None:
    network, x = Net("modules_"), rows().requires_grad_()
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    rbue.seed(network, 3)
    expected = gradients(network, network(x).square().sum(), x)
    network.wrap = lambda block, x: checkpoint(use_reentrant=False)(block)(x)
    rbue.seed(network, 3)
    assert equal(gradients(network, network(x).square().sum(), x), expected)


def test_networks_that_are_not_converted_checkpoint_as_ever() -> None:
    rbue.convert(mlp(), rbue.DropReLU(0.5))
    network, x = mlp(), rows().requires_grad_()
    expected = gradients(network, network(x).sum(), x)
    for wrap in (reentrant, not_reentrant):
        assert equal(gradients(network, wrap(network, x).sum(), x), expected)


def test_recomputation_by_other_means_is_an_error() -> None:
    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, block: nn.Module) -> Tensor:
            ctx.save_for_backward(x)
            ctx.block = block
            return block(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                again = x.detach().requires_grad_()
                return torch.autograd.grad(ctx.block(again), again, grad)[0], None

    network = Net("modules_")
    network.wrap = lambda block, x: Recompute.apply(x, block)
    rbue.convert(network, rbue.DropReLU(0.5))
    with pytest.raises(rbue.ConversionError, match=r"Block was run again during backward.*torch\.utils\.checkpoint"):
        network(rows()).sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [reentrant, not_reentrant])
@pytest.mark.parametrize("style", ["modules_", "closures"])
@pytest.mark.parametrize("skip_side_effects", [False, True])
def test_compiled_network_checkpoints_with_the_same_masks(
    wrap: Checkpoint, style: str, skip_side_effects: bool
) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    network, x = Net(style), rows().requires_grad_()
    network.blocks = network.blocks[:1]
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    rbue.seed(network, 3)
    expected = gradients(network, network(x).square().sum(), x)
    network.wrap = wrap
    rbue.seed(network, 3)
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=skip_side_effects):
        compiled = torch.compile(network, backend="aot_eager")
        found = gradients(network, compiled(x).square().sum(), x)
    assert equal(found, expected)


def test_checkpoint_inside_one_full_graph_is_refused() -> None:
    torch._dynamo.reset()
    network = Net("closures")
    network.wrap = not_reentrant
    rbue.convert(network, rbue.DropReLU(0.5))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="rbue cannot see the ReLUs inside"):
        torch.compile(network, backend="aot_eager", fullgraph=True)(rows())
