"""Special values, in-place writes and memory: everything as ``torch.relu`` does it."""

import math
from itertools import product

import pytest
import torch

from rbue.activations import DropReLU, RReLU
from rbue.kernels import random_relu

pytestmark = pytest.mark.usefixtures("cpu_form")

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DROP = [DropReLU(0), DropReLU(0.5), DropReLU(1)]
RRELU = [RReLU(), RReLU(0, 1), RReLU(0, 1e-3)]
ACTIVATIONS = DROP + RRELU
PAIRS = [(activation, torch.float32) for activation in ACTIVATIONS]  # the one type with kernels of its own on a CPU
PAIRS += [(one, dtype) for dtype in (*DTYPES[:2], DTYPES[3]) for one in (DropReLU(0.5), RReLU(), RReLU(0, 1e-3))]
COUNT = 37  # more than a vector register, and not a multiple of one


def filled(value, dtype=torch.float32):
    return torch.full((2, COUNT), value, dtype=dtype)


def gradient(x, activation, keys, **options):
    x = x.detach().requires_grad_()
    random_relu(x * 1 if options.get("inplace") else x, activation, keys, **options).sum().backward()
    return x.grad


def smallest(dtype):
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


@pytest.mark.parametrize(("activation", "dtype"), PAIRS, ids=str)
class TestSpecialValues:
    def test_nan_propagates(self, activation, dtype, make_keys):
        for sign, cap in product((1.0, -1.0), (None, 6.0)):
            x = torch.copysign(filled(math.nan, dtype), filled(sign, dtype))
            assert random_relu(x, activation, make_keys(2), cap=cap).isnan().all(), (sign, cap)
            assert random_relu(x.requires_grad_(), activation, make_keys(2), cap=cap).isnan().all(), (sign, cap)

    def test_plus_infinity_stays(self, activation, dtype, make_keys):
        assert random_relu(filled(math.inf, dtype), activation, make_keys(2)).equal(filled(math.inf, dtype))

    def test_minus_infinity_is_selected_not_multiplied(self, activation, dtype, make_keys):
        out = random_relu(filled(-math.inf, dtype), activation, make_keys(2))
        assert ((out == 0) | (out == -math.inf)).all()
        if isinstance(activation, RReLU) or activation.q == 0:
            assert (out == -math.inf).all()
        elif activation.q == 1:
            assert (out == 0).all()
        else:
            assert 0 < (out == 0).sum() < out.numel()

    def test_zero_gives_zero_and_no_gradient(self, activation, dtype, make_keys):
        for zero, inplace, cap in product((0.0, -0.0), (False, True), (None, 6.0)):
            x = filled(zero, dtype)
            assert (random_relu(x, activation, make_keys(2), cap=cap) == 0).all(), (zero, cap)
            found = gradient(x, activation, make_keys(2), inplace=inplace, cap=cap)
            assert (found == 0).all(), (zero, inplace, cap)

    def test_the_gradient_is_the_slope_even_where_the_product_underflows(self, activation, dtype, make_keys):
        expected = gradient(filled(-1, dtype), activation, make_keys(2))
        for inplace in (False, True):
            tiny = gradient(filled(-smallest(dtype), dtype), activation, make_keys(2), inplace=inplace)
            assert tiny.equal(expected)
            if isinstance(activation, RReLU):
                assert tiny.abs().min() > 0

    def test_the_gradient_is_zero_at_and_above_the_cap(self, activation, dtype, make_keys):
        for cap, inplace in ((6.0, False), (0.3, True), (0.7, False)):
            limit = torch.tensor(cap, dtype=dtype)
            below = torch.nextafter(limit, torch.zeros_like(limit))
            for value, passes in ((below, 1), (limit, 0), (2 * limit, 0), (torch.tensor(math.inf, dtype=dtype), 0)):
                x = filled(value.item(), dtype)
                assert (random_relu(x, activation, make_keys(2), cap=cap) == min(value, limit)).all()
                found = gradient(x, activation, make_keys(2), cap=cap, inplace=inplace)
                assert (found == passes).all(), (cap, value)

    def test_the_gradient_of_infinities_is_finite(self, activation, dtype, make_keys):
        for value in (math.inf, -math.inf):
            expected = gradient(filled(math.copysign(1, value), dtype), activation, make_keys(2))
            assert gradient(filled(value, dtype), activation, make_keys(2)).equal(expected)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
class TestInPlace:
    def test_the_result_is_written_into_the_input(self, activation, make_x, make_keys):
        x, keys = make_x(4, 3, 5, 5), make_keys(4)
        expected = random_relu(x, activation, keys)
        place, version = x.data_ptr(), x._version
        out = random_relu(x, activation, keys, inplace=True)
        assert out is x
        assert x.data_ptr() == place
        assert x.equal(expected)
        assert x._version > version or activation == DropReLU(0)

    def test_a_tensor_saved_earlier_is_noticed(self, activation, make_x, make_keys):
        leaf = make_x(4, 30).requires_grad_()
        y = leaf * 1
        squares = y**2
        random_relu(y, activation, make_keys(4), inplace=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            squares.sum().backward()

    def test_a_leaf_is_refused_and_left_as_it_was(self, activation, make_x, make_keys):
        leaf = make_x(4, 30).requires_grad_()
        for x, keys in ((leaf, make_keys(4)), (leaf[:2], make_keys(2))):
            with pytest.raises(RuntimeError, match="leaf"):
                random_relu(x, activation, keys, inplace=True)
        assert leaf.equal(make_x(4, 30))

    def test_a_leaf_may_be_written_without_gradients(self, activation, make_x, make_keys):
        leaf = make_x(4, 30).requires_grad_()
        with torch.no_grad():
            random_relu(leaf, activation, make_keys(4), inplace=True)
        assert leaf.equal(random_relu(make_x(4, 30), activation, make_keys(4)))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_a_view_changes_its_base_and_the_gradient_follows(self, activation, dtype, make_x, make_keys):
        leaf, keys = make_x(6, 30, dtype=dtype).requires_grad_(), make_keys(2)
        base = leaf * 1
        random_relu(base[2:4], activation, keys, inplace=True)
        part = leaf[2:4].detach().requires_grad_()
        expected = random_relu(part, activation, keys)
        assert base[2:4].equal(expected)
        assert base[:2].equal(leaf[:2])
        base.sum().backward()
        expected.sum().backward()
        assert leaf.grad[2:4].equal(part.grad)
        assert (leaf.grad[:2] == 1).all()


@pytest.mark.parametrize(("activation", "dtype"), PAIRS, ids=str)
def test_autocast_changes_nothing(activation, dtype, make_x, make_keys):
    x, keys = make_x(3, 40, dtype=dtype), make_keys(3)
    expected = random_relu(x, activation, keys)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = random_relu(x, activation, keys)
    assert out.dtype == dtype
    assert out.equal(expected)
    assert gradient(x, activation, keys).dtype == dtype


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_meta_tensors_have_shapes(activation):
    x = torch.empty(4, 3, 5, 5, device="meta")
    out = random_relu(x, activation, torch.empty(2, 4, dtype=torch.int32, device="meta"))
    assert out.shape == x.shape
    assert out.device == x.device


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_a_row_without_elements_stays_empty(activation, make_keys):
    assert random_relu(torch.empty(3, 0, 2), activation, make_keys(3)).shape == (3, 0, 2)
