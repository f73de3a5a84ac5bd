import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rbue.metrics import entropy, expected_entropy, mutual_information


def test_entropy_equals_scipy(make_batch):
    probs, _ = make_batch()
    torch.testing.assert_close(entropy(probs), torch.from_numpy(stats.entropy(probs.numpy(), axis=1)))


def test_zero_times_log_zero_is_zero():
    assert entropy(torch.tensor([[1.0, 0.0, 0.0]])).tolist() == [0.0]
    assert entropy(torch.tensor([[0.5, 0.5, 0.0]])).item() == pytest.approx(math.log(2))


def test_entropy_keeps_the_shape_of_the_labels(make_batch):
    probs, labels = make_batch(images=3, classes=4, extra=(2, 5))
    value = entropy(probs)
    assert value.shape == labels.shape
    assert value[1, 0, 3].item() == pytest.approx(stats.entropy(probs[1, :, 0, 3].numpy()))


def test_expected_entropy_is_the_mean_over_samples(make_samples):
    samples = make_samples()
    expected = stats.entropy(samples.numpy(), axis=2).mean(0)
    torch.testing.assert_close(expected_entropy(samples), torch.from_numpy(expected))


def test_mutual_information_is_the_mean_divergence_from_the_mean(make_samples):
    samples = make_samples().numpy()
    expected = stats.entropy(samples, samples.mean(0, keepdims=True), axis=2).mean(0)
    torch.testing.assert_close(mutual_information(torch.from_numpy(samples)), torch.from_numpy(expected))


def test_float32_loses_nothing_to_the_sum(make_samples):
    samples = make_samples(samples=50).float()
    torch.testing.assert_close(mutual_information(samples), mutual_information(samples.double()), rtol=0, atol=1e-15)


def test_extra_dimensions(make_samples):
    samples = make_samples(images=6).unflatten(1, (2, 3)).movedim(3, 2)
    assert samples.shape == (4, 2, 5, 3)
    torch.testing.assert_close(mutual_information(samples).flatten(), mutual_information(make_samples(images=6)))


def test_equal_samples_carry_no_information(make_batch):
    probs, _ = make_batch()
    values = mutual_information(probs.float().expand(7, -1, -1))
    assert (values >= 0).all()
    assert values.max() < 1e-12


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 6), st.floats(0, 300))
def test_bounds(seed, samples, classes, sharp):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(samples, 3, classes, generator=generator).mul(sharp).softmax(2)
    information, mean_entropy = mutual_information(drawn), expected_entropy(drawn)
    assert (information >= 0).all()
    assert (mean_entropy >= 0).all()
    assert (information <= math.log(samples) + 1e-6).all()
    torch.testing.assert_close(information + mean_entropy, entropy(drawn.double().mean(0)), rtol=0, atol=1e-6)
