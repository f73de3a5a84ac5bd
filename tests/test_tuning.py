"""``rbue.tune``: what it tries, what it chooses, and that nothing of it is left after ``revert``."""

import copy
import dataclasses
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rbue
from rbue import metrics, tuning
from rbue.augment import Flip, Shift
from rbue.batchnorm import layers_that_vary
from rbue.calibration import Temperature, cross_fitted
from rbue.call_sites.batch import as_batch
from rbue.call_sites.table import last_block
from rbue.tuning import PLAIN


def clouds(count, seed):
    """Ten noisy classes of 6x6 pictures, which overlap."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = torch.randint(10, (count,), generator=generator)
    return centres[y] + 1.6 * torch.randn(count, 1, 6, 6, generator=generator), y


def block(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10))
    network = nn.Sequential(block(1, 16), nn.Sequential(block(16, 32), block(32, 32)), pooled)
    x, y = clouds(2000, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    for _ in range(4):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    return network.eval()


@pytest.fixture
def network(trained):
    return copy.deepcopy(trained)


@pytest.fixture(scope="module")
def validation():
    return clouds(600, 2)


@pytest.fixture(scope="module")
def tuned(trained, validation):
    return rbue.tune(copy.deepcopy(trained), validation, clouds(500, 3)[0], samples=10)


def test_the_best_is_chosen_by_what_was_measured(tuned, validation):
    allowed = [one for one in tuned.tried if one.allowed]
    least = min(allowed, key=lambda one: one.scaled_nll)
    for one in allowed[: allowed.index(tuned.best) + 1]:  # the first that is not clearly worse
        difference = one.losses - least.losses
        assert (difference.mean() > difference.std() / 600**0.5) == (one is not tuned.best)
        assert one.losses.mean() == pytest.approx(one.scaled_nll, rel=1e-4)
    assert all(one.accuracy >= tuned.tried[0].accuracy - 0.002 for one in allowed)
    assert tuned.tried[0].where == PLAIN
    assert {one.where for one in tuned.tried[1:]} == {"last", "all"}  # the last block is the last site here
    drawn = rbue.predict(tuned.network, validation[0], samples=10, temperature=False)
    found = (metrics.accuracy, metrics.nll, metrics.ece)
    stated = tuned.best.accuracy, tuned.best.nll, tuned.best.ece
    assert [float(one(drawn.probs, validation[1])) for one in found] == pytest.approx(stated, abs=1e-5)
    fitted = Temperature.fit(drawn.probs, validation[1], prior=0.5).value
    assert fitted == pytest.approx(tuned.best.temperature, rel=1e-3)
    scaled = cross_fitted(drawn.probs, validation[1], 5, prior=0.5).probs
    stated = tuned.best.scaled_nll, tuned.best.scaled_ece
    assert [float(one(scaled, validation[1])) for one in found[1:]] == pytest.approx(stated, abs=1e-5)
    assert all(0 < one.seconds < 100 for one in tuned.tried)


def test_the_network_has_its_temperature(tuned, validation):
    scaled = rbue.predict(tuned.network, validation[0], samples=10)
    assert scaled.temperature == tuned.best.temperature
    assert rbue.predict(tuned.network, validation[0], samples=10, temperature=False).temperature == 1


def test_any_candidate_can_be_used_and_all_of_it_undone(network, validation):
    network[1][0][0].weight.data[0], network[1][0][0].bias.data[0] = 0, 0  # a channel that never varies
    x, before = validation[0], network(validation[0])
    state = copy.deepcopy(network.state_dict())
    tuned = rbue.tune(network.train(), validation, where=[0, [2, 3], "all"], q=[0.9], samples=4)
    for one in tuned.tried:
        used = tuned.use(one)
        assert rbue.conversion(used).activation == rbue.DropReLU(one.q)
        assert len(rbue.conversion(used).random) == (one.sites or 1)
        drawn = rbue.predict(used, x, samples=4, temperature=False)
        assert float(metrics.nll(drawn.probs, validation[1])) == pytest.approx(one.nll, abs=1e-5)
    assert tuned.revert() is network
    assert not rbue.conversion(network)
    assert network.training
    assert network.eval()(x).equal(before)
    assert all(value.equal(state[name]) for name, value in network.state_dict().items())


def test_every_candidate_answers_by_augmented_passes(network, validation, tmp_path):
    augment, (x, y) = [Flip(), Shift(1)], validation
    plain = rbue.tune(network, validation, where="last", q=0.9, samples=4)
    plain.revert()
    tuned = rbue.tune(network, validation, where="last", q=0.9, samples=4, seed=5, augment=augment)
    for one, other in zip(tuned.tried, plain.tried, strict=True):
        drawn = rbue.predict(tuned.use(one), x, samples=4, seed=5, augment=augment, temperature=False)
        assert float(metrics.nll(drawn.probs, y)) == pytest.approx(one.nll, abs=1e-5)
        assert abs(one.nll - other.nll) > 1e-3  # these pictures are not the same mirrored
    with pytest.warns(rbue.RbueWarning, match="was fitted to augmented passes, and these are not"):
        rbue.predict(network, x, samples=4)
    rbue.save(network, tmp_path / "net.safetensors")
    rbue.load(tmp_path / "net.safetensors", network)
    with pytest.raises(rbue.RbueError, match=r"augmented passes, which a file .*set_temperature"):
        rbue.export(network, tmp_path / "net.pt2", example=x)
    with pytest.raises(rbue.RbueError, match="augment"):
        rbue.tune(tuned.revert(), validation, augment="flip")
    assert not rbue.conversion(network)


def test_statistics_make_up_for_dropped_relus(network, validation):
    plain = rbue.convert(copy.deepcopy(network), rbue.DropReLU(0.3), example=validation[0])
    lost = float(metrics.nll(rbue.predict(plain, validation[0], samples=10).probs, validation[1]))
    found = rbue.tune(network, validation, where=["all"], q=[0.3], samples=10).tried[-1]
    assert found.q == 0.3
    assert found.nll < 0.75 * lost


def test_a_network_that_is_hurt_stays_plain_and_says_so(monkeypatch):
    """Without BatchNorm, and with so many dropped ReLUs that it cannot answer."""
    torch.manual_seed(0)
    x, y = clouds(1500, 1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    held = clouds(400, 2)
    advanced = []
    monkeypatch.setattr(tuning.SampleProgress, "advance", lambda self, done: advanced.append(done))
    tuned = rbue.tune(network, held, where=["all"], q=[0.3, 0.1, 0], samples=4, progress=True)
    assert [(one.where, one.q) for one in tuned.tried] == [(PLAIN, 1), ("all", 0.3), ("all", 0.1)]  # it gets worse
    assert sum(advanced) == 3
    assert tuned.best.where == PLAIN
    assert "plain network with a temperature is best" in repr(tuned)
    assert [line.split()[:3] for line in repr(tuned).splitlines()[1:4]] == [
        ["best", "plain", "0"],
        ["all", "0.3", "2"],
        ["loses", "accuracy", "all"],
    ]
    assert "is best" not in repr(dataclasses.replace(tuned, best=tuned.tried[1]))
    rows = []
    network[1].register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    drawn = rbue.predict(network, held[0])
    assert sum(rows) < 5 * len(held[0])  # a hundred equal passes would be a waste
    expected = Temperature(tuned.best.temperature)(network(held[0]).softmax(1))
    torch.testing.assert_close(drawn.probs, expected, rtol=1e-4, atol=1e-5)
    assert drawn.mutual_information.max() < 1e-6


@pytest.mark.parametrize(
    ("loss", "wrong", "allowed"),
    [
        (0, [0, 1, 2], [True, False, False]),
        (0, [0, 0, 1], [True, True, False]),
        (0.002, [0, 1, 2], [True, True, False]),
        (0.015, [0, 1, 2], [True, True, True]),
    ],
)
def test_one_image_is_no_loss_of_accuracy(loss, wrong, allowed, network, validation, monkeypatch):
    """Where the limit is less than one image; wrong answers are made up."""
    x, y = (part[:200] for part in validation)
    wrong = iter(wrong)

    def accuracy(probs, labels):
        return torch.tensor(0.9 - next(wrong) / 200)

    monkeypatch.setattr(rbue.metrics, "accuracy", accuracy)
    monkeypatch.setattr(tuning, "SampleProgress", None)  # nobody asked for it
    found = rbue.tune(network, (x, y), where=["last"], q=[0.98, 0.95], samples=2, max_accuracy_loss=loss)
    assert [one.allowed for one in found.tried] == allowed[: len(found.tried)]


def test_q_falls_for_as_long_as_the_nll_does(network, validation, monkeypatch):
    """The plain network's is another matter; all are made up."""
    nll, measured = iter([1.0, 4.0, 3.0, 3.0, 3.5]), tuning._Search._measured

    def made_up(*given):
        found, loss = measured(*given), next(nll)
        return dataclasses.replace(found, scaled_nll=loss, losses=torch.full_like(found.losses, loss))

    monkeypatch.setattr(tuning._Search, "_measured", made_up)
    tuned = rbue.tune(network, [part[:50] for part in validation], where="last", q=[0.5, 0.6, 0.7, 0.8, 0.9], samples=1)
    assert [one.q for one in tuned.tried] == [1, 0.9, 0.8, 0.7, 0.6]


def test_a_large_pair_is_run_in_parts(network, validation):
    rows = []
    network[0].register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    rbue.tune(network, validation, where=["last"], q=[0.95], samples=2)
    assert max(rows) == 200  # of 600


def test_loaders_are_the_same_as_tensors(trained, validation):
    pairs = DataLoader(TensorDataset(*validation), batch_size=130)
    settings = {"where": ["last"], "q": [0.9], "samples": 4}
    one = rbue.tune(copy.deepcopy(trained), validation, **settings)
    other = rbue.tune(copy.deepcopy(trained), pairs, **settings)
    for a, b in zip(one.tried, other.tried, strict=True):
        assert (a.accuracy, a.nll, a.ece) == pytest.approx((b.accuracy, b.nll, b.ece), rel=0.05)


def test_labels_of_any_integers_and_dicts(trained, validation):
    x, y = validation
    settings = {"where": "last", "q": 0.9, "samples": 2}
    expected = repr_without_time(rbue.tune(copy.deepcopy(trained), validation, **settings))
    for given in (
        (x.numpy(), y.numpy().astype("uint8")),
        (x, y.int()),
        (x, y.tolist()),
        {"input": x, "labels": y},
        TensorDataset(x, y),
        iter([(x, y.byte())]),
    ):
        assert repr_without_time(rbue.tune(copy.deepcopy(trained), given, **settings)) == expected


def repr_without_time(tuned):
    return [line.rpartition("  ")[0] for line in repr(tuned).splitlines()]


def test_inputs_that_can_be_read_once(network, validation):
    tuned = rbue.tune(network, validation, iter(validation[0].split(200)), where=["all"], q=[0.95, 0.9], samples=2)
    assert len(tuned.tried) == 3


def test_images_that_are_all_right_do_not_make_a_network_sure(network, validation):
    """No mistake asks for the lowest temperature, and a single one in new images would cost everything then."""
    x, _ = validation
    with pytest.warns(rbue.RbueWarning, match="all 600 validation images are right, so the temperature .* is a guess"):
        tuned = rbue.tune(network, (x, network(x).argmax(1)), where=["last"], q=[0.95], samples=4)
    new, y = clouds(1000, 5)
    drawn = rbue.predict(tuned.use(tuned.tried[0]), new, samples=1)
    assert drawn.temperature > 10 * Temperature.LOWEST
    assert metrics.nll(drawn.probs, y) < 0.1 * metrics.nll(drawn.scaled(Temperature.LOWEST).probs, y)


def test_two_classes_from_one_logit():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))
    x, y = clouds(100, 0)
    with pytest.raises(rbue.InvalidInput, match="give outputs='binary' if it is the logit"):
        rbue.tune(network, (x, y % 2), q=0.9)
    with torch.no_grad():
        expected = nn.functional.binary_cross_entropy_with_logits(network(x), (y % 2).float())
    tuned = rbue.tune(network, (x, y % 2), where="all", q=0.9, samples=2, folds=2, outputs="binary")
    assert tuned.tried[0].nll == pytest.approx(float(expected), rel=1e-4)
    assert tuned.tried[1].where == "all"


def test_a_batch_dependent_network_is_not_taken_for_another():
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 10), nn.BatchNorm1d(10, track_running_stats=False), nn.ReLU())
    with pytest.warns(rbue.RbueWarning, match="batch"):
        tuned = rbue.tune(network, clouds(100, 0), where="last", q=0.9, samples=2)
    assert len(tuned.tried) == 2


@pytest.mark.parametrize("wrong", [1, "last", "another network's"], ids=str)
def test_what_is_no_candidate_leaves_the_network_as_it_is(wrong, tuned):
    before = rbue.conversion(tuned.network)
    if wrong == "another network's":
        wrong = dataclasses.replace(tuned.best, nll=9.0)
    with pytest.raises(
        rbue.InvalidInput, match=r"candidate is .*; give one of tuned\.tried, such as tuned\.tried\[1\]"
    ):
        tuned.use(wrong)
    assert before
    assert rbue.conversion(tuned.network) == before


def test_maps_are_tuned_by_image():
    torch.manual_seed(0)
    clipped = nn.Hardtanh(inplace=True)
    network = nn.Sequential(clipped, nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    x, labels = torch.randn(20, 1, 6, 6), torch.randint(3, (20, 6, 6))
    given = x.clone()
    tuned = rbue.tune(network, (x, labels), where="all", q=0.9, samples=2, folds=20, max_accuracy_loss=1)
    assert x.equal(given)
    assert tuned.best.losses.shape == (20,)
    assert tuned.best.losses.mean() == pytest.approx(tuned.best.scaled_nll, rel=1e-4)


class Tagger(nn.Module):
    """Each token by itself."""

    def __init__(self):
        super().__init__()
        self.embedded, self.hidden, self.scores = nn.Embedding(20, 16), nn.Linear(16, 32), nn.Linear(32, 3)

    def forward(self, tokens):
        return self.scores(self.hidden(self.embedded(tokens)).relu())


def test_batches_may_be_padded_to_sizes_of_their_own():
    """They count as they do when all are padded to one."""
    torch.manual_seed(0)
    network = Tagger()
    batches = []
    for size in (7, 9, 5):
        tokens = torch.randint(20, (8, size))
        labels = network(tokens).argmax(2).where(torch.rand(tokens.shape) < 0.6, tokens % 3)
        labels[torch.arange(size) >= torch.randint(1, size + 1, (8, 1))] = -100
        batches.append((tokens, labels))
    whole = [
        (nn.functional.pad(x, (0, 9 - x.shape[1])), nn.functional.pad(y, (0, 9 - y.shape[1]), value=-100))
        for x, y in batches
    ]
    settings = {"outputs": "tokens", "ignore_index": -100, "q": 0.9, "where": "all", "samples": 2}
    own, one = (rbue.tune(copy.deepcopy(network), given, **settings).tried for given in (batches, whole))
    assert len(own) == len(one) == 2
    for score in ("accuracy", "nll", "ece", "temperature", "scaled_nll"):
        assert getattr(own[0], score) == pytest.approx(getattr(one[0], score), rel=1e-5)
    torch.testing.assert_close(own[0].losses, one[0].losses)
    assert own[1].losses.shape == (24,)


def test_classes_that_stand_last_are_told_of_tokens():
    tokens = torch.randint(20, (20, 9))
    with pytest.raises(rbue.InvalidInput, match=r"\(20, 9, 3\) needs .*; classes that stand last are outputs='tokens'"):
        rbue.tune(Tagger(), (tokens, tokens % 3))


def test_a_network_that_returns_nan_is_told_so(network, validation):
    network[2][4].bias.data[3] = math.nan
    with pytest.raises(rbue.InvalidInput, match="the output for batch 0 holds 2000 NaN"):
        rbue.tune(network, validation)
    assert not rbue.conversion(network)


def test_maps_of_several_sizes_have_statistics_too():
    torch.manual_seed(0)
    network = nn.Sequential(block(1, 4), block(4, 4), nn.Conv2d(4, 2, 1))
    batches = [(torch.rand(4, 1, size, size), torch.randint(2, (4, size, size))) for size in (8, 10)]
    tuned = rbue.tune(network, batches, samples=2, q=0.9, where="all", max_accuracy_loss=1)
    assert tuned.tried[1].statistics
    tuned.use(tuned.tried[1])
    drawn = [
        rbue.predict(network, x, index=4 * k + torch.arange(4), samples=2, temperature=False).probs
        for k, (x, _) in enumerate(batches)
    ]
    losses = [-probs.gather(1, y[:, None]).log().flatten() for probs, (_, y) in zip(drawn, batches, strict=True)]
    assert tuned.tried[1].nll == pytest.approx(float(torch.cat(losses).mean()), rel=1e-4)


def test_labels_to_ignore_count_nowhere():
    """Whole images of them neither: each other one is scaled by what fits the others."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    x, labels = 3 * torch.randn(12, 1, 6, 6), torch.randint(3, (12, 6, 6))
    with torch.no_grad():
        labels = labels.where(torch.rand(labels.shape) < 0.5, network(x).argmax(1))
    labels[torch.rand(labels.shape) < torch.linspace(0, 0.9, 12)[:, None, None]] = 255
    labels[5] = 255
    settings = {"where": "all", "q": 0.9, "samples": 2, "max_accuracy_loss": 1}
    with pytest.raises(rbue.InvalidInput, match=r"labels holds 255; .* ignore_index= leaves one number out"):
        rbue.tune(network, (x, labels), **settings)
    with pytest.raises(rbue.InvalidInput, match="11 images with other labels than 255 for folds=12"):
        rbue.tune(network, (x, labels), folds=12, ignore_index=255, **settings)
    plain, random = rbue.tune(network, (x, labels), folds=11, ignore_index=255, **settings).tried
    with torch.no_grad():
        rbue.revert(network)
        probs = network(x).softmax(1).movedim(1, -1)
    known = labels != 255
    for score in ("accuracy", "nll", "ece"):
        expected = getattr(rbue.metrics, score)(probs[known], labels[known])
        assert getattr(plain, score) == pytest.approx(float(expected), rel=1e-4)
    losses = []
    for image in known.any((1, 2)).nonzero():
        others = known.clone()
        others[image] = False
        temperature = Temperature.fit(probs[others], labels[others], prior=0.5)
        own = labels[image][known[image]]
        losses.append(rbue.metrics.nll(temperature(probs[image][known[image]]), own) * len(own))
    assert plain.scaled_nll == pytest.approx(float(sum(losses) / known.sum()), rel=1e-4)
    torch.testing.assert_close(plain.losses, torch.stack(losses).double() * 11 / known.sum(), rtol=1e-4, atol=1e-5)
    assert random.losses.mean() == pytest.approx(random.scaled_nll, rel=1e-4)


@pytest.mark.parametrize("wrong", ["255", 2.5, True, [255], torch.tensor(255)], ids=str)
def test_what_is_ignored_is_a_class_number(trained, validation, wrong):
    with pytest.raises(rbue.InvalidInput, match="ignore_index must be a class number, not"):
        rbue.tune(trained, validation, ignore_index=wrong)


def test_classes_to_ignore_are_images_left_out(trained, validation):
    x, labels = validation
    some = labels != 3
    settings = {"where": "last", "q": 0.9, "samples": 2}
    ignored = rbue.tune(copy.deepcopy(trained), validation, ignore_index=3, **settings)
    absent = rbue.tune(copy.deepcopy(trained), (x[some], labels[some]), unlabelled=x, **settings)
    for one, other in zip(ignored.tried, absent.tried, strict=True):
        assert one.losses.shape == other.losses.shape == (int(some.sum()),)
        assert one.nll == pytest.approx(other.nll, rel=0.05)  # the draws are others, as are the numbers of the images


def test_what_a_map_may_lose_is_counted_in_pixels():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    x = torch.randn(6, 1, 8, 8)
    with torch.no_grad():
        labels = network(x).argmax(1)
    with pytest.warns(rbue.RbueWarning, match="all 6 validation images are right"):
        tried = rbue.tune(network, (x, labels), where="all", q=[0.98, 0.9], samples=2).tried
    lost = [tried[0].accuracy - one.accuracy for one in tried]
    assert any(0.01 < one < 1.5 / 6 for one in lost)  # less than an image and a half, and many pixels
    assert [one.allowed for one in tried] == [one <= max(0.002, 1.5 / labels.numel()) for one in lost]


def test_what_was_found_can_be_copied_and_stored(tuned, validation):
    x = validation[0][:50]
    expected = rbue.predict(tuned.network, x, samples=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for again in (copy.deepcopy(tuned), pickle.loads(pickle.dumps(tuned))):
            assert rbue.predict(again.network, x, samples=4).probs.equal(expected.probs)
            again.use(again.tried[-1])
            again.revert()
    assert rbue.predict(tuned.network, x, samples=4).probs.equal(expected.probs)
    assert hash(tuned)
    assert len(pickle.dumps(tuned._example)) < validation[0].nbytes / 10  # of 600 images


@pytest.mark.slow
def test_a_wrapper_is_tuned_as_its_network(trained, validation):
    """Nothing is compiled for a candidate, and the names of statistics do not depend on the wrapper."""
    calls = []

    def backend(graph, _):
        calls.append(graph)
        return graph

    settings = {"where": "all", "q": 0.9, "samples": 2}
    expected = rbue.tune(copy.deepcopy(trained), validation, **settings)
    in_place = copy.deepcopy(trained)
    in_place.compile(backend=backend)
    for model in (
        nn.DataParallel(copy.deepcopy(trained)),
        torch.compile(copy.deepcopy(trained), backend=backend),
        in_place,
    ):
        found = rbue.tune(model, validation, **settings)
        assert repr_without_time(found) == repr_without_time(expected)
        assert found.network is model
        assert found.tried[-1].statistics.keys() == expected.tried[-1].statistics.keys()
    assert not calls
    assert in_place._compiled_call_impl is not None


def test_only_layers_behind_a_random_site_are_estimated_again(network, validation):
    x = as_batch(validation[0][:32])
    expected = {0: ("1.0.1", "1.1.1"), 1: ("1.1.1",), 2: (), 3: ()}
    for where, layers in expected.items():
        rbue.convert(network, rbue.DropReLU(0.5), where=where, example=x)
        assert layers_that_vary(network, x) == layers
    assert not any(module._forward_pre_hooks for module in network.modules())


class Reused(nn.Module):
    """A layer for maps of two sizes, whose input is changed at random afterwards."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)

    def forward(self, x):
        small = self.norm(x[..., :2])
        return self.norm(x).mean() + small.mean() + nn.functional.relu_(x).mean((1, 2, 3))


def test_what_a_layer_saw_is_what_counts():
    network, x = Reused(), as_batch(torch.randn(8, 1, 4, 4))
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    assert layers_that_vary(network, x) == ()


def test_placements_may_be_indices_and_lists(network, validation):
    """Few sites come before many, and none twice."""
    tuned = rbue.tune(network, validation, where=iter([[0, "2.*"], -1, "last", -1]), q=iter([0.95] * 2), samples=2)
    assert [one.where for one in tuned.tried] == ["plain", -1, [0, "2.*"]]
    assert "[0, '2.*']" in repr(tuned)


def test_the_last_block_is_a_module_with_several_sites(network, validation):
    assert [site.name for site in last_block(rbue.sites(network, validation[0][:2]))] == ["2.3"]
    nested = nn.Sequential(network[0], network[1], nn.Sequential(block(32, 8), block(8, 8)))
    assert [site.name for site in last_block(rbue.sites(nested, validation[0][:2]))] == ["2.0.2", "2.1.2"]
    rbue.convert(nested, rbue.DropReLU(0.9), where="last block", example=validation[0][:2])
    assert [site.name for site in rbue.conversion(nested).random] == ["2.0.2", "2.1.2"]


@pytest.mark.parametrize("last", [nn.Identity(), nn.ReLU()], ids=repr)
def test_a_gelu_network_gets_dropactivation(last):
    """Also where there is a ReLU, as before the head of DistilBERT."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.GELU(), last, nn.Linear(8, 10))
    tuned = rbue.tune(network, clouds(100, 0), where=["all"], q=[0.98], samples=2, max_accuracy_loss=1)
    tuned.use(tuned.tried[-1])
    assert rbue.conversion(network).activation == rbue.DropActivation(0.98)


class OneOrTwo(nn.Module):
    """As fastai's for tables, which takes numbers beside categories."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(36, 8), nn.Linear(8, 10)

    def forward(self, x, more=None):
        return self.head(torch.relu(self.layer((x if more is None else x + more).flatten(1))))


def test_a_pair_of_inputs_beside_its_labels():
    (x, y), settings = clouds(100, 0), {"where": ["all"], "q": [0.98], "samples": 2}
    torch.manual_seed(0)
    network = OneOrTwo()
    one = rbue.tune(copy.deepcopy(network), (x, y), **settings)
    for two in (((x / 2, x / 2), y), [([x / 2, x / 2], y)]):
        assert repr_without_time(rbue.tune(copy.deepcopy(network), two, **settings)) == repr_without_time(one)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda x, y: {"validation": x}, "validation must be a pair .* but holds Tensor"),
        (lambda x, y: {"validation": None}, "validation must be a pair .* but holds NoneType"),
        (
            lambda x, y: {"validation": [(x, y, y)]},
            "validation must be a pair .* but holds tuple of 3; give several inputs",
        ),
        (lambda x, y: {"validation": [{"input": x}]}, "validation holds a dict without 'labels', only 'input'"),
        (lambda x, y: {"validation": (x, y.float())}, "must be class numbers, not torch.float32; give integers"),
        (lambda x, y: {"validation": (x, y[:, None])}, r"the output for batch 0 with .*; give labels\.squeeze\(1\)"),
        (lambda x, y: {"validation": (x / 0, y)}, "x holds NaN or infinity, first in image 0"),
        (lambda x, y: {"validation": (x, y), "unlabelled": (x, y)}, "what looks like their labels; give x.0. alone"),
        (lambda x, y: {"validation": (x, y), "max_accuracy_loss": "0.1"}, "max_accuracy_loss .* not '0.1'"),
        (
            lambda x, y: {"validation": (x, y), "outputs": "values"},
            "tune is for classes, and outputs='values' has none; .* or 'tokens'",
        ),
        (
            lambda x, y: {"validation": (x, y), "activation": rbue.DropReLU(0.9)},
            "must be a function of q, .* not DropReLU",
        ),
        (lambda x, y: {"validation": (x, y), "activation": "DropReLU"}, "must be a function of q, .* not 'DropReLU'"),
        (
            lambda x, y: {"validation": (x, y), "activation": lambda q: rbue.RReLU()},
            "RReLU.* for q=1, which is not the",
        ),
        (lambda x, y: {"validation": (x, y[:-1])}, "has 600 images but 599 labels"),
        (lambda x, y: {"validation": (x, y[0])}, "has 600 images but 1 labels"),
        (lambda x, y: {"validation": (x[:0], y[:0])}, "x must hold at least one image"),
        (lambda x, y: {"validation": (x, ["cat"] * 600)}, "validation must be a pair .* but holds Tensor"),
        (lambda x, y: {"validation": (x, y), "max_accuracy_loss": 2}, "max_accuracy_loss .* not 2"),
        (lambda x, y: {"validation": (x[:4], y[:4])}, "validation has 4 images for folds=5; give more"),
        (lambda x, y: {"validation": []}, "the loader gave no batch"),
        (lambda x, y: {"validation": [("cats", y)]}, "the inputs of validation must be tensors, not str"),
        (lambda x, y: {"validation": (list(x), y)}, r"must be tensors, not list; give torch\.stack\(x\)\.$"),
        (lambda x, y: {"validation": (x, np.array(["cat"] * 600))}, "class numbers, not <U3; np.unique"),
        (lambda x, y: {"validation": (x, y), "where": ["layer9"]}, "where='layer9' picks none"),
        (lambda x, y: {"validation": (x, y), "where": PLAIN}, "where='plain' picks none"),
        (lambda x, y: {"validation": (x, y), "where": None}, "where must be .* not None"),
        (lambda x, y: {"validation": (x, y), "q": [0.9, None]}, "q must be a finite number, not None"),
        (lambda x, y: {"validation": (x, y), "activation": lambda q: q}, "activation must be DropReLU.* not 0.98"),
    ],
)
def test_mistakes_are_named_and_leave_the_network_alone(given, message, trained, network, validation):
    with pytest.raises(rbue.InvalidInput, match=message):
        rbue.tune(network, **given(*validation))
    assert not rbue.conversion(network)
    assert network(validation[0]).equal(trained(validation[0]))


def test_a_converted_network_is_refused(network, validation):
    rbue.convert(network, rbue.DropReLU(0.9), example=validation[0])
    with pytest.raises(rbue.InvalidInput, match="this one is converted; revert it first"):
        rbue.tune(network, validation)


def test_statistics_move_by_what_the_randomness_changes(trained, network, validation):
    """Other images than those of training change statistics too, which must not count."""
    x = validation[0] * 1.5 + 0.3
    tuned = rbue.tune(network, validation, x, where=["all"], q=[0.7], samples=2, max_accuracy_loss=1)
    own = trained.state_dict()
    plain, random = copy.deepcopy(trained), rbue.convert(copy.deepcopy(trained), rbue.DropReLU(0.7), example=x)
    layers = ["1.0.1", "1.1.1"]
    for other in (plain, random):
        rbue.update_bn(other, x, layers=layers)
    plain, random = plain.state_dict(), random.state_dict()
    found = tuned.tried[-1].statistics
    assert set(found) == {f"{layer}.running_{kind}" for layer in layers for kind in ("mean", "var")}
    for name, value in found.items():
        moved = own[name] + random[name] - plain[name]
        scaled = own[name] * random[name] / plain[name]
        torch.testing.assert_close(value, moved if name.endswith("mean") else scaled, rtol=1e-4, atol=1e-5)


class OverPlaces(nn.Module):
    """Averages over padded places too, where torch's fused layers write 0."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)

    def forward(self, x, padded):
        return self.head(self.encoder(x, src_key_padding_mask=padded).mean(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_torch_fuses_in_evaluation_is_compared_as_it_was_trained():
    torch.manual_seed(0)
    network, x = OverPlaces().eval(), torch.randn(32, 8, 16)
    padded = torch.arange(8) >= torch.randint(2, 9, (32, 1))
    with torch.no_grad():
        fused = network(x, padded).softmax(1)
    labels = torch.randint(0, 3, (32,))
    switches = []
    network.head.register_forward_hook(lambda *_: switches.append(torch.backends.mha.get_fastpath_enabled()))
    tuned = rbue.tune(network, ((x, padded), labels), q=[0.9], where="last", samples=2)
    assert {*switches} == {True}  # torch's own is one for all threads
    tuned.use(tuned.tried[0])
    unfused = rbue.predict(tuned.network, (x, padded), samples=1, temperature=False).probs
    assert float((unfused - fused).abs().max()) > 0.01
    assert float(rbue.metrics.nll(unfused, labels)) == pytest.approx(tuned.tried[0].nll, abs=1e-5)


def test_an_image_that_is_surely_wrong_does_not_decide_alone():
    torch.manual_seed(0)
    y = torch.randint(0, 4, (2000,))
    x = torch.randn(4, 10)[y] + 1.6 * torch.randn(2000, 10)
    network = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x[:500]), y[:500]).backward()
        optimizer.step()
    x, y = x[500:1500], y[500:1500]
    usual = rbue.tune(copy.deepcopy(network), (x, y), samples=10)
    x[0] *= 100
    with torch.no_grad():
        y[0] = network(x[:1]).argmin()
    with pytest.warns(rbue.RbueWarning, match="give their true class probability 0, so the NLL is infinite"):
        found = rbue.tune(network, (x, y), samples=10)
    assert all(math.isinf(one.scaled_nll) for one in found.tried)
    assert found.best.q == usual.best.q < 1
