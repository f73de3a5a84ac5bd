"""What the activations draw: keep rates, slopes, and the two ends where nothing is random."""

import math

import pytest
import torch
from scipy import stats

from rbue import functional, random_stream
from rbue.activations import DropReLU, RReLU, SiteCall
from rbue.kernels import random_relu

KEEP = [0, 0.05, 0.5, 0.8, 0.85, 0.9, 0.95, 0.999, 1]


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
@pytest.mark.parametrize("q", KEEP)
def test_the_keep_rate_is_q_within_four_standard_errors(q, seed):
    count = 4_000_000
    out = functional.drop_relu(torch.full((4, count // 4), -1.0), q, seed=seed)
    kept = (out == 0).sum().item() / count
    assert ((out == 0) | (out == -1)).all()
    assert abs(kept - q) <= 4 * math.sqrt(q * (1 - q) / count)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cap", [None, 1.0])
def test_q_1_is_relu_and_q_0_the_identity(dtype, cap, make_x, make_keys):
    x, keys = make_x(8, 3, 50, 50, dtype=dtype), make_keys(8)
    assert random_relu(x, DropReLU(1), keys, cap=cap).equal(torch.relu(x).clamp(max=cap or torch.inf))
    assert random_relu(x, DropReLU(0), keys, cap=cap).equal(x.clamp(max=cap or torch.inf))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("word", [2**31 - 1, 2**31 - 2, -(2**31)])
def test_q_0_and_q_1_hold_for_the_rarest_words(word, dtype):
    inverse = pow(random_stream.BITS_MULTIPLIERS[1], -1, 2**32)
    k2 = random_stream.signed32(word * inverse)  # element 0 has table entry 0, so k1 = 0 leaves h = 0
    keys = torch.tensor([[0, 0], [k2, k2]], dtype=torch.int32)
    assert random_stream.bits(random_stream.element_table(1), *keys).tolist() == [word, word]
    x = torch.full((1, 1), -1.0, dtype=dtype)
    assert random_relu(x, DropReLU(0), keys, repeat=2).tolist() == [[-1], [-1]]
    assert random_relu(x, DropReLU(0), keys[:, :1]).item() == -1
    assert random_relu(x, DropReLU(1), keys, repeat=2).tolist() == [[0], [0]]


def test_q_0_gives_a_new_tensor(make_x, make_keys):
    x = make_x(2, 3)
    assert random_relu(x, DropReLU(0), make_keys(2)).data_ptr() != x.data_ptr()


@pytest.mark.parametrize(("lower", "upper"), [(1 / 8, 1 / 3), (0, 1), (0, 0.1), (0.5, 1)])
def test_slopes_are_uniform(lower, upper):
    slopes = -functional.rrelu(torch.full((4, 250_000), -1.0), lower, upper, seed=1).double()
    assert stats.kstest(((slopes - lower) / (upper - lower)).flatten().numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("lower", "upper"), [(1 / 8, 1 / 3), (0, 1), (0, 0.1), (0, 1 / 3), (0, 0.7), (0, 1e-20), (0.5, 1), (0.999999, 1)]
)
def test_every_possible_slope_is_positive_and_in_its_range(lower, upper):
    words = torch.arange(-(2**31), 2**31, 2**9).to(torch.int32)  # all 2**23 odd words
    slopes = RReLU(lower, upper).slopes(words).double()
    ulp = torch.finfo(torch.float32).eps * upper
    assert slopes.min() > 0
    assert lower - ulp <= slopes.min()
    assert slopes.max() <= min(upper + ulp, 1)
    assert abs(slopes.mean() - (lower + upper) / 2) <= ulp


@pytest.mark.parametrize("activation", [DropReLU(0.8), DropReLU(0.5), RReLU()], ids=str)
def test_mean_and_variance_of_the_slope(activation):
    x = torch.full((1, 1_000_000), -1.0)
    keys = torch.tensor([[123], [456]], dtype=torch.int32)
    slopes = -random_relu(x, activation, keys).double()
    error = math.sqrt(activation.slope_variance / x.numel())
    assert abs(slopes.mean() - activation.mean_slope) < 4 * error
    assert slopes.var().item() == pytest.approx(activation.slope_variance, rel=0.01)


@pytest.mark.parametrize("activation", [DropReLU(0.8), DropReLU(0), DropReLU(1), RReLU()], ids=str)
@pytest.mark.parametrize("cap", [None, 0.5])
def test_mean_scales_the_negative_side(activation, cap, make_x):
    leaf = make_x(3, 40).requires_grad_()
    out = activation.mean(leaf, SiteCall("F.relu", leaf, cap=cap))
    expected = torch.where(leaf < 0, activation.mean_slope * leaf, leaf).clamp(max=cap or torch.inf)
    assert torch.allclose(out, expected)
    passed = torch.where(leaf < 0, activation.mean_slope, 1.0) * (leaf < (cap or torch.inf))
    assert torch.allclose(torch.autograd.grad(out.sum(), leaf)[0], passed)


def test_mean_treats_infinity_as_relu_does():
    x = torch.tensor([-torch.inf, torch.inf])
    assert DropReLU(1).mean(x, SiteCall("F.relu", x)).tolist() == [0, torch.inf]
    assert DropReLU(0.5).mean(x, SiteCall("F.relu", x)).equal(x)


@pytest.mark.parametrize("activation", [RReLU(), RReLU(0, 1), RReLU(0.3, 0.9), RReLU(0, 0.01)], ids=str)
def test_slopes_of_gpus_are_those_of_the_formula_to_a_unit_in_the_last_place(activation):
    """All slopes that there are; as GPUs compute them, with no rounding between product and sum."""
    words = torch.arange(-(1 << 22), 1 << 22, dtype=torch.int32) << 9
    steepness, intercept = torch.tensor(activation.slope_line()).double()
    found = (random_stream.as_mantissas(words).double() * steepness + intercept).float()
    unit = torch.finfo(torch.float32).eps * 2.0 ** math.floor(math.log2(activation.upper))
    assert (found - activation.slopes(words)).abs().max() <= unit
    assert activation.lower <= found.min() < found.max() <= activation.upper


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_multiplied_in_single_precision(make_x, dtype):
    x, grad = -make_x(4, 50, dtype=dtype).abs(), make_x(4, 50, dtype=dtype, seed=1)
    words = torch.arange(-100, 100, dtype=torch.int32).reshape(4, 50) * 20_000_003
    slopes = RReLU().slopes(words)
    out = RReLU().forward(x, words)
    assert out.equal((slopes * x.float()).to(dtype))
    assert RReLU().backward(grad, out, words)[0].equal((slopes * grad.float()).to(dtype))


def test_infinity_above_zero_has_no_variance():
    x = torch.tensor([math.inf, 1.0, -1.0])
    assert DropReLU(0.5).variance(x, SiteCall("F.relu", x)).tolist() == [0.0, 0.0, 0.25]
