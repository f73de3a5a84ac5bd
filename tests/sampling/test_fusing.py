"""Calls that are held back to run as one give what they give one by one, whatever the network does with their results.

The kernels that run them as one are tested in ``tests/activations``; here separate steps stand in for them.
"""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rbue
from rbue.augment import Shift
from rbue.call_sites import conversion_of
from rbue.errors import RbueError
from rbue.kernels import fused
from rbue.lab.models import create
from rbue.sampling import fusing, shared_prefix

SAMPLES = 6


class Block(nn.Module):
    """A residual block whose end each test spells in its own way."""

    def __init__(self, end, channels=4):
        super().__init__()
        self.end = end
        self.convs = nn.ModuleList(nn.Conv2d(3 if i == 0 else channels, channels, 3, padding=1) for i in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))
        self.head = nn.Linear(channels, 5)

    def forward(self, x):
        h = F.relu(self.norms[0](self.convs[0](x)))
        out = self.end(self, h)
        out = out if out.dim() == 2 else out.mean((2, 3))
        return self.head(F.layer_norm(out, out.shape[1:]))  # scores of a size whose softmax shows small changes


def once(net, h):
    return F.relu(net.norms[1](net.convs[1](h)))


def skip(net, h):
    return F.relu(net.norms[1](net.convs[1](h)) + h)


def skip_before(net, h):
    return torch.relu(torch.add(h, net.norms[1](net.convs[1](h))))


def skip_in_place(net, h):
    out = net.norms[1](net.convs[1](h))
    out += h
    return F.relu(out, inplace=True)


def two_norms(net, h):
    return F.relu(net.norms[1](net.convs[1](h)) + net.norms[2](net.convs[2](h)))


def two_norms_in_place(net, h):
    out = same = net.norms[1](net.convs[1](h))
    out += net.norms[2](net.convs[2](h))
    return F.relu(same, inplace=True)


def sum_and_norm(net, h):
    first = net.norms[1](net.convs[1](h)) + h
    return F.relu(net.norms[2](net.convs[2](h)) + first)


def skip_norm_first(net, h):
    skip = net.norms[2](net.convs[2](h))
    out = F.relu(net.norms[0](net.convs[1](h)))
    return F.relu(net.norms[1](net.convs[1](out)) + skip)


def two_norms_used_again(net, h):
    first, second = net.norms[1](net.convs[1](h)), net.norms[2](net.convs[2](h))
    return F.relu(first + second) + first.sigmoid() * second.tanh()


def three_norms(net, h):
    first, second, third = (norm(net.convs[1](h)) for norm in net.norms)
    return F.relu(third + first) + F.relu(second)


def relu_of_the_first_norm(net, h):
    first, second = net.norms[1](net.convs[1](h)), net.norms[2](net.convs[2](h))
    return F.relu(F.relu(first) + second)


def convolution_of_a_norm(net, h):
    first, second = net.norms[1](net.convs[1](h)), net.norms[2](net.convs[2](h))
    return F.relu(net.convs[1](first) + second)


def first_input_written_while_two_wait(net, h):
    raw = net.convs[1](h)
    first, second = net.norms[1](raw), net.norms[2](net.convs[2](h))
    raw.mul_(3)
    return F.relu(first + second) + raw


def second_norm_of_the_same(net, h):
    raw = net.convs[1](h)
    return F.relu(net.norms[1](raw) + net.norms[2](raw))


def other_call_between(net, h):
    first = net.norms[1](net.convs[1](h))
    return F.relu(first + net.norms[2](net.convs[2](F.max_pool2d(h, 3, 1, 1))))


def scaled_skip(net, h):
    return F.relu(torch.add(net.norms[1](net.convs[1](h)), h, alpha=0.5))


def broadcast_skip(net, h):
    return F.relu(net.norms[1](net.convs[1](h)) + h[:, :1])


def number_skip(net, h):
    return F.relu(net.norms[1](net.convs[1](h)) + 0.5)


def twice_the_same(net, h):
    out = net.norms[1](net.convs[1](h))
    return F.relu(out + out)


def twice_in_place(net, h):
    out = net.norms[1](net.convs[1](h))
    out += out
    return F.relu(out)


def into_the_skip(net, h):
    h = same = h.clone()
    h += net.norms[1](net.convs[1](h))
    return F.relu(same)


def skip_to_one_used_before(net, h):
    first = net.norms[1](net.convs[1](h))
    return F.relu(net.norms[2](net.convs[2](F.relu(first))) + first)


def two_sums(net, h):
    return F.relu(net.norms[1](net.convs[1](h)) + h + h)


def other_activation(net, h):
    return F.relu(F.silu(net.norms[1](net.convs[1](h))))


def norm_again(net, h):
    return F.relu(net.norms[2](net.norms[1](net.convs[1](h))))


def used_again(net, h):
    out = net.norms[1](net.convs[1](h))
    return F.relu(out) - 0.3 * out


def two_relus(net, h):
    out = net.norms[1](net.convs[1](h))
    return F.relu(out) - 0.3 * F.relu(out)


def sum_used_again(net, h):
    out = net.norms[1](net.convs[1](h)) + h
    return F.relu(out) * torch.sigmoid(out)


def norm_of_sum_used_again(net, h):
    norm = net.norms[1](net.convs[1](h))
    return F.relu(norm + h) + norm


def overwritten_input(net, h):
    raw = net.convs[1](h)
    out = net.norms[1](raw)
    raw.mul_(3)
    return F.relu(out) + raw


def input_written_after_use(net, h):
    raw = net.convs[1](h)
    out = net.norms[1](raw)
    first = F.relu(out)
    raw.zero_()
    return first + out


def cap(net, h):
    return F.relu6(net.norms[1](net.convs[1](h)) * 1.0) + F.relu6(net.norms[2](net.convs[2](h)))


def relu_in_place_and_again(net, h):
    out = net.norms[1](net.convs[1](h))
    again = out
    F.relu_(out)
    return again + out


def looked_at(net, h):
    out = net.norms[1](net.convs[1](h))
    assert out.shape == h.shape
    assert out.dim() == len(out.size()) == 4
    return F.relu(out.view(out.size(0), -1, *out.shape[2:]))


def ends_in_a_norm(net, h):
    return net.norms[1](net.convs[1](h))


def gradient_inside(net, h):
    with torch.enable_grad():
        x = h.detach().requires_grad_()
        (grad,) = torch.autograd.grad(net.norms[1](net.convs[1](x)).square().sum(), x)
    return F.relu(net.norms[2](net.convs[2](h)) + 0.1 * grad)


def inference_inside(net, h):
    with torch.inference_mode():
        out = net.norms[1](net.convs[1](h))
    return F.relu(net.convs[2](out))


def pooled(net, h):
    return F.adaptive_avg_pool2d(once(net, h), 1)


def pooled_in_place(net, h):
    out = net.norms[1](net.convs[1](h))
    return F.adaptive_avg_pool2d(F.relu(out, inplace=True), (1, 1)) + out.mean((2, 3), keepdim=True)


def pooled_to_four(net, h):
    return F.adaptive_avg_pool2d(once(net, h), 2)


def pooled_and_used_again(net, h):
    out = once(net, h)
    return out.mean(dim=[-1, -2]) + out.amax((2, 3))


def mean_of_all(net, h):
    return once(net, h) + h * once(net, h).mean((1, 2, 3), keepdim=True)


ENDS = [value for value in list(globals().values()) if callable(value) and getattr(value, "__code__", None)]
ENDS = [end for end in ENDS if end.__code__.co_varnames[:2] == ("net", "h")]


def network(end, activation, where):
    torch.manual_seed(0)
    net = Block(end)
    for norm in net.norms:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    nn.init.normal_(net.head.weight, std=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* plain: use rbue.DropActivation", rbue.RbueWarning)
        return rbue.convert(net.eval(), activation, where=where, example=torch.randn(2, 3, 6, 6))


@pytest.fixture
def held(monkeypatch):
    """Hold calls back on this machine too; notes what ran as one."""
    ran = []

    def noted(name):
        run = getattr(fused, name)

        def noting(first, *words, **settings):
            two = isinstance(first, fused.Normalised) and isinstance(first.residual, fused.Normalised)
            ran.append(f"{name} of two norms" if two else name)
            return run(first, *words, **settings)

        return noting

    monkeypatch.setattr(fusing, "can_be_fused", lambda x: x.dim() > 1)
    monkeypatch.setattr(fusing, "can_be_pooled", lambda x: x.dim() > 2)
    monkeypatch.setattr(shared_prefix, "triton_fused", lambda: fused)
    for name in ("normalised_relu", "pooled_relu"):
        monkeypatch.setattr(fusing, name, noted(name))
    return ran


SETTINGS = [(rbue.DropReLU(0.4), "all"), (rbue.RReLU(0, 1), "first"), (rbue.Dropout(0.5), "last")]
SETTINGS += [
    pytest.param(activation, where, marks=pytest.mark.slow)
    for activation, _ in SETTINGS
    for where in ("all", "first", "last")
    if (activation, where) not in SETTINGS
]


@pytest.mark.filterwarnings("ignore:.*SiLU plain")
@pytest.mark.parametrize(("activation", "where"), SETTINGS, ids=str)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_samples_are_those_of_separate_calls(end, activation, where, held, monkeypatch):
    x = 5 * torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    with monkeypatch.context() as plain:
        for question in ("can_be_fused", "can_be_pooled"):
            plain.setattr(fusing, question, lambda x: False)
        expected = rbue.predict(network(end, activation, where), x, samples=SAMPLES, return_samples=True)
    assert held == []
    net = network(end, activation, where)
    found = rbue.predict(net, x, samples=SAMPLES, return_samples=True)
    (plan,) = conversion_of(net).plans.values()
    relus = not isinstance(activation, rbue.Dropout)
    given_up = end is input_written_after_use and relus and where != "last"
    assert plan.share
    assert plan.fuse is not given_up  # or a wrong result would have been noticed, and nothing held back
    torch.testing.assert_close(found.samples, expected.samples, rtol=1e-5, atol=5e-6)
    assert found.samples.std(0).max() > 1e-4


@pytest.mark.filterwarnings("ignore:.*SiLU plain")
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_rows_that_are_not_shared(end, held, monkeypatch):
    x, asked = torch.randn(3, 3, 6, 6), {"samples": 2, "return_samples": True, "augment": Shift(1)}
    net = network(end, rbue.DropReLU(0.4), "all")
    rbue.predict(net, x, samples=2)
    held.clear()
    found = rbue.predict(net, x, **asked)
    (plan,) = conversion_of(net).plans.values()
    assert held or not plan.fuse
    with monkeypatch.context() as plain:
        plain.setattr(shared_prefix, "triton_fused", lambda: None)
        expected = rbue.predict(net, x, **asked)
    torch.testing.assert_close(found.samples, expected.samples, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("asked", [{"samples": 2, "augment": Shift(1)}, {"samples": 1}], ids=["augmented", "one"])
def test_the_first_site_is_fused_only_where_rows_are_not_shared(asked, mode, held, monkeypatch):
    """So the plan does not show what it reads again, here after a write to it; nor does it end sharing."""
    net, x = network(input_written_after_use, rbue.DropReLU(0.4), "last"), torch.randn(3, 3, 6, 6)
    with mode():
        rbue.predict(net, x, samples=2)
        found = rbue.predict(net, x, return_samples=True, **asked)
        (plan,) = conversion_of(net).plans.values()
        assert plan.share
        monkeypatch.setattr(shared_prefix, "triton_fused", lambda: None)
        expected = rbue.predict(net, x, return_samples=True, **asked)
    torch.testing.assert_close(found.samples, expected.samples, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("asked", [{"samples": 2, "augment": Shift(1)}, {"samples": 1}], ids=["augmented", "one"])
def test_a_pass_that_fails_without_sharing_is_run_once_more(asked):
    rows = []

    def fails(net, h):
        rows.append(len(h))
        if h.abs().max() > 1e4:
            raise ValueError("too bright")
        return once(net, h)

    net, x = network(fails, rbue.DropReLU(0.4), "last"), torch.randn(3, 3, 6, 6)
    rbue.predict(net, x, samples=2)
    rows.clear()
    with pytest.raises(ValueError, match="too bright"):
        rbue.predict(net, 1e6 * x, **asked)
    assert rows == [3 * asked["samples"]] * 2 + [1, 3]  # the last two to explain the error


@pytest.mark.gpu
def test_rows_that_are_not_shared_on_a_gpu(monkeypatch):
    torch.manual_seed(0)
    x, ran, run = torch.randn(8, 3, 32, 32, device="cuda"), [], fusing.normalised_relu
    net = create("resnet18", classes=10, width=0.25).cuda().eval()
    rbue.convert(net, rbue.DropReLU(0.8), example=x)
    monkeypatch.setattr(fusing, "normalised_relu", lambda *given, **how: ran.append(len(given)) or run(*given, **how))
    found = rbue.predict(net, x, samples=4, augment=Shift(2))
    assert len(ran) >= 17
    monkeypatch.setattr(shared_prefix, "triton_fused", lambda: None)
    torch.testing.assert_close(
        found.probs, rbue.predict(net, x, samples=4, augment=Shift(2)).probs, rtol=1e-3, atol=1e-5
    )


def test_one_sample_alone(held):
    net, x = network(once, rbue.DropReLU(0.4), "all"), torch.randn(4, 3, 6, 6)
    rbue.predict(net, x, samples=2)
    held.clear()
    rbue.predict(net, x, samples=1)
    assert set(held) == {"normalised_relu"}


@pytest.mark.parametrize(
    ("end", "where", "expected"),
    [
        (once, "all", {"normalised_relu": 1}),
        (once, "last", {"normalised_relu": 1, "pooled_relu": 1}),
        (skip, "all", {"normalised_relu": 1}),
        (skip_before, "all", {"normalised_relu": 1}),
        (skip_in_place, "all", {"normalised_relu": 1}),
        (two_norms, "all", {"normalised_relu of two norms": 1}),
        (two_norms_in_place, "all", {"normalised_relu of two norms": 1}),
        (skip_norm_first, "all", {"normalised_relu": 1, "normalised_relu of two norms": 1}),
        (second_norm_of_the_same, "all", {"normalised_relu of two norms": 1}),
        (two_norms_used_again, "all", {"normalised_relu of two norms": 1}),
        (other_call_between, "all", {"normalised_relu": 1}),
        (sum_and_norm, "all", {"normalised_relu": 1}),
        (relu_of_the_first_norm, "all", {"normalised_relu": 2}),
        (pooled, "last", {"normalised_relu": 1, "pooled_relu": 1}),
        (pooled_in_place, "last", {"normalised_relu": 1, "pooled_relu": 1}),
        (pooled_and_used_again, "last", {"normalised_relu": 1, "pooled_relu": 1}),
        (pooled_to_four, "last", {"normalised_relu": 1}),
        (mean_of_all, "last", {"normalised_relu": 2}),
    ],
)
def test_what_runs_as_one(end, where, expected, held):
    """The first site makes samples of images, so its BatchNorm, which is that of few rows, is not one with it."""
    net, x = network(end, rbue.DropReLU(0.6), where), torch.randn(4, 3, 6, 6)
    rbue.predict(net, x, samples=SAMPLES)
    held.clear()
    rbue.predict(net, x, samples=SAMPLES)
    assert {name: held.count(name) for name in held} == expected


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
def test_copies_hold_calls_back_too(copied, held):
    net, x = network(pooled, rbue.DropReLU(0.6), "last"), torch.randn(4, 3, 6, 6)
    rbue.predict(copied(net), x, samples=SAMPLES)
    assert "pooled_relu" in held


@pytest.mark.parametrize("name", ["vgg13", "resnet18", "densenet121"])
def test_the_networks_of_the_paper(name, held, monkeypatch):
    torch.manual_seed(0)
    x, found = torch.randn(2, 3, 32, 32), []
    for holds in (True, False):
        torch.manual_seed(0)
        net = create(name, classes=10, width=0.125).eval()
        rbue.convert(net, rbue.DropReLU(0.8), example=x)
        monkeypatch.setattr(fusing, "can_be_fused", lambda x, holds=holds: holds and x.dim() > 1)
        found.append(rbue.predict(net, x, samples=3).probs)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    sites = {"vgg13": 8, "resnet18": 16, "densenet121": 120}
    assert held.count("normalised_relu") >= sites[name]
    assert ("normalised_relu of two norms" in held) is (name == "resnet18")  # where a skip connection has one too


@pytest.mark.parametrize("where", ["all", "last"])
def test_results_that_are_kept_have_their_numbers(where, held, monkeypatch):
    """By a hook, say, that puts an output aside as it is."""
    x, kept = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1)), []
    for holds in (True, False):
        for question, most in (("can_be_fused", 1), ("can_be_pooled", 2)):
            monkeypatch.setattr(fusing, question, lambda x, most=most, holds=holds: holds and x.dim() > most)
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()]
        net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()
        net[3].running_mean.fill_(0.5)
        rbue.convert(net, rbue.DropReLU(0.6), where=where, example=x)
        rbue.predict(net, x, samples=SAMPLES)
        kept.append([])
        for layer in net:
            layer.register_forward_hook(lambda module, inputs, out: kept[-1].append(out))
        rbue.predict(net, x, samples=SAMPLES)
    assert held
    for found, expected in zip(*kept, strict=True):
        torch.testing.assert_close(found, expected)


def test_scores_in_an_object_of_the_network_s_own(held):
    class Scores:
        def __init__(self, logits):
            self.logits, self.positive = logits, F.relu(logits)

    class Net(nn.Sequential):
        def forward(self, x):
            return Scores(super().forward(x))

    net = Net(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5), nn.BatchNorm1d(5)).eval()
    net[-1].running_mean.fill_(3)
    rbue.convert(net, rbue.DropReLU(0.5))
    rbue.predict(net, torch.randn(4, 3), samples=SAMPLES)
    assert all(plan.share for plan in conversion_of(net).plans.values())


@pytest.mark.parametrize("inplace", [False, True])
def test_a_random_relu_of_what_waits_for_a_mean(inplace, held):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ReLU(inplace), nn.Flatten(), nn.Linear(64, 5)).eval()
    rbue.convert(net, rbue.DropReLU(0.5))
    rbue.predict(net, torch.randn(4, 3, 6, 6), samples=SAMPLES)
    assert all(plan.share for plan in conversion_of(net).plans.values())  # or it was noticed to be wrong


def test_code_that_torch_does_not_show(held):
    """It reads numbers that are not there yet; sharing goes on without them waiting."""

    def unseen(net, h):
        out = net.norms[1](net.convs[1](h))
        return F.relu(torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(out)))

    net = network(unseen, rbue.DropReLU(0.4), "all")
    rbue.predict(net, torch.randn(4, 3, 6, 6), samples=SAMPLES)
    (plan,) = conversion_of(net).plans.values()
    assert plan.share
    assert not plan.fuse


def test_training_statistics_are_not_held_back(held):
    net = network(once, rbue.DropReLU(0.6), "all")
    net.norms[1].track_running_stats = False
    net.norms[1].running_mean = net.norms[1].running_var = None
    with pytest.warns(rbue.RbueWarning, match="depend on the batch"):
        rbue.predict(net, torch.randn(4, 3, 6, 6), samples=SAMPLES)
    assert "normalised_relu" not in held


@pytest.mark.parametrize(
    "other",
    [torch.ones(2, 1, 4, 4), torch.ones(2, 3, 4, 4).double(), torch.ones(2, 3, 4, 4).mT, 1.0],
    ids=["shape", "type", "strides", "number"],
)
@torch.no_grad()
def test_sums_with_other_tensors_are_not_held_back(other, held):
    calls, norm, x = fusing.DeferredCalls(), nn.BatchNorm2d(3).eval(), torch.randn(2, 3, 4, 4)
    out = calls.take(F.batch_norm, (x, norm.running_mean, norm.running_var), {})
    assert out is calls.waiting
    assert calls.take(torch.add, (out, other), {}) is None
    assert calls.take(torch.add, (out, torch.ones_like(x)), {}) is calls.waiting is not out


@torch.no_grad()
def test_sums_with_tensors_of_another_class_are_not_held_back(monkeypatch):
    """They may have a sum of their own."""

    class Other(torch.Tensor):
        pass

    monkeypatch.setattr(fusing, "can_be_fused", lambda x: type(x) is torch.Tensor)
    calls, norm, x = fusing.DeferredCalls(), nn.BatchNorm2d(3).eval(), torch.randn(2, 3, 4, 4)
    out = calls.take(F.batch_norm, (x, norm.running_mean, norm.running_var), {})
    assert calls.take(torch.add, (out, torch.ones_like(x).as_subclass(Other)), {}) is None


@torch.no_grad()
def test_what_waits_on_one_stream_is_not_run_on_another(held, monkeypatch):
    """That stream may be told to wait for the first one only after this call."""
    calls, norm, x = fusing.DeferredCalls(), nn.BatchNorm2d(3).eval(), torch.randn(2, 3, 4, 4)
    out = calls.take(F.batch_norm, (x, norm.running_mean, norm.running_var), {})
    assert calls.waits_for_relu(out)
    monkeypatch.setattr(fusing, "_stream", lambda x: "another")
    assert not calls.waits_for_relu(out)
    assert calls.take(torch.add, (out, torch.ones_like(x)), {}) is None
    calls.settle()
    torch.testing.assert_close(out, norm(x))


@torch.no_grad()
def test_batch_norm_that_learns_is_not_held_back(held):
    calls, norm, x = fusing.DeferredCalls(), nn.BatchNorm2d(3).eval(), torch.randn(2, 3, 4, 4)
    assert calls.take(F.batch_norm, (x, norm.running_mean, norm.running_var), {"training": True}) is None


def test_what_waits_for_numbers_that_are_gone_is_an_error(held):
    x, ones = torch.randn(2, 4, 3, 3), torch.ones(4)
    calls = fusing.DeferredCalls()
    with torch.no_grad():
        out = calls.take(F.batch_norm, (x, ones, ones), {})
        x.add_(1)
        with pytest.raises(RbueError, match="changed a tensor in place"):
            calls.settle([out])


def test_inference_mode(held):
    net, x = network(skip, rbue.DropReLU(0.6), "all"), torch.randn(4, 3, 6, 6)
    expected = rbue.predict(net, x, samples=SAMPLES).probs
    with torch.inference_mode():
        torch.testing.assert_close(rbue.predict(net, x, samples=SAMPLES).probs, expected)
    assert held
