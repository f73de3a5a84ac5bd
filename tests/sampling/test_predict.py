"""``rbue.predict``: the samples of a plain loop, however they are computed."""

import copy
import operator
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from networks import NETWORKS, Residual, StatementInPlace, build
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.data import DataLoader, TensorDataset

import rbue
from rbue import metrics, random_stream
from rbue.call_sites import Draw, running
from rbue.errors import ConversionError, InvalidInput, RbueError, RbueWarning
from rbue.sampling.passes import PassRunner, class_scores
from rbue.sampling.stacking import Piece, StackedPasses, is_out_of_memory
from rbue.sampling.tasks import given_probabilities
from rbue.torch_internals import uncompiled

OUTPUT_TOLERANCE = 2e-6
"""Network outputs differ between batch sizes by the rounding of other convolution kernels; masks do not."""


def loop(network, x, samples, seed=0):
    """The reference: one call a sample."""
    rbue.seed(network, seed)
    with torch.no_grad():
        outputs = [class_scores(network(x.clone())) for _ in range(samples)]
    return torch.stack(outputs).softmax(2)


def balanced_loop(network, x, samples):
    """The same for balanced draws, which no plain call has: each is told its sample."""
    state = random_stream.balanced_state(random_stream.seed_state(0))
    images, outputs = torch.arange(len(x), dtype=torch.int32), []
    for sample in range(samples):
        draw = Draw(state, torch.tensor([sample], dtype=torch.int32), images, balanced=True)
        running.draws = network._rbue_conversion.token, draw
        with torch.no_grad():
            outputs.append(class_scores(network(x.clone())))
    running.draws = None
    return torch.stack(outputs).softmax(2)


@pytest.mark.parametrize("where", ["all", "first", "last"])
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "time-first"])
@pytest.mark.parametrize("activation", [rbue.DropReLU(0.6), rbue.RReLU()], ids=["drop", "rrelu"])
def test_samples_are_those_of_a_loop(name, where, activation):
    network, x = build(name)
    rbue.convert(network, activation, where=where, example=x)
    for draws, reference in (("independent", loop), ("balanced", balanced_loop)):
        found = rbue.predict(network, x, samples=6, return_samples=True, draws=draws)
        expected = reference(network, x, 6)
        torch.testing.assert_close(found.samples, expected, rtol=0, atol=OUTPUT_TOLERANCE)
        assert float((expected[0] - expected[1]).abs().max()) > 10 * OUTPUT_TOLERANCE
        torch.testing.assert_close(found.probs, expected.mean(0), rtol=0, atol=OUTPUT_TOLERANCE)


@pytest.mark.parametrize("index", range(3))
def test_sharing_the_prefix_holds_at_every_site_and_channels_last(index):
    network, x = build("residual")
    rbue.convert(network, rbue.DropReLU(0.5), where=[index], example=x)
    expected = loop(network, x, 5)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        found = rbue.predict(
            network, x.to(memory_format=memory_format), samples=5, return_samples=True, draws="independent"
        )
        torch.testing.assert_close(found.samples, expected, rtol=0, atol=OUTPUT_TOLERANCE)
    assert all(plan.share for plan in network._rbue_conversion.plans.values())


def calls_of(module):
    rows = []
    module.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    return rows


def test_the_prefix_runs_once_for_all_samples():
    network, x = build("residual")
    rbue.convert(network, rbue.DropReLU(0.5), where="last", example=x)
    stem, head = calls_of(network.stem), calls_of(network.head)
    rbue.predict(network, x, samples=2)  # finds out that sharing works
    stem.clear()
    head.clear()
    rbue.predict(network, x, samples=50)
    assert stem == [len(x)]
    assert head == [50 * len(x)]


class Written(nn.Module):
    """What was computed before the only site is changed in place by what comes after it."""

    def __init__(self, write):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.write = write

    def forward(self, x):
        y = self.first(x)
        self.write(y, self.second(x).relu())
        return self.head(y)


def write_item(y, z):
    y[:, :5] = z[:, :5]


def write_mask(y, z):
    mask = y > 0
    operator.iand(mask, z > 0)  # the mask itself is read on
    y.mul_(mask)


def write_named(y, z):
    y.copy_(torch.add(input=y, other=z))


@pytest.mark.parametrize("write", [operator.iadd, torch.Tensor.add_, write_item, write_mask, write_named])
def test_what_is_shared_may_be_changed_in_place_by_what_is_not(write):
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    network = rbue.convert(Written(write).eval(), rbue.DropReLU(0.5), example=x)
    found = rbue.predict(network, x, samples=5, return_samples=True, draws="independent")
    torch.testing.assert_close(found.samples, loop(network, x, 5), rtol=0, atol=OUTPUT_TOLERANCE)
    assert all(plan.share for plan in network._rbue_conversion.plans.values())


@pytest.mark.parametrize("name", ["remembers", "view", "time-first"])
def test_networks_that_defeat_sharing_are_noticed(name):
    network, x = build(name)
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    said = pytest.warns(RbueWarning, match="the batch it is in") if name == "time-first" else nullcontext()
    with said:
        found = rbue.predict(network, x, samples=5, return_samples=True, draws="independent")
    (plan,) = network._rbue_conversion.plans.values()
    assert not plan.share
    torch.testing.assert_close(found.samples, loop(network, x, 5), rtol=0, atol=OUTPUT_TOLERANCE)


class Masked(nn.Module):
    """Classes that cannot be: one for all images, one for each image its own."""

    def __init__(self, network, score):
        super().__init__()
        self.network, self.score = network, score

    def forward(self, x):
        impossible = (x.flatten(1)[:, :1] > 0) == torch.arange(2).bool()
        scores = torch.cat([self.network(x), x.new_zeros(len(x), 2).masked_fill(impossible, self.score)], 1)
        return torch.cat([scores, x.new_full((len(x), 1), self.score)], 1)


@pytest.mark.parametrize("score", [-1e4, -1e9, -float("inf")])
@pytest.mark.parametrize(("name", "shares"), [("view", False), ("statement", True), ("residual", True)])
def test_scores_of_impossible_classes_do_not_hide_what_sharing_does_to_the_others(name, shares, score):
    inner, x = build(name)
    network = rbue.convert(Masked(inner, score), rbue.DropReLU(0.5), example=x)
    found = rbue.predict(network, x, samples=5, return_samples=True, draws="independent")
    (plan,) = network._rbue_conversion.plans.values()
    assert plan.share is shares
    torch.testing.assert_close(found.samples, loop(network, x, 5), rtol=0, atol=OUTPUT_TOLERANCE)


@pytest.mark.parametrize("score", [-1e9, -float("inf")])
def test_scores_of_impossible_classes_do_not_hide_batch_dependence(score):
    inner, x = build("time-first")
    network = rbue.convert(Masked(inner, score), rbue.DropReLU(0.5), example=x)
    with pytest.warns(RbueWarning, match="the batch it is in"):
        rbue.predict(network, x, samples=2)


def test_batch_dependence_is_looked_at_when_there_are_several_images():
    network, x = build("time-first")
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    rbue.predict(network, x[:1], samples=2)
    with pytest.warns(RbueWarning, match="the batch it is in"):
        rbue.predict(network, x, samples=2)


class TwoViews(nn.Module):
    """All images, then all of them mirrored: as many rows as two patches an image, but in another order."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        both = self.head(torch.relu(self.layer(torch.cat([x, x.flip(1)]))))
        return both.unflatten(0, (2, -1)).mean(0)


def test_a_branch_that_only_later_images_take_is_noticed():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            out = self.layer(x)
            some = x[:, 0] > 0
            out[some] = torch.relu(out[some])
            return out

    network, x = rbue.convert(Branch(), rbue.DropReLU(0.5)), torch.randn(6, 6)
    x[:, 0] = torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    with pytest.warns(RbueWarning, match="the batch it is in") as warned:
        rbue.predict(network, [x, x], samples=4)
    assert len(warned) == 1


def test_rows_in_another_order_than_the_images_are_noticed():
    torch.manual_seed(0)
    network, x = TwoViews(), torch.randn(4, 6)
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    with pytest.warns(RbueWarning, match="the batch it is in"):
        rbue.predict(network, x, samples=2)


def test_a_batch_that_matters_little_is_noticed():
    class Crops(nn.Module):
        """All first crops, then all second ones, and so on; the difference is far below a hundredth of the scores."""

        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

        def forward(self, x):
            crops = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(2, 3, 0, 1, 4, 5).reshape(-1, 3, 4, 4)
            return self.head(torch.relu(self.layer(crops)).mean((2, 3))).unflatten(0, (4, -1)).mean(0)

    torch.manual_seed(8)
    network, x = Crops(), torch.randn(6, 3, 8, 8)
    rbue.convert(network, rbue.RReLU(), example=x)
    with pytest.warns(RbueWarning, match="the batch it is in"):
        rbue.predict(network, x, samples=2)


def test_predictions_in_threads_do_not_disturb_each_other():
    network, x = build("remembers", batch=4)  # its plan needs passes of its own
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    expected = rbue.predict(network, x, samples=20, seed=3).probs
    network.train()
    network._rbue_conversion.plans.clear()
    statistics = {name: value.clone() for name, value in network.named_buffers() if "running" in name}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: rbue.predict(network, x, samples=20, seed=3).probs, range(24)))
    for probs in found:
        torch.testing.assert_close(probs, expected, rtol=0, atol=OUTPUT_TOLERANCE)
    assert all(module.training for module in network.modules())
    assert all(value.equal(network.get_buffer(name)) for name, value in statistics.items())
    assert not network(x).equal(network(x))


@pytest.mark.parametrize("batch", [1, 7, 16])
@pytest.mark.parametrize("memory", [1, 50_000, None])
def test_samples_do_not_depend_on_batch_size_or_memory(batch, memory):
    network, x = build("residual", batch=16)
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    whole = rbue.predict(network, x, samples=4, return_samples=True)
    loader = DataLoader(TensorDataset(x, torch.arange(16)), batch_size=batch)
    parts = rbue.predict(network, loader, samples=4, return_samples=True, memory=memory)
    torch.testing.assert_close(parts.samples, whole.samples, rtol=0, atol=OUTPUT_TOLERANCE)


def test_a_softmax_at_the_end_is_noticed():
    network, x = build("residual")
    ends_in_softmax = nn.Sequential(network, nn.Softmax(1))
    rbue.convert(ends_in_softmax, rbue.DropReLU(0.6), example=x)
    with pytest.warns(RbueWarning, match="look like probabilities"):
        rbue.predict(ends_in_softmax, x, samples=2)
    rbue.predict(ends_in_softmax, x, samples=2, outputs="probs")


def scores_in(low, high, columns):
    """A converted network whose outputs, of one pass of eight images, fill a range."""
    network = nn.Sequential(
        nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, columns), nn.Sigmoid(), nn.Linear(columns, columns)
    )
    with torch.no_grad():
        for layer in network[0], network[2]:
            layer.weight.fill_(1)
            layer.bias.zero_()
        network[4].weight.copy_(torch.eye(columns) * (high - low))
        network[4].bias.fill_(low)
    return rbue.convert(network, rbue.DropReLU(0.9)), torch.linspace(-8, 8, 8)[:, None]


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize(
    ("low", "high", "noticed"), [(0, 1, True), (0.1, 0.8, False), (-0.5, 0.9, False), (0.1, 1.5, False), (0, 9, False)]
)
def test_sigmoids_at_the_end_are_noticed_and_logits_are_left_alone(low, high, noticed, columns, recwarn):
    network, x = scores_in(low, high, columns)
    rbue.predict(network, x, samples=2, outputs="binary" if columns == 1 else "logits")
    assert ["look like probabilities" in str(one.message) for one in recwarn] == [True] * noticed


def test_a_few_logits_between_0_and_1_are_left_alone(recwarn):
    network, x = scores_in(0, 1, 3)
    rbue.predict(network, x[[0, 7]], samples=10)
    assert not recwarn


def test_outputs_that_do_not_sum_to_one_are_named():
    with pytest.raises(InvalidInput, match=r"those of an image sum to 0\.5"):
        given_probabilities(torch.tensor([[[0.5, 0.5], [0.25, 0.25]]]))


def test_sigmoids_of_several_labels_are_told_how():
    class Labels(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.pairs = False

        def forward(self, x):
            p = self.layer(torch.relu(x)).sigmoid()
            return torch.stack([1 - p, p], 1) if self.pairs else p

    network, x = rbue.convert(Labels(), rbue.DropReLU(0.6)), torch.randn(4, 6)
    with pytest.raises(InvalidInput, match=r"several labels.*torch\.stack\(\[1 - p, p\], 1\)"):
        rbue.predict(network, x, samples=3, outputs="probs", draws="independent")
    network.pairs = True
    found = rbue.predict(network, x, samples=3, outputs="probs", draws="independent")
    rbue.seed(network, 0)
    with torch.no_grad():
        expected = torch.stack([network(x)[:, 1] for _ in range(3)]).mean(0)
    torch.testing.assert_close(found.probs[:, 1], expected)


def test_batches_whose_outputs_differ_in_shape_are_named():
    network = rbue.convert(nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU()), rbue.DropReLU(0.6))
    with pytest.raises(InvalidInput, match=r"\(2, 5, 5\) in the first batch and \(2, 7, 7\) in batch 3"):
        rbue.predict(network, [torch.randn(2, 1, size, size) for size in (5, 5, 7)], samples=2)


def test_index_numbers_the_images():
    network, x = build("residual", batch=6)
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    whole = rbue.predict(network, x, samples=3, return_samples=True)
    order = torch.tensor([4, 1, 5])
    some = rbue.predict(network, x[order], samples=3, index=order, return_samples=True)
    torch.testing.assert_close(some.samples, whole.samples[:, order], rtol=0, atol=OUTPUT_TOLERANCE)
    default = rbue.predict(network, x[order], samples=3, return_samples=True)
    assert float((default.samples - some.samples).abs().max()) > 1e-3


def test_seeds_give_other_samples_and_the_same_seed_the_same():
    network, x = build("residual")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    first, again, other = (rbue.predict(network, x, samples=3, seed=seed).probs for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_predict_leaves_flags_statistics_counter_and_input_alone():
    network = Residual()
    x = torch.randn(4, 3, 8, 8)
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    network.train()
    network.norm.eval()
    rbue.seed(network, 1)
    before, x_before = copy.deepcopy(network.state_dict()), x.clone()
    flags = [module.training for module in network.modules()]
    rbue.predict(network, x, samples=3)
    assert [module.training for module in network.modules()] == flags
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert torch.equal(x, x_before)
    with torch.no_grad():
        a = network.eval()(x)
        rbue.seed(network, 1)
        assert torch.equal(a, network(x)), "predict must not advance the stream of plain calls"


def test_a_network_that_works_in_place_on_its_input_does_not_change_the_callers():
    class Eats(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(x.sub_(0.5).relu_())

    network, x = Eats(), torch.randn(5, 6)
    rbue.convert(network, rbue.DropReLU(0.5), example=x.clone())
    kept = x.clone()
    found = rbue.predict(network, x, samples=4, return_samples=True, draws="independent")
    assert torch.equal(x, kept)
    torch.testing.assert_close(found.samples, loop(network, x, 4), rtol=0, atol=OUTPUT_TOLERANCE)


def test_batchnorm_and_dropout_are_in_evaluation_mode_while_sampling():
    network, x = build("residual")
    network.train()
    rbue.convert(network, rbue.DropReLU(1.0), example=x)
    found = rbue.predict(network, x, samples=5)
    network.eval()
    with torch.no_grad():
        torch.testing.assert_close(found.probs, network(x).softmax(1), rtol=0, atol=OUTPUT_TOLERANCE)
    assert float(found.variance.max()) < 1e-12


@pytest.mark.parametrize("how", ["plain", "mean"])
def test_another_mode_does_not_keep_it_from_drawing_and_it_says_so(how):
    network, x = build("residual")
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    with rbue.mode(network, how), pytest.warns(RbueWarning, match=rf"draws samples inside .*'{how}'.* call net\(x\)"):
        found = rbue.predict(network, x, samples=3)
    assert torch.equal(found.probs, rbue.predict(network, x, samples=3).probs)


def test_probabilities_are_taken_as_they_are():
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(1))
    x = torch.randn(5, 6)
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    found = rbue.predict(network, x, samples=4, outputs="probs", return_samples=True, draws="independent")
    rbue.seed(network, 0)
    with torch.no_grad():
        expected = torch.stack([network(x) for _ in range(4)])
    torch.testing.assert_close(found.samples, expected, rtol=0, atol=OUTPUT_TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_probabilities_of_half_precision_may_be_off_by_their_rounding(dtype):
    probs = torch.randn(50, 4, 10, generator=torch.Generator().manual_seed(0)).softmax(2).to(dtype)
    assert torch.equal(given_probabilities(probs), probs.float())
    with pytest.raises(InvalidInput, match=r"those of an image sum to 0\.9[78]"):
        given_probabilities(0.98 * probs)


class Probabilities(nn.Module):
    """A classifier that ends in probabilities, of which the last may be what the others leave."""

    def __init__(self, remainder):
        super().__init__()
        self.scores = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        self.remainder = remainder

    def forward(self, x):
        probs = (9 * self.scores(x)).softmax(1)
        if not self.remainder:
            return probs
        return torch.cat([probs[:, :2], 1 - probs[:, :1] - probs[:, 1:2]], 1)


def test_a_probability_that_rounding_made_negative_has_no_entropy():
    torch.manual_seed(0)
    network, x = Probabilities(remainder=True), 2 * torch.randn(300, 6)
    with torch.no_grad():
        assert network(x).min() < 0
    rbue.convert(network, rbue.DropReLU(0.8), example=x)
    found = rbue.predict(network, x, samples=10, outputs="probs", return_samples=True)
    torch.testing.assert_close(
        found.expected_entropy.double(), metrics.expected_entropy(found.samples), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        found.mutual_information.double(), metrics.mutual_information(found.samples), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_metrics_take_predictions_from_probabilities_of_half_precision(dtype):
    torch.manual_seed(0)
    network, x = Probabilities(remainder=False).to(dtype), torch.randn(100, 6).to(dtype)
    with torch.no_grad():
        assert (network(x).double().sum(1) - 1).abs().max() > 1e-4
    rbue.convert(network, rbue.DropReLU(0.8), example=x)
    found = rbue.predict(network, x, samples=4, outputs="probs", return_samples=True)
    torch.testing.assert_close(found.probs.sum(1), torch.ones(100), atol=1e-5, rtol=0)
    torch.testing.assert_close(metrics.entropy(found.probs), found.entropy.double(), atol=1e-6, rtol=0)
    assert metrics.jsd(found.samples).shape == (4, 4)


def test_per_pixel_classifiers():
    network, x = build("per-pixel")
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    found = rbue.predict(network, x, samples=5)
    assert found.probs.shape == found.variance.shape == found.votes.shape == (4, 4, 6, 6)
    assert found.label.shape == found.entropy.shape == found.mutual_information.shape == (4, 6, 6)
    assert found.samples_used.shape == (4,)


def test_objects_with_logits_are_accepted():
    class Output:
        def __init__(self, logits):
            self.logits = logits

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = StatementInPlace()

        def forward(self, x):
            return Output(self.inner(x))

    network, x = Wrapped(), torch.randn(4, 6)
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    assert rbue.predict(network, x, samples=2).probs.shape == (4, 3)


def test_out_of_memory_makes_smaller_passes_and_loses_nothing(monkeypatch):
    network, x = build("residual", batch=9)
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    expected = rbue.predict(network, x, samples=8, return_samples=True)
    rows, failed = [], []
    original = PassRunner.run

    def cramped(self, x, samples, *rest, **keywords):
        if len(x) * len(samples) > 10:
            failed.append(len(x) * len(samples))
            raise torch.OutOfMemoryError("no memory left")
        rows.append(len(x) * len(samples))
        return original(self, x, samples, *rest, **keywords)

    monkeypatch.setattr(PassRunner, "run", cramped)
    found = rbue.predict(network, x, samples=8, return_samples=True)
    torch.testing.assert_close(found.samples, expected.samples, rtol=0, atol=OUTPUT_TOLERANCE)
    assert found.samples_used.tolist() == [8] * 9
    assert max(rows) <= 10
    assert len(failed) < 4  # a half of what was too much each time, however large the budget was


@pytest.mark.parametrize("images", [1, 4])
def test_out_of_memory_for_a_single_row_is_reported(monkeypatch, images):
    network, x = build("residual", batch=images)
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    rbue.predict(network, x, samples=2)

    def full(*_, **__):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(PassRunner, "run", full)
    with pytest.raises(torch.OutOfMemoryError):
        rbue.predict(network, x, samples=2)


def test_out_of_memory_for_a_batch_that_must_stay_whole_says_why(monkeypatch):
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(4, 6)
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    with pytest.warns(RbueWarning, match="depend on the batch"):
        rbue.predict(network, x, samples=2)

    def full(*_, **__):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(PassRunner, "run", full)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        rbue.predict(network, x, samples=2)
    assert "answers depend on the batch, so it is not divided" in caught.value.__notes__[0]


def test_samples_that_fail_are_not_tried_again_beside_a_copy():
    """Of the image, which is for a batch of one: it would take twice the memory."""
    network, x = build("residual", batch=1)
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    runner = StackedPasses(network, x, 0).runner
    calls, numbers = [], torch.arange(2, dtype=torch.int32)
    for samples in (1, 2):
        with pytest.raises(ZeroDivisionError):
            runner.run(x, numbers[:samples], numbers[:1], True, model=lambda x: calls.append(len(x)) or 1 / 0)
    assert calls == [1, 2, 1]


def test_memory_of_the_machine_may_be_short_too():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(ValueError("allocate memory"))


def test_errors_of_the_network_itself_come_through():
    network, x = build("residual")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    with pytest.raises(RuntimeError, match="channels"):
        rbue.predict(network, torch.randn(2, 5, 8, 8), samples=2)


def test_half_precision_networks_give_float_probabilities():
    network, x = build("residual")
    network.bfloat16()
    rbue.convert(network, rbue.DropReLU(0.6), example=x.bfloat16())
    found = rbue.predict(network, x.bfloat16(), samples=3)
    assert found.probs.dtype == torch.float32
    torch.testing.assert_close(found.probs.sum(1), torch.ones(4))


@pytest.mark.slow  # the default compiler; the quick ones below have another backend
def test_compiled_networks_give_the_same_samples():
    network, x = build("residual", batch=3)
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    expected = rbue.predict(network, x, samples=4, return_samples=True)
    found = rbue.predict(torch.compile(network, fullgraph=True), x, samples=4, return_samples=True)
    torch.testing.assert_close(found.samples, expected.samples, rtol=0, atol=OUTPUT_TOLERANCE)


@pytest.mark.parametrize(
    ("whole", "memory_format"),
    [(True, torch.channels_last), pytest.param(False, torch.contiguous_format, marks=pytest.mark.slow)],
    ids=str,
)
def test_a_compiled_network_is_compiled_once_however_the_work_is_cut(whole, memory_format):
    network, x = build("residual", batch=10)
    network, x = network.to(memory_format=memory_format), x.contiguous(memory_format=memory_format)
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    expected = rbue.predict(network, x, samples=4, return_samples=True)
    counter = CompileCounterWithBackend("eager")
    if whole:
        compiled = torch.compile(network, backend=counter, dynamic=False)
    else:
        compiled = network
        network.compile(backend=counter, dynamic=False)
    row = StackedPasses(compiled, x, 0).plan.for_row
    torch._dynamo.reset()
    found = rbue.predict(compiled, x, samples=4, return_samples=True, memory=int(4 * 4 * row))
    torch.testing.assert_close(found.samples, expected.samples, rtol=0, atol=OUTPUT_TOLERANCE)
    assert counter.frame_count == 1


def test_a_compiled_network_asks_for_its_tables_in_one_uncompiled_pass(monkeypatch):
    network, x = build("statement")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    asked = []

    @contextmanager
    def keeping():
        asked.append(torch._dynamo.eval_frame._stance.stance)
        yield

    monkeypatch.setattr("rbue.kernels.kept_tables.keeping", keeping)
    rbue.predict(network, x, samples=2)
    assert asked == []
    rbue.predict(torch.compile(network, backend="eager"), x, samples=2)
    assert asked == ["force_eager"]
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_threads_that_look_at_compiled_networks_together_leave_compiling_on():
    """Torch has one stance for all threads: the second must not take the first one's for the usual one."""
    began = threading.Event()

    def first():
        with uncompiled():
            began.set()
            time.sleep(0.1)

    def second():
        began.wait()
        with uncompiled():
            time.sleep(0.2)

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_rows_are_filled_for_compiled_networks_only():
    network, x = build("residual")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    compiled = torch.compile(network, backend="eager")
    models = {"a": network, "b": nn.DataParallel(network), "c": compiled, "d": nn.DataParallel(compiled)}
    found = {name: StackedPasses(model, x, 0).runner.compiled for name, model in models.items()}
    assert found == {"a": False, "b": False, "c": True, "d": True}


class InThreads(nn.DataParallel):
    """Does with two replicas on one device what DataParallel does with two GPUs."""

    def forward(self, x):
        parts = x.chunk(2)
        with ThreadPoolExecutor(1) as pool:
            return torch.cat(list(pool.map(self.module._replicate_for_data_parallel(), parts)))


@pytest.mark.parametrize("compiled", [False, True])
def test_samples_are_the_same_inside_data_parallel(compiled):
    network, x = build("residual")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    expected = rbue.predict(network, x, samples=3, return_samples=True)
    wrapped = InThreads(network)
    wrapped = torch.compile(wrapped, backend="eager") if compiled else wrapped
    for _ in range(2):
        found = rbue.predict(wrapped, x, samples=3, return_samples=True)
        torch.testing.assert_close(found.samples, expected.samples, rtol=0, atol=OUTPUT_TOLERANCE)


@pytest.mark.parametrize(("where", "shares", "whole"), [("last", True, False), ("all", False, True)])
def test_a_compiled_network_runs_uncompiled_where_sharing_saves_more(where, shares, whole):
    network, x = build("residual", batch=5)
    rbue.convert(network, rbue.DropReLU(0.6), where=where, example=x)
    expected = rbue.predict(network, x, samples=9, return_samples=True)
    counter = CompileCounterWithBackend("eager")
    if whole:
        compiled = torch.compile(network, backend=counter)
    else:
        compiled = network
        network.compile(backend=counter)
    found = rbue.predict(compiled, x, samples=9, return_samples=True)
    torch.testing.assert_close(found.samples, expected.samples, rtol=0, atol=OUTPUT_TOLERANCE)
    assert StackedPasses(compiled, x, 0).plan.share is shares
    assert (counter.frame_count == 0) is shares


@pytest.mark.parametrize(("images", "most"), [(11, 4), (12, 4), (2, 1), (5, 9), (4000, 81)])
def test_pieces_are_of_one_size_and_cover_every_image_once(images, most):
    pieces = Piece(slice(3, 3 + images), slice(0, 7), images).with_fewer_images(most)
    assert len({piece.size for piece in pieces}) == 1
    assert pieces[0].size <= most
    assert pieces[0].size < images
    assert [at for piece in pieces for at in range(piece.batch.start, piece.batch.stop)] == list(range(3, 3 + images))
    assert all(0 < piece.batch.stop - piece.batch.start <= piece.size for piece in pieces)


def test_progress_does_not_change_the_result(capsys):
    network, x = build("residual")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    quiet = rbue.predict(network, x, samples=4)
    loud = rbue.predict(network, x, samples=4, progress=True, adaptive=rbue.Adaptive(first=4))
    assert torch.equal(quiet.probs, loud.probs)
    assert capsys.readouterr().out == ""


def test_a_progress_bar_without_rich_is_told_how(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    network, x = build("statement")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    with pytest.raises(RbueError, match="pip install rich"):
        rbue.predict(network, x, samples=2, progress=True)


def test_stream_version_and_seed_are_written_into_the_result():
    network, x = build("statement")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    found = rbue.predict(network, x, samples=2, seed=5)
    assert (found.seed, found.stream_version) == (5, 1)


def test_numbers_may_be_numpys():
    network, x = build("statement")
    rbue.convert(network, rbue.DropReLU(0.5), where=[0], example=x)
    expected = rbue.predict(network, x, samples=3, seed=1 << 40)
    rbue.convert(network, rbue.DropReLU(np.float32(0.5)), where=np.arange(1), example=x)
    found = rbue.predict(network, x, samples=np.int64(3), seed=np.int64(1 << 40))
    assert torch.equal(found.probs, expected.probs)
    assert type(found.seed) is int
    with pytest.raises(InvalidInput, match="seed must lie in"):
        rbue.predict(network, x, seed=np.int32(-1))


def bad_inputs():
    nan, inf = torch.randn(4, 6), torch.randn(4, 6)
    nan[2, 1], inf[3, 0] = float("nan"), float("inf")
    good = torch.randn(4, 6)
    return [
        (dict(x=nan), "image 2"),
        (dict(x=inf), "image 3"),
        (dict(x=torch.empty(0, 6)), r"one image, but its shape is \(0, 6\)"),
        (dict(x=torch.empty(4, 0)), r"one value an image, but its shape is \(4, 0\)"),
        (dict(x=good.to_sparse()), r"not a sparse_coo one; give x\.to_dense\(\)"),
        (dict(x=torch.nested.nested_tensor([good, good[:2]], layout=torch.jagged)), "not a nested one"),
        (dict(x=[]), "no batch"),
        (dict(x="images"), "str"),
        (dict(x=good.tolist()), r"not float; give a list of numbers as torch\.tensor\(x\)"),
        (dict(x=torch.empty(4, 6, device="meta").float()), "meta"),
        (dict(x=good, samples=0), "0"),
        (dict(x=good, samples=2.5), "2.5"),
        (dict(x=good, seed=-1), "-1"),
        (dict(x=good, seed=1 << 64), "18446744073709551616"),
        (dict(x=good, outputs="scores"), "scores"),
        (dict(x=good, outputs="probs"), "are not probabilities: (one is -|those of an image sum)"),
        (dict(x=good, index=torch.arange(3)), "3 images"),
        (dict(x=good, index=torch.arange(4.0)), "float32"),
        (dict(x=good, index="abcd"), "integers, not str"),
        (dict(x=good, index=torch.ones(4, dtype=torch.complex64)), "complex64"),
        (dict(x=good, index=torch.tensor([0, 1, 2, -3])), "-3"),
        (dict(x=[good, good], index=torch.arange(9)), "9 images"),
        (dict(x=good, adaptive=0.5), "0.5"),
        (dict(x=good, adaptive=rbue.Adaptive(), return_samples=True), "return_samples"),
        (dict(x=good, memory="1GB"), "'1GB'"),
        (dict(x=good, memory=0), "not 0"),
        (dict(x=good, memory=float("nan")), "not nan"),
    ]


@pytest.mark.parametrize(("arguments", "message"), bad_inputs())
def test_bad_input_is_one_clear_sentence(arguments, message):
    network = rbue.convert(StatementInPlace(), rbue.DropReLU(0.5))
    with pytest.raises(InvalidInput, match=message) as error:
        rbue.predict(network, **{"samples": 2, **arguments})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("output", [(torch.zeros(4, 2), None), {"scores": torch.zeros(4, 2)}, None])
def test_output_without_class_scores_names_the_way_out(output):
    with pytest.raises(RbueError, match=f"returned {type(output).__name__}; .*wrap the network in a module"):
        class_scores(output)


def test_a_hook_picks_the_class_scores_of_a_tuple():
    class WithFeatures(StatementInPlace):
        def forward(self, x):
            return super().forward(x), x

    network, x = rbue.convert(WithFeatures(), rbue.DropReLU(0.5)), torch.randn(4, 6)
    with pytest.raises(RbueError, match=r"net.register_forward_hook\(lambda net, x, out: out\[0\]\)"):
        rbue.predict(network, x, samples=3)
    network.register_forward_hook(lambda net, x, out: out[0])
    plain = rbue.convert(StatementInPlace(), rbue.DropReLU(0.5))
    plain.load_state_dict(network.state_dict())
    assert torch.equal(rbue.predict(network, x, samples=3).probs, rbue.predict(plain, x, samples=3).probs)


def test_nan_in_a_later_batch_is_named_by_the_number_of_its_image():
    network = rbue.convert(StatementInPlace(), rbue.DropReLU(0.5))
    x = torch.randn(6, 6)
    x[5, 0] = float("nan")
    with pytest.raises(InvalidInput, match="x holds NaN or infinity, first in image 5;"):
        rbue.predict(network, x.split(4), samples=2)
    with pytest.raises(InvalidInput, match=f"first in image {2**32 - 1};"):
        rbue.predict(network, x, samples=2, index=torch.arange(6) + 2**32 - 6)
    huge = torch.full((6, 6), 1e38)
    huge[:5] = 0
    with torch.no_grad():
        network.head.weight.fill_(1e38)
    with pytest.raises(InvalidInput, match="returned NaN or infinity, first for image 5;"):
        rbue.predict(network, huge.split(4), samples=2)
    with (
        torch.autocast("cpu", torch.float16),
        pytest.raises(InvalidInput, match=r"first for image 0; float16 ends at 65,504, so use bfloat16 or float32\."),
    ):
        rbue.predict(network, torch.full((6, 6), 1e4), samples=2)


def test_an_unconverted_network_is_told_how():
    with pytest.raises(ConversionError, match=r"rbue\.convert"):
        rbue.predict(StatementInPlace(), torch.randn(4, 6))


def test_votes_and_label_of_a_known_mixture():
    """A network whose output is the mask itself: probabilities follow the keep rate."""

    class Coin(nn.Module):
        def forward(self, x):
            return torch.cat([F_relu(x), torch.full_like(x, -0.5)], 1) * 50

    F_relu = nn.functional.relu
    q = 0.7
    network = rbue.convert(Coin(), rbue.DropReLU(q))
    found = rbue.predict(network, torch.full((2000, 1), -1.0), samples=100, draws="independent")
    kept = found.votes[:, 0].double() / 100
    error = np.sqrt(q * (1 - q) / 2000 / 100)
    assert abs(float(kept.mean()) - q) < 4 * error
    # each image is a binomial of its own
    assert abs(float(kept.var()) - q * (1 - q) / 100) < 4 * np.sqrt(2 / 2000) * q * (1 - q) / 100


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.Conv1d(4, 4, 1)])
@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        *(torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    ],
)
def test_an_input_of_another_type_is_named(layer, dtype):
    x = torch.ones((3, 4) if isinstance(layer, nn.Linear) else (3, 4, 2))
    net = rbue.convert(nn.Sequential(layer, nn.ReLU()), rbue.DropReLU(0.5), example=x)
    with pytest.raises(rbue.InvalidInput, match=rf"x is {dtype} but the network is torch.float32.*x.to\("):
        rbue.predict(net, x.to(dtype), samples=2)


def test_types_that_differ_inside_the_network_are_not_blamed_on_the_input():
    net = rbue.convert(nn.Sequential(nn.Embedding(9, 4), nn.ReLU(), nn.Linear(4, 2).double()), rbue.DropReLU(0.5))
    with pytest.raises(RuntimeError, match="dtype") as caught:
        rbue.predict(net, torch.ones(3, 5, dtype=torch.int64), samples=2)
    assert "give x" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint64])
def test_images_are_numbered_by_integers_of_any_type(dtype):
    net = rbue.convert(StatementInPlace(), rbue.DropReLU(0.5))
    x, numbers = torch.randn(4, 6), torch.tensor([3, 1, 4, 5])
    expected = rbue.predict(net, x, samples=3, index=numbers).probs
    assert torch.equal(rbue.predict(net, x, samples=3, index=numbers.to(dtype)).probs, expected)


class WithoutClasses(nn.Module):
    def forward(self, x):
        return x.relu()[:, :0]


def test_outputs_without_classes_are_refused():
    net = rbue.convert(WithoutClasses(), rbue.DropReLU(0.5))
    with pytest.raises(rbue.RbueError, match="which has no class scores"):
        rbue.predict(net, torch.ones(3, 4), samples=2)


class Squeezes(nn.Module):
    """An image alone loses its batch dimension: in the middle, so that it is one vector, or at the end."""

    def __init__(self, scores, last):
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(3, 8, 3), nn.Linear(8, 16), nn.Linear(16, scores)
        self.last = last

    def forward(self, x):
        x = self.conv(x).mean((2, 3), keepdim=True)
        x = self.fc2(torch.relu(self.fc1(x.flatten(1) if self.last else x.squeeze())))
        return x.squeeze() if self.last else x


@pytest.mark.parametrize(("scores", "last"), [(4, False), (1, True), (4, True)])
@pytest.mark.parametrize("samples", [1, 6])
def test_a_squeeze_does_not_keep_an_image_from_being_alone(scores, last, samples):
    torch.manual_seed(0)
    network, x = rbue.convert(Squeezes(scores, last), rbue.DropReLU(0.5)), torch.randn(3, 3, 8, 8)
    outputs = "binary" if scores == 1 else "logits"
    together = rbue.predict(network, x, samples=samples, outputs=outputs)
    apart = rbue.predict(network, list(x.split(1)), samples=samples, outputs=outputs)
    in_pieces = rbue.predict(network, x, samples=samples, memory=1, outputs=outputs)
    for found in (apart, in_pieces):
        assert torch.allclose(found.probs, together.probs, atol=1e-6)


class Decides(nn.Module):
    def __init__(self, decide):
        super().__init__()
        self.decide = decide

    def forward(self, x):
        return self.decide(x.relu())


@pytest.mark.parametrize(
    ("decide", "kind"),
    [(lambda x: x.argmax(1), "int64"), (lambda x: x > 0, "bool"), (lambda x: torch.fft.fft(x), "complex64")],
)
def test_answers_in_the_place_of_scores_are_refused(decide, kind):
    net = rbue.convert(Decides(decide), rbue.DropReLU(0.5))
    with pytest.raises(rbue.RbueError, match=f"returned torch.{kind}.* before any argmax"):
        rbue.predict(net, torch.randn(3, 4), samples=2)


def test_the_temperature_of_a_network_is_applied_unless_told_otherwise():
    network, x = build("residual")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    plain = rbue.predict(network, x, samples=8)
    assert plain.temperature == 1
    rbue.set_temperature(network, 2.0)
    kept = rbue.predict(network, x.split(2), samples=8, return_samples=True)
    assert (kept.temperature, kept.unscaled_probs.shape) == (2.0, plain.probs.shape)
    torch.testing.assert_close(kept.probs, plain.scaled(2.0).probs)
    torch.testing.assert_close(kept.samples.mean(0), kept.unscaled_probs)
    assert torch.equal(rbue.predict(network, x, samples=8, temperature=False).probs, plain.probs)
    for given in (3.0, rbue.calibration.Temperature(3.0)):
        assert torch.equal(rbue.predict(network, x, samples=8, temperature=given).probs, plain.scaled(3.0).probs)
    for bad in (0, "hot", None):
        with pytest.raises(InvalidInput, match="temperature"):
            rbue.predict(network, x, samples=8, temperature=bad)


def test_warming_up_leaves_a_later_prediction_nothing_to_find_out():
    network, x = build("residual")
    rbue.convert(network, rbue.DropReLU(0.6), example=x)
    expected = rbue.predict(copy.deepcopy(network), x, samples=8).probs
    calls = []
    network.register_forward_pre_hook(lambda module, args: calls.append(len(args[0])))
    network.train()
    assert rbue.warm_up(network, DataLoader(torch.zeros_like(x), batch_size=len(x)), samples=8) is None
    assert network.training
    assert len(calls) > 1
    calls.clear()
    assert torch.equal(rbue.predict(network, x, samples=8).probs, expected)
    assert len(calls) == 1
    with pytest.raises(InvalidInput, match="nothing to warm up with"):
        rbue.warm_up(network, [])


@pytest.mark.parametrize("x", [torch.tensor(1.0), {"x": 3}, {}], ids=["one number", "no tensor", "nothing"])
def test_warming_up_says_of_an_input_without_images_what_predict_says(x):
    network, example = build("residual")
    rbue.convert(network, rbue.DropReLU(0.6), example=example)
    for ask in (rbue.predict, rbue.warm_up):
        with pytest.raises(InvalidInput, match=r"must hold at least one image|x holds no tensor"):
            ask(network, x, samples=8)
