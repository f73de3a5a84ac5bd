"""The passes that a plan is made with are few and small, and what they show is kept for some shapes, not for ever."""

import copy
import pickle
import threading
import warnings
from contextlib import suppress

import pytest
import torch
from networks import assert_drawn_as_one_by_one, build
from torch import nn
from torch.nn import functional as F

import rbue
from rbue.call_sites import conversion_of
from rbue.errors import RbueWarning
from rbue.kernels import triton_support
from rbue.lab import models
from rbue.lab.models.resnet18 import ResNet18
from rbue.sampling.passes import PassRunner
from rbue.sampling.stacking import StackedPasses


def converted(device="cpu"):
    torch.manual_seed(0)
    x = torch.randn(3, 3, 32, 32, device=device)
    return rbue.convert(ResNet18(width=0.25).to(device).eval(), rbue.DropReLU(0.9), example=x), x


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x):
        h = F.relu(self.first(x))
        return self.head(F.relu(self.second(h)) + h)


ORDINARY = {
    "resnet": (lambda: ResNet18(width=0.125), (3, 16, 16)),
    "vgg": (lambda: models.create("vgg13", classes=10, width=0.125), (3, 16, 16)),
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)), (8,)),
    "functional": (Functional, (8,)),
}


def passes_of(net, x, **settings):
    """How often a network is called for one prediction."""
    calls = []
    hook = net.register_forward_pre_hook(lambda *_: calls.append(None))
    rbue.predict(net, x, **settings)
    hook.remove()
    return len(calls)


@pytest.mark.parametrize(
    ("images", "precision"), [(1, torch.float32), (2, torch.float32), (1, torch.bfloat16), (5, torch.bfloat16)], ids=str
)
@pytest.mark.parametrize("activation", [rbue.DropReLU(0.9), rbue.Dropout(0.2)], ids=["relus", "layers"])
@pytest.mark.parametrize("name", ORDINARY)
def test_a_first_prediction_makes_three_passes_more_than_a_later_one(name, activation, images, precision):
    """Four where rounding could hide what other rows do."""
    torch.manual_seed(0)
    make, (channels, *sides) = ORDINARY[name]
    part = 4 if precision is torch.bfloat16 else 1  # most CPUs are very slow at it
    x = torch.randn(images, channels, *(side // part for side in sides)).to(precision)
    net = rbue.convert(make().to(precision).eval(), activation, example=x)
    more = passes_of(net, x, samples=4) - passes_of(net, x, samples=4)
    assert 0 < more <= (3 if precision is torch.float32 else 4)


@pytest.mark.parametrize("name", ORDINARY)
def test_images_that_memory_leaves_alone_take_three_passes_more(name):
    """As photographs on a CPU, of which few rows fit."""
    torch.manual_seed(0)
    make, shape = ORDINARY[name]
    x = torch.randn(3, *shape)
    net = rbue.convert(make().eval(), rbue.DropReLU(0.9), example=x)
    assert passes_of(net, x, samples=2, memory=1) - passes_of(net, x, samples=2, memory=1) == 3 + 3


@pytest.mark.parametrize("settings", [{}, {"adaptive": rbue.Adaptive(first=4)}, {"index": [7]}], ids=str)
@pytest.mark.parametrize("where", ["all", "last"])
@pytest.mark.parametrize("name", ORDINARY)
def test_the_first_samples_of_one_image_are_drawn_while_the_plan_is_made(name, where, settings):
    torch.manual_seed(0)
    make, shape = ORDINARY[name]
    x = torch.randn(1, *shape)
    net = rbue.convert(make().eval(), rbue.DropReLU(0.5), where=where, example=x)
    first, later = (rbue.predict(net, x, samples=8, **settings) for _ in range(2))
    assert torch.equal(first.probs, later.probs)
    assert torch.equal(first.variance, later.variance)
    other = copy.deepcopy(net)
    assert passes_of(other, x, samples=8, **settings) - passes_of(other, x, samples=8, **settings) == 2
    assert passes_of(copy.deepcopy(net), x, samples=8, memory=1) > 3 + 1  # what does not fit is not tried


@pytest.mark.parametrize(
    ("dtype", "augment", "images", "runs"),
    [
        (torch.float32, None, 1, True),
        (torch.bfloat16, None, 1, False),
        (torch.float32, rbue.augment.Flip(), 1, False),
        (torch.float32, None, 2, False),
    ],
    ids=str,
)
def test_first_samples_are_drawn_early_for_one_plain_image_in_full_precision(dtype, augment, images, runs):
    net, x = (
        nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten()).to(dtype),
        torch.randn(images, 1, 2, 2).to(dtype),
    )
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    numbers = torch.arange(8, dtype=torch.int32)
    passes = StackedPasses(net, x, 0, augment=augment, first=(numbers, numbers[:images]))
    assert (passes.first is not None) is runs


def test_no_more_than_some_plans_are_kept_and_the_last_ones_are():
    net = rbue.convert(nn.Sequential(nn.Conv1d(1, 2, 1), nn.ReLU()), rbue.DropReLU(0.5))
    plans = conversion_of(net).plans
    rbue.predict(net, torch.randn(3, 1, 5), samples=2)
    (first,) = plans
    for size in range(6, 44):
        rbue.predict(net, torch.randn(3, 1, size), samples=2)
        if size == 30:
            rbue.predict(net, torch.randn(3, 1, 5), samples=2)
    assert len(plans) == 32
    assert first in plans


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
def test_copies_begin_without_plans(copied):
    net, x = build("residual")
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    expected = rbue.predict(net, x, samples=3).probs
    other = copied(net)
    assert conversion_of(net).plans
    assert not conversion_of(other).plans
    torch.testing.assert_close(rbue.predict(other, x, samples=3).probs, expected)


def test_a_network_without_its_random_sites_is_said():
    """Its samples are all the same, which would pass for certainty."""
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(4, 6)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    rbue.predict(net, x, samples=3)
    net[1] = nn.GELU()
    with pytest.warns(RbueWarning, match="without meeting a random site.*modules were replaced.*another way.*convert"):
        found = rbue.predict(net, x, samples=3)
    assert float(found.variance.max()) == 0


class OneRowIsSpecial(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 32), nn.Linear(32, 4)

    def forward(self, x):
        h = self.first(x)
        return self.last(torch.relu(h - 1 if len(h) > 1 else h))


@pytest.mark.parametrize("memory", [1, 4000])
def test_images_that_memory_leaves_alone_are_looked_at_alone(memory):
    net, x = rbue.convert(OneRowIsSpecial(), rbue.DropReLU(0.5)), torch.randn(5, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rbue.predict(net, x, samples=8)
    with pytest.warns(RbueWarning, match="depend on the batch"):
        rbue.predict(net, x, samples=8, memory=memory)


class ReadsTheBase(nn.Module):
    """Changes a view in place and reads its base, which shows in the few samples that drop a ReLU there."""

    def __init__(self, reads):
        super().__init__()
        self.first, self.head, self.reads = nn.Linear(6, 3), nn.Linear(4, 2), reads

    def forward(self, x):
        if not self.reads:
            return self.head(torch.cat([F.relu_(self.first(x)[:, :1]), x[:, :3]], 1))
        y = self.first(x)
        return self.head(torch.cat([F.relu_(y[:, :1]), y], 1))


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("reads", [False, True])
def test_a_view_that_is_changed_in_place_is_not_shared_where_its_base_is_read(reads, images):
    torch.manual_seed(0)
    net, x = ReadsTheBase(reads), torch.randn(images, 6)
    rbue.convert(net, rbue.DropReLU(0.05), example=x)
    assert_drawn_as_one_by_one(net, x, 200, atol=1e-6, rtol=0)
    assert [plan.share for plan in conversion_of(net).plans.values()] == [not reads]


def test_a_thread_that_goes_by_the_formula_is_given_no_kernels(monkeypatch):
    module = object()
    monkeypatch.setattr(triton_support, "_module", lambda name: module)
    ask = [triton_support.triton_kernels, triton_support.triton_fused]
    elsewhere = []
    with suppress(ZeroDivisionError), triton_support.by_formula():
        with triton_support.by_formula():
            pass
        assert [one() for one in ask] == [None, None]
        thread = threading.Thread(target=lambda: elsewhere.extend(one() for one in ask))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert elsewhere == [one() for one in ask] == [module, module]


def test_what_is_run_to_make_a_plan_goes_by_the_formula_until_rows_are_shared(monkeypatch):
    network, x = converted()
    passes, run = [], PassRunner.run

    def noted(self, x, samples, images, share, **options):
        passes.append((share, len(x) * len(samples), triton_support._this_thread.goes_by_formula))
        return run(self, x, samples, images, share, **options)

    monkeypatch.setattr(PassRunner, "run", noted)
    rbue.predict(network, x, samples=5)
    assert passes[-1] == (True, 15, False)
    assert {(share, formula) for share, _, formula in passes} == {(False, True), (True, False)}
    assert max(rows for share, rows, _ in passes[:-1]) <= 8


@pytest.mark.slow  # the number of passes has quick tests, in compiled networks too
def test_a_compiled_network_keeps_its_tables_from_the_first_passes(monkeypatch):
    network, x = converted()
    seen, run = set(), PassRunner.run

    def noted(self, *arguments, **options):
        seen.add(triton_support._this_thread.goes_by_formula)
        return run(self, *arguments, **options)

    monkeypatch.setattr(PassRunner, "run", noted)
    rbue.predict(torch.compile(network, backend="eager"), x, samples=2)
    assert seen == {False}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_are_used_only_as_the_later_passes_use_them(monkeypatch):
    kernels = triton_support.triton_kernels()
    repeats, forward = set(), kernels.forward

    def noted(x, activation, keys, layout, cap, inplace):
        repeats.add(layout.repeat)
        return forward(x, activation, keys, layout, cap, inplace)

    monkeypatch.setattr(kernels, "forward", noted)
    network, x = converted("cuda")
    with torch.autocast("cuda", torch.float16):
        rbue.predict(network, x, samples=5)
    assert repeats <= {2, 5}
