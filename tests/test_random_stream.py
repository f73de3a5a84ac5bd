import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

import numpy_stream
from rbue import random_stream
from rbue.errors import InvalidInput
from rbue.kernels import site_keys

SEEDS = [0, 1, 12345, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
NUMBERS = [0, 1, 2, 255, 65536, 2**31 - 1, 2**31, 2**32 - 1, -1, -(2**31)]
LANE_STARTS = (0x243F6A88, 0x13198A2E)
GOLDEN_LANES = (-1506016139, 226246430)
GOLDEN_KEYS = [1207100265, 1607484304]
GOLDEN_BITS = [245020964, 263392837, -134973612, 1010453770, -1614960095]
ELEMENTS = 65_536
STREAMS = 300
UNLIKELY = 1e-4  # the probability that a perfect stream fails one test below; they are fixed, so it did not


def unsigned(words):
    return words.numpy().view(np.uint32)


def int32(values):
    return torch.tensor([random_stream.signed32(value) for value in values], dtype=torch.int32)


def as_tensor_seed(seed):
    return torch.tensor(seed - (1 << 64) if seed >= 1 << 63 else seed)


def key_pairs(seed=0, samples=(0,), images=(0,), sites=(0,)):
    """All keys ``(2, samples * images * sites)`` of the cross product."""
    samples, images = int32(samples), int32(images)
    rows = samples.repeat_interleave(len(images)), images.repeat(len(samples))
    return site_keys(random_stream.seed_state(seed), *rows, int32(sites)).flatten(1)


class TestBits:
    """The bits themselves: equal to an independent implementation, and to themselves in later releases."""

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 2**32 - 1), min_size=1))
    def test_mix_equals_numpy(self, words):
        expected = numpy_stream.mix(np.array(words, dtype=np.uint32))
        assert (unsigned(random_stream.mix(int32(words))) == expected).all()
        assert random_stream.mix(torch.tensor(words)).tolist() == expected.tolist()
        assert [random_stream.mix_int(word) for word in words] == expected.tolist()

    @pytest.mark.parametrize("form", [int, as_tensor_seed])
    @pytest.mark.parametrize("seed", SEEDS)
    def test_seed_state_equals_numpy(self, seed, form):
        low_high = [seed & 0xFFFFFFFF, seed >> 32]
        lanes = [numpy_stream.mix(numpy_stream.mix(start ^ low_high[0]) ^ low_high[1]) for start in LANE_STARTS]
        state = random_stream.seed_state(form(seed))
        assert state.dtype == torch.int32
        assert unsigned(state).tolist() == [int(lane) for lane in lanes]

    @settings(deadline=None)
    @given(st.integers(0, 2**64 - 1))
    def test_a_seed_is_the_same_as_number_and_as_tensor(self, seed):
        assert random_stream.seed_state(seed).equal(random_stream.seed_state(as_tensor_seed(seed)))

    @pytest.mark.parametrize("seed", SEEDS)
    def test_site_keys_equal_numpy(self, seed):
        keys = site_keys(random_stream.seed_state(seed), int32(NUMBERS), int32(NUMBERS[::-1]), int32(NUMBERS[:4]))
        assert keys.shape == (2, 4, len(NUMBERS))
        for position, site in enumerate(NUMBERS[:4]):
            expected = numpy_stream.keys(seed, NUMBERS, NUMBERS[::-1], site)
            assert (unsigned(keys[:, position]) == np.stack(expected)).all()

    def test_one_sample_number_serves_all_rows(self):
        state, images, sites = random_stream.seed_state(3), int32(range(5)), int32([7, -7])
        many = site_keys(state, int32([9] * 5), images, sites)
        assert site_keys(state, int32([9]), images, sites).equal(many)

    @settings(deadline=None)
    @given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(1, 300))
    def test_bits_equal_numpy(self, k1, k2, count):
        table = random_stream.element_table(count)
        expected = numpy_stream.bits(np.arange(count), np.uint32(k1), np.uint32(k2))
        assert (unsigned(random_stream.bits(table, int32([k1]), int32([k2]))) == expected).all()
        out, scratch = torch.empty_like(table), torch.empty_like(table)
        random_stream.unfinished_bits_into(out, scratch, table, int32([k1]), int32([k2]))
        assert (unsigned(random_stream.finish_complement_(out.clone())) == ~expected).all()
        assert (unsigned(random_stream.finish_(out)) == expected).all()

    def test_a_shorter_table_is_a_prefix(self):
        assert random_stream.element_table(100).equal(random_stream.element_table(1000)[:100])

    def test_version_1_is_frozen(self):
        assert random_stream.VERSION == 1
        assert random_stream.seed_lanes(0) == GOLDEN_LANES
        keys = key_pairs(seed=2**63 + 5, samples=[3], images=[1_000_000], sites=[2**31 + 7])
        assert keys.flatten().tolist() == GOLDEN_KEYS
        table = random_stream.element_table(100_000)[[0, 1, 2, 3, 99_999]]
        assert random_stream.bits(table, *keys).tolist() == GOLDEN_BITS

    @settings(deadline=None)
    @given(st.integers(-(2**70), 2**70))
    def test_numbers_are_taken_modulo_2_to_the_32(self, value):
        word = random_stream.number(value)
        assert word.dtype == torch.int32
        assert word.item() == (value + 2**31) % 2**32 - 2**31
        if -(2**63) <= value < 2**63:
            assert random_stream.number(torch.tensor(value)).item() == word.item()


class TestNumbersFromBits:
    @settings(deadline=None)
    @given(st.floats(0, 1, exclude_max=True))
    @example(1 - 2**-40)
    def test_threshold_counts_the_words_below_it(self, probability):
        threshold = random_stream.threshold(probability)
        assert -(2**31) <= threshold < 2**31
        assert threshold % 2 == 0
        assert abs((threshold + 2**31) / 2**32 - probability) <= 2**-31

    def test_odd_words_are_symmetric_and_never_reach_the_ends(self):
        words = torch.tensor([-(2**31), -(2**31) + 255, -1, 0, 255, 256, 2**31 - 1], dtype=torch.int32)
        odd = random_stream.odd_words(words)
        assert odd.tolist() == [-(2.0**23) + 1, -(2.0**23) + 1, -1.0, 1.0, 1.0, 1.0, 2.0**23 - 1]

    @pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, None, "1"])
    def test_a_bad_seed_is_named(self, seed):
        with pytest.raises(InvalidInput, match=f"{seed}"):
            random_stream.seed_state(seed)

    @pytest.mark.parametrize("seed", [torch.tensor(1.0), torch.tensor([1, 2]), torch.tensor(True)])
    def test_a_bad_seed_tensor_is_named(self, seed):
        with pytest.raises(InvalidInput, match="one integer"):
            random_stream.seed_state(seed)


def words_under(keys, elements=ELEMENTS):
    """Words ``(streams, elements)``."""
    return random_stream.bits(random_stream.element_table(elements), keys[0].unsqueeze(-1), keys[1].unsqueeze(-1))


def standardised(words):
    """Numbers of mean 0 and variance 1 made from the words: their size, and the mask of DropReLU at q = 0.9."""
    yield "value", words.float().mul_(math.sqrt(3) / 2**31)
    yield "mask", (words < random_stream.threshold(0.1)).float().sub_(0.1).div_(0.3)


def assert_normal(z, name):
    """Assert that independent standard normal variables could be these."""
    z = np.atleast_1d(np.asarray(z, dtype=np.float64))
    assert np.abs(z).max() < stats.norm.isf(UNLIKELY / 2 / len(z)), f"{name}: {np.abs(z).max():.1f} deviations"
    low, high = stats.chi2.ppf([UNLIKELY / 2, 1 - UNLIKELY / 2], len(z))
    assert low < np.square(z).sum() < high, f"{name}: spread {np.square(z).mean():.4f} instead of 1"


def correlations(features):
    """Standard deviations from 0 of the correlation of every two rows."""
    products = features @ features.T / math.sqrt(features.shape[1])
    return products[tuple(torch.triu_indices(*products.shape, 1))]


def lag_correlations(features, lags):
    count = features.shape[0]
    for lag in lags:
        total = sum(torch.dot(row[lag:], row[:-lag]).item() for row in features)  # vecdot keeps all products
        yield total / math.sqrt(count * (features.shape[1] - lag))


STREAM_FAMILIES = {
    "samples, or training steps": lambda: key_pairs(samples=range(STREAMS)),
    "late training steps": lambda: key_pairs(samples=range(1_000_000, 1_000_000 + STREAMS)),
    "images": lambda: key_pairs(images=range(STREAMS)),
    "sites": lambda: key_pairs(sites=range(STREAMS)),
    "seeds": lambda: torch.stack([key_pairs(seed)[:, 0] for seed in range(STREAMS)], 1),
    "seeds that differ in the high word": lambda: torch.stack(
        [key_pairs(seed << 32)[:, 0] for seed in range(STREAMS)], 1
    ),
    "swapped sample and image": lambda: torch.cat(
        [keys for i in range(1, STREAMS // 2 + 1) for keys in (pair(i, i + 1000), pair(i + 1000, i))], 1
    ),
    "swapped sample and site": lambda: torch.cat(
        [keys for i in range(1, STREAMS // 2 + 1) for keys in (pair(i, 0, i + 9), pair(i + 9, 0, i))], 1
    ),
    "single bits of every number": lambda: torch.cat(
        [
            key_pairs(samples=[1 << b for b in range(32)]),
            key_pairs(images=[1 << b for b in range(32)]),
            key_pairs(sites=[1 << b for b in range(32)]),
        ],
        1,
    ),
    "the first key word alone": lambda: torch.stack(
        [random_stream.mix(int32(range(1000, 1000 + STREAMS))), int32([987_654_321]).expand(STREAMS)]
    ),
}


def pair(sample, image, site=0):
    return key_pairs(samples=[sample], images=[image], sites=[site])


SIZES = pytest.mark.parametrize("elements", [ELEMENTS // 4, pytest.param(ELEMENTS, marks=pytest.mark.slow)])


class TestIndependence:
    """Correlations of 16,384 or 65,536 elements in 300 streams, all measured in standard deviations."""

    @SIZES
    @pytest.mark.parametrize("family", STREAM_FAMILIES)
    def test_streams_are_uncorrelated(self, family, elements):
        for name, features in standardised(words_under(STREAM_FAMILIES[family](), elements)):
            assert_normal(correlations(features), name)

    def test_streams_that_share_the_first_key_word_are_weakly_correlated(self):
        """What holds where one in 2**32 pairs of streams finds itself: a correlation of 0.01 at most, typically."""
        second = random_stream.mix(int32(range(1000, 1000 + STREAMS)))
        keys = torch.stack([int32([987_654_321]).expand(STREAMS), second])
        for name, features in standardised(words_under(keys)):
            typical = correlations(features).square().mean().sqrt() / math.sqrt(ELEMENTS)
            assert typical < 0.01, name

    @SIZES
    @pytest.mark.parametrize("family", ["images", pytest.param("seeds", marks=pytest.mark.slow)])
    def test_neighbours_are_uncorrelated(self, family, elements):
        for name, features in standardised(words_under(STREAM_FAMILIES[family](), 2 * elements)):
            assert_normal(list(lag_correlations(features, [2**k for k in range(elements.bit_length())])), name)

    @SIZES
    @pytest.mark.parametrize(
        "numbers", ["samples", *(pytest.param(n, marks=pytest.mark.slow) for n in ("images", "sites"))]
    )
    def test_an_element_is_uncorrelated_over_the_streams(self, numbers, elements):
        keys = key_pairs(seed=1, **{numbers: range(elements)})
        for name, features in standardised(words_under(keys, STREAMS).T.contiguous()):
            assert_normal(list(lag_correlations(features, [2**k for k in range(elements.bit_length() - 1)])), name)
            assert_normal(correlations(features), name)

    @pytest.mark.parametrize("shape", [(64, 32, 32), (128, 7, 7), (3, 33, 65)])
    def test_rows_columns_and_channels_do_not_move_together(self, shape):
        words = words_under(key_pairs(seed=2, images=range(STREAMS)), math.prod(shape))
        for name, features in standardised(words.unflatten(1, shape)):
            excess_kurtosis = {"value": -1.2, "mask": 1 / 0.09 - 6}[name]
            for axis in range(4):
                size = features.shape[axis]
                squares = features.sum(axis, dtype=torch.float64).square().div_(size)
                variance = 2 + excess_kurtosis / size
                z = (squares.sum() - squares.numel()) / math.sqrt(variance * squares.numel())
                assert_normal(z.item(), f"{name} summed over axis {axis}")


class TestBalance:
    def test_the_top_16_bits_are_balanced_and_pairwise_independent(self):
        words = words_under(key_pairs(seed=3, images=range(64))).flatten()
        signs = torch.stack([(words >> bit & 1).float().mul_(2).sub_(1) for bit in range(16, 32)])
        assert_normal(signs.double().sum(1) / math.sqrt(len(words)), "balance")
        assert_normal(correlations(signs), "pairs")

    def test_streams_have_the_spread_of_a_binomial(self):
        counts = (words_under(key_pairs(seed=4, samples=range(STREAMS))) < random_stream.threshold(0.1)).sum(1)
        assert_normal((counts - ELEMENTS * 0.1) / math.sqrt(ELEMENTS * 0.09), "dropped elements of a stream")

    def test_words_are_uniform(self):
        counts = np.bincount(unsigned(words_under(key_pairs(seed=5, sites=range(32)))).flatten() >> 16, minlength=2**16)
        assert UNLIKELY < stats.chisquare(counts).pvalue < 1 - UNLIKELY

    @pytest.mark.parametrize("number", ["seed", "sample", "image", "site"])
    def test_every_bit_of_a_number_flips_half_of_the_key(self, number):
        trials = 512
        rng = np.random.default_rng(0)
        numbers = {name: int32(rng.integers(0, 2**32, trials).tolist()) for name in ("sample", "image", "site")}
        seeds = [int(seed) for seed in rng.integers(0, 2**64, 8, dtype=np.uint64)]
        before = [self.keys(seed, **numbers) for seed in seeds]
        z = []
        for bit in range(64 if number == "seed" else 32):
            flips = torch.zeros(64)
            changed = numbers if number == "seed" else numbers | {number: numbers[number] ^ int32([1 << bit])}
            for seed, old in zip(seeds, before, strict=True):
                after = self.keys(seed ^ 1 << bit if number == "seed" else seed, **changed)
                flips += ((old ^ after).unsqueeze(-1) >> torch.arange(32, dtype=torch.int32) & 1).sum(1).flatten()
            z.append((flips - 8 * trials / 2) / math.sqrt(8 * trials / 4))
        z = torch.cat(z)
        # One bit of one key word, over random values of the other numbers, flips in half of the trials.
        assert z.abs().max() < stats.norm.isf(UNLIKELY / 2 / len(z))

    @staticmethod
    def keys(seed, sample, image, site):
        state = random_stream.seed_state(seed).unsqueeze(-1)
        return random_stream.absorb(random_stream.absorb(random_stream.absorb(state, sample), image), site)


@pytest.mark.parametrize("images", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_two_streams_share_a_key(images):
    k1, k2 = key_pairs(samples=range(100), images=range(images), sites=range(17)).to(torch.int64)
    keys = np.sort(((k1 << 32) | (k2 & 0xFFFFFFFF)).numpy())
    assert len(keys) == 100 * images * 17
    assert (keys[1:] != keys[:-1]).all()
