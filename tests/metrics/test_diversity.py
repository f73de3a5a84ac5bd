import math
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import hamming, jensenshannon

from rbue.metrics import disagreement, jsd, max_pairwise, mean_pairwise, uncertainty


def test_jsd_equals_scipy(make_samples):
    samples = make_samples(samples=4)
    matrix = jsd(samples)
    for i in range(4):
        for j in range(4):
            expected = (jensenshannon(samples[i].numpy(), samples[j].numpy(), axis=1) ** 2).mean()
            assert matrix[i, j].item() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(jsd(samples.float()), jsd(samples.float().double()))


def test_jsd_handles_zero_probabilities():
    one_hot = torch.eye(2)[:, None, :]
    assert jsd(one_hot)[0, 1].item() == pytest.approx(math.log(2))
    half = torch.tensor([[[1.0, 0.0, 0.0]], [[0.5, 0.5, 0.0]]])
    expected = 0.5 * math.log(1 / 0.75) + 0.5 * (0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    assert jsd(half)[0, 1].item() == pytest.approx(expected)


def test_jsd_in_small_blocks_is_the_same(make_samples, monkeypatch):
    samples = make_samples(images=53)
    whole = jsd(samples)
    monkeypatch.setattr(uncertainty, "_WORK_ELEMENTS", 4 * 5 * 10)
    torch.testing.assert_close(jsd(samples), whole, rtol=0, atol=1e-14)
    monkeypatch.setattr(uncertainty, "_WORK_ELEMENTS", 1)
    torch.testing.assert_close(jsd(samples), whole, rtol=0, atol=1e-14)


def test_jsd_work_space_does_not_grow_with_the_images(make_samples, monkeypatch):
    monkeypatch.setattr(uncertainty, "_WORK_ELEMENTS", 4 * 5 * 10)
    sizes = []
    entr = torch.special.entr
    monkeypatch.setattr(torch.special, "entr", lambda block: sizes.append(block.numel()) or entr(block))
    jsd(make_samples(images=500))
    assert max(sizes) <= 4 * 5 * 10


def test_rounding_never_makes_a_divergence_negative():
    generator = torch.Generator().manual_seed(0)
    one = torch.rand(1, 50, 10, generator=generator, dtype=torch.float64)
    noise = torch.rand(6, 50, 10, generator=generator, dtype=torch.float64)
    alike = one * (1 + 1e-12 * noise)
    assert (jsd(alike / alike.sum(2, keepdim=True)) >= 0).all()


def test_disagreement_equals_scipy_hamming(make_samples):
    samples = make_samples(samples=5)
    votes = samples.argmax(2).numpy()
    matrix = disagreement(samples)
    for i in range(5):
        for j in range(5):
            assert matrix[i, j].item() == pytest.approx(hamming(votes[i], votes[j]), abs=1e-15)


def test_mean_and_max_over_pairs_count_no_diagonal_and_no_pair_twice(make_samples):
    matrix = jsd(make_samples(samples=4))
    pairs = [matrix[i, j].item() for i, j in combinations(range(4), 2)]
    assert len(pairs) == 6
    assert mean_pairwise(matrix).item() == pytest.approx(sum(pairs) / 6)
    assert max_pairwise(matrix).item() == max(pairs)
    negative = torch.tensor([[0.0, -3.0], [-3.0, 0.0]])
    assert max_pairwise(negative).item() == -3.0


def test_pixels(make_samples):
    flat = make_samples(images=6)
    folded = flat.unflatten(1, (2, 3)).movedim(3, 2)
    torch.testing.assert_close(jsd(folded), jsd(flat))
    torch.testing.assert_close(disagreement(folded), disagreement(flat))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), samples=st.integers(2, 5), sharp=st.floats(0, 300))
def test_matrices_are_symmetric_and_bounded(seed, samples, sharp):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(samples, 4, 3, generator=generator).mul(sharp).softmax(2)
    for matrix, bound in ((jsd(drawn), math.log(2)), (disagreement(drawn), 1.0)):
        assert torch.equal(matrix, matrix.T)
        assert torch.equal(matrix.diagonal(), torch.zeros(samples, dtype=torch.float64))
        assert matrix.min() >= 0
        assert matrix.max() <= bound + 1e-6
