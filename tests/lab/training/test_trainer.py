"""The training loop: deterministic, resumable, and it learns."""

import gc
import threading
import weakref
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rbue.errors import InvalidInput, RbueError, RbueWarning
from rbue.lab.methods import parse
from rbue.lab.processes import Rank
from rbue.lab.training import Batches, Job, Recipe, train, train_together, trainer
from rbue.lab.training.batches import crop, epoch_seed
from rbue.lab.training.checkpoint import CheckpointWriter, load_checkpoint, read_tensors, snapshot
from rbue.lab.training.step import TrainingStep, restart_randomness

CPU = torch.device("cpu")
METHODS = ["single", "mc-dropout:0.2", "svi", "mc-droprelu:0.8", "mc-rrelu"]
RELATED = ["snapshot-ensemble:2", "swag:2,3", "batch-ensemble:2", "packed-ensemble:2", "treenet:2", "sgld:2,2,1"]


def stripes(count=96, seed=0):
    """Two classes: horizontal and vertical stripes under noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    pattern = (np.arange(8) % 2 * 120).astype(np.float64)
    clean = np.where(labels[:, None, None] == 0, pattern[None, :, None], pattern[None, None, :])
    images = np.clip(clean + rng.normal(60, 40, (count, 8, 8)), 0, 255).astype(np.uint8)
    return images[..., None], labels


def batches(seed=0, count=96, **changes):
    images, labels = stripes(count)
    settings = {"batch": 20, "padding": 1, "flip": True, "seed": seed, "device": CPU, **changes}
    return Batches(images, labels, [0.4], [0.25], **settings)


def fresh(method, seed=0):
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32, 2),
    )
    return method.prepare(network, torch.zeros(1, 1, 8, 8))


class Returning(nn.Module):
    """A network whose scores come in some form."""

    def __init__(self, form):
        super().__init__()
        self.body, self.form = fresh(parse("single")), form

    def forward(self, x):
        return self.form(self.body(x))


@pytest.mark.parametrize("spec", METHODS)
def test_a_network_that_returns_a_dict_trains_as_one_that_returns_its_scores(spec):
    method = parse(spec)
    losses = []
    for form in (lambda scores: scores, lambda scores: {"logits": scores}):
        network, reports = method.prepare(Returning(form), torch.zeros(1, 1, 8, 8)), []
        train(Job(network, method, batches(), Recipe(epochs=1, batch=20), 0, report=reports.append), "plain")
        losses.append(reports[0].loss)
    assert losses[0] == losses[1]


def write(path, network, optimiser, progress):
    writer = CheckpointWriter(path)
    writer.start(snapshot(network, optimiser), progress)
    writer.close()


def epoch_of(data, number):
    """The batches of one epoch."""
    plan = data.plan(number)
    return [data.take(plan, places) for places in torch.arange(len(data.images)).split(data.batch)]


FEW = 30
"""Images of a whole batch and a part of one, where nothing is to be learned."""
RECIPE = Recipe(epochs=6, batch=20, learning_rate=0.05, padding=1)


def train_one(network, method, data, run_seed, engine="plain", **settings):
    return train(Job(network, method, data, RECIPE, run_seed, **settings), engine)


def weights(network):
    return {name: value.clone() for name, value in network.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("spec", METHODS)
def test_same_seed_same_weights_and_another_seed_others(spec):
    method = parse(spec)
    results = []
    for run_seed in (1, 1, 2):
        network = fresh(method)
        train_one(network, method, batches(run_seed, FEW), run_seed)
        results.append(weights(network))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


@pytest.mark.parametrize("spec", METHODS)
def test_the_seed_of_a_run_decides_more_than_its_batches(spec):
    """Masks and noise too, where a method has any."""
    method, results = parse(spec), []
    for run_seed in (1, 2):
        network = fresh(method)
        train(Job(network, method, batches(), replace(RECIPE, epochs=1), run_seed), "plain")
        results.append(weights(network))
    assert same(*results) is (spec == "single")


@pytest.mark.parametrize(
    ("spec", "stop"), [*((spec, 3) for spec in METHODS + RELATED), ("svi", 1), ("mc-droprelu:0.8", 5)]
)
def test_a_run_stopped_after_any_epoch_ends_in_the_same_weights(spec, stop, tmp_path):
    method = parse(spec)
    whole = fresh(method)
    expected = train_one(whole, method, batches(count=FEW), 0)

    class Stop(Exception):
        pass

    def interrupt(report):
        if report.epoch == stop:  # after so many whole epochs
            raise Stop

    file = tmp_path / "state.safetensors"
    with pytest.raises(Stop):
        train_one(fresh(method), method, batches(count=FEW), 0, checkpoint=file, report=interrupt)
    torch.rand(7)  # whatever else happened to the global generator
    continued = fresh(method, seed=9)
    found = train_one(continued, method, batches(count=FEW), 0, checkpoint=file)
    assert same(weights(whole), weights(continued))
    assert (found.loss, found.accuracy) == (expected.loss, expected.accuracy)


@pytest.fixture
def timed(monkeypatch):
    """Makes networks whose passes, and nothing else, take a second each: an epoch of one has five."""
    now = [0.0]

    def pass_time(*_):
        now[0] += 1

    def make():
        network = fresh(parse("single"))
        network.register_forward_pre_hook(pass_time)
        return network

    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return make


def test_seconds_are_those_of_all_starts(timed, tmp_path):
    class Stop(Exception):
        pass

    def interrupt(report):
        assert report.seconds == 5
        if report.epoch == 3:
            raise Stop

    file = tmp_path / "state.safetensors"
    with pytest.raises(Stop):
        train_one(timed(), parse("single"), batches(), 0, checkpoint=file, report=interrupt)
    assert train_one(timed(), parse("single"), batches(), 0, checkpoint=file).seconds == 30


def test_networks_side_by_side_share_the_clock(timed):
    reports = []
    jobs = [Job(timed(), parse("single"), batches(), RECIPE, 0, report=reports.append) for _ in range(2)]
    assert [one.seconds for one in train_together(jobs, "plain")] == [30, 30]
    assert {one.seconds for one in reports} == {5}


@pytest.mark.parametrize("spec", [*METHODS, *(pytest.param(spec, marks=pytest.mark.slow) for spec in RELATED)])
def test_training_learns(spec):
    method = parse(spec)
    network = fresh(method)
    losses = []
    summary = train_one(network, method, batches(), 0, report=lambda r: losses.append(r.loss))
    assert summary.accuracy > 0.85
    assert len(losses) == 6
    if spec != "svi":  # its loss grows with the weight of the divergence
        assert losses[-1] < 0.7 * losses[0]


def test_a_finished_run_does_nothing_more(tmp_path):
    method, file = parse("single"), tmp_path / "state.safetensors"
    network = fresh(method)
    train_one(network, method, batches(), 0, checkpoint=file)
    before, reports = weights(network), []
    train_one(network, method, batches(), 0, checkpoint=file, report=reports.append)
    assert same(before, weights(network))
    assert reports == []


def test_epochs_are_the_same_each_time_and_differ_from_each_other():
    data = batches()
    first, again, second = (torch.cat([x for x, _ in epoch_of(data, n)]) for n in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert len(list(epoch_of(data, 0))) == len(data) == 5
    assert [len(y) for _, y in epoch_of(data, 0)] == [20, 20, 20, 20, 16]
    labels = torch.cat([y for _, y in epoch_of(data, 3)])
    assert labels.sort()[0].equal(data.labels.sort()[0])


def test_without_augmentation_a_batch_is_the_normalised_images():
    images, labels = stripes()
    data = batches(padding=0, flip=False, batch=96)
    ((x, y),) = epoch_of(data, 0)
    assert x.shape == (96, 1, 8, 8)
    expected = (images / 255 - 0.4) / 0.25
    order = torch.randperm(96, generator=torch.Generator().manual_seed(epoch_seed(0, 0)))
    np.testing.assert_allclose(x.permute(0, 2, 3, 1), expected[order], atol=1e-5)
    np.testing.assert_array_equal(y, labels[order])


def test_crops_shift_by_the_given_amounts_and_pad_with_zeros():
    x = torch.arange(1, 17, dtype=torch.uint8).reshape(1, 4, 4, 1)
    middle = crop(x, 1, torch.tensor([[1, 1]]))
    assert torch.equal(middle, x)
    corner = crop(x, 1, torch.tensor([[0, 2]]))[0, :, :, 0]
    assert corner.tolist() == [[0, 0, 0, 0], [2, 3, 4, 0], [6, 7, 8, 0], [10, 11, 12, 0]]


def test_images_are_cut_and_mirrored_as_the_plan_of_the_epoch_says():
    images, labels = stripes()
    data = batches(padding=2, flip=True)
    plan = data.plan(4)
    assert set(plan.shifts.flatten().tolist()) == {0, 1, 2, 3, 4}
    assert 30 < int(plan.flips.sum()) < 66
    x, y = data.take(plan, torch.arange(96))
    for place, number in enumerate(plan.order.tolist()):
        row, column = plan.shifts[place].tolist()
        cut = np.pad(images[number, :, :, 0], 2)[row : row + 8, column : column + 8]
        expected = cut[:, ::-1] if plan.flips[place] else cut
        np.testing.assert_allclose(x[place, 0], (expected / 255 - 0.4) / 0.25, atol=1e-5)
        assert y[place] == labels[number]


def test_epoch_seeds_do_not_meet():
    seeds = {epoch_seed(seed, epoch) for seed in (0, 1, 2, 1 << 40) for epoch in range(1000)}
    assert len(seeds) == 4000


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    method, file = parse("single"), tmp_path / "state.safetensors"
    other = nn.Linear(3, 2)
    write(file, other, torch.optim.SGD(other.parameters(), lr=1), {"epoch": 1})
    network = fresh(method)
    before = weights(network)
    with pytest.raises(RbueError, match="another network"):
        load_checkpoint(file, network, torch.optim.SGD(network.parameters(), lr=1))
    assert same(before, weights(network))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"recipe": replace(RECIPE, epochs=2)}, "epochs 6, not 2"),
        ({"recipe": replace(RECIPE, milestones=(0.5,))}, r"milestones \[0.45, 0.675, 0.9\], not \[0.5\]"),
        ({"run_seed": 1}, "seed 0, not 1"),
        ({"method": parse("mc-droprelu:0.8")}, "method mc-droprelu:0.9, not mc-droprelu:0.8"),
        ({"made_from": {"images": "other"}}, "images these, not other"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(changed, said, tmp_path):
    method, file = parse("mc-droprelu:0.9"), tmp_path / "state.safetensors"
    job = Job(fresh(method), method, batches(), RECIPE, 0, file, made_from={"images": "these"})
    train(job, "plain")
    network = fresh(method)
    before = weights(network)
    with pytest.raises(RbueError, match=f"{file} holds a training with {said}; remove it"):
        train(replace(job, network=network, **changed), "plain")
    assert same(before, weights(network))


def test_a_checkpoint_from_before_settings_were_noted_is_continued(tmp_path):
    method, file = parse("single"), tmp_path / "state.safetensors"
    job = Job(fresh(method), method, batches(), RECIPE, 0, file)
    train(job, "plain")
    tensors, note = read_tensors(file)
    del note["settings"]
    writer = CheckpointWriter(file)
    writer.start(tensors, note)
    writer.close()
    assert train(replace(job, network=fresh(method)), "plain").epochs == 6


class AroundConverted(nn.Module):
    """A network with random sites that itself was not converted."""

    def __init__(self, method):
        super().__init__()
        self.body, self.also = fresh(method), fresh(method)

    def forward(self, x):
        return self.body(x) + self.also(x)


def test_converted_networks_inside_of_another_continue_with_their_masks(tmp_path):
    method = parse("mc-droprelu:0.5")

    def stop(report):
        if report.epoch == 2:
            raise KeyboardInterrupt

    whole, stopped = AroundConverted(method), AroundConverted(method)
    train_one(whole, parse("single"), batches(), 0)
    file = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_one(stopped, parse("single"), batches(), 0, checkpoint=file, report=stop)
    continued = AroundConverted(method)
    train_one(continued, parse("single"), batches(), 0, checkpoint=file)
    assert same(weights(whole), weights(continued))
    equal_parts = AroundConverted(method)
    restart_randomness(equal_parts, 0, 0)
    x = torch.linspace(-1, 1, 128).view(2, 1, 8, 8)
    assert not torch.equal(equal_parts.body(x), equal_parts.also(x))


def test_training_leaves_the_numbers_of_torch_alone():
    method = parse("mc-droprelu:0.5")
    network = fresh(method)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train_one(network, method, batches(), 0)
    assert torch.rand(3).equal(expected)


def test_an_epoch_seeds_torch_as_torch_does():
    network = fresh(parse("single"))
    restart_randomness(network, 3, 5, rank=2)
    found = torch.rand(3)
    torch.manual_seed(epoch_seed(epoch_seed(3, 5), 2))
    assert torch.rand(3).equal(found)


def test_a_step_is_gone_with_its_training(monkeypatch):
    """Not only when Python looks for cycles: on a GPU its memory would be held until then."""
    seen, method = [], parse("mc-droprelu:0.8")
    real = trainer.engine_for
    monkeypatch.setattr(trainer, "engine_for", lambda step, *more: seen.append(weakref.ref(step)) or real(step, *more))
    train_one(fresh(method), method, batches(), 0)  # the first backward pass imports what leaves frames behind
    gc.disable()
    try:
        train_one(fresh(method), method, batches(), 0)
        assert seen[1]() is None
    finally:
        gc.enable()


def test_a_training_that_diverges_says_so_and_is_not_done(tmp_path):
    method, file = parse("single"), tmp_path / "state.safetensors"
    recipe = Recipe(epochs=6, batch=20, learning_rate=1e12, padding=1)
    with pytest.raises(RbueError, match="diverged in epoch"):
        train(Job(fresh(method), method, batches(), recipe, 0, checkpoint=file), "plain")


def test_a_last_step_that_breaks_the_weights_is_noticed_although_the_loss_came_before_it(tmp_path):
    method, file = parse("single"), tmp_path / "state.safetensors"
    recipe = Recipe(epochs=1, batch=5000, learning_rate=1e38, weight_decay=1e3, padding=1)
    with pytest.raises(RbueError, match="diverged in epoch 1: its last step left weights or statistics that are not"):
        train(Job(fresh(method), method, batches(batch=5000), recipe, 0, checkpoint=file), "plain")
    assert not file.exists()


class Loud(nn.Module):
    """Feature maps so large that their variance, and nothing else, is no number any more; and a mask."""

    def __init__(self, loudness):
        super().__init__()
        self.body, self.loudness = fresh(parse("single")), loudness
        self.register_buffer("mask", torch.tensor([-torch.inf, 0.0]))

    def forward(self, x):
        return self.body[1:](self.body[0](x) * self.loudness)


@pytest.mark.parametrize("loudness", [1.0, 1e20])
def test_statistics_that_are_not_finite_are_noticed_and_masks_are_none(loudness):
    method = parse("single")
    network = Loud(loudness)
    with pytest.raises(RbueError, match="diverged in epoch 6") if loudness > 1 else nullcontext():
        train_one(network, method, batches(), 0)
    assert all(torch.isfinite(parameter).all() for parameter in network.parameters())
    assert bool(torch.isfinite(network.body[1].running_var).all()) is (loudness == 1)


@pytest.mark.parametrize(
    ("batch", "processes", "sizes"),
    [
        (19, 1, [19] * 5),
        (29, 1, [29] * 3 + [9]),
        (29, 2, [29] * 3),
        (31, 1, [31] * 3),
        (40, 2, [40] * 2 + [16]),
        (7, 1, [7] * 13),
        (96, 1, [96]),
        (200, 2, [96]),
    ],
)
def test_a_last_batch_with_few_images_for_a_process_is_left_out(batch, processes, sizes):
    method = parse("single")
    step = TrainingStep(fresh(method), method, batches(batch=batch), RECIPE, 0, Rank(0, processes))
    assert list(step.batch_sizes()) == sizes


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_without_batchnorm_the_batches_do_not_depend_on_the_number_of_processes(processes):
    method, network = parse("single"), nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    steps = [TrainingStep(network, method, batches(batch=size), RECIPE, 0, Rank(0, processes)) for size in (31, 19)]
    assert [list(step.batch_sizes()) for step in steps] == [[31] * 3 + [3], [19] * 5]


@pytest.mark.parametrize(
    ("batch", "processes", "sizes"), [(29, 4, [29] * 3 + [9]), (29, 12, [29] * 3), (31, 2, [31] * 3)]
)
def test_with_batchnorm_over_the_whole_batch_few_images_are_those_of_all_processes(batch, processes, sizes):
    method = parse("single")
    network = nn.SyncBatchNorm.convert_sync_batchnorm(fresh(method))
    step = TrainingStep(network, method, batches(batch=batch), RECIPE, 0, Rank(0, processes))
    assert list(step.batch_sizes()) == sizes


def test_processes_that_see_other_checkpoints_are_refused(tmp_path, monkeypatch):
    method = parse("single")
    monkeypatch.setattr(Rank, "of_all", lambda self, value: [value, 7])
    with pytest.raises(RbueError, match=r"would begin after 0, 7 epochs; put the folder of runs.*where all machines"):
        train(Job(fresh(method), method, batches(), RECIPE, 0, tmp_path / "state.safetensors"), "plain")


def test_every_process_draws_noise_of_its_own():
    network = fresh(parse("single"))
    drawn = []
    for rank in (0, 1):
        restart_randomness(network, 0, 3, rank)
        drawn.append(torch.rand(4))
    assert not torch.equal(*drawn)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_small_batches_are_trained_on(batch):
    method = parse("single")
    step = TrainingStep(fresh(method), method, batches(batch=batch), Recipe(epochs=1, batch=batch), run_seed=0)
    assert sum(step.batch_sizes()) in (96, 95)
    assert set(list(step.batch_sizes())[:-1]) == {batch}


def test_a_batch_is_not_shared_by_more_processes_than_it_has_images():
    method = parse("single")
    with pytest.raises(InvalidInput, match="a batch of 2 cannot be shared by 3 processes"):
        TrainingStep(fresh(method), method, batches(batch=2), Recipe(batch=2), run_seed=0, rank=Rank(0, 3))


def test_a_lost_checkpoint_is_mentioned_when_training_is_stopped(tmp_path, monkeypatch):
    def full(path, content, wait=0.0):
        raise RbueError("No space left on device")

    def stop(report):
        if report.epoch == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("rbue.lab.training.checkpoint.write_bytes", full)
    method = parse("single")
    with (
        pytest.warns(RbueWarning, match="the last checkpoint is lost: No space left"),
        pytest.raises(KeyboardInterrupt),
    ):
        train_one(fresh(method), method, batches(), 0, checkpoint=tmp_path / "state", report=stop)


def test_no_checkpoint_is_taken_while_one_is_being_written(tmp_path, monkeypatch):
    taken, go_on = [], threading.Event()

    def slow(path, content, wait=0.0):
        taken.append(len(content))
        go_on.wait(10)

    def report(epoch):
        if epoch.epoch == RECIPE.epochs - 1:
            go_on.set()

    monkeypatch.setattr("rbue.lab.training.checkpoint.write_bytes", slow)
    method = parse("single")
    train_one(fresh(method), method, batches(), 0, checkpoint=tmp_path / "state", report=report)
    assert len(taken) == 2  # of the first epoch and of the last


def test_a_batch_of_one_that_batch_norm_cannot_take_is_explained():
    method = parse("single")
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(1, 2))
    with pytest.raises(InvalidInput, match="use a batch of at least 2"):
        train(Job(network, method, batches(batch=1), Recipe(epochs=1, batch=1), 0), "plain")


@pytest.mark.parametrize("spec", METHODS)
def test_weight_decay_leaves_standard_deviations_alone(spec):
    method = parse(spec)
    network = fresh(method)
    step = TrainingStep(network, method, batches(), replace(RECIPE, weight_decay=0.1), 0)
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    step.optimiser.step()
    for name, parameter in network.named_parameters():
        decays = not name.endswith("weight_rho") and bool(before[name].any())
        assert parameter.equal(before[name]) is not decays, name


@pytest.mark.parametrize("spec", ["mc-droprelu:0.8", "mc-rrelu", "mc-dropout:0.2"])
def test_steps_draw_what_plain_calls_draw(spec):
    """Call after call, with a smaller last batch: the loop most people would write ends in the same weights."""
    method = parse(spec)
    network, written = fresh(method), fresh(method)
    step, plain = (TrainingStep(one, method, batches(), RECIPE, 0) for one in (network, written))
    step.start_epoch(0)
    plain.start_epoch(0)
    sizes = list(step.batch_sizes())
    for start, rows in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
        step(rows)
        (loss, _), _ = plain.loss_at(torch.arange(start, start + rows))
        plain.optimiser.zero_grad()
        loss.backward()
        plain.optimiser.step()
    for found, expected in zip(network.parameters(), written.parameters(), strict=True):
        assert found.equal(expected)


@pytest.mark.parametrize("mixup", [0.0, 0.5])
@pytest.mark.parametrize("spec", ["single", "mc-droprelu:0.5"])
@pytest.mark.parametrize(("rows", "processes"), [(9, 2), (2, 3), (9, 3)])
def test_processes_take_the_step_of_one_on_average(rows, processes, spec, mixup):
    """Nine images and two processes: four and five; two and three: one has none.

    The gradients are averaged over processes, not over images. Masks and pairs are those of the whole batch.
    """
    method = parse(spec)
    recipe = Recipe(epochs=1, batch=9, learning_rate=1.0, momentum=0, weight_decay=0, padding=1, mixup=mixup)
    steps, sums = [], []
    for rank in (Rank(), *(Rank(index, processes) for index in range(processes))):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2)).double()
        network = method.prepare(network, torch.zeros(2, 1, 8, 8, dtype=torch.float64))
        before = network[1].weight.detach().clone()
        data = batches(batch=9, mixup=mixup)
        data.normalise = lambda x: x.permute(0, 3, 1, 2).double() / 255
        step = TrainingStep(network, method, data, recipe, 0, rank)
        step.start_epoch(0)
        step(rows)
        steps.append(network[1].weight.detach() - before)
        sums.append(torch.stack([step.loss_sum.double(), step.correct.double()]))
    torch.testing.assert_close(sum(steps[1:]) / processes, steps[0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(sum(sums[1:]), sums[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("nesterov", "batch", "images"), [(True, 40, 96), (False, 19, 95)])
def test_training_is_sgd_as_the_recipe_says_step_by_step(nesterov, batch, images):
    """By hand: momentum, weight decay, a rate that drops, and means over the images that were trained on.

    The last batch is smaller than the others, or a single image that is left out.
    """
    changes = {"momentum": 0.6, "nesterov": nesterov, "weight_decay": 0.03, "padding": 0, "flip": False}
    recipe = Recipe(epochs=2, batch=batch, learning_rate=0.2, milestones=(0.5,), factor=0.25, **changes)
    method, data, reports = parse("single"), batches(batch=batch, padding=0, flip=False), []
    torch.manual_seed(0)
    network, written = (nn.Sequential(nn.Flatten(), nn.Linear(64, 2)) for _ in range(2))
    written.load_state_dict(network.state_dict())
    train(Job(network, method, data, recipe, 0, report=reports.append), "plain")

    speeds = [torch.zeros_like(parameter) for parameter in written.parameters()]
    for epoch, rate in enumerate((0.2, 0.05)):
        trained_on = [(x, y) for x, y in epoch_of(data, epoch) if len(y) > 1]
        loss_sum, correct, count = 0.0, 0, sum(len(y) for _, y in trained_on)
        for x, y in trained_on:
            loss = F.cross_entropy(written(x), y)
            loss_sum, correct = loss_sum + loss.item() * len(y), correct + int((written(x).argmax(1) == y).sum())
            slopes = torch.autograd.grad(loss, list(written.parameters()))
            with torch.no_grad():
                for parameter, slope, speed in zip(written.parameters(), slopes, speeds, strict=True):
                    slope = slope + 0.03 * parameter
                    speed.mul_(0.6).add_(slope)
                    parameter -= rate * (slope + 0.6 * speed if nesterov else speed)
        found = reports[epoch]
        assert (found.epoch, found.learning_rate, count) == (epoch, pytest.approx(rate), images)
        assert (found.loss, found.accuracy) == (pytest.approx(loss_sum / count, rel=1e-5), correct / count)
    for found, expected in zip(network.parameters(), written.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_network_that_comes_in_evaluation_is_trained_like_any_other():
    method = parse("single")
    usual, evaluated = fresh(method), fresh(method).eval()
    for network in (usual, evaluated):
        train_one(network, method, batches(), 0)
    assert same(weights(usual), weights(evaluated))


def test_a_loss_is_told_how_far_the_whole_training_has_come():
    """The warm-up of SVI depends on it: also in later epochs, and after a stop."""

    class Noting(type(parse("single"))):
        def loss(self, network, x, y, progress):
            told.append((float(progress.fraction), progress.images))
            return super().loss(network, x, y, progress)

    told, method = [], Noting()
    step = TrainingStep(fresh(method), method, batches(batch=48), replace(RECIPE, epochs=4), 0)
    for epoch in (0, 1, 3):
        step.start_epoch(epoch)
        for rows in step.batch_sizes():
            step(rows)
    assert told == [(done / 8, 96) for done in (0, 1, 2, 3, 6, 7)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda labels: labels[:, None], r"labels must be whole numbers of shape \(96,\), .* not int64 \(96, 1\)"),
        (lambda labels: np.eye(2, dtype=np.int64)[labels], r"one class an image, not int64 \(96, 2\)"),
        (lambda labels: labels + 0.5, r"not float64 \(96,\)"),
        (lambda labels: labels.astype(str), r"not <U\d+ \(96,\)"),
        (lambda labels: labels - 1, "labels must be class numbers from 0, not -1"),
        (lambda labels: labels[:-1], "there are 96 images but 95 labels"),
        (lambda labels: labels[0], "there are 96 images but 1 labels"),
    ],
    ids=["column", "one-hot", "float", "text", "negative", "too few", "one"],
)
def test_labels_that_are_no_classes_are_explained(change, said):
    images, labels = stripes()
    with pytest.raises(InvalidInput, match=said):
        Batches(images, change(labels), [0.4], [0.25], batch=20, padding=1, flip=True, seed=0, device=CPU)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, bool, list])
def test_labels_may_be_whole_numbers_of_any_type(kind):
    images, labels = stripes()
    given = list(labels) if kind is list else labels.astype(kind)
    data = Batches(images, given, [0.4], [0.25], batch=20, padding=1, flip=True, seed=0, device=CPU)
    assert data.labels.equal(batches().labels)


def test_images_that_cannot_be_trained_on_are_explained():
    images, labels = stripes()
    settings = {"batch": 20, "padding": 1, "flip": True, "seed": 0, "device": CPU}
    with pytest.raises(InvalidInput, match=r"nothing to train on: images of shape \(0, 8, 8, 1\)"):
        Batches(images[:0], labels[:0], [0.4], [0.25], **settings)
    for mean, std in (([0.4] * 3, [0.25] * 3), ([0.4], [0.25] * 3), ([0.4] * 3, [0.25])):
        found = f"{len(mean)} and {len(std)}"
        with pytest.raises(InvalidInput, match=rf"mean and std need one number a channel \(1\), not {found}"):
            Batches(images, labels, mean, std, **settings)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"padding": -1}, "padding must be at least 0, not -1"),
        ({"padding": 1.5}, r"padding must be a whole number of at least 0, not 1\.5"),
        ({"padding": 33}, "padding must be at most 32 pixels, 4 times the side of the images, not 33"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"batch": 2.5}, r"batch must be a whole number of at least 1, not 2\.5"),
    ],
)
def test_sizes_that_cannot_be_are_explained(changes, said):
    with pytest.raises(InvalidInput, match=said):
        batches(**changes)


def test_the_largest_padding_can_be_trained_with():
    data = batches(padding=32)
    x, _ = data.take(data.plan(0), torch.arange(96))
    assert x.shape == (96, 1, 8, 8)
