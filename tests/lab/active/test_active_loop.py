"""The loop of active learning: what it begins with, that it goes on after a stop, and what it picks."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch

from rbue.errors import InvalidInput, RbueError
from rbue.lab import data
from rbue.lab.active import ACQUISITIONS, ActiveConfig, first_labelled, loop, picking, run_active
from rbue.lab.runs import RunConfig, load_networks, train_run
from rbue.lab.runs.networks import fresh_network
from rbue.lab.runs.passes import Passes
from rbue.lab.training import recipe_for

CPU = torch.device("cpu")
RECIPE = recipe_for("digits", batch=64)


def tiny(method="mc-droprelu:0.9", acquire="bald", seed=0, **settings):
    run = RunConfig(method=method, seed=seed, width=0.25, recipe=RECIPE)
    return ActiveConfig(run, acquire, **{"steps": 3, "take": 4, "samples": 3, "pool": 60, **settings})


def without_time(rounds):
    return [{key: value for key, value in one.items() if key != "seconds"} for one in rounds]


@pytest.fixture(scope="module", autouse=True)
def _read_once():
    """Digits are a table in text, which takes longer to read than a round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", functools.cache(data.load))
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return without_time(run_active(tiny(), 2, tmp_path_factory.mktemp("undisturbed"), CPU))


class TestLabels:
    def test_the_first_are_balanced_and_follow_from_the_seed(self):
        labels = data.load("digits", "train").labels
        first = first_labelled(labels, 25, seed=3)
        assert sorted(np.bincount(labels[first])) == [2] * 5 + [3] * 5
        assert set(first) < set(first_labelled(labels, 26, seed=3))
        assert set(first) != set(first_labelled(labels, 25, seed=4))

    def test_a_small_class_gives_what_it_has(self):
        assert first_labelled(np.array([0, 0, 0, 1]), 4, seed=0).tolist() == [0, 1, 2, 3]

    def test_methods_and_acquisitions_of_a_seed_begin_alike(self, tmp_path):
        def stop(config, one, rounds):
            raise KeyboardInterrupt

        first, accuracy, picked = [], [], []
        for method, acquire in (("single", "random"), ("mc-dropout:0.2", "random"), ("single", "margin")):
            config = tiny(method, acquire)
            with pytest.raises(KeyboardInterrupt):
                run_active(config, 1, tmp_path, CPU, stop)
            kept = config.folder(tmp_path).read("rounds")
            first.append(kept["first"])
            accuracy.append(kept["rounds"][0]["accuracy"])
            picked.append(kept["rounds"][0]["picked"])
            assert f'"first": {kept["first"]},\n' in (config.folder(tmp_path).path / "rounds.json").read_text()
        assert first[0] == first[1] == first[2]
        assert accuracy[0] == accuracy[2]  # one network, whatever is acquired then
        assert picked[0] == picked[1]  # random is the same for all methods
        assert picked[0] != picked[2]

    def test_candidates_have_no_label_and_are_drawn_anew(self):
        labelled = np.arange(0, 1442, 2)
        assert loop._candidates(tiny(pool=None), 0, 1442, labelled).tolist() == list(range(1, 1442, 2))
        first, second = (loop._candidates(tiny(pool=60), round_, 1442, labelled) for round_ in (0, 1))
        assert len(first) == len(second) == 60
        assert not set(first) & set(labelled)
        assert set(first) != set(second)

    def test_every_round_adds_new_ones(self, undisturbed):
        first = first_labelled(data.load("digits", "train").labels, 20, seed=0).tolist()
        labelled = [*first, *undisturbed[0]["picked"], *undisturbed[1]["picked"]]
        assert len(set(labelled)) == 28
        assert [one["labels"] for one in undisturbed] == [20, 24, 28]
        assert undisturbed[2]["picked"] is None


class TestKeeping:
    def stopping_in(self, monkeypatch, round_):
        """Stop in the middle of a round, after its training."""
        count = itertools.count()

        def predict(*given, **more):
            if next(count) == 2 * round_:  # each round predicts the test images and the candidates
                raise KeyboardInterrupt
            return real(*given, **more)

        real = loop.predict_images
        for module in (loop, picking):
            monkeypatch.setattr(module, "predict_images", predict)

    @pytest.mark.parametrize(
        "round_", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)]
    )
    def test_a_stopped_one_ends_in_the_same_result(self, round_, tmp_path, monkeypatch, undisturbed):
        with monkeypatch.context() as patched:
            self.stopping_in(patched, round_)
            with pytest.raises(KeyboardInterrupt):
                run_active(tiny(), 2, tmp_path, CPU)
        kept = tiny().folder(tmp_path).read("rounds")
        assert len(kept["rounds"] if kept else ()) == round_
        done = []
        found = run_active(tiny(), 2, tmp_path, CPU, lambda config, one, rounds: done.append(one["round"]))
        assert done == list(range(round_, 3))
        assert without_time(found) == undisturbed

    def test_more_rounds_go_on_and_fewer_are_found_done(self, tmp_path, undisturbed, monkeypatch):
        seeds, real = [], loop.predict_images
        for module in (loop, picking):
            noting = lambda *given, **more: seeds.append(given[3].seed) or real(*given, **more)  # noqa: E731
            monkeypatch.setattr(module, "predict_images", noting)
        run_active(tiny(), 1, tmp_path, CPU)
        assert len(set(seeds)) == 3, "test images, candidates and the next test images see random numbers of their own"
        assert without_time(run_active(tiny(), 2, tmp_path, CPU)) == undisturbed
        monkeypatch.setattr(loop, "_round", None)
        assert without_time(run_active(tiny(), 1, tmp_path, CPU)) == undisturbed[:2]

    def test_other_images_or_another_stream_are_refused(self, tmp_path, monkeypatch):
        config = tiny("single", "random")
        run_active(config, 0, tmp_path, CPU)
        half = data.load("digits", "train").take(np.arange(700), "train", None)
        with monkeypatch.context() as patched:
            patched.setattr(loop, "training_images", lambda run: half)
            with pytest.raises(RbueError, match="other images than digits holds now"):
                run_active(config, 1, tmp_path, CPU)
        train, fewer = data.load("digits", "train"), data.load("digits", "test").take(np.arange(99), "test", None)
        with monkeypatch.context() as patched:
            patched.setattr(loop.data, "load", lambda name, split: fewer)
            patched.setattr(loop, "training_images", lambda run: train)
            with pytest.raises(RbueError, match="other images than digits holds now"):
                run_active(config, 1, tmp_path, CPU)
        monkeypatch.setattr(loop.random_stream, "VERSION", 99)
        with pytest.raises(RbueError, match="version 99"):
            run_active(config, 0, tmp_path, CPU)


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 2])
def test_networks_are_those_of_a_training_run(together, tmp_path):
    config = RunConfig(method="deep-ensemble:2", width=0.25, recipe=recipe_for("digits", epochs=1, batch=64))
    train_run(config, tmp_path, CPU)
    networks, _ = loop._trained(config, data.load("digits", "train"), CPU, "auto", together)
    for own, stored in zip(networks, load_networks(config, tmp_path, CPU), strict=True):
        weights = own.state_dict()
        assert all(torch.equal(weights[name], value) for name, value in stored.state_dict().items())


def noise(split, count):
    """Images of CIFAR's size, for a machine that has no data."""
    rng = np.random.default_rng(count)
    images, labels = rng.integers(0, 256, (count, 32, 32, 3), np.uint8), rng.integers(0, 10, count)
    return data.ImageSet(images, labels, tuple("0123456789"), "cifar10", split, (0.5,) * 3, (0.25,) * 3)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["mc-droprelu:0.9", "mc-dropout:0.5", "deep-ensemble:2"])
def test_rounds_on_a_gpu(method, tmp_path):
    """Steps are captured, an ensemble trains side by side, and what is picked is new."""
    run = RunConfig("cifar10", method=method, recipe=recipe_for("cifar10", batch=64))
    config = ActiveConfig(run, "bald", start=64, take=64, steps=40, samples=4, pool=200)
    train, test = noise("train", 1000), noise("test", 500)
    images = loop.ActiveImages(train, test, {"data": train.record(), "test_data": test.record()})
    rounds = run_active(config, 2, tmp_path, torch.device("cuda"), together=2, load=lambda run: images)
    assert {one["engine"] for one in rounds} == {"captured"}
    assert len({number for one in rounds[:2] for number in one["picked"]}) == 128
    assert all(one["train_loss"] < 2.5 for one in rounds)


class TestSettings:
    @pytest.mark.parametrize(
        ("labels", "batch", "epochs"), [(20, 20, 100), (64, 64, 100), (65, 33, 50), (130, 44, 34), (640, 64, 10)]
    )
    def test_every_round_has_as_many_steps_of_even_batches(self, labels, batch, epochs):
        recipe = tiny(start=labels, steps=100).of_round(0).recipe
        assert (recipe.batch, recipe.epochs) == (batch, epochs)

    def test_epochs_take_the_place_of_steps(self):
        assert tiny(steps=None).of_round(0).recipe.epochs == RECIPE.epochs

    def test_rounds_have_seeds_of_their_own(self):
        seeds = {tiny(seed=seed).of_round(round_).seed for seed in range(3) for round_ in range(3)}
        assert len(seeds) == 9

    def test_they_are_read_as_they_were_written(self):
        for config in (tiny(), tiny(steps=None, pool=None), tiny("deep-ensemble:2", acquire="batch_bald")):
            assert ActiveConfig.from_json(config.as_json()) == config
        assert tiny().id == ActiveConfig(tiny().run, "bald", steps=3, take=4, samples=3, pool=60).id != tiny(take=5).id

    @pytest.mark.parametrize("acquire", ["bald", "batch-bald", "variation-ratio"])
    def test_one_sample_is_too_few_to_compare(self, acquire):
        with pytest.raises(InvalidInput, match=f"{acquire} compares the samples of an image, but single has one"):
            tiny("single", acquire)
        with pytest.raises(InvalidInput, match="samples is 1"):
            tiny(acquire=acquire, samples=1)
        tiny("deep-ensemble:2", acquire)

    def test_mistakes(self, tmp_path):
        with pytest.raises(InvalidInput, match=r"there is no acquisition 'blad' \(did you mean 'bald'\?\)"):
            tiny(acquire="blad")
        with pytest.raises(InvalidInput, match="a pool of 3 images is too small to take 4"):
            tiny(pool=3)
        with pytest.raises(InvalidInput, match=r"20 \+ 400 x 4 = 1,620 labels are asked for, but digits has 1,442"):
            run_active(tiny(), 400, tmp_path, CPU)
        assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def pool():
    return data.load("digits", "train")


class TestPicking:
    def picked(self, acquire, method, pool, candidates, device=CPU):
        config = RunConfig(method=method, width=0.25, recipe=RECIPE)
        networks = [fresh_network(member, pool, device) for member in config.members()]
        labelled = np.arange(1000, 1010)
        return picking.pick(acquire, config, networks, pool, candidates, labelled, 5, Passes(4), device)

    @pytest.mark.parametrize(
        ("acquire", "method"),
        [
            *((acquire, "mc-droprelu:0.9") for acquire in ACQUISITIONS),
            *itertools.product(("bald", "core-set"), ("mc-dropout:0.2", "svi", "deep-ensemble:2")),
        ],
    )
    def test_every_acquisition_takes_candidates(self, acquire, method, pool, recwarn):
        candidates = np.arange(100, 140)
        found = self.picked(acquire, method, pool, candidates)
        assert len(set(found)) == 5
        assert set(found) <= set(candidates)
        assert not recwarn.list

    def test_the_best_ones_are_the_same_among_fewer(self, pool):
        """Scores belong to images, not to their places among the candidates."""
        many = np.arange(0, 100)
        found = self.picked("bald", "mc-droprelu:0.9", pool, many)
        fewer = np.array(sorted({*found, *range(0, 100, 7)}))
        assert self.picked("bald", "mc-droprelu:0.9", pool, fewer) == found

    def test_a_core_set_looks_away_from_what_is_labelled(self, pool):
        """Images 1000 to 1009 have labels: as candidates they would be as near to those as can be."""
        found = self.picked("core-set", "mc-droprelu:0.9", pool, np.array([*range(1000, 1010), *range(100, 105)]))
        assert set(found) == set(range(100, 105))

    def test_features_are_what_the_last_layer_sees(self, pool):
        config = RunConfig(method="deep-ensemble:2", width=0.25, recipe=RECIPE)
        networks = [fresh_network(member, pool, CPU).eval() for member in config.members()]
        chosen = np.array([5, 900, 17])
        seen = []
        for network in networks:
            handle = network.head.register_forward_pre_hook(lambda layer, given: seen.append(given[0]))
            x = (torch.from_numpy(pool.images[chosen]) / 255 - pool.mean[0]) / pool.std[0]
            with torch.no_grad():
                network(x.permute(0, 3, 1, 2))
            handle.remove()
        found = picking._features(config, networks, pool, chosen, Passes(4, 0), CPU)
        torch.testing.assert_close(found, torch.cat(seen, 1), rtol=1e-4, atol=1e-5)

    def test_a_network_without_a_classifier_has_no_features(self, pool):
        network = torch.nn.Sequential(torch.nn.Conv2d(1, 10, 8), torch.nn.Flatten())
        config = RunConfig(model="tests:none", recipe=RECIPE)
        with pytest.raises(
            InvalidInput, match="core-set needs the input of a last linear layer, which tests:none does not have"
        ):
            picking._features(config, [network], pool, np.arange(4), Passes(1), CPU)
