"""Scores against plain NumPy."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import nn

import rbue
from rbue.decisions import _inputs
from rbue.decisions import out_of_distribution as ood
from rbue.errors import InvalidInput
from rbue.metrics import aupr, auroc, fpr95
from rbue.prediction import MultiLabelStatistics, Prediction, RunningStatistics


@pytest.fixture
def samples():
    return np.random.default_rng(0).dirichlet(np.full(4, 0.5), (7, 30))


def plain_entropy(p):
    return -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), -1)


def test_rows_are_cut_into_blocks_that_fit_the_work_space(monkeypatch):
    monkeypatch.setattr(_inputs, "_WORK_ELEMENTS", 40)
    assert [range(25)[block] for block in _inputs.blocks(25, 4)] == [range(10), range(10, 20), range(20, 25)]
    assert [range(2)[block] for block in _inputs.blocks(2, 100)] == [range(1), range(1, 2)]


def test_tensors_lose_their_gradients_and_numbers_of_numpy_are_numbers(samples):
    assert not ood.entropy(torch.from_numpy(samples[0]).requires_grad_()).requires_grad
    assert _inputs.fraction(np.float32(0.5), "coverage") == 0.5


def test_scores_of_samples(samples):
    mean = samples.mean(0)
    votes = np.stack([(samples.argmax(2) == c).sum(0) for c in range(4)], 1)
    expected = {
        "max_probability": -mean.max(1),
        "entropy": plain_entropy(mean),
        "expected_entropy": plain_entropy(samples).mean(0),
        "mutual_information": plain_entropy(mean) - plain_entropy(samples).mean(0),
        "variation_ratio": 1 - votes.max(1) / 7,
    }
    statistics = RunningStatistics(30, torch.device("cpu"))
    statistics.add(torch.arange(30), torch.from_numpy(samples))
    for given, close in ((samples, 1e-12), (torch.from_numpy(samples), 1e-12), (statistics.prediction(0), 1e-6)):
        found = ood.scores(given)
        assert list(found) == list(expected)
        for name, values in expected.items():
            assert found[name].dtype == torch.float64
            np.testing.assert_allclose(found[name].numpy(), values, atol=close, err_msg=name)


def test_scores_of_several_labels():
    samples = np.random.default_rng(0).random((5, 20, 3))
    statistics = MultiLabelStatistics(20, torch.device("cpu"))
    statistics.add(torch.arange(20), torch.from_numpy(samples))
    found = ood.scores(statistics.prediction(0))
    both = np.stack([samples, 1 - samples], -1)
    mean = both.mean(0)
    yes = (samples > 0.5).mean(0)
    expected = {
        "max_probability": -(mean.max(-1).prod(1) ** (1 / 3)),
        "entropy": plain_entropy(mean).sum(1),
        "expected_entropy": plain_entropy(both).mean(0).sum(1),
        "mutual_information": (plain_entropy(mean) - plain_entropy(both).mean(0)).sum(1),
        "variation_ratio": (1 - np.maximum(yes, 1 - yes)).mean(1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found[name].numpy(), values, atol=1e-6, err_msg=name)


def test_the_probability_of_many_labels_does_not_vanish():
    """A map of four labels has so many answers that the product of their probabilities is 0."""
    found = []
    for low in (0.1, 0.3):
        statistics = MultiLabelStatistics(20, torch.device("cpu"))
        statistics.add(torch.arange(20), low + 0.2 * torch.rand(1, 20, 4, 32, 32))
        found.append(ood.max_probability(statistics.prediction(0)))
    assert ood.detection(*found).auroc == 1


def test_scores_of_logits():
    logits = 5 * np.random.default_rng(0).normal(size=(3, 30, 4))
    for given in (logits[0], logits):
        stacked = given.reshape(-1, 30, 4)
        np.testing.assert_allclose(ood.energy(given).numpy(), -logsumexp(stacked, axis=2).mean(0), atol=1e-12)
        expected = -2.5 * logsumexp(stacked / 2.5, axis=2).mean(0)
        np.testing.assert_allclose(ood.energy(given, temperature=2.5).numpy(), expected, atol=1e-12)
        np.testing.assert_allclose(ood.max_logit(given).numpy(), -stacked.max(2).mean(0), atol=1e-12)
    assert list(ood.scores(logits=logits)) == ["energy", "max_logit"]


def test_the_nearest_of_a_training_feature_is_itself():
    features = np.random.default_rng(0).normal(size=(100, 7))  # some cosines are rounded above 1
    assert ood.KNearest.fit(features, k=1)(features).max() < 1e-7
    found = ood.KNearest.fit(np.eye(2), k=1)(np.zeros((1, 2))).item()
    assert found == pytest.approx(2**0.5, rel=1e-15)  # libraries may round a square root the other way


@pytest.mark.parametrize("work", [1 << 22, 100], ids=["at once", "in blocks"])
@pytest.mark.parametrize("k", [1, 5])
def test_nearest_neighbours(monkeypatch, work, k):
    monkeypatch.setattr(_inputs, "_WORK_ELEMENTS", work)
    rng = np.random.default_rng(0)
    training, new = rng.normal(size=(40, 6)), rng.normal(size=(15, 6))
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (training, new)]
    distances = np.linalg.norm(unit[1][:, None] - unit[0][None], axis=2)
    found = ood.KNearest.fit(training, k=k)(new)
    np.testing.assert_allclose(found.numpy(), np.sort(distances, 1)[:, k - 1], atol=1e-12)


@pytest.mark.parametrize("work", [1 << 22, 100], ids=["at once", "in blocks"])
@pytest.mark.parametrize("dead", [0, 2], ids=["full rank", "dead features"])
def test_mahalanobis(monkeypatch, work, dead):
    monkeypatch.setattr(_inputs, "_WORK_ELEMENTS", work)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200) * 2  # class numbers may have gaps
    training = rng.normal(size=(200, 5)) @ rng.normal(size=(5, 5)) + labels[:, None]
    new = 3 * rng.normal(size=(15, 5))
    training = np.concatenate([training, training[:, :dead]], 1)  # a direction without variance does not count
    new = np.concatenate([new, rng.normal(size=(15, dead))], 1)
    means = {c: training[labels == c].mean(0) for c in (0, 2, 4)}
    apart = training - np.stack([means[c] for c in labels])
    inverse = np.linalg.pinv(apart.T @ apart / 200, rcond=1e-12, hermitian=True)
    expected = [min((f - m) @ inverse @ (f - m) for m in means.values()) for f in new]
    found = ood.Mahalanobis.fit(training, labels)(new)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_all_scores_by_name_and_detectors(samples):
    features = np.random.default_rng(1).normal(size=(30, 3))
    detectors = {"near": ood.KNearest.fit(features, k=2), "own": lambda given: torch.zeros(len(given))}
    found = ood.scores(samples, logits=np.log(samples), features=features, detectors=detectors)
    assert list(found)[-4:] == ["energy", "max_logit", "near", "own"]
    assert all(values.shape == (30,) for values in found.values())
    # of normalised log-probabilities the energy is that of one: nothing
    torch.testing.assert_close(found["energy"], torch.zeros(30, dtype=torch.float64), atol=1e-12, rtol=0)


def test_a_prediction_that_keeps_logits_and_features_goes_into_every_score():
    torch.manual_seed(0)
    x, labels = torch.randn(30, 6), torch.arange(30) % 3
    net = rbue.convert(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), rbue.DropReLU(0.8), example=x)
    kept = rbue.predict(net, x, samples=10, keep=("logits", "features"))
    logits = rbue.predict(net, x, samples=10, outputs=_itself, return_samples=True).samples
    torch.testing.assert_close(ood.energy(kept), ood.energy(logits), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(ood.max_logit(kept), ood.max_logit(logits), atol=1e-6, rtol=1e-6)
    fitted = {
        "near": (ood.KNearest.fit(kept, k=3), ood.KNearest.fit(kept.features, k=3)),
        "gauss": (ood.Mahalanobis.fit(kept, labels), ood.Mahalanobis.fit(kept.features, labels)),
    }
    found = ood.scores(kept, detectors={name: one for name, (one, _) in fitted.items()})
    assert list(found)[-4:] == ["energy", "max_logit", "near", "gauss"]
    for name, (_, other) in fitted.items():
        assert torch.equal(found[name], other(kept.features))
    plain = rbue.predict(net, x, samples=2)
    assert "energy" not in ood.scores(plain)
    with pytest.raises(InvalidInput, match=r"no features; make it with rbue.predict\(..., keep=\('features',\)\)"):
        ood.KNearest.fit(plain)
    with pytest.raises(InvalidInput, match=r"no logits; make it with rbue.predict\(..., keep=\('logits',\)\)"):
        ood.energy(plain)
    with pytest.raises(InvalidInput, match="temperature is 2"):
        ood.energy(kept, temperature=2)


def _itself(output):
    return output


def test_detection_takes_outside_for_positive():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=100), rng.normal(size=80) + 1
    joined = torch.from_numpy(np.concatenate([inside, outside]))
    positive = torch.arange(180) >= 100
    expected = tuple(metric(joined, positive).item() for metric in (auroc, aupr, fpr95))
    assert tuple(ood.detection(inside, outside)) == expected
    assert expected[0] > 0.6


def test_errors_name_the_value_and_the_way_out(samples):
    with pytest.raises(InvalidInput, match="needs samples"):
        ood.mutual_information(samples[0])
    with pytest.raises(InvalidInput, match="k is 31"):
        ood.KNearest.fit(np.zeros((30, 2)), k=31)
    with pytest.raises(InvalidInput, match="3 numbers an image; give 2"):
        ood.KNearest.fit(np.ones((30, 2)), k=3)(np.ones((30, 3)))
    with pytest.raises(InvalidInput, match=r"features has shape \(30, 2, 2\); give \(images, features\)"):
        ood.KNearest.fit(np.ones((30, 2, 2)))
    with pytest.raises(InvalidInput, match="features holds 1 NaN"):
        ood.KNearest.fit(np.array([[1.0, np.nan]]), k=1)
    for labels in (np.zeros(29, dtype=int), np.zeros(30)):
        with pytest.raises(InvalidInput, match=r"labels has shape .* and dtype torch.*; give 30 class numbers"):
            ood.Mahalanobis.fit(np.ones((30, 2)), labels)
    with pytest.raises(InvalidInput, match="equal their class means"):
        ood.Mahalanobis.fit(np.ones((30, 2)), np.zeros(30, dtype=int))
    with pytest.raises(InvalidInput, match="go together"):
        ood.scores(samples, features=np.ones((30, 2)))
    with pytest.raises(InvalidInput, match="nothing was given"):
        ood.scores()
    with pytest.raises(InvalidInput, match="name of another score"):
        ood.scores(samples, features=samples[0], detectors={"entropy": len})
    for temperature in (0, np.inf):
        with pytest.raises(InvalidInput, match=f"temperature is {temperature}"):
            ood.energy(samples[0], temperature=temperature)
    with pytest.raises(InvalidInput, match=r"logits has shape \(4,\); give \(B, C\)"):
        ood.energy(samples[0, 0])
    with pytest.raises(InvalidInput, match="NaN"):
        ood.energy(samples * np.nan)
    with pytest.raises(InvalidInput, match=r"shapes \(30,\) and \(7, 30\); give \(B,\)"):
        ood.detection(samples[0, :, 0], samples[..., 0])
    pixels = torch.full((2, 3, 4), 1 / 3)
    several = Prediction(pixels, pixels, pixels, pixels[:, 0], samples_used=torch.ones(2), seed=0)
    with pytest.raises(InvalidInput, match=r"prediction.votes has shape \(2, 3, 4\)"):
        ood.variation_ratio(several)
