"""BatchNorms that cannot be folded stay, and the outputs are the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from folding_networks import Pair, assert_near, images, lived_in, made, norms, run
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import rbue


class SkipBeforeNorm(Pair):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y


class UsedFirst(Pair):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y.mean() + self.norm(y)


class InList(Pair):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return torch.cat([self.norm(y), y], 1)


class Returned(Pair):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        return self.norm(y), y


class Kept(Pair):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.conv(x)
        return self.norm(self.kept)


class InPlaceBetween(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.relu(self.conv(x), inplace=True))


class DropoutBetween(Pair):
    """In evaluation mode dropout returns its very input, but it can be switched on."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.dropout(input=self.conv(x), training=self.training))


class ReadAsNumbers(Pair):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) * y.tolist()[0][0][0][0]


@torch.jit.script
def _scripted(x: Tensor) -> Tensor:
    return 2 * x + 1


class ReadByScript(Pair):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + _scripted(y)


class TwoNorms(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + self.other(y)


class LayerTwice(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(self.conv(x)))


class NormTwice(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.norm(self.conv(x)))


class Tied(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(3, 3, 3, padding=1)
        self.other.weight = self.conv.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(self.other(x)))


class WeightUsedAgain(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + F.conv2d(x, self.conv.weight, padding=1)


class NormWeightUsedAgain(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.norm.weight.sum()


class ScaledConv(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return 2 * super()._conv_forward(input, weight, bias)


class ScaledNorm(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def parametrised() -> nn.Module:
    network = Pair()
    parametrizations.weight_norm(network.conv)
    return network


def parametrised_norm() -> nn.Module:
    network = Pair()
    nn.utils.parametrize.register_parametrization(network.norm, "weight", nn.Softplus())
    return network


def hooked(module: str, register: str, hook: Callable) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        network = Pair()
        getattr(network.get_submodule(module), register)(hook)
        return network

    return build


def patched(module: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        network = Pair()
        part = network.get_submodule(module)
        plain = part.forward
        part.forward = lambda x: 2 * plain(x)  # the copy keeps this very function
        return network

    return build


def transposed() -> nn.Module:
    return nn.Sequential(nn.ConvTranspose2d(3, 3, 3), nn.BatchNorm2d(3))


def of_tokens() -> nn.Module:
    """``(B, 3, 256)`` to ``(B, 3, 3)``: BatchNorm takes the 3 tokens for its channels."""
    return nn.Sequential(nn.Flatten(2), nn.Linear(256, 3), nn.BatchNorm1d(3))


class OneSignal(nn.Module):
    """The batch is taken for the channels of one signal; BatchNorm then normalises along the signal."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 8, 1), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x.flatten(1)[:, :8]))


LEFT_ALONE: dict[str, Callable[[], nn.Module]] = {
    "skip before the norm": SkipBeforeNorm,
    "used before the norm": UsedFirst,
    "used in a list": InList,
    "returned": Returned,
    "kept for later": Kept,
    "in-place ReLU between": InPlaceBetween,
    "dropout between": DropoutBetween,
    "read as numbers": ReadAsNumbers,
    "read by scripted code": ReadByScript,
    "two norms": TwoNorms,
    "layer called twice": LayerTwice,
    "norm called twice": NormTwice,
    "tied weights": Tied,
    "weight used elsewhere": WeightUsedAgain,
    "norm's weight used elsewhere": NormWeightUsedAgain,
    "parametrised layer": parametrised,
    "parametrised norm": parametrised_norm,
    "layer hook": hooked("conv", "register_forward_hook", lambda m, args, out: 2 * out),
    "layer hook that looks": hooked("conv", "register_forward_hook", lambda m, args, out: None),
    "layer pre-hook": hooked("conv", "register_forward_pre_hook", lambda m, args: None),
    "norm hook": hooked("norm", "register_forward_hook", lambda m, args, out: 2 * out),
    "norm pre-hook": hooked("norm", "register_forward_pre_hook", lambda m, args: (2 * args[0],)),
    "norm backward hook": hooked("norm", "register_full_backward_hook", lambda m, gi, go: None),
    "norm backward pre-hook": hooked("norm", "register_full_backward_pre_hook", lambda m, go: None),
    "patched layer": patched("conv"),
    "patched norm": patched("norm"),
    "no running statistics": lambda: nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3, track_running_stats=False)),
    "subclass of the layer": lambda: nn.Sequential(ScaledConv(3, 3, 3), nn.BatchNorm2d(3)),
    "subclass of the norm": lambda: nn.Sequential(nn.Conv2d(3, 3, 3), ScaledNorm(3)),
    "transposed convolution": transposed,
    "Linear over tokens": of_tokens,
    "Conv1d without a batch": OneSignal,
    "function between": lambda: nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU(), nn.BatchNorm2d(3)),
    "norm first": lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3)),
    "no norm": lambda: nn.Conv2d(3, 3, 3),
}


def test_the_pair_of_the_cases_below_is_folded_when_nothing_is_wrong_with_it() -> None:
    network = made(Pair)
    folded = rbue.fold_batchnorm(network, images())
    assert norms(folded) == 0
    assert_near(run(folded, images()), run(network, images()))


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_left_alone(case: str) -> None:
    network, x = made(LEFT_ALONE[case]), images()
    with pytest.warns(rbue.RbueWarning, match="nothing was folded"):
        folded = rbue.fold_batchnorm(network, x)
    assert folded is not network
    assert norms(folded) == norms(network)
    with torch.no_grad():
        found, expected = folded(x), network(x)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    assert all(torch.equal(*pair) for pair in pairs)


def test_parametrised_after_conversion_to_dropout_is_left_alone() -> None:
    network = rbue.convert(made(Pair), rbue.Dropout(0.2), example=images())
    nn.utils.parametrize.register_parametrization(network.conv, "bias", nn.Softplus())
    with pytest.warns(rbue.RbueWarning, match="nothing was folded"):
        assert norms(rbue.fold_batchnorm(network, images())) == 1


def test_one_bad_pair_does_not_keep_the_others() -> None:
    network = made(lambda: nn.Sequential(Pair(), SkipBeforeNorm(), Pair()))
    folded = rbue.fold_batchnorm(network, images())
    assert [norms(part) for part in folded] == [0, 1, 0]
    assert_near(run(folded, images()), run(network, images()))


def test_lazy_modules_are_refused_until_they_have_run() -> None:
    network, x = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()).eval(), images()
    with pytest.raises(rbue.InvalidInput, match="0 is a lazy module"):
        rbue.fold_batchnorm(network, x)
    assert isinstance(network[0], nn.LazyConv2d)
    network(x)
    lived_in(network)
    folded = rbue.fold_batchnorm(network, x)
    assert norms(folded) == 0
    assert_near(run(folded, x), run(network, x))
