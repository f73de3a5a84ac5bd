"""Prediction and its running statistics against plain formulas on all samples at once."""

import dataclasses

import numpy as np
import pytest
import torch

from rbue.calibration import Temperature
from rbue.prediction import (
    MultiLabelStatistics,
    Prediction,
    RegressionStatistics,
    RunningStatistics,
    concatenate,
    of_samples,
)


def random_probs(samples, images, *rest, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, images, *rest, generator=generator).mul(3).softmax(2)


def accumulate(probs, cuts, kind=RunningStatistics):
    statistics = kind(probs.shape[1], probs.device)
    start = 0
    for stop in [*cuts, len(probs)]:
        for rows in torch.arange(probs.shape[1]).split(3):
            statistics.add(rows, probs[start:stop, rows])
        start = stop
    return statistics.prediction(seed=0)


@pytest.mark.parametrize("shape", [(4,), (3, 2, 5)])
@pytest.mark.parametrize("cuts", [[], [1], [2, 3, 17]])
def test_running_statistics_equal_numpy_on_all_samples(shape, cuts):
    probs = random_probs(20, 7, *shape)
    found = accumulate(probs, cuts)
    p = probs.double().numpy()
    np.testing.assert_allclose(found.probs, p.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.variance, p.var(0), rtol=1e-5, atol=1e-9)
    labels = p.argmax(2)
    votes = np.stack([(labels == c).sum(0) for c in range(p.shape[2])], axis=1)
    np.testing.assert_array_equal(found.votes, votes)
    entropy = -(p * np.log(p)).sum(2).mean(0)
    np.testing.assert_allclose(found.expected_entropy, entropy, rtol=1e-5)
    assert found.samples_used.tolist() == [20] * 7


def test_samples_that_are_all_there_give_what_a_stream_gives():
    probs = random_probs(6, 5, 3)
    found, expected = of_samples(probs), accumulate(probs, [])
    for name in ("probs", "variance", "votes", "expected_entropy", "samples_used"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    assert found.samples is probs
    half = probs.half()
    torch.testing.assert_close(of_samples(half).variance, of_samples(half.double()).variance)


@pytest.mark.parametrize(("shape", "largest", "calls"), [((4,), 560, 1), ((3, 2, 5), 60, 1), ((3, 50), 150, 2)])
def test_large_maps_are_taken_in_parts(shape, largest, calls, monkeypatch):
    probs, sizes, add = random_probs(20, 7, *shape), [], RunningStatistics._add
    expected = of_samples(probs)
    monkeypatch.setattr("rbue.prediction._AT_ONCE", 70)
    monkeypatch.setattr(RunningStatistics, "_add", lambda self, *one: sizes.append(one[1].numel()) or add(self, *one))
    found = of_samples(probs)
    assert (max(sizes), sum(sizes)) == (largest, probs.numel())
    sizes.clear()
    of_samples(probs[:1, :2])
    assert len(sizes) == calls
    for name in ("probs", "variance", "votes", "expected_entropy", "samples_used"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_tensors_move_to_another_device_together():
    drawn = of_samples(random_probs(6, 5, 3)).to("meta")
    values = [getattr(drawn, one.name) for one in dataclasses.fields(drawn)]
    assert {value.device.type for value in values if isinstance(value, torch.Tensor)} == {"meta"}


def test_variance_does_not_lose_digits_with_many_chunks():
    probs = 0.5 + 1e-5 * torch.randn(4000, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = accumulate(probs, list(range(10, 4000, 10)))
    np.testing.assert_allclose(found.variance, probs.numpy().var(0), rtol=1e-4)


def test_the_default_type_of_torch_takes_no_digits():
    probs = random_probs(20, 7, 4).double()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = accumulate(probs, [2, 3, 17])
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(found.probs, probs.mean(0).float(), rtol=0, atol=1e-7)
    torch.testing.assert_close(found.variance, probs.var(0, correction=0).float(), rtol=1e-6, atol=1e-8)


def test_derived_quantities():
    probs = random_probs(30, 5, 4)
    found = accumulate(probs, [10])
    mean = probs.double().mean(0)
    assert torch.equal(found.label, mean.argmax(1))
    torch.testing.assert_close(found.confidence.double(), mean.amax(1), rtol=1e-6, atol=0)
    entropy = -(mean * mean.log()).sum(1)
    torch.testing.assert_close(found.entropy.double(), entropy, rtol=1e-5, atol=0)
    expected = -(probs.double() * probs.double().log()).sum(2).mean(0)
    torch.testing.assert_close(found.mutual_information.double(), entropy - expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [RunningStatistics, MultiLabelStatistics])
def test_mutual_information_that_is_rounded_below_zero_is_zero(kind):
    prediction = accumulate(random_probs(1, 5, 4), [], kind)
    rounded = dataclasses.replace(prediction, expected_entropy=prediction.entropy + 1e-7)
    assert not rounded.mutual_information.any()


def test_a_label_at_one_half_is_not_true():
    found = accumulate(torch.full((3, 1, 2), 0.5), [], MultiLabelStatistics)
    assert not found.votes.any()
    assert not found.label.any()


@pytest.mark.parametrize("kind", [RunningStatistics, MultiLabelStatistics, RegressionStatistics])
def test_samples_that_follow_do_not_change_a_prediction(kind):
    statistics, rows, probs = kind(2, torch.device("cpu")), torch.arange(2), random_probs(6, 2, 3).double()
    statistics.add(rows, probs[:3])
    found, expected = statistics.prediction(0), accumulate(probs[:3], [], kind)
    statistics.add(rows, probs[3:])
    for one in dataclasses.fields(found):
        if isinstance(getattr(found, one.name), torch.Tensor):
            assert torch.equal(getattr(found, one.name), getattr(expected, one.name)), one.name


@pytest.mark.parametrize("kind", [RunningStatistics, MultiLabelStatistics, RegressionStatistics])
def test_counts_are_whole_and_other_numbers_single(kind):
    found = accumulate(random_probs(3, 2, 4), [], kind)
    for one in dataclasses.fields(found):
        if isinstance(value := getattr(found, one.name), torch.Tensor):
            assert value.dtype == (torch.int64 if one.name in ("votes", "samples_used") else torch.float32), one.name


def test_certain_samples_have_zero_entropy_not_nan():
    probs = torch.zeros(3, 2, 4)
    probs[..., 1] = 1
    found = accumulate(probs, [])
    assert found.entropy.tolist() == [0, 0]
    assert found.mutual_information.tolist() == [0, 0]


def test_concatenate_keeps_order_and_samples():
    probs = random_probs(6, 5, 3)
    statistics = [RunningStatistics(n, probs.device) for n in (2, 3)]
    statistics[0].add(torch.arange(2), probs[:, :2])
    statistics[1].add(torch.arange(3), probs[:, 2:])
    parts = [s.prediction(4, probs[:, rows]) for s, rows in zip(statistics, (slice(0, 2), slice(2, 5)), strict=True)]
    whole = concatenate(parts)
    torch.testing.assert_close(whole.probs, probs.mean(0))
    assert whole.samples is not None
    assert torch.equal(whole.samples, probs)
    assert whole.seed == 4


def test_repr_says_what_was_drawn():
    text = repr(accumulate(random_probs(6, 5, 3), []))
    assert "5 inputs" in text
    assert "3 classes" in text
    assert ", 6 independent samples" in text
    assert isinstance(accumulate(random_probs(6, 5, 3), []), Prediction)
    some = dataclasses.replace(accumulate(random_probs(6, 2, 3), []), samples_used=torch.tensor([16, 100]))
    assert "16 to 100 independent samples" in repr(some)


def test_comparing_predictions_is_no_error():
    one, other = (accumulate(random_probs(4, 5, 3), []) for _ in range(2))
    assert one != other
    assert [one, other].index(other) == 1


def test_a_temperature_scales_the_mean_and_leaves_the_spread():
    drawn = of_samples(random_probs(9, 6, 4, 3))
    once = drawn.scaled(1.7)
    assert torch.equal(once.probs, Temperature(1.7)(drawn.probs))
    assert (once.temperature, drawn.temperature) == (1.7, 1.0)
    for name in ("variance", "votes", "expected_entropy", "mutual_information", "samples", "label"):
        assert torch.equal(getattr(once, name), getattr(drawn, name)), name
    assert (once.entropy > drawn.entropy).all()
    assert torch.equal(once.scaled(0.5).probs, drawn.scaled(0.5).probs)  # not one after the other
    undone = once.scaled(1)
    assert torch.equal(undone.probs, drawn.probs)
    assert (undone.temperature, undone.unscaled_probs) == (1, None)
    both = concatenate([once, once])
    assert (both.temperature, len(both.unscaled_probs)) == (1.7, 12)
    assert "temperature 1.7" in repr(both)
    assert "temperature" not in repr(drawn)
