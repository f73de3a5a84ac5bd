"""The sampler's estimate of what a pass holds, against what it is seen to hold."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import rbue
from rbue.lab.models.resnet18 import ResNet18
from rbue.sampling import fusing
from rbue.sampling.plans import shared_work
from rbue.sampling.stacking import GPU_BUDGET, StackedPasses, _default_budget
from rbue.sampling.watching import LiveRows, Products


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
        self.attend = nn.MultiheadAttention(32, 8, batch_first=True)

    def forward(self, x):
        x = F.relu(self.embed(x))
        return self.head(self.attend(x, x, x)[0].mean(1))


class Peak(TorchDispatchMode):
    """The most bytes of operations' results that were alive at once, besides views of the weights."""

    def __init__(self, network):
        super().__init__()
        self.live, self.weights = LiveRows(), {parameter.data_ptr() for parameter in network.parameters()}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.weights:
                self.live.note(x, 1, True)
        return out


def images(count):
    return torch.randn(count, 3, 32, 32)


def tokens(count):
    return torch.randn(count, 128, 8)


@pytest.mark.parametrize(
    ("network", "make", "where"),
    [
        (lambda: ResNet18(width=0.25), images, "all"),
        (lambda: ResNet18(width=0.25), images, "last"),
        (lambda: ResNet18(width=0.25), images, 5),
        (Attention, tokens, "all"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 10)), images, "all"),
    ],
    ids=["resnet", "resnet, last", "resnet, middle", "attention", "mlp"],
)
def test_the_estimate_is_near(network, make, where):
    x, samples = make(6), torch.arange(12, dtype=torch.int32)
    model = rbue.convert(network().eval(), rbue.DropReLU(0.9), where=where, example=x[:2])
    passes = StackedPasses(model, x, seed=0)
    assert passes.plan.share
    peak = Peak(model)
    with peak:
        passes.runner.run(x, samples, torch.arange(6, dtype=torch.int32), True)
    # Watched, the activations use the formula, which takes more memory than the kernels do.
    assert 0.4 < passes.plan.cost(6, 12) / peak.live.peak[True] < 2.5


@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)], ids=["mean", "maximum"])
def test_samples_count_unless_they_are_pooled_as_they_are_made(monkeypatch, pool):
    monkeypatch.setattr(fusing, "can_be_pooled", lambda x: x.dim() == 4)
    network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), pool, nn.Flatten(), nn.Linear(16, 10))
    model = rbue.convert(network.eval(), rbue.DropReLU(0.9), example=images(2))
    map_bytes = 4 * 16 * 32 * 32
    counted = StackedPasses(model, images(2), seed=0).plan.for_row >= map_bytes
    assert counted is isinstance(pool, nn.AdaptiveMaxPool2d)


def test_samples_that_see_other_images_share_no_cost():
    model = rbue.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()), rbue.DropReLU(0.9))
    plain, augmented = (StackedPasses(model, images(2), 0, augment=one) for one in (None, rbue.augment.Flip()))
    assert plain._cost(2, 3) < plain._cost(6, 1) == augmented._cost(2, 3)


def test_shared_memory_counts_once_and_until_the_last_owner_is_gone():
    live = LiveRows()
    x = torch.zeros(4, 10)
    live.note(x, 4, False)
    view = x[:2]
    live.note(view, 4, False)
    assert live.peak == {False: 40.0, True: 0.0}
    del x
    y = torch.zeros(4, 10)
    live.note(y, 4, False)
    assert live.peak[False] == 80.0
    del view
    z = torch.zeros(4, 10)
    live.note(z, 4, False)
    assert live.peak[False] == 80.0


def test_memory_with_one_owner_left_still_counts():
    live = LiveRows()
    x = torch.zeros(4, 10)
    alias = x.data  # unlike a view, it lets x go
    for owner in (x, alias):
        live.note(owner, 4, False)
    del x, owner
    first = live.peak[False]
    other = torch.zeros(4, 10)
    live.note(other, 4, False)
    assert live.peak[False] == 2 * first
    assert alias.data_ptr() != other.data_ptr()


def test_products_are_counted_as_torch_counts_them():
    network, x = ResNet18(width=0.25).eval(), images(2)
    with FlopCounterMode(display=False) as expected, torch.no_grad():
        network(x)
    with Products() as found, torch.no_grad():
        network(x)
    assert found.count == expected.get_total_flops() > 0


@pytest.mark.parametrize(("where", "least", "most"), [("all", 0, 0.02), (9, 0.4, 0.6), ("last", 0.99, 1)])
@pytest.mark.parametrize("inference", [False, True])
def test_how_much_work_is_shared(where, least, most, inference):
    network, x = ResNet18(width=0.25).eval(), images(2)
    rbue.convert(network, rbue.DropReLU(0.9), where=where if isinstance(where, str) else range(where, 17), example=x)
    passes = StackedPasses(network, x, 0)
    with torch.inference_mode(inference):
        assert least <= shared_work(passes.runner, x, torch.arange(2, dtype=torch.int32)) <= most


def test_a_network_that_cannot_be_watched_counts_as_sharing_nothing(monkeypatch):
    network, x = ResNet18(width=0.25).eval(), images(2)
    rbue.convert(network, rbue.DropReLU(0.9), example=x)
    passes = StackedPasses(network, x, 0)
    monkeypatch.setattr(Products, "__torch_dispatch__", lambda *_: 1 / 0)
    assert shared_work(passes.runner, x, torch.arange(2, dtype=torch.int32)) == 0


def test_gpu_passes_hold_no_more_than_a_share_of_what_is_free(monkeypatch):
    for free, expected in ((100 << 30, GPU_BUDGET), (4 << 30, 1 << 30)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 140 << 30))
        assert _default_budget(torch.device("cuda")) == expected


def test_samples_of_one_image_are_cut_into_as_few_pieces_as_the_budget_allows():
    x, samples = images(1), torch.arange(50, dtype=torch.int32)
    model = rbue.convert(ResNet18(width=0.25).eval(), rbue.DropReLU(0.9), where=5, example=x)
    plan = StackedPasses(model, x, seed=0).plan
    passes = StackedPasses(model, x, seed=0, memory=int(plan.cost(1, 11) + 1))
    sizes = [len(out) for _, _, out in passes(x, samples, torch.zeros(1, dtype=torch.int32))]
    assert sizes == [10] * 5
