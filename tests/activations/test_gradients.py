"""Derivatives, and what is kept to compute them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rbue import functional
from rbue.activations import DropReLU, RReLU
from rbue.kernels import random_relu

pytestmark = pytest.mark.usefixtures("cpu_form")

ACTIVATIONS = [DropReLU(0), DropReLU(0.5), DropReLU(1), RReLU(), RReLU(0, 1)]


def away_from_kinks(x, cap=0.5):
    """No element near 0 or the cap, where finite differences mean nothing."""
    return torch.where((x.abs() < 0.05) | ((x - cap).abs() < 0.05), x + 0.11, x)


@pytest.mark.parametrize(
    ("activation", "cap", "memory_format"),
    [
        (DropReLU(0), None, torch.contiguous_format),
        (DropReLU(0.5), None, torch.channels_last),
        (DropReLU(0.5), 0.5, torch.contiguous_format),
        (DropReLU(1), 0.5, torch.channels_last),
        (RReLU(), None, torch.contiguous_format),
        (RReLU(), 0.5, torch.channels_last),
        (RReLU(0, 1), 0.5, torch.contiguous_format),
    ],
    ids=str,
)
def test_gradcheck_and_gradgradcheck(activation, cap, memory_format, make_x, make_keys):
    x = away_from_kinks(make_x(3, 2, 2, 2, dtype=torch.float64)).contiguous(memory_format=memory_format)
    keys = make_keys(3)

    def function(x):
        return random_relu(x, activation, keys, cap=cap)

    assert torch.autograd.gradcheck(function, x.requires_grad_(), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, x)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("cap", [None, 0.5])
def test_gradcheck_in_place(activation, cap, make_x, make_keys):
    x, keys = away_from_kinks(make_x(3, 10, dtype=torch.float64)).requires_grad_(), make_keys(3)
    assert torch.autograd.gradcheck(lambda x: random_relu(x * 1, activation, keys, cap=cap, inplace=True), x)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("cap", [None, 0.5])
def test_every_backend_has_the_slopes_of_its_forward_pass(activation, dtype, cap, make_x, make_keys):
    x, keys = make_x(4, 3, 6, 6, dtype=dtype), make_keys(4)
    slope = -random_relu(torch.full_like(x, -1), activation, keys).detach()
    expected = torch.where(x < 0, slope, 1.0) * (x < (cap or torch.inf))
    for form in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
        leaf = form.detach().requires_grad_()
        random_relu(leaf, activation, keys, cap=cap).backward(torch.ones_like(x))
        assert leaf.grad.equal(expected)


@pytest.mark.parametrize("activation", [DropReLU(0.5), RReLU()], ids=str)
def test_an_incoming_gradient_of_another_layout_is_read_in_logical_order(activation, make_x, make_keys):
    x, keys, grad = make_x(4, 3, 6, 6), make_keys(4), make_x(4, 3, 6, 6, seed=1)
    results = []
    for form in (x, x.contiguous(memory_format=torch.channels_last)):
        for incoming in (grad, grad.contiguous(memory_format=torch.channels_last), grad.mT.contiguous().mT):
            leaf = form.detach().requires_grad_()
            random_relu(leaf, activation, keys).backward(incoming)
            results.append(leaf.grad)
    assert all(result.equal(results[0]) for result in results)


@pytest.mark.parametrize("activation", [DropReLU(0.5), RReLU()], ids=str)
def test_the_gradient_of_a_broadcast_is_accepted(activation, make_x, make_keys):
    x, keys = make_x(4, 3, 6, 6), make_keys(4)
    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    random_relu(leaf, activation, keys).sum().backward()  # an expanded gradient without storage of its own
    random_relu(other, activation, keys).backward(torch.ones_like(x))
    assert leaf.grad.equal(other.grad)


@pytest.mark.parametrize("activation", [DropReLU(0.5), RReLU()], ids=str)
class TestTransforms:
    def test_func_grad_equals_backward(self, activation, make_x, make_keys):
        x, keys = make_x(4, 30), make_keys(4)
        leaf = x.clone().requires_grad_()
        random_relu(leaf, activation, keys).square().sum().backward()
        assert torch.func.grad(lambda x: random_relu(x, activation, keys).square().sum())(x).equal(leaf.grad)

    def test_vmap_of_grad_equals_the_loop(self, activation, make_x, make_keys):
        x, keys = make_x(5, 4, 30), make_keys(20).unflatten(1, (5, 4))
        gradient = torch.func.grad(lambda x, keys: random_relu(x, activation, keys).square().sum())
        vmapped = torch.func.vmap(gradient, in_dims=(0, 1))(x, keys)
        assert vmapped.equal(torch.stack([gradient(x[i], keys[:, i]) for i in range(5)]))

    def test_grad_of_vmap_over_samples(self, activation, make_x, make_keys):
        x, keys = make_x(4, 30), make_keys(12).unflatten(1, (3, 4))

        def total(x):
            return torch.func.vmap(lambda keys: random_relu(x, activation, keys), in_dims=1)(keys).square().sum()

        one = torch.func.grad(lambda x, keys: random_relu(x, activation, keys).square().sum())
        assert torch.allclose(torch.func.grad(total)(x), sum(one(x, keys[:, k]) for k in range(3)))


def saved_bytes(forward):
    """Distinct bytes kept for backward; several layers that keep one tensor count it once."""
    storages = {}

    def keep(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = forward()
    assert out.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


class SmallCNN(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.activation = activation
        self.convolutions = nn.ModuleList([nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in self.convolutions])
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = self.activation(norm(convolution(x)))
        return self.head(x.mean((2, 3)))


FUNCTIONS = {
    "drop_relu": lambda x, inplace: functional.drop_relu(x, 0.9, seed=0, inplace=inplace),
    "identity": lambda x, inplace: functional.drop_relu(x, 0.0, seed=0, inplace=inplace),
    "rrelu": lambda x, inplace: functional.rrelu(x, seed=0, inplace=inplace),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
class TestMemory:
    def test_one_call_keeps_what_relu_keeps(self, name, inplace, dtype, make_x):
        x = make_x(16, 8, 10, 10, dtype=dtype).requires_grad_()
        plain = saved_bytes(lambda: F.relu(x * 1, inplace=inplace))
        assert plain == x.nbytes
        assert saved_bytes(lambda: FUNCTIONS[name](x * 1, inplace)) <= plain

    def test_a_network_keeps_what_it_keeps_with_relu(self, name, inplace, dtype, make_x):
        x = make_x(8, 3, 16, 16)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            network = SmallCNN(lambda x: F.relu(x, inplace=inplace))
            plain = saved_bytes(lambda: network(x).sum())
            network.activation = lambda x: FUNCTIONS[name](x, inplace)
            assert saved_bytes(lambda: network(x).sum()) <= plain
