"""Samples that share a pass share no mask, and what two images show of a network is not taken for all of it."""

import copy
import warnings

import numpy as np
import pytest
import torch
from networks import assert_drawn_as_one_by_one, drawn_one_by_one
from torch import nn
from torch.nn import functional as F

import rbue
from rbue.call_sites import Draw, conversion_of
from rbue.call_sites.batch import as_batch
from rbue.errors import InvalidInput, RbueWarning
from rbue.lab import models
from rbue.sampling.passes import PassRunner, class_scores
from rbue.sampling.plans import make_plan
from rbue.sampling.stacking import StackedPasses


class OfWeights(nn.Module):
    """A ReLU of something made from weights has no rows of images; one mask would serve a whole pass."""

    def __init__(self, rows=64):
        super().__init__()
        self.first, self.weight, self.head = nn.Linear(8, 16), nn.Parameter(torch.randn(rows, 16)), nn.Linear(rows, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.first(x)) @ F.relu(self.weight * 1.5).t())


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
@pytest.mark.parametrize(("rows", "images", "samples"), [(64, 1, 16), (64, 4, 16), (75, 3, 25), (64, 3, 10)])
def test_a_relu_of_weights_is_drawn_anew_for_each_sample(rows, images, samples):
    torch.manual_seed(0)
    net, x = OfWeights(rows), torch.randn(images, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    found = assert_drawn_as_one_by_one(net, x, samples)
    assert found.std(0).max() > 0.01


class AdaptiveAdjacency(nn.Module):
    """The graph is made of weights; its ReLU changes the scores by less than a thousandth."""

    def __init__(self):
        super().__init__()
        self.nodes, self.first, self.head = nn.Parameter(torch.randn(32, 6)), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        graph = F.softmax(F.relu(self.nodes @ self.nodes.t()), 1)
        return self.head(torch.tanh(self.first(graph @ x)).mean(1))


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
def test_samples_that_differ_by_little_are_different():
    torch.manual_seed(0)
    net, x = AdaptiveAdjacency(), torch.randn(2, 32, 4)
    rbue.convert(net, rbue.DropReLU(0.8), example=x)
    found = assert_drawn_as_one_by_one(net, x, 16, atol=1e-7, rtol=0)
    assert found.std(0).max() > 1e-5


def test_a_head_of_zeros_says_nothing_about_the_trained_one():
    torch.manual_seed(0)
    net, x = OfWeights(), torch.randn(1, 8)
    trained = copy.deepcopy(net.head)
    nn.init.zeros_(net.head.weight)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    rbue.predict(net, x, samples=16, draws="independent")
    net.head.load_state_dict(trained.state_dict())
    assert_drawn_as_one_by_one(net, x, 16)


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.exit, self.second, self.head = (
            nn.Linear(n, m) for n, m in ((8, 16), (16, 4), (16, 16), (16, 4))
        )

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.exit(h) if x.abs().max() < 0.5 else self.head(F.relu(self.second(h)))


def test_images_that_leave_before_the_first_random_site_are_predicted_too():
    torch.manual_seed(0)
    net, x = EarlyExit(), torch.randn(9, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rbue.predict(net, [x, x / 100], samples=5)
    with torch.no_grad():
        torch.testing.assert_close(found.probs[9:], net(x / 100).softmax(1))


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 32), nn.Linear(32, 3)


class TimeFirst(TwoLayers):
    def forward(self, x):
        return self.head(F.relu(self.first(x.transpose(0, 1))).mean(0))


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
def test_batches_and_ranks_draw_apart_where_rows_are_not_images(monkeypatch):
    torch.manual_seed(0)
    net, x = TimeFirst(), torch.randn(3, 10, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    found = rbue.predict(net, [x, x], samples=5, return_samples=True, draws="independent").samples
    assert not torch.equal(found[:, :3], found[:, 3:])
    torch.testing.assert_close(found[:, :3], drawn_one_by_one(net, x, 5))
    rbue.seed(net, 0)
    here = net(x)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    rbue.seed(net, 0)
    assert not torch.equal(net(x), here)


def test_ranks_have_the_masks_of_one_process_with_their_batches(monkeypatch):
    net, x = rbue.convert(nn.ReLU(), rbue.DropReLU(0.5)), torch.randn(6, 40)
    rbue.seed(net, 0)
    whole = net(x)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    rbue.seed(net, 0)
    assert torch.equal(net(x[4:]), whole[4:])


def test_rows_that_are_not_images_have_numbers_of_their_own_in_each_batch():
    state, sample = torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    batches = [torch.arange(start, start + 3, dtype=torch.int32) for start in (0, 3, 6)]
    first, *others = (Draw(state, sample, images).renumbered(10).images for images in batches)
    assert first.tolist() == list(range(10))
    assert len(torch.cat([first, *others]).unique()) == 30


PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def stacks(name, activation, precision, device, width=1.0):
    torch.manual_seed(0)
    x = torch.randn(3, 3, 32, 32, device=device)
    net = models.create(name, classes=10, width=width).to(device).eval()
    rbue.convert(net, activation, example=x)
    return StackedPasses(net.to(PRECISIONS[precision]), x.to(PRECISIONS[precision]), seed=0).plan.stack


@pytest.mark.parametrize(
    "activation", [rbue.DropReLU(0.9), rbue.RReLU(), rbue.Dropout(0.2)], ids=["drop", "rrelu", "dropout"]
)
@pytest.mark.parametrize("name", ["small_cnn", "vgg13", "resnet18"])
def test_samples_of_common_networks_share_passes(name, activation):
    assert stacks(name, activation, "float32", "cpu", width=0.125)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "activation", [rbue.DropReLU(0.9), rbue.RReLU(), rbue.Dropout(0.2)], ids=["drop", "rrelu", "dropout"]
)
@pytest.mark.parametrize("name", ["vgg13", "resnet18", "densenet121"])
def test_samples_of_common_networks_share_passes_on_a_gpu(name, activation, precision):
    assert stacks(name, activation, precision, "cuda")


class RoundsByRows(TwoLayers):
    """Kernels for more rows round in other ways, by ``steps`` up to three and for more rows."""

    def __init__(self, *steps):
        super().__init__()
        self.steps = steps

    def forward(self, x):
        out = self.head(F.relu(self.first(x)))
        return out * (1 + self.steps[min(len(out), 4) - 1])


@pytest.mark.parametrize(("precision", "step"), [(torch.float32, 3e-4), (torch.bfloat16, 1e-2)], ids=str)
@pytest.mark.parametrize("images", [1, 4])
def test_rounding_that_differs_with_the_rows_is_no_dependence_on_the_batch(precision, step, images):
    """Where it is more than that of other kernels in single precision, one more pass has the rows of the shared one."""
    torch.manual_seed(0)
    net, x = RoundsByRows(0, 0, step, 2 * step).to(precision), torch.randn(images, 8).to(precision)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    calls = []
    net.register_forward_pre_hook(lambda *_: calls.append(None))
    plan = StackedPasses(net, x, seed=0).plan
    assert (plan.stack, plan.share, plan.batch_dependent, len(calls)) == (True, True, False, 4)


def test_an_image_alone_may_be_rounded_by_more():
    """A product with a vector has kernels of its own: the thorough plan compares it less closely."""
    torch.manual_seed(0)
    net, x = RoundsByRows(0, 3e-3, 6e-3, 6e-3), torch.randn(2, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    plan = make_plan(PassRunner(net, 0, x.device, "independent", class_scores), as_batch(x), sharing=False)
    assert (plan.stack, plan.batch_dependent) == (True, False)


class InTwoUnits(TwoLayers):
    """Large numbers beside small ones, which know what is ``near``: the other images, or their samples."""

    def __init__(self, near):
        super().__init__()
        self.near = near

    def forward(self, x):
        h = F.relu(self.first(x))
        known = {"nothing": 0, "images": x.mean(), "samples": h.mean()}[self.near]
        out = self.head(h)
        return torch.cat([1e3 * out[:, :1], 1e-3 * (out[:, 1:] + known)], 1)


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
@pytest.mark.parametrize("images", [2, 4])
@pytest.mark.parametrize("near", ["nothing", "images", "samples"])
def test_large_numbers_do_not_hide_what_other_rows_do_to_small_ones(near, images):
    torch.manual_seed(0)
    net, x = InTwoUnits(near), torch.randn(images, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    calls = []
    net.register_forward_pre_hook(lambda *_: calls.append(None))
    plan = StackedPasses(net, x, seed=0).plan
    assert (plan.stack, plan.batch_dependent) == (near != "samples", near != "nothing")
    assert near != "nothing" or len(calls) == 3


class WithNoise(TwoLayers):
    """Adds random numbers, so no two of its passes are the same."""

    def __init__(self, scale, draw):
        super().__init__()
        self.scale, self.draw = scale, draw

    def forward(self, x):
        return self.head(F.relu(self.first(x))) + self.draw(len(x), 3) * self.scale


def by_chance(*shape):
    """As kernels that add in any order: not of torch's generators."""
    return torch.from_numpy(np.random.default_rng().standard_normal(shape, dtype=np.float32))


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
@pytest.mark.parametrize("draw", [by_chance, torch.randn])
@pytest.mark.parametrize("images", [1, 2, 3])
@pytest.mark.parametrize("scale", [0.1, 1e-3, 1e-5])
def test_a_network_with_random_numbers_of_its_own_may_share_passes(scale, images, draw):
    """Small ones of kernels are not taken for a dependence on the batch; those that it draws are, however small."""
    torch.manual_seed(0)
    net, x = WithNoise(scale, draw), torch.randn(images, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    plan = StackedPasses(net, x, seed=0).plan
    assert plan.stack
    assert plan.batch_dependent == (draw is torch.randn or (scale == 0.1 and images > 1))


class DrawsForNothing(TwoLayers):
    """As layers that are skipped by chance in training."""

    def forward(self, x):
        torch.rand([])
        return self.head(F.relu(self.first(x)))


@pytest.mark.parametrize("images", [1, 4])
def test_random_numbers_that_change_nothing_are_no_dependence(images):
    torch.manual_seed(0)
    net, x = DrawsForNothing(), torch.randn(images, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    plan = StackedPasses(net, x, seed=0).plan
    assert (plan.stack, plan.share, plan.batch_dependent) == (True, True, False)


class RareMasks(nn.Module):
    """The samples differ by the ReLU of images; most of them have the same mask at the one of weights."""

    def __init__(self):
        super().__init__()
        self.first, self.weight, self.second, self.head = (
            nn.Linear(8, 2), nn.Parameter(torch.randn(16, 2)), nn.Linear(16, 64), nn.Linear(64, 4)
        )  # fmt: skip

    def forward(self, x):
        return self.head(F.relu(self.second(torch.tanh(self.first(x)) @ F.relu(self.weight * 1.5).t())))


@pytest.mark.parametrize("start", range(4))
def test_a_mask_that_two_samples_have_in_common_is_not_taken_for_that_of_all(start):
    torch.manual_seed(start)
    net, x = RareMasks(), torch.randn(1, 8)
    rbue.convert(net, rbue.DropReLU(0.99), example=x)
    assert_drawn_as_one_by_one(net, x, 16, atol=1e-6, rtol=0)


class OverTheBatch(TwoLayers):
    def forward(self, x):
        return self.head(F.relu(self.first(F.normalize(x, dim=0))))


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
@pytest.mark.parametrize("images", [1, 4])
def test_what_is_computed_of_the_whole_batch_is_not_computed_of_all_samples(images):
    torch.manual_seed(0)
    net, x = OverTheBatch(), torch.randn(images, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    assert_drawn_as_one_by_one(net, x, 6)


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
@pytest.mark.parametrize("make", [OfWeights, OverTheBatch])
def test_kernels_that_round_by_chance_hide_neither_a_shared_mask_nor_a_mixed_batch(make):
    """No two passes are the same to the last digits, as where a GPU adds in any order."""
    torch.manual_seed(0)
    net, x = make(), torch.randn(4, 8)
    net.head.register_forward_hook(lambda module, inputs, out: out + torch.randn_like(out) * 1e-7)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    assert_drawn_as_one_by_one(net, x, 16, atol=1e-5, rtol=0)


def test_a_plan_that_is_made_again_does_not_warn_again():
    torch.manual_seed(0)
    net, x = OverTheBatch(), torch.randn(4, 8)
    rbue.convert(net, rbue.DropReLU(0.9999), example=x)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            rbue.predict(net, x, samples=5)
    assert [plan.telling for plan in conversion_of(net).plans.values()] == [False]
    assert sum("depend on the batch" in str(one.message) for one in said) == 1


class MixedALittle(TwoLayers):
    def forward(self, x):
        rows = F.relu(self.first(x))
        return self.head(rows - rows.mean(0) / 1000)


def test_samples_are_not_mixed_even_a_little():
    torch.manual_seed(0)
    net, x = MixedALittle(), torch.randn(4, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    with pytest.warns(rbue.RbueWarning, match="depend on the batch"):
        assert_drawn_as_one_by_one(net, x, 6, atol=1e-6, rtol=0)


class ByTheGreatest(TwoLayers):
    def forward(self, x):
        return self.head(F.relu(self.first(3 * x / x.abs().max())))


class ByTheGreatestScore(TwoLayers):
    def forward(self, x):
        scores = self.head(F.relu(self.first(x)))
        return 10 * scores / scores.abs().max()


class CutToTheLongest(TwoLayers):
    """Which bits an element has depends on its place, and that on the longest image."""

    def forward(self, x):
        lengths = 1 + (6 * x[:, 0].sigmoid()).long()
        steps = torch.arange(int(lengths.max()))
        rows = F.relu(self.first(x)[:, :, None] * (1 + steps)) * (steps < lengths[:, None])[:, None]
        return self.head(rows.sum(2) / lengths[:, None])


@pytest.mark.parametrize("images", [1, 2, 3, 5])
@pytest.mark.parametrize("make", [ByTheGreatest, ByTheGreatestScore, CutToTheLongest])
def test_what_the_greatest_number_of_a_batch_decides_is_seen_whichever_image_has_it(make, images):
    for seed in range(8):
        torch.manual_seed(seed)
        net, x = make(), torch.randn(images, 8)
        x[:, 0] = torch.linspace(-2, 1.5, images)[torch.randperm(images)]
        rbue.convert(net, rbue.DropReLU(0.5), example=x)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = rbue.predict(net, x, samples=6, return_samples=True, draws="independent", memory=1).samples
        torch.testing.assert_close(found, drawn_one_by_one(net, x, 6))
        assert images == 1 or any("depend on the batch" in str(one.message) for one in said)


class WithOffset(TwoLayers):
    def __init__(self, offset, of_batch):
        super().__init__()
        self.offset, self.of_batch = offset, of_batch

    def forward(self, x):
        values = self.head(F.relu(self.first(x)))
        return self.offset + (values - values.mean(0) if self.of_batch else values)


@pytest.mark.parametrize("offset", [0.0, 290.0, 1013.0, 1e4])
@pytest.mark.parametrize("of_batch", [True, False])
def test_an_offset_hides_no_dependence_on_the_batch_and_makes_none(offset, of_batch):
    """Temperatures in kelvin, pressures in hectopascal."""
    for seed in range(4):
        torch.manual_seed(seed)
        net, x = WithOffset(offset, of_batch), torch.randn(6, 8)
        rbue.convert(net, rbue.DropReLU(0.5), example=x)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            cut, whole = (rbue.predict(net, x, samples=8, outputs="values", memory=m).mean for m in (1, None))
        torch.testing.assert_close(cut, whole, atol=1e-5, rtol=1e-6)
        assert [str(one.message)[:46] for one in said] == ["an image's samples depend on the batch it is i"] * of_batch


class PositionTable(TwoLayers):
    """As Swin-V2, which makes its biases by a small network of positions; here only of large images."""

    def __init__(self, largest):
        super().__init__()
        self.biases, self.largest = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3)), largest

    def forward(self, x):
        out = self.head(F.relu(self.first(x)))
        return out + self.biases(x.new_ones(9, 2)).mean(0) if x.abs().max() > self.largest else out


@pytest.mark.parametrize("largest", [0, 100], ids=["first", "later"])
def test_a_site_without_rows_of_images_is_named(largest):
    torch.manual_seed(0)
    net, x = PositionTable(largest), torch.randn(8, 8)
    x[5] *= 1000  # not among those that the plan is made with
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    with pytest.warns(RbueWarning, match=r"depend on the batch .* the random site biases\.1 are not those of images"):
        rbue.predict(net, x, samples=5)


class TimeMajor(TwoLayers):
    """Rows are images at times, times first, so that masks are dealt to rows in another order than images are."""

    def forward(self, x):
        if x.abs().max() > 100:
            F.relu(x.new_ones(7, 1) * 1.5)
        rows = F.relu(self.first(x.transpose(0, 1).flatten(0, 1)))
        return self.head(rows.unflatten(0, (x.shape[1], -1)).mean(0))


def test_what_is_learned_later_leaves_a_head_of_zeros_one_that_says_nothing():
    torch.manual_seed(0)
    net, x = TimeMajor(), torch.randn(5, 12, 8)
    trained = copy.deepcopy(net.head)
    nn.init.zeros_(net.head.weight)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            rbue.predict(net, torch.cat([x, x * 1000]), samples=5, draws="independent")
    assert sum("depend on the batch" in str(one.message) for one in said) == 1
    net.head.load_state_dict(trained.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RbueWarning)
        assert_drawn_as_one_by_one(net, x, 6)


class SometimesOfWeights(TwoLayers):
    def forward(self, x):
        if x.abs().max() > 100:
            F.relu(x.new_ones(7, 1))
        return self.head(F.relu(self.first(x)))


def test_an_image_without_others_is_not_said_to_depend_on_them():
    net, x = SometimesOfWeights(), torch.randn(1, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    rbue.predict(net, [x, 1000 * x], samples=5, augment=lambda x, uniform: x)


@pytest.mark.filterwarnings("ignore::rbue.RbueWarning")
def test_outputs_that_are_no_numbers_say_nothing_about_others():
    torch.manual_seed(0)
    net, x = TimeMajor(), torch.randn(5, 12, 8)
    trained = copy.deepcopy(net.head)
    nn.init.constant_(net.head.bias, torch.nan)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    with pytest.raises(InvalidInput, match="NaN"):
        rbue.predict(net, x, samples=6, draws="independent")
    net.head.load_state_dict(trained.state_dict())
    assert_drawn_as_one_by_one(net, x, 6)


@pytest.mark.parametrize("place", [1, 3])
@pytest.mark.parametrize("begin", ["well", "badly"])
def test_an_image_that_the_network_fails_for_leaves_no_plan_for_others(place, begin):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(10, 8), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randint(0, 10, (4, 4))
    bad = x.clone()
    bad[place, 0] = 99
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    if begin == "well":
        rbue.predict(net, x, samples=5)
    with pytest.raises(IndexError):
        rbue.predict(net, bad, samples=5)
    rbue.predict(net, x, samples=5)
    (plan,) = conversion_of(net).plans.values()
    assert plan.stack
    assert plan.share
