"""Every spelling of ReLU is one call site; what only looks like one is left alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rbue


class Spelling(NamedTuple):
    apply: Callable[[Tensor], Tensor]
    inplace: bool = False
    cap: float | None = None


SPELLINGS = {
    "nn.ReLU": Spelling(nn.ReLU()),
    "nn.ReLU(inplace)": Spelling(nn.ReLU(inplace=True), inplace=True),
    "nn.ReLU6": Spelling(nn.ReLU6(), cap=6),
    "nn.ReLU6(inplace)": Spelling(nn.ReLU6(inplace=True), inplace=True, cap=6),
    "nn.Threshold": Spelling(nn.Threshold(0, 0)),
    "nn.Threshold(inplace)": Spelling(nn.Threshold(0, 0, inplace=True), inplace=True),
    "nn.Hardtanh": Spelling(nn.Hardtanh(0, 6), cap=6),
    "nn.Hardtanh(inplace)": Spelling(nn.Hardtanh(0, 2.5, inplace=True), inplace=True, cap=2.5),
    "F.relu": Spelling(F.relu),
    "F.relu(input=)": Spelling(lambda x: F.relu(input=x)),
    "F.relu(x, True)": Spelling(lambda x: F.relu(x, True), inplace=True),
    "F.relu(inplace=True)": Spelling(lambda x: F.relu(x, inplace=True), inplace=True),
    "F.relu_": Spelling(F.relu_, inplace=True),
    "torch.relu": Spelling(torch.relu),
    "torch.relu_": Spelling(torch.relu_, inplace=True),
    **{f"torch.relu({name}=)": Spelling(lambda x, name=name: torch.relu(**{name: x})) for name in ("x", "a", "x1")},
    "Tensor.relu": Spelling(lambda x: x.relu()),
    "Tensor.relu_": Spelling(lambda x: x.relu_(), inplace=True),
    "clamp(min=0)": Spelling(lambda x: x.clamp(min=0)),
    "clamp(0)": Spelling(lambda x: x.clamp(0)),
    "clamp(0.0, None)": Spelling(lambda x: x.clamp(0.0, None)),
    "clamp(0, 6)": Spelling(lambda x: x.clamp(0, 6), cap=6),
    "clamp(max=6, min=0)": Spelling(lambda x: x.clamp(max=6, min=0), cap=6),
    "clamp_": Spelling(lambda x: x.clamp_(0), inplace=True),
    "clamp_(0, 6)": Spelling(lambda x: x.clamp_(0, 6), inplace=True, cap=6),
    "clip": Spelling(lambda x: x.clip(min=0)),
    "clip_": Spelling(lambda x: x.clip_(min=0), inplace=True),
    "clamp_min": Spelling(lambda x: x.clamp_min(0)),
    "clamp_min(min=)": Spelling(lambda x: x.clamp_min(min=0.0)),
    "clamp_min_": Spelling(lambda x: x.clamp_min_(0), inplace=True),
    "torch.clamp": Spelling(lambda x: torch.clamp(x, min=0)),
    "torch.clamp(out=None)": Spelling(lambda x: torch.clamp(x, 0, out=None)),
    "torch.clamp_": Spelling(lambda x: torch.clamp_(x, 0), inplace=True),
    "torch.clip": Spelling(lambda x: torch.clip(x, 0, 6), cap=6),
    "torch.clip_": Spelling(lambda x: torch.clip_(x, min=0), inplace=True),
    "torch.clamp_min": Spelling(lambda x: torch.clamp_min(x, 0)),
    "torch.clamp_min_": Spelling(lambda x: torch.clamp_min_(x, 0), inplace=True),
    "F.threshold": Spelling(lambda x: F.threshold(x, 0, 0)),
    "F.threshold(inplace)": Spelling(lambda x: F.threshold(x, 0, 0, True), inplace=True),
    "F.threshold_": Spelling(lambda x: F.threshold_(x, 0, 0), inplace=True),
    "torch.threshold": Spelling(lambda x: torch.threshold(x, threshold=0, value=0)),
    "torch.threshold_": Spelling(lambda x: torch.threshold_(x, 0, 0), inplace=True),
    "F.relu6": Spelling(F.relu6, cap=6),
    "F.relu6(inplace)": Spelling(lambda x: F.relu6(x, inplace=True), inplace=True, cap=6),
    "F.hardtanh": Spelling(lambda x: F.hardtanh(x, 0, 3), cap=3),
    "F.hardtanh(max_val=)": Spelling(lambda x: F.hardtanh(x, min_val=0.0, max_val=2.0, inplace=True), True, 2),
    "F.hardtanh_": Spelling(lambda x: F.hardtanh_(x, 0.0, 6.0), inplace=True, cap=6),
}

NOT_RELU = {
    "clamp(min=1e-6)": lambda x: x.clamp(min=1e-6),
    "clamp(max=6)": lambda x: x.clamp(max=6),
    "clamp(0, -1)": lambda x: x.clamp(0, -1),
    "clamp of tensors": lambda x: x.clamp(torch.zeros(()), torch.ones(())),
    "clamp(min tensor)": lambda x: torch.clamp(x, min=torch.zeros_like(x)),
    "clamp_min tensor": lambda x: x.clamp_min(torch.zeros(())),
    "integer clamp": lambda x: (10 * x).long().clamp(min=0),
    "clamp(out=)": lambda x: torch.clamp(x, 0, out=torch.empty_like(x)),
    "threshold(out=)": lambda x: torch.threshold(x, 0, 0, out=torch.empty_like(x)),
    "threshold(1, 0)": lambda x: F.threshold(x, 1, 0),
    "threshold(0, 1)": lambda x: F.threshold(x, 0, 1),
    "hardtanh()": F.hardtanh,
    "hardtanh(0, 0)": lambda x: F.hardtanh(x, 0, 0),
    "hardtanh(-1, 1)": lambda x: F.hardtanh(x, -1, 1),
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "one number": lambda x: x * x.mean().clamp(min=0),
}


class Applies(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class AppliesTwice(Applies):
    """Also a real ReLU, so that the network can be converted."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.function(x), F.relu(x)


@pytest.fixture
def x() -> Tensor:
    return 4 * torch.randn(8, 40, generator=torch.Generator().manual_seed(0))


spelled = pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)


@spelled
def test_spelling_is_one_site(spelling: Spelling, x: Tensor) -> None:
    (site,) = rbue.sites(Applies(spelling.apply), x.clone())
    assert site.shape == x.shape


@spelled
@pytest.mark.parametrize("gradients", [False, True])
def test_each_negative_input_is_kept_or_zeroed(spelling: Spelling, x: Tensor, gradients: bool) -> None:
    network = rbue.convert(Applies(spelling.apply), rbue.DropReLU(0.5))
    out = network(x.clone().requires_grad_().mul(1) if gradients else x.clone())
    top = x.clamp(max=spelling.cap) if spelling.cap else x
    assert torch.equal(out[x >= 0], top[x >= 0])
    kept = out[x < 0] == x[x < 0]
    assert bool(((out[x < 0] == 0) | kept).all())
    assert 0.3 < kept.float().mean() < 0.7


@spelled
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("mode", ["random", "mean"])
def test_in_place_spellings_write_in_place_and_others_do_not(
    spelling: Spelling, x: Tensor, gradients: bool, mode: str
) -> None:
    network = rbue.convert(Applies(spelling.apply), rbue.DropReLU(0.5))
    given = x.clone().requires_grad_().mul(1) if gradients else x.clone()
    with rbue.mode(network, mode):
        out = network(given)
    assert (out.data_ptr() == given.data_ptr()) == spelling.inplace
    assert torch.equal(given, out if spelling.inplace else x)


@spelled
@pytest.mark.parametrize("activation", [rbue.DropReLU(0.5), rbue.RReLU()])
def test_gradient_is_the_slope_and_zero_above_the_cap(
    spelling: Spelling, x: Tensor, activation: rbue.DropReLU | rbue.RReLU
) -> None:
    network = rbue.convert(Applies(spelling.apply), activation)
    leaf = x.clone().requires_grad_()
    out = network(leaf.mul(1))
    out.sum().backward()
    top = float("inf") if spelling.cap is None else spelling.cap
    slope = torch.where(x < 0, out.detach() / x, (x < top).float())
    assert torch.allclose(leaf.grad, slope)


class GoesOnInPlace(nn.Module):
    """Changes what the ReLU returned, as ``F.relu6(x + 3).div_(6)`` does."""

    def __init__(self, apply: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.apply_relu = apply

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_relu(x).mul_(3)


def trains_with_changed_output(spelling: Spelling) -> bool:
    try:
        GoesOnInPlace(spelling.apply)(torch.ones(2, requires_grad=True).mul(1)).sum().backward()
    except RuntimeError:
        return False
    return True


CHANGEABLE = {name: spelling for name, spelling in SPELLINGS.items() if trains_with_changed_output(spelling)}


@pytest.mark.parametrize("spelling", CHANGEABLE.values(), ids=CHANGEABLE)
@pytest.mark.parametrize("mode", ["random", "mean"])
@pytest.mark.parametrize("activation", [rbue.DropReLU(0.5), rbue.DropReLU(1), rbue.RReLU()])
def test_output_may_be_changed_in_place_where_that_of_the_plain_form_may(
    spelling: Spelling, x: Tensor, activation: rbue.DropReLU | rbue.RReLU, mode: str
) -> None:
    network = rbue.convert(GoesOnInPlace(spelling.apply), activation)
    leaf = x.clone().requires_grad_()
    with rbue.mode(network, mode):
        out = network(leaf.mul(1))
    out.sum().backward()
    top = float("inf") if spelling.cap is None else spelling.cap
    slope = torch.where(x < 0, out.detach() / x, 3 * (x < top).float())
    assert torch.allclose(leaf.grad, slope)


@spelled
def test_mean_mode_uses_the_expected_slope(spelling: Spelling, x: Tensor) -> None:
    network = rbue.convert(Applies(spelling.apply), rbue.DropReLU(0.8))
    with rbue.mode(network, "mean"):
        out = network(x.clone())
    assert torch.allclose(out, torch.where(x < 0, 0.2 * x, x).clamp(max=spelling.cap or float("inf")))


@spelled
@pytest.mark.parametrize("mode", ["random", "mean"])
def test_site_that_is_not_chosen_runs_as_written(spelling: Spelling, x: Tensor, mode: str) -> None:
    network = AppliesTwice(spelling.apply)
    expected = network(x.clone())
    rbue.convert(network, rbue.DropReLU(0.5), where=[1], example=x.clone())
    with rbue.mode(network, mode):
        assert torch.equal(network(x.clone())[0], expected[0])


@pytest.mark.filterwarnings("ignore:a clamp in the network has a tensor")
@pytest.mark.parametrize("function", NOT_RELU.values(), ids=NOT_RELU)
def test_what_is_not_a_relu_is_left_alone(function: Callable, x: Tensor) -> None:
    network = AppliesTwice(function)
    expected = network(x)[0]
    assert len(rbue.sites(network, x)) == 1
    rbue.convert(network, rbue.DropReLU(0.5))
    assert torch.equal(network(x)[0], expected)


def test_table_names_forms_and_shapes(x: Tensor) -> None:
    table = rbue.sites(nn.Sequential(nn.ReLU(), nn.ReLU6(), Applies(lambda x: x.clamp_min(0))), x)
    assert [(s.index, s.path, s.call, s.form, s.shape) for s in table] == [
        (0, "0", 0, "F.relu", (8, 40)),
        (1, "1", 0, "F.hardtanh", (8, 40)),
        (2, "2", 0, "Tensor.clamp_min", (8, 40)),
    ]
    assert str(table).splitlines()[0].split() == ["index", "site", "form", "shape"]
    assert len(str(table).splitlines()) == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_random_too(dtype: torch.dtype, x: Tensor) -> None:
    network = rbue.convert(Applies(F.relu), rbue.DropReLU(0.5))
    rbue.seed(network, 1)
    expected = network(x) == 0
    rbue.seed(network, 1)
    out = network(x.to(dtype))
    assert out.dtype == dtype
    assert torch.equal(out == 0, expected)


class PositiveWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.weight = nn.Linear(5, 64), nn.Parameter(torch.randn(8, 64))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.relu(self.first(x)), F.relu(self.weight))


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_weights_stay_as_they_are(batch: int) -> None:
    x = torch.randn(batch, 5)
    network = PositiveWeights()
    assert [site.index for site in rbue.sites(network, x)] == [0]
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    samples = rbue.predict(network, x, samples=8, return_samples=True).samples
    assert len({tuple(sample.flatten().tolist()) for sample in samples}) == 8


class SparseBefore(nn.Module):
    """A ReLU of a tensor that is not dense, and one that is."""

    def __init__(self, narrow: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.narrow = narrow

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.narrow(x))
        dense = torch.cat(list(first.unbind())).reshape(x.shape) if first.is_nested else first.to_dense()
        return torch.relu(dense - 1)


@pytest.mark.parametrize(
    "narrow",
    [
        Tensor.to_sparse,
        Tensor.to_sparse_csr,
        Tensor.to_mkldnn,
        lambda x: torch.nested.nested_tensor(list(x)),
        lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
    ],
    ids=["coo", "csr", "mkldnn", "nested", "jagged"],
)
@pytest.mark.filterwarnings("ignore:.*(beta|prototype).*:UserWarning")
def test_tensors_that_are_not_dense_are_left_alone_with_a_warning(narrow: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 50)
    plain = SparseBefore(narrow)
    network = rbue.convert(SparseBefore(narrow), rbue.DropReLU(0.5))
    with pytest.warns(rbue.RbueWarning, match=r"torch\.relu of a \w+ tensor stays as it is.* to_dense"):
        out = network(x)
    with pytest.warns(rbue.RbueWarning, match=r"stays as it is"):
        assert len(rbue.sites(plain, x)) == 1
    assert torch.equal(out.clamp(min=0), plain(x)), "the first ReLU is plain"
    assert (out < 0).any(), "the second is random"


class QuantizedBefore(nn.Module):
    """A ReLU of a quantized tensor, and one of a dense one."""

    def forward(self, x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch means to give them up
            few = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
        return torch.relu(torch.relu(few).dequantize() - 1)


def test_relus_of_quantized_tensors_stay_plain_with_a_warning() -> None:
    with pytest.warns(rbue.RbueWarning, match=r"torch\.relu of a quantized tensor stays as it is.* dequantize"):
        assert len(rbue.sites(QuantizedBefore(), torch.randn(4, 5))) == 1
