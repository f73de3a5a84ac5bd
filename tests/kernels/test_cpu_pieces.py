"""The form without a compiler works in pieces; they must fit together."""

import pytest
import torch

from rbue.activations import DropReLU, RReLU
from rbue.kernels import native, random_relu
from rbue.kernels import torch_operations as cpu
from rbue.kernels.layout import ElementLayout

ACTIVATIONS = [DropReLU(0.5), DropReLU(0.9), RReLU(), RReLU(0, 1)]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("at_once", [1, 100, 2 * 75, 7 * 75 + 1, 13 * 75])
def test_pieces_fit_together(activation, memory_format, at_once, make_x, make_keys, monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    x, keys = make_x(10, 3, 5, 5).contiguous(memory_format=memory_format), make_keys(25)
    grad, five = make_x(10, 3, 5, 5, seed=1), keys[:, :5]

    def results():
        yield random_relu(x, activation, keys, repeat=5, cap=0.5)
        yield random_relu(x, activation, five)
        yield random_relu(x.clone(), activation, five, inplace=True)
        leaf = x.clone().requires_grad_()
        yield from torch.autograd.grad(random_relu(leaf, activation, five), leaf, grad)

    whole = list(results())
    monkeypatch.setattr(cpu, "AT_ONCE", at_once)
    assert len(list(cpu._pieces(keys, ElementLayout.of(x, 25, 5)))) > 1
    assert [a.equal(b) for a, b in zip(whole, results(), strict=True)] == [True] * 4
