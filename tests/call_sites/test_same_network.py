"""A converted network is still the network it was: classes, parameters, hooks, saving, loading, moving."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from style_networks import FunctionalCNN, SharedReluResNet, images, mlp, rows, run
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import rbue
from rbue.call_sites import Conversion


def converted(**options: Any) -> nn.Module:
    return rbue.convert(mlp(), rbue.DropReLU(0.5), **options)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_made_in_another_mode_is_random(how: str) -> None:
    network, x = converted(), rows()
    with rbue.mode(network, "plain"):
        copied = copy.deepcopy(network) if how == "deepcopy" else pickle.loads(pickle.dumps(network))
        assert network(x).equal(network(x))
        assert not copied(x).equal(copied(x))


def test_a_copy_that_would_share_its_modules_is_refused() -> None:
    network = copy.deepcopy(converted())
    for one in (network, copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        with pytest.raises(rbue.ConversionError, match=r"^copy\.copy of Sequential, .* use copy\.deepcopy\.$"):
            copy.copy(one)
        assert not torch.equal(one(rows()), one(rows()))
    copy.copy(network[1])  # a module inside has nothing to share
    assert copy.copy(rbue.revert(network))(rows()).equal(network(rows()))


class CopiesItself(nn.Sequential):
    def __copy__(self) -> nn.Module:
        return type(self)(*self)


@pytest.mark.parametrize("make", [torch.fx.symbolic_trace, lambda network: CopiesItself(*network)])
def test_a_network_that_copies_itself_without_its_conversion_is_refused_too(make: Callable) -> None:
    network = rbue.convert(make(mlp()), rbue.DropReLU(0.5), example=rows())
    with pytest.raises(rbue.ConversionError, match=r"^copy\.copy of .* use copy\.deepcopy\.$"):
        copy.copy(network)
    assert copy.copy(rbue.revert(network))(rows()).equal(network(rows()))
    inside = rbue.convert(nn.Sequential(network), rbue.DropReLU(0.5), example=rows())[0]
    assert len(list(copy.copy(inside).children())) == len(list(mlp()))


def test_what_an_earlier_version_pickled_is_no_copy_that_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conversion, "__getstate__", lambda self: self.__dict__ | {"mode": "random", "plans": {}})
    assert rbue.conversion(pickle.loads(pickle.dumps(converted())))


def test_class_and_attributes_are_unchanged() -> None:
    network = SharedReluResNet()
    network.note = "mine"
    rbue.convert(network, rbue.DropReLU(0.5), example=images())
    assert isinstance(network, SharedReluResNet)
    assert isinstance(network.layers[0].relu, nn.ReLU)
    assert type(network).__name__ == "SharedReluResNet"
    assert (type(network).__module__, type(network).__qualname__) == ("style_networks", "SharedReluResNet")
    assert network.note == "mine"
    network.note = "changed"
    assert rbue.revert(network).note == "changed"
    assert type(network) is SharedReluResNet


class Registered(nn.Module):
    """A class of networks with a register of its subclasses, each under a key it has to give."""

    known: ClassVar[dict[str, type[nn.Module]]] = {}

    def __init_subclass__(cls, key: str) -> None:
        assert key not in Registered.known
        Registered.known[key] = cls


class RegisteredRelu(Registered, key="relu"):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


def test_classes_that_keep_a_register_of_their_subclasses_do_not_see_ours() -> None:
    network = rbue.convert(RegisteredRelu(), rbue.DropReLU(0.5), example=rows())
    assert not torch.equal(network(rows()), network(rows()))
    assert not torch.equal(copy.deepcopy(network)(rows()), rows().relu())
    assert isinstance(network, RegisteredRelu)
    assert type(rbue.revert(network)) is RegisteredRelu
    assert Registered.known == {"relu": RegisteredRelu}


def test_forward_keeps_its_signature() -> None:
    class Labelled(nn.Module):
        def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> Tensor:
            """What a trainer reads to know which columns to pass."""
            return F.relu(pixel_values)

    network = rbue.convert(Labelled(), rbue.DropReLU(0.5))
    assert inspect.signature(network.forward) == inspect.signature(Labelled().forward)
    assert network.forward.__doc__ == Labelled.forward.__doc__
    assert network(pixel_values=torch.ones(2, 3), labels=None).shape == (2, 3)


def test_forward_called_directly_is_random_too() -> None:
    network = converted()
    assert not torch.equal(network.forward(rows()), network.forward(rows()))


def test_parameters_are_the_same_objects() -> None:
    network = mlp()
    before = list(network.named_parameters())
    rbue.convert(network, rbue.DropReLU(0.5), example=rows())
    after = list(network.named_parameters())
    assert [name for name, _ in after] == [name for name, _ in before]
    assert all(a is b for (_, a), (_, b) in zip(after, before, strict=True))


@pytest.mark.parametrize("after", [False, True], ids=["optimiser before", "optimiser after"])
def test_optimisers_made_before_or_after_train_the_network(after: bool) -> None:
    network = mlp()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    rbue.convert(network, rbue.DropReLU(0.5))
    if after:
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    before = copy.deepcopy(network.state_dict())
    network(rows()).sum().backward()
    optimiser.step()
    assert all(not torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("saved_converted", [False, True])
@pytest.mark.parametrize("loaded_converted", [False, True])
def test_state_dict_goes_from_either_form_to_either_form(saved_converted: bool, loaded_converted: bool) -> None:
    source, target = mlp(0), mlp(1)
    expected = run(source, rows())
    if saved_converted:
        rbue.convert(source, rbue.DropReLU(0.5), example=rows())
    if loaded_converted:
        rbue.convert(target, rbue.DropReLU(0.5), example=rows())
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    target.load_state_dict(torch.load(file, weights_only=True), strict=True)
    if loaded_converted:
        rbue.revert(target)
    assert torch.equal(run(target, rows()), expected)


def test_loading_a_state_dict_does_not_touch_the_random_bits() -> None:
    network = converted()
    rbue.seed(network, 1)
    first, second = run(network, rows()), run(network, rows())
    rbue.seed(network, 1)
    assert torch.equal(run(network, rows()), first)
    network.load_state_dict(network.state_dict(), assign=True)
    assert torch.equal(run(network, rows()), second)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_moving_to_another_precision_keeps_the_bits(dtype: torch.dtype) -> None:
    network, x = converted(), rows()
    masks = []
    for kind in (torch.float32, dtype):
        network.to(kind)
        rbue.seed(network, 1)
        seen: list[Tensor] = []
        handle = network[1].register_forward_hook(lambda m, i, o, seen=seen: seen.append(o == 0))
        assert network(x.to(kind)).dtype == kind
        handle.remove()
        masks.append(seen[0])
    assert torch.equal(*masks)


def test_half_and_double_and_float() -> None:
    network = converted().half().double().float()
    assert not torch.equal(run(network, rows()), run(network, rows()))


def test_moving_to_meta_computes_shapes() -> None:
    network = converted(example=rows()).to("meta")
    assert network(rows().to("meta")).shape == (6, 3)


def converted_on_meta() -> nn.Module:
    example = rows().to("meta")
    with torch.device("meta"):
        return rbue.convert(mlp(), rbue.DropReLU(0.5), example=example)


def moved_to_meta() -> nn.Module:
    return rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows()).to("meta")


@pytest.mark.parametrize("without_weights", [converted_on_meta, moved_to_meta])
@pytest.mark.parametrize("how", ["empty", "assigned", "inside another"])
def test_weights_loaded_after_the_conversion_meet_the_same_bits(
    without_weights: Callable[[], nn.Module], how: str
) -> None:
    network, expected = without_weights(), rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows())
    weights = mlp().state_dict()
    if how == "assigned":
        network.load_state_dict(weights, assign=True)
    else:
        (network if how == "empty" else nn.Sequential(network)).to_empty(device="cpu")
        network.load_state_dict(weights)
    x = rows()
    assert torch.equal(rbue.predict(network, x, samples=5).probs, rbue.predict(expected, x, samples=5).probs)
    assert not torch.equal(network(x), network(x))


def test_a_network_whose_first_call_is_in_inference_mode_may_be_called_outside() -> None:
    network = moved_to_meta()
    network.load_state_dict(mlp().state_dict(), assign=True)
    with torch.inference_mode():
        network(rows())
    network(rows()).sum().backward()


def test_a_network_with_buffers_alone_draws_where_these_are() -> None:
    network = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.ReLU()).to("meta")
    rbue.convert(network, rbue.DropReLU(0.5))
    assert all(buffer.is_meta for buffer in network.buffers())


def test_an_emptied_network_goes_on_with_its_bits() -> None:
    network = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows())
    rbue.seed(network, 3)
    network(rows())
    expected = copy.deepcopy(network)
    network.to_empty(device="cpu").load_state_dict(expected.state_dict())
    assert torch.equal(network(rows()), expected(rows()))


def test_autocast_is_random() -> None:
    network = converted()
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(network(rows()), network(rows()))


def test_hooks_run_with_what_they_would_see() -> None:
    network = mlp()
    log: list[tuple[str, Any]] = []
    network.register_forward_pre_hook(lambda m, args: log.append(("pre root", args[0].shape)))
    network.register_forward_hook(lambda m, args, out: log.append(("root", out.shape)))
    network[1].register_forward_pre_hook(lambda m, args: log.append(("pre relu", args[0].min() < 0)))
    network[1].register_forward_hook(lambda m, args, out: log.append(("relu", type(m).__name__)))
    network(rows())
    expected = log.copy()
    log.clear()
    rbue.convert(network, rbue.DropReLU(0.5))
    assert log == []
    network(rows())
    assert log == expected
    assert len(log) == 4


def test_hook_sees_the_random_output_and_may_replace_it() -> None:
    network = converted()
    network[3].register_forward_hook(lambda m, args, out: torch.where(out < 0, torch.ones_like(out), 0))
    seen: list[Tensor] = []
    network[4].register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    network(rows())
    assert seen[0].unique().tolist() == [0, 1]


def test_hooks_of_the_network_that_call_relu_are_not_sites() -> None:
    network = mlp()
    network.register_forward_pre_hook(lambda m, args: (-F.relu(-args[0]),))
    network.register_forward_hook(lambda m, args, out: F.relu(out))
    assert len(rbue.sites(network, rows())) == 2
    rbue.convert(network, rbue.DropReLU(0.5))
    assert bool((network(rows()) >= 0).all())


def test_example_passes_through_the_hooks_of_the_network() -> None:
    network = mlp()
    network.register_forward_pre_hook(lambda m, args: (args[0].float(),))
    assert len(rbue.sites(network, rows().byte())) == 2


class OwnWays(nn.Module):
    """Calls, moves and stores itself in ways of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
        self.cache = (_ for _ in "cannot be stored")

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x.flatten(1))

    def _apply(self, fn: Callable) -> nn.Module:
        return super()._apply(fn)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"cache": None}

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_a_network_may_have_ways_of_its_own() -> None:
    network, x = OwnWays(), torch.randn(6, 2, 2)
    assert len(rbue.sites(network, x)) == 1
    rbue.convert(network, rbue.DropReLU(0.5), where="last", example=x)
    rbue.update_bn(network, x)
    assert torch.allclose(network.inner[0].running_mean, x.flatten(1).mean(0))
    assert network.double()(x.double()).dtype is torch.float64
    assert pickle.loads(pickle.dumps(network)).cache is None


def test_full_backward_hooks_see_gradients() -> None:
    network = converted()
    seen: list[torch.Size] = []
    network[2].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].shape))
    network(rows()).sum().backward()
    assert seen == [(6, 16)]


def test_converting_again_replaces_the_first_conversion() -> None:
    network, x = converted(example=rows()), rows()
    rbue.convert(network, rbue.RReLU(0.2, 0.3), where="last", example=x)
    slopes: list[Tensor] = []
    for index in (1, 3):
        network[index].register_forward_hook(
            lambda m, args, out: slopes.append(out[args[0] < 0] / args[0][args[0] < 0])
        )
    network(x)
    assert bool((slopes[0] == 0).all())
    assert bool(((slopes[1] >= 0.2) & (slopes[1] <= 0.3)).all())
    rbue.revert(network)
    assert torch.equal(run(network, x), run(mlp(), x))
    assert [type(module) for module in network.modules()] == [type(module) for module in mlp().modules()]
    with pytest.raises(rbue.ConversionError):
        rbue.revert(network)


def test_failed_conversion_leaves_the_network_as_it_was() -> None:
    network = converted(example=rows())
    rbue.seed(network, 1)
    expected = run(network, rows())
    with pytest.raises(rbue.InvalidInput):
        rbue.convert(network, rbue.DropReLU(0.9), where=[9], example=rows())
    with pytest.raises(RuntimeError):
        rbue.convert(network, rbue.DropReLU(0.9), example=torch.randn(2, 9))
    rbue.seed(network, 1)
    assert torch.equal(run(network, rows()), expected)


def test_failed_forward_leaves_nothing_running() -> None:
    class Fails(nn.Module):
        fail = False

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(x)
            if self.fail:
                raise ValueError("broken")
            return x

    inner = Fails()
    network = rbue.convert(nn.Sequential(inner), rbue.DropReLU(0.5))
    inner.fail = True
    with pytest.raises(ValueError, match="broken"):
        network(-torch.ones(2, 30))
    assert bool((F.relu(-torch.ones(2, 30)) == 0).all())
    inner.fail = False
    assert bool((inner(-torch.ones(2, 30)) == 0).all())
    rbue.seed(network, 1)
    expected = network(-torch.ones(2, 30))
    inner.fail = True
    with pytest.raises(ValueError, match="broken"):
        network(-torch.ones(2, 30))
    inner.fail = False
    rbue.seed(network, 1)
    assert torch.equal(network(-torch.ones(2, 30)), expected)


def test_failed_forward_inside_another_network_gives_the_outer_one_back_its_sites() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            F.relu(x)
            raise ValueError("broken")

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = rbue.convert(Broken(), rbue.DropReLU(0.5))

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.inner(x)
            except ValueError:
                return F.relu(x)

    network = rbue.convert(Outer(), rbue.DropReLU(0.5), example=torch.ones(2, 30))
    assert bool(network(-torch.ones(2, 30)).any())


def test_sites_of_a_converted_network_are_still_listed_and_it_stays_converted() -> None:
    network = converted(example=rows())
    assert rbue.sites(network, rows()) == rbue.sites(mlp(), rows())
    assert not torch.equal(run(network, rows()), run(network, rows()))


def test_training_flags_survive_finding_the_sites() -> None:
    network = SharedReluResNet().train()
    network.layers[1].eval()
    flags = [module.training for module in network.modules()]
    statistics = network.layers[0].bn1.running_mean.clone()
    rbue.convert(network, rbue.DropReLU(0.5), example=images())
    assert [module.training for module in network.modules()] == flags
    assert torch.equal(network.layers[0].bn1.running_mean, statistics)


class Counts(nn.Module):
    """Works in its input, counts its calls, and draws from torch's generator in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.register_buffer("graph", torch.eye(4).to_sparse())
        self.register_buffer("expanded", torch.zeros(1).expand(3))
        self.register_buffer("strided", torch.zeros(6)[::2])

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.replaced = self.calls.clone()
        return F.dropout(F.relu(x, inplace=True), 0.5, training=True)


def test_finding_the_sites_leaves_nothing_changed() -> None:
    inner = converted()
    network, x = nn.Sequential(Counts(), inner), rows()
    before, state = x.clone(), torch.get_rng_state()
    rbue.seed(inner, 1)
    rbue.sites(network, x)
    assert torch.equal(x, before)
    assert float(network[0].calls) == float(network[0].replaced) == 0
    assert torch.equal(torch.get_rng_state(), state)
    found = run(inner, x)
    rbue.seed(inner, 1)
    assert torch.equal(run(inner, x), found)


def test_sites_of_lazy_and_of_meta_networks_are_found() -> None:
    lazy = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.ReLU())
    assert len(rbue.sites(lazy, rows())) == 1
    assert len(rbue.sites(lazy.to("meta"), rows().to("meta"))) == 1


@pytest.mark.parametrize("normalise", [spectral_norm, weight_norm])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_parametrised_layers_come_and_go(normalise: Any, before: bool) -> None:
    network, x = FunctionalCNN().eval(), images()
    if before:
        normalise(network.conv1)
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    if not before:
        normalise(network.conv1)
    assert not torch.equal(run(network, x), run(network, x))
    parametrize.remove_parametrizations(network.conv1, "weight")
    assert not torch.equal(run(network, x), run(network, x))
    rbue.revert(network)
    assert type(network.conv1) is nn.Conv2d
    assert torch.equal(run(network, x), run(network, x))


@pytest.mark.parametrize("head", [nn.ReLU, lambda: converted()[1]], ids=["plain", "of a converted network"])
def test_replaced_head_is_random_too(head: Callable[[], nn.Module]) -> None:
    network = rbue.convert(SharedReluResNet(), rbue.DropReLU(0.5), example=images())
    network.fc = head()
    kind = type(network.fc)
    network.fc.register_forward_pre_hook(lambda _, args: -args[0])  # what comes is positive
    out = network(images())
    assert bool((out < 0).any())
    with rbue.mode(network, "plain"):
        assert not network(images()).any()
    assert type(rbue.revert(network).fc) is kind
    assert torch.equal(run(network, images()), run(network, images()))


def test_a_class_of_its_own_goes_with_its_network() -> None:
    network = torch.fx.symbolic_trace(mlp())
    kind = weakref.ref(type(network))
    rbue.revert(rbue.convert(network, rbue.DropReLU(0.5), example=rows()))
    del network
    for _ in range(2):  # of our class, then of the one it is made from
        gc.collect()
    assert kind() is None


def test_graph_module_may_be_recompiled() -> None:
    network = torch.fx.symbolic_trace(mlp())
    rbue.convert(network, rbue.DropReLU(0.5), example=rows())
    network.recompile()
    assert not torch.equal(run(network, rows()), run(network, rows()))
    rbue.revert(network)
    assert torch.equal(run(network, rows()), run(mlp(), rows()))


def test_conversion_inside_inference_mode_can_be_trained_outside() -> None:
    network = mlp()
    with torch.inference_mode():
        rbue.convert(network, rbue.DropReLU(0.5), example=rows())
        network(rows())
    network(rows()).sum().backward()
    assert network[0].weight.grad is not None


def test_functional_call_is_random_with_the_given_parameters() -> None:
    network = converted()
    zeros = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    assert bool((torch.func.functional_call(network, zeros, rows()) == 0).all())
    same = dict(network.named_parameters())
    rbue.seed(network, 1)
    expected = network(rows())
    rbue.seed(network, 1)
    assert torch.equal(torch.func.functional_call(network, same, rows()), expected)
    assert not torch.equal(torch.func.functional_call(network, same, rows()), expected)


def test_vmap_over_batches_gives_each_the_masks_of_the_call() -> None:
    network = converted()
    batches = torch.stack([rows(), 2 * rows(), -rows()])
    rbue.seed(network, 1)
    together = torch.vmap(network)(batches)
    for batch, out in zip(batches, together, strict=True):
        rbue.seed(network, 1)
        assert torch.allclose(network(batch), out, atol=1e-6)


def test_per_sample_gradients_equal_those_of_single_rows() -> None:
    network = converted()
    parameters = {name: p.detach() for name, p in network.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(network, parameters, x.unsqueeze(0)).square().sum()

    rbue.seed(network, 1)
    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, rows())
    for index, x in enumerate(rows()):
        rbue.seed(network, 1)
        network.zero_grad()
        network(x.unsqueeze(0)).square().sum().backward()
        for name, parameter in network.named_parameters():
            assert torch.allclose(grads[name][index], parameter.grad, atol=1e-5)


def test_function_that_seeds_can_be_transformed() -> None:
    network = converted()

    def seeded(x: Tensor) -> Tensor:
        rbue.seed(network, 1)
        return network(x).square().sum()

    x = rows().requires_grad_()
    seeded(x).backward()
    assert torch.allclose(torch.func.grad(seeded)(rows()), x.grad, atol=1e-6)


def test_averaged_model_is_random() -> None:
    average = torch.optim.swa_utils.AveragedModel(converted())
    average.update_parameters(converted())
    assert not torch.equal(average(rows()), average(rows()))


@pytest.mark.slow
def test_pickled_network_checkpoints_correctly_in_a_process_that_converted_nothing(tmp_path: Path) -> None:
    torch.save(converted(example=rows()), tmp_path / "network.pt")
    program = (
        "import sys, torch\n"
        "from torch.utils.checkpoint import checkpoint\n"
        "network = torch.load(sys.argv[1], weights_only=False)\n"
        "x = torch.randn(6, 4).requires_grad_()\n"
        "network(x).sum().backward(); expected = x.grad; x.grad = None\n"
        "network._rbue_step.zero_()\n"
        "checkpoint(network, x, use_reentrant=False).sum().backward()\n"
        "assert torch.equal(x.grad, expected)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "network.pt")], check=True)


@pytest.mark.parametrize("kind", ["swa", "ema"])
def test_averaging_buffers_leaves_the_masks_alone(kind):
    """Site numbers belong to the conversion: an average of integers goes through float32, which has too few digits."""
    x = torch.randn(4, 6)
    network = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9) if kind == "ema" else None
    averaged = torch.optim.swa_utils.AveragedModel(network, multi_avg_fn=average, use_buffers=True)
    for _ in range(3):
        averaged.update_parameters(network)
    found, expected = (
        rbue.predict(one, x, samples=5, seed=3, return_samples=True).samples for one in (averaged.module, network)
    )
    assert torch.allclose(found, expected, atol=1e-6)
    for one in (averaged.module, network):
        rbue.seed(one, 7)
        one.eval()
    assert torch.allclose(averaged.module(x), network(x), atol=1e-6)
