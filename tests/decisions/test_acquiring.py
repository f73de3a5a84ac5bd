"""What to label next against brute force."""

from itertools import product

import numpy as np
import pytest
import torch

from rbue.decisions import _inputs, acquiring
from rbue.errors import InvalidInput
from rbue.prediction import MultiLabel


def pool(samples=6, images=12, classes=3, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(classes, 0.4), (samples, images))


def entropies(p):
    return -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), -1)


def joint_information(samples, batch):
    """``I(y_1 … y_b; ω)`` by every configuration of labels."""
    total = 0.0
    for labels in product(range(samples.shape[2]), repeat=len(batch)):
        chance = np.mean([np.prod([s[i, y] for i, y in zip(batch, labels, strict=True)]) for s in samples])
        total -= chance * np.log(chance) if chance > 0 else 0.0
    return total - sum(entropies(samples[:, i]).mean() for i in batch)


def brute_batch(samples, count):
    """Greedily, each step by brute force."""
    picked = []
    for _ in range(count):
        rest = [i for i in range(samples.shape[1]) if i not in picked]
        picked.append(max(rest, key=lambda i: joint_information(samples, [*picked, i])))
    return picked


@pytest.mark.parametrize("work", [1 << 22, 40], ids=["at once", "in blocks"])
@pytest.mark.parametrize("classes", [2, 3])
def test_batch_bald_equals_brute_force(monkeypatch, work, classes):
    monkeypatch.setattr(_inputs, "_WORK_ELEMENTS", work)
    for seed in range(3):
        samples = pool(classes=classes, seed=seed)
        assert acquiring.batch_bald(samples, 4).tolist() == brute_batch(samples, 4)


def test_batch_bald_with_impossible_labels():
    samples = np.eye(3)[np.random.default_rng(0).integers(0, 3, (8, 10))]
    found = acquiring.batch_bald(samples, 3).tolist()
    # certain samples tie often: the information has to be the greatest, not the image
    assert joint_information(samples, found) == pytest.approx(joint_information(samples, brute_batch(samples, 3)))
    samples = pool(classes=2)
    never = np.concatenate([samples, np.zeros((6, 12, 1))], 2)
    assert acquiring.batch_bald(never, 4).tolist() == acquiring.batch_bald(samples, 4).tolist()


def test_drawn_configurations_estimate_the_gain(monkeypatch):
    """3^9 configurations are followed exactly, 3^10 are not: the gains of the 11th image are estimates from as many."""
    samples = pool(samples=10, images=14)
    seen = []
    plain = acquiring._conditional_entropies
    monkeypatch.setattr(acquiring, "_conditional_entropies", lambda *given: seen.append(plain(*given)) or seen[-1])
    picked = acquiring.batch_bald(samples, 12, configurations=3**9).tolist()
    for steps, error in ((9, 1e-12), (10, 0.01), (11, 0.01)):
        joint = np.ones((10, 1))  # of the labels picked so far, (S, 3^b)
        for image in picked[:steps]:
            joint = (joint[:, :, None] * samples[:, image][:, None]).reshape(10, -1)
        so_far = entropies(joint.mean(0))
        for image in set(range(14)) - set(picked[:steps]):
            both = np.concatenate([(joint * samples[:, image, [y]]).mean(0) for y in range(3)])
            assert abs(seen[steps][image].item() - (entropies(both) - so_far)) < error


def test_rounded_sums_draw_no_class_that_is_not_there(monkeypatch):
    class Last:
        def permutation(self, count):
            return np.arange(count)

        def random(self, count):
            return np.full(count, 1 - 2**-53)

    monkeypatch.setattr(acquiring, "_generator", lambda seed: Last())
    samples = pool() * (1 - 1e-6)
    assert len(set(acquiring.batch_bald(samples, 4, configurations=2).tolist())) == 4


def test_of_several_labels_the_least_clear_one_counts():
    probs = torch.tensor([[0.9, 0.8, 0.3], [0.6, 0.99, 0.01], [0.1, 0.2, 0.55]])
    labels = MultiLabel(probs, probs, probs, probs, samples_used=torch.ones(3), seed=0)
    assert acquiring.margin(labels, 3).tolist() == [2, 1, 0]


def test_scores_pick_the_greatest():
    samples = pool(images=40)
    mean = samples.mean(0)
    two = np.sort(mean, 1)[:, -2:]
    votes = np.stack([(samples.argmax(2) == c).sum(0) for c in range(3)], 1).max(1)
    information = entropies(mean) - entropies(samples).mean(0)
    assert acquiring.entropy(samples, 7).tolist() == np.argsort(-entropies(mean))[:7].tolist()
    assert acquiring.margin(mean, 7).tolist() == np.argsort(two[:, 1] - two[:, 0])[:7].tolist()
    assert acquiring.bald(samples, 7).tolist() == np.argsort(-information)[:7].tolist()
    assert sorted(votes[acquiring.variation_ratio(samples, 7)]) == sorted(np.sort(votes)[:7])


def brute_core_set(features, count, labelled):
    centres, picked = list(labelled), []
    for _ in range(count):
        far = [min(np.sum((f - c) ** 2) for c in centres) for f in features]
        picked.append(int(np.argmax(far)))
        centres.append(features[picked[-1]])
    return picked


@pytest.mark.parametrize("work", [1 << 22, 40], ids=["at once", "in blocks"])
def test_core_set_equals_brute_force(monkeypatch, work):
    monkeypatch.setattr(_inputs, "_WORK_ELEMENTS", work)
    rng = np.random.default_rng(0)
    features, labelled = rng.normal(size=(50, 4)), rng.normal(size=(3, 4))
    assert acquiring.core_set(features, 10, labelled).tolist() == brute_core_set(features, 10, labelled)
    alone = acquiring.core_set(features, 10, seed=3).tolist()
    assert alone[1:] == brute_core_set(features, 9, features[alone[:1]])


def test_core_set_picks_no_image_twice():
    features = torch.zeros(6, 2)
    assert sorted(acquiring.core_set(features, 6, labelled=features).tolist()) == list(range(6))


@pytest.mark.parametrize("name", ["random", "entropy", "margin", "variation_ratio", "bald", "batch_bald", "core_set"])
def test_a_seed_decides_among_equals(name):
    samples = np.tile(np.full((1, 1, 2), 0.5), (4, 30, 1))
    given = samples[0] if name == "core_set" else samples
    acquire = getattr(acquiring, name)
    first = acquire(given, 5, seed=0)
    assert first.dtype == torch.int64
    assert len(set(first.tolist())) == 5
    assert torch.equal(first, acquire(given, 5, seed=0))
    assert not torch.equal(first, acquire(given, 5, seed=1))


def test_a_margin_is_between_two_classes():
    with pytest.raises(InvalidInput, match="compares the two likeliest classes, and there is one"):
        acquiring.margin(torch.ones(5, 1), 2)


def test_labelled_features_are_as_wide_as_those_of_the_pool():
    with pytest.raises(InvalidInput, match="labelled has 1 numbers an image; give 2"):
        acquiring.core_set(np.ones((5, 2)), 1, labelled=np.ones((5, 1)))
    with pytest.raises(InvalidInput, match="pool is None; give the number of images"):
        acquiring.random(None, 2)


@pytest.mark.parametrize("name", ["random", "entropy", "margin", "variation_ratio", "bald", "batch_bald", "core_set"])
def test_more_than_there_are_is_an_error(name):
    given = pool(images=5)[0] if name == "core_set" else pool(images=5)
    with pytest.raises(InvalidInput, match="count is 6; give a whole number of at least 1 and at most 5"):
        getattr(acquiring, name)(given, 6)
