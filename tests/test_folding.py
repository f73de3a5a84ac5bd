"""A folded network gives the outputs and the random samples of the network it came from, and leaves that alone."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import rbue
from rbue import models
from rbue.call_sites import conversion_of

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
ACTIVATIONS = [rbue.DropReLU(0.6), rbue.RReLU(0.1, 0.5), rbue.Dropout(0.3)]


def lived_in(network: nn.Module) -> nn.Module:
    """The network with BatchNorms as after training: a fresh one does nothing, so folding it wrongly would not show."""
    generator = torch.Generator().manual_seed(3)

    def uniform(x: Tensor, low: float, high: float) -> None:
        x.data.copy_(low + (high - low) * torch.rand(x.shape, generator=generator))

    for module in network.modules():
        if isinstance(module, NORMS):
            for name, low, high in (("running_mean", -0.6, 0.6), ("running_var", 0.4, 2.5)):
                if getattr(module, name) is not None:
                    uniform(getattr(module, name), low, high)
            if module.affine:
                uniform(module.weight, 0.5, 1.6)
                uniform(module.bias, -0.5, 0.5)
    return network


def made(build: Callable[[], nn.Module]) -> nn.Module:
    """The same network every time, lived in, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return lived_in(build()).eval()


def created(name: str, width: float = 0.125) -> nn.Module:
    return made(lambda: models.create(name, classes=5, width=width))


def images(count: int = 4, size: int = 16) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def norms(network: nn.Module) -> int:
    return sum(isinstance(module, NORMS) for module in network.modules())


def run(network: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        out = network(x.clone())
    return out if isinstance(out, Tensor) else out.logits


def assert_near(found: Tensor, expected: Tensor, share: float = 1e-5) -> None:
    assert found.shape == expected.shape
    found, expected = found.detach(), expected.detach()
    assert float((found - expected).abs().max()) <= share * float(expected.abs().max())


def small() -> nn.Module:
    """Two pairs to fold and two sites whose modules a hook can watch."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


def small_images() -> Tensor:
    return images(size=8)


# What is folded


@pytest.mark.parametrize(
    ("name", "before", "left"),
    # DenseNet's second BatchNorm of each of its 58 layers follows a convolution; the others follow a concatenation.
    [("resnet18", 20, 0), ("vgg13", 10, 0), ("densenet121", 120, 62), ("small_cnn", 3, 0)],
)
def test_models_keep_their_outputs_with_fewer_batchnorms(name: str, before: int, left: int) -> None:
    network, x = created(name), images()
    assert norms(network) == before
    folded = rbue.fold_batchnorm(network, images(2))
    assert norms(folded) == left
    assert sum(type(module) is nn.Identity for module in folded.modules()) == before - left
    assert_near(run(folded, x), run(network, x))


def test_outputs_agree_with_double_precision_too() -> None:
    network, x = created("resnet18").double(), images().double()
    assert_near(run(rbue.fold_batchnorm(network, x), x), run(network, x), 1e-12)


PAIRS = {
    "Linear": (nn.Linear(6, 8), nn.BatchNorm1d(8), (3, 6)),
    "Linear without bias": (nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), (3, 6)),
    "Conv1d": (nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8), (3, 6, 5)),
    "Conv2d without bias": (nn.Conv2d(6, 8, 3, bias=False), nn.BatchNorm2d(8), (3, 6, 5, 5)),
    "Conv2d with groups": (nn.Conv2d(6, 8, 3, groups=2), nn.BatchNorm2d(8), (3, 6, 5, 5)),
    "Conv2d with stride and padding": (
        nn.Conv2d(6, 8, 3, 2, 1, dilation=2, padding_mode="reflect"),
        nn.BatchNorm2d(8),
        (3, 6, 5, 5),
    ),
    "Conv3d": (nn.Conv3d(6, 8, 2), nn.BatchNorm3d(8), (3, 6, 3, 3, 3)),
    "large eps": (nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8, eps=0.5), (3, 6, 5, 5)),
    "no affine parameters": (nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8, affine=False), (3, 6, 5, 5)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_folded_weights_follow_the_formula(name: str) -> None:
    layer, norm, shape = PAIRS[name]
    network, x = lived_in(nn.Sequential(layer, norm)).eval(), torch.randn(shape)
    folded = rbue.fold_batchnorm(network, x)
    gamma, beta = (norm.weight, norm.bias) if norm.affine else (torch.ones(8), torch.zeros(8))
    scale = gamma.double() / (norm.running_var.double() + norm.eps).sqrt()
    bias = torch.zeros(8) if layer.bias is None else layer.bias
    weight = (layer.weight.double().transpose(0, -1) * scale).transpose(0, -1)
    assert_near(folded[0].weight, weight, 1e-6)
    assert_near(folded[0].bias, (bias - norm.running_mean).double() * scale + beta, 1e-6)
    assert type(folded[1]) is nn.Identity
    assert_near(run(folded, x), run(network, x))


def test_looking_at_the_shape_of_an_output_does_not_keep_it_from_folding() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            batch, _, height, _ = y.shape
            assert y.dim() == y.ndim == 4
            assert y.size(0) == batch
            assert y.dtype == x.dtype
            return self.norm(input=y).reshape(batch, -1) / height

    network = made(Looks)
    folded = rbue.fold_batchnorm(network, images())
    assert norms(folded) == 0
    assert_near(run(folded, images()), run(network, images()))


def test_batchnorm_with_two_names_goes_under_both() -> None:
    class TwoNames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
            self.parts = nn.ModuleList([self.conv, self.norm])

        def forward(self, x: Tensor) -> Tensor:
            for part in self.parts:
                x = part(x)
            return x

    network = made(TwoNames)
    folded = rbue.fold_batchnorm(network, images())
    assert type(folded.norm) is type(folded.parts[1]) is nn.Identity
    assert folded.conv is folded.parts[0]
    assert_near(run(folded, images()), run(network, images()))


def test_graph_module() -> None:
    network = torch.fx.symbolic_trace(created("resnet18"))
    rbue.convert(network, rbue.DropReLU(0.6), example=images())
    folded = rbue.fold_batchnorm(network, images())
    assert norms(folded) == 0
    assert norms(network) == 20
    expected = rbue.predict(network, images(), samples=3, seed=4, return_samples=True).samples
    assert_near(rbue.predict(folded, images(), samples=3, seed=4, return_samples=True).samples, expected)


def test_transformers_resnet() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )
    network = made(lambda: transformers.ResNetForImageClassification(config))
    assert norms(network) > 4
    folded = rbue.fold_batchnorm(network, images())
    assert norms(folded) == 0
    assert_near(run(folded, images()), run(network, images()))
    rbue.convert(network, rbue.DropReLU(0.6), example=images())
    expected = rbue.predict(network, images(), samples=3, return_samples=True).samples
    found = rbue.predict(rbue.fold_batchnorm(network, images()), images(), samples=3, return_samples=True).samples
    assert_near(found, expected)


# What is left alone


class Pair(nn.Module):
    """A convolution and its BatchNorm; ``forward`` is what a case changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Any:
        return self.norm(self.conv(x))


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


# Converted networks


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_converted_networks_draw_the_same_samples(name: str, activation: Any) -> None:
    network, x = created(name), images()
    rbue.convert(network, activation, where=[0, 2, -1], example=x)
    folded = rbue.fold_batchnorm(network, x)
    assert norms(folded) < norms(network)
    ours, theirs = conversion_of(folded), conversion_of(network)
    assert (ours.activation, ours.sites, ours.chosen) == (theirs.activation, theirs.sites, theirs.chosen)
    expected = rbue.predict(network, x, samples=6, seed=11, return_samples=True).samples
    assert float(expected.std(0).max()) > 1e-3
    assert_near(rbue.predict(folded, x, samples=6, seed=11, return_samples=True).samples, expected, 1e-4)
    other = rbue.predict(folded, x, samples=6, seed=12, return_samples=True).samples
    assert float((other - expected).abs().max()) > 1e-3


@pytest.mark.parametrize("activation", ACTIVATIONS[:2], ids=lambda a: type(a).__name__)
def test_masks_are_the_same_element_by_element(activation: Any) -> None:
    network, x = rbue.convert(made(small), activation, example=small_images()), small_images()
    folded = rbue.fold_batchnorm(network, x)
    slopes: list[list[Tensor]] = []
    for part in (network, folded):
        seen: list[Tensor] = []
        for index in (2, 6):
            part[index].register_forward_hook(
                lambda m, args, out, seen=seen: seen.append(torch.where(args[0] < -1e-2, out / args[0], -1))
            )
        rbue.seed(part, 5)
        run(part, x)
        slopes.append(seen)
    for site in range(2):
        ours, theirs = slopes[1][site], slopes[0][site]
        both = (ours >= 0) & (theirs >= 0)
        assert int(both.sum()) > 20
        assert len(theirs[both].unique()) > 1
        assert float((ours - theirs)[both].abs().max()) < 1e-4


def test_plain_calls_go_on_with_the_same_bits_and_count_apart() -> None:
    network, x = rbue.convert(made(small), rbue.DropReLU(0.5)), small_images()
    rbue.seed(network, 3)
    run(network, x)
    folded = rbue.fold_batchnorm(network, x)
    second = run(folded, x)
    run(folded, x)
    assert_near(second, run(network, x))


def test_copy_is_independent_of_the_network() -> None:
    network, x = rbue.convert(made(small), rbue.DropReLU(0.5), example=small_images()), small_images()
    folded = rbue.fold_batchnorm(network, x)
    expected = rbue.predict(network, x, samples=4, return_samples=True).samples
    with rbue.mode(folded, "plain"):
        assert not torch.equal(run(network, x), run(network, x))
    rbue.revert(folded)
    assert [type(module) for module in folded.modules()] == [
        nn.Sequential, nn.Conv2d, nn.Identity, nn.ReLU, nn.Flatten, nn.Linear, nn.Identity, nn.ReLU, nn.Linear,
    ]  # fmt: skip
    assert_near(run(folded, x), run(made(small), x))
    assert torch.equal(rbue.predict(network, x, samples=4, return_samples=True).samples, expected)
    for parameter in folded.parameters():
        parameter.data.zero_()
    assert torch.equal(rbue.predict(network, x, samples=4, return_samples=True).samples, expected)


def test_copy_finds_out_anew_what_its_passes_cost() -> None:
    network, x = rbue.convert(created("resnet18"), rbue.DropReLU(0.5), example=images()), images()
    rbue.predict(network, x, samples=2)
    folded = rbue.fold_batchnorm(network, x)
    rbue.predict(folded, x, samples=2)
    assert conversion_of(network).plans != conversion_of(folded).plans
    assert conversion_of(network).plans.keys() == conversion_of(folded).plans.keys()


def test_copy_made_inside_another_mode_is_random() -> None:
    network, x = rbue.convert(made(small), rbue.DropReLU(0.5)), small_images()
    with rbue.mode(network, "mean"):
        folded = rbue.fold_batchnorm(network, x)
        assert torch.equal(run(network, x), run(network, x))
    assert not torch.equal(run(folded, x), run(folded, x))


def test_converted_network_inside_another_one() -> None:
    network = made(lambda: nn.Sequential(Pair(), nn.ReLU(), nn.Sequential(Pair(), nn.ReLU())))
    rbue.convert(network[2], rbue.DropReLU(0.5), example=images())
    before = run(network, images())
    assert not torch.equal(run(network, images()), before)
    folded = rbue.fold_batchnorm(network, images())
    assert norms(folded) == 0
    for part in (network, folded):
        rbue.seed(part[2], 1)
    assert_near(run(folded, images()), run(network, images()))


def test_compiled_copy_predicts_the_same() -> None:
    network, x = rbue.convert(made(small), rbue.DropReLU(0.6), example=small_images()), small_images()
    folded = rbue.fold_batchnorm(network, x)
    expected = rbue.predict(network, x, samples=4, seed=2, return_samples=True).samples
    compiled = torch.compile(folded, backend="eager")
    assert_near(rbue.predict(compiled, x, samples=4, seed=2, return_samples=True).samples, expected)


# The network and the copy as objects


def test_network_is_untouched() -> None:
    network, x = rbue.convert(created("resnet18").train(), rbue.DropReLU(0.6), example=images()), images()
    network.stages[1].eval()
    network.head.weight.grad = torch.ones_like(network.head.weight)

    def state() -> list[Any]:
        return [
            [(name, value.clone(), id(value)) for name, value in network.named_parameters()],
            [(name, value.clone(), id(value)) for name, value in network.named_buffers()],
            [(name, type(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks), len(vars(m)))
             for name, m in network.named_modules()],
            [("rng", torch.get_rng_state()), ("mode", conversion_of(network).mode)],
            [("input", x.clone()), ("grad", network.head.weight.grad.clone())],
        ]  # fmt: skip

    before = state()
    rbue.fold_batchnorm(network, x)
    for old, new in zip(before, state(), strict=True):
        for one, other in zip(old, new, strict=True):
            for a, b in zip(one, other, strict=True):
                assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_example_is_kept_from_a_network_that_works_in_place() -> None:
    network, x = made(lambda: nn.Sequential(nn.ReLU(inplace=True), Pair())), images()
    rbue.fold_batchnorm(network, x)
    assert torch.equal(x, images())


def test_network_has_its_hooks_and_flags_back_after_a_failed_pass() -> None:
    network = made(small).train()
    with pytest.raises(RuntimeError):
        rbue.fold_batchnorm(network, images(size=5))
    assert all(module.training and not module._forward_hooks for module in network.modules())


def test_copy_is_in_evaluation_mode_everywhere() -> None:
    folded = rbue.fold_batchnorm(created("resnet18").train(), images())
    assert not any(module.training for module in folded.modules())


def test_state_dict_has_a_bias_more_and_no_batchnorm_and_loads_into_another_copy() -> None:
    network, x = made(small), small_images()
    folded = rbue.fold_batchnorm(network, x)
    keys = {"0.weight", "0.bias", "4.weight", "4.bias", "7.weight", "7.bias"}
    assert folded.state_dict().keys() == keys
    assert {name for name, _ in folded.named_parameters()} == keys
    other = rbue.fold_batchnorm(lived_in(small()), x)
    other.load_state_dict(folded.state_dict())
    assert torch.equal(run(other, x), run(folded, x))


@pytest.mark.parametrize("saved", ["pickle", "torch"])
def test_copy_can_be_pickled(saved: str) -> None:
    network, x = rbue.convert(created("small_cnn"), rbue.RReLU(), example=images()), images()
    folded = rbue.fold_batchnorm(network, x)
    if saved == "pickle":
        again = pickle.loads(pickle.dumps(folded))
    else:
        file = io.BytesIO()
        torch.save(folded, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
    expected = rbue.predict(folded, x, samples=4, return_samples=True).samples
    assert torch.equal(rbue.predict(again, x, samples=4, return_samples=True).samples, expected)


def test_gradients_flow_and_frozen_layers_stay_frozen() -> None:
    network, x = made(small), small_images().requires_grad_()
    network[0].requires_grad_(False)
    with torch.inference_mode():
        folded = rbue.fold_batchnorm(network, x)
    assert [p.requires_grad for p in folded.parameters()] == [False, False, True, True, True, True]
    expected = torch.autograd.grad(network(x).square().sum(), x)[0]
    assert_near(torch.autograd.grad(folded(x).square().sum(), x)[0], expected, 1e-4)


# Precision and layout


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_rounded_once(dtype: torch.dtype) -> None:
    network = made(lambda: nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32))).to(dtype)
    layer, norm = network
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    folded = rbue.fold_batchnorm(network, x)
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    weight = layer.weight.double() * scale[:, None]
    bias = (layer.bias.double() - norm.running_mean.double()) * scale + norm.bias.double()
    assert folded[0].weight.dtype == folded[0].bias.dtype == dtype
    assert torch.equal(folded[0].weight, weight.to(dtype))
    assert torch.equal(folded[0].bias, bias.to(dtype))
    in_half = layer.weight * (norm.weight / (norm.running_var + norm.eps).sqrt())[:, None]
    assert not torch.equal(in_half, weight.to(dtype))  # so that rounding on the way would show


def test_bfloat16_network_with_convolutions() -> None:
    network, x = created("small_cnn").bfloat16(), images(2, 8).bfloat16()
    folded = rbue.fold_batchnorm(network, x)
    assert norms(folded) == 0
    assert {p.dtype for p in folded.parameters()} == {torch.bfloat16}
    assert_near(run(folded, x), run(network, x), 0.05)


def test_float32_batchnorm_after_a_half_precision_layer() -> None:
    network = made(lambda: nn.Sequential(nn.Linear(6, 8).bfloat16(), nn.BatchNorm1d(8)))
    x = torch.randn(5, 6).bfloat16()
    folded = rbue.fold_batchnorm(network, x)
    assert run(folded, x).dtype == run(network, x).dtype == torch.bfloat16
    assert_near(run(folded, x), run(network, x), 0.03)


def test_autocast_is_allowed_its_rounding_where_the_output_does_not_show_it() -> None:
    class Wide(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).float()

    network, x = Wide(created("resnet18")), images()
    with torch.autocast("cpu", torch.bfloat16):
        folded = rbue.fold_batchnorm(network, x)
        gap = (run(folded, x) - run(network, x)).abs().max() / run(network, x).abs().max()
    assert gap > 1e-3
    assert {p.dtype for p in folded.parameters()} == {torch.float32}
    assert_near(run(folded, x), run(network, x))


def test_channels_last_is_kept() -> None:
    network = created("resnet18").to(memory_format=torch.channels_last)
    x = images().to(memory_format=torch.channels_last)
    folded = rbue.fold_batchnorm(network, x)
    strides = {name: p.stride() for name, p in folded.named_parameters()}
    assert all(strides[name] == p.stride() for name, p in network.named_parameters() if name in strides)
    weight = folded.stages[0][0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert_near(run(folded, x), run(network, x))


# What is refused


@pytest.mark.parametrize(
    "wrap",
    [
        lambda network: torch.compile(network, backend="eager"),
        nn.DataParallel,
        lambda network: nn.Sequential(nn.DataParallel(network)),
        lambda network: nn.Sequential(torch.compile(network, backend="eager")),
    ],
    ids=["compile", "DataParallel", "DataParallel inside", "compile inside"],
)
def test_wrapped_networks_are_refused(wrap: Callable) -> None:
    with pytest.raises(rbue.InvalidInput, match=r"before torch\.compile or DataParallel, and wrap the copy"):
        rbue.fold_batchnorm(wrap(made(small)), small_images())


def test_network_compiled_in_place_is_refused() -> None:
    network = made(small)
    network[4].compile(backend="eager")
    with pytest.raises(rbue.InvalidInput, match=r"4 is compiled or wrapped \(Linear\)"):
        rbue.fold_batchnorm(network, small_images())


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (small_images().to("meta"), "example is on meta but the network is on cpu; move one to the other"),
        ([small_images()], "not list"),
        (small_images()[:0], r"its shape is \(0, 3, 8, 8\)"),
        (small_images() / 0, "NaN or infinity"),
    ],
    ids=["device", "list", "empty", "infinite"],
)
def test_bad_examples_are_refused(example: Any, message: str) -> None:
    with pytest.raises(rbue.InvalidInput, match=message):
        rbue.fold_batchnorm(made(small), example)


def test_something_else_than_a_network_is_refused() -> None:
    with pytest.raises(rbue.InvalidInput, match="not function"):
        rbue.fold_batchnorm(run, images())


class Remembers(Pair):
    """Every call gives something else."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.calls * super().forward(x)


class RemembersInADict(Remembers):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x, "features": super().forward(x)}


class HoldsItsNormInAList(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [self.conv, self.norm]

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


class AsksItsNorm(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.norm.num_features


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Remembers, "Remembers gives other outputs with its BatchNorm folded, by more than 0.001"),
        (RemembersInADict, "RemembersInADict gives other outputs"),
        (HoldsItsNormInAList, "HoldsItsNormInAList gives other outputs"),
        (AsksItsNorm, "AsksItsNorm does not run without its BatchNorm .*num_features"),
    ],
)
def test_copy_that_differs_is_not_returned(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(rbue.RbueError, match=message):
        rbue.fold_batchnorm(made(build), images())


def test_network_with_noise_of_its_own_is_compared_under_the_same_noise() -> None:
    class Noisy(Pair):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(super().forward(x), 0.5, training=True)

    network = made(Noisy)
    assert not torch.equal(run(network, images()), run(network, images()))
    folded = rbue.fold_batchnorm(network, images())
    torch.manual_seed(1)
    expected = run(network, images())
    torch.manual_seed(1)
    assert_near(run(folded, images()), expected)
