"""Activations together with what stands beside them, on a CPU; the kernels of a GPU are in ``kernel_cases.py``."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rbue import random_stream
from rbue.activations import DropReLU, RReLU
from rbue.kernels import native, random_relu
from rbue.kernels.fused import Normalised, can_be_fused, can_be_pooled, normalised_relu, pooled_relu

ACTIVATIONS = [DropReLU(0.6), DropReLU(0.6, "channel"), DropReLU(0), DropReLU(1), RReLU()]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
SHAPES = [(3, 5, 4, 4), (2, 512, 4, 4), (2, 3, 200, 100), (1, 1, 1, 1), (2, 700, 5, 5), (2, 3, 2, 3, 4), (2, 6, 9)]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("cap", [None, 0.5])
@pytest.mark.parametrize("repeat", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_mean_over_the_pixels(shape, repeat, cap, activation, make_x, make_keys):
    """Planes longer than a block, several planes a block, and part of one."""
    keys = make_keys(shape[0] * repeat)
    for memory_format in {torch.contiguous_format, LAST.get(len(shape), torch.contiguous_format)}:
        x = make_x(*shape).contiguous(memory_format=memory_format)
        found = pooled_relu(x, activation, keys, repeat=repeat, cap=cap)
        expected = random_relu(x, activation, keys, repeat=repeat, cap=cap).double().flatten(2).mean(2)
        assert found.dtype is torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_numbers_that_are_none_stay_so(make_keys):
    x = torch.ones(2, 3, 2, 2)
    x[0, 1, 0, 1], x[1, 2, 1, 1] = torch.nan, torch.inf
    found = pooled_relu(x, DropReLU(0.5), make_keys(4), repeat=2)
    assert found.isnan().nonzero().tolist() == [[0, 1], [2, 1]]
    assert found.isinf().nonzero().tolist() == [[1, 2], [3, 2]]


def test_no_relu_is_kept_where_none_may_be():
    """Also under the largest word, which no threshold of 32 bits is above."""
    largest = random_stream.signed32(0x7FFFFFFF * pow(random_stream.BITS_MULTIPLIERS[1], -1, 1 << 32))
    keys = torch.tensor([[0], [largest]], dtype=torch.int32)
    assert int(random_stream.bits(random_stream.element_table(1), *keys)) == 0x7FFFFFFF
    assert pooled_relu(-torch.ones(1, 1, 1, 1), DropReLU(0), keys).tolist() == [[-1.0]]


def test_what_is_pooled_here(make_x):
    x = make_x(2, 3, 4, 5)
    assert can_be_pooled(x) is (native.library() is not None)
    assert not can_be_pooled(x.double())
    assert not can_be_pooled(x.mT)
    assert not can_be_pooled(x[:, :, 0, 0])
    assert not can_be_pooled(torch.empty(1, (1 << 14) + 1, 1, 1))
    assert not can_be_fused(x)


def test_a_sum_in_steps_takes_one_map(make_x):
    x, other, norm = make_x(3, 4, 5, 5), torch.ones(3, 4, 5, 5), (torch.randn(4), torch.ones(4), None, None, 1e-3)
    made = []

    class Making(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made.extend(y for y in tree_leaves(out) if y.nbytes >= x.nbytes)
            return out

    with Making():
        Normalised(x, *norm, other).compute()
    assert len({y.data_ptr() for y in made}) == 1


@pytest.mark.parametrize("cap", [None, 0.5])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS], ids=str)
def test_batch_norm_a_sum_and_a_relu_in_steps(activation, cap, make_x, make_keys):
    x, other, keys = make_x(3, 4, 5, 5), torch.ones(3, 4, 5, 5), make_keys(3)
    mean, var, weight, bias = torch.randn(4), torch.rand(4) + 0.5, torch.randn(4), torch.randn(4)
    found = normalised_relu(Normalised(x, mean, var, weight, bias, 1e-3, other), activation, keys, cap=cap)
    before = F.batch_norm(x, mean, var, weight, bias, eps=1e-3) + other
    expected = before.clamp(0, cap) if activation is None else random_relu(before, activation, keys, cap=cap)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("repeat", [1, 3])
def test_the_mean_over_the_pixels_of_images_cut_into_patches(repeat, make_x, make_keys):
    """The frames of a video along the batch, say: there are fewer keys than rows."""
    x, keys = make_x(6, 5, 4, 4), make_keys(2 * repeat)
    found = pooled_relu(x, DropReLU(0.5), keys, repeat=repeat)
    torch.testing.assert_close(found, random_relu(x, DropReLU(0.5), keys, repeat=repeat).mean((2, 3)))
