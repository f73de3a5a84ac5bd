"""The guarantee of a threshold, over 1,000 simulated draws."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom

from rbue.decisions import abstaining
from rbue.errors import InvalidInput, RbueWarning


def falling(score):
    """A risk that falls with the score, from 0.4 to 0."""
    return 0.4 * (1 - score) ** 2


def jagged(score):
    """One that does not: the surest are wrong too often, and so are some in the middle."""
    odd = [score > 0.97, (score > 0.5) & (score < 0.55), score < 0.2]
    return np.select(odd, [0.2, 0.12, 0.3], 0.005 + 0.02 * (1 - score))


def selective_risks(risk, thresholds, ties):
    """``P(wrong | score > threshold)`` of each threshold, by a fine sum; 0 where nothing is answered."""
    scores = (np.arange(200_000) + 0.5) / 200_000
    scores = np.floor(scores * ties) / ties if ties else scores
    wrong = np.append(risk(scores)[::-1].cumsum()[::-1], 0.0)
    first = np.searchsorted(scores, thresholds, side="right")
    return wrong[first] / np.maximum(len(scores) - first, 1)


def too_risky(search, risk, ties, draws, images=1000):
    """In how many draws the true risk is above 5 %, and the mean coverage."""
    rng = np.random.default_rng(0)
    thresholds, coverage = [], 0.0
    for _ in range(draws):
        scores = rng.random(images)
        scores = np.floor(scores * ties) / ties if ties else scores
        rule = abstaining.fit(scores, rng.random(images) >= risk(scores), risk=0.05, search=search)
        thresholds.append(rule.threshold)
        coverage += rule.coverage / draws
    return (selective_risks(risk, thresholds, ties) > 0.05).sum(), coverage


@pytest.mark.parametrize(
    ("search", "risk", "ties", "draws"),
    [
        pytest.param("sequence", falling, 0, 250, id="sequence, fewer draws"),
        pytest.param("sequence", falling, 0, 1000, id="sequence", marks=pytest.mark.slow),
        pytest.param("sequence", falling, 25, 1000, id="sequence with ties", marks=pytest.mark.slow),
        pytest.param("union", jagged, 0, 1000, id="union of a jagged risk", marks=pytest.mark.slow),
        pytest.param("union", jagged, 20, 1000, id="union with ties", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore::rbue.errors.RbueWarning")
def test_the_bound_holds_in_95_percent_of_the_draws(search, risk, ties, draws):
    """A rate of exactly 5 % would give more than 71 of 1,000 in one case of a thousand."""
    broken, coverage = too_risky(search, risk, ties, draws)
    assert broken <= binom.ppf(0.999, draws, 0.05)
    assert coverage > 0.3  # and not by answering nothing


@pytest.mark.filterwarnings("ignore::rbue.errors.RbueWarning")
@pytest.mark.parametrize("search", ["sequence", pytest.param("union", marks=pytest.mark.slow)])
def test_a_constant_risk_above_the_limit_is_rarely_accepted(search):
    """Everything errs in 5.1 %: every threshold is too risky, and one is taken in 5 % of the draws at most."""
    rng = np.random.default_rng(1)
    taken = sum(
        abstaining.fit(rng.random(400), rng.random(400) >= 0.051, search=search).answered > 0 for _ in range(500)
    )
    assert 0 < taken <= binom.ppf(0.999, 500, 0.05)


def plain_sequence(scores, correct, risk, confidence, counts):
    """Fixed-sequence testing, plainly; counts are those of the candidates."""
    order = np.argsort(-scores)
    taken = (0, 0)
    for count in counts:
        cut = scores[order[count]] if count < len(scores) else -np.inf
        above = scores > cut
        if above.sum() < counts[0]:
            continue
        errors = int((above & ~correct).sum())
        if binom.cdf(errors, above.sum(), risk) > 1 - confidence:
            break
        taken = (int(above.sum()), errors)
    return taken


@pytest.mark.filterwarnings("ignore::rbue.errors.RbueWarning")
@pytest.mark.parametrize("ties", [0, 30])
def test_equal_to_a_plain_sequence(ties):
    rng = np.random.default_rng(5)
    for risk in (0.02, 0.05, 0.1):
        for _ in range(5):
            scores = rng.random(800)
            scores = np.floor(scores * ties) / ties if ties else scores
            correct = rng.random(800) >= falling(scores)
            counts = abstaining._candidates(800, risk, 0.05, 100).tolist()
            rule = abstaining.fit(torch.from_numpy(scores), torch.from_numpy(correct), risk=risk)
            assert (rule.answered, rule.errors) == plain_sequence(scores, correct, risk, 0.95, counts)
            answered = rule(scores)
            assert int(answered.sum()) == rule.answered
            assert int((answered.numpy() & ~correct).sum()) == rule.errors
        if rule.answered:
            expected = beta.ppf(0.95, rule.errors + 1, rule.answered - rule.errors)
            assert rule.risk_bound == pytest.approx(expected, abs=1e-9)
            assert rule.risk_bound <= risk


@pytest.mark.filterwarnings("ignore::rbue.errors.RbueWarning")
@pytest.mark.parametrize("ties", [0, 12])
def test_a_union_takes_the_most_answers_that_pass_a_share_of_the_level(ties):
    rng = np.random.default_rng(5)
    for risk in (0.02, 0.05, 0.1):
        for _ in range(4):
            scores = rng.random(800)
            scores = np.floor(scores * ties) / ties if ties else scores
            correct = rng.random(800) >= jagged(scores)
            counts = abstaining._candidates(800, risk, 0.05, 20).tolist()
            above = [scores > np.append(np.sort(scores)[::-1], -np.inf)[count] for count in counts]
            found = [(int(one.sum()), int((one & ~correct).sum())) for one in above]
            level = (1 - 0.95) / len(counts)
            passed = [(m, k) for m, k in found if m >= counts[0] and binom.cdf(k, m, risk) <= level]
            rule = abstaining.fit(scores, correct, risk=risk, search="union")
            assert (rule.answered, rule.errors) == max(passed, default=(0, 0))
            assert rule.level == pytest.approx(level)


@pytest.mark.parametrize(("images", "steps"), [(1000, 100), (800, 20), (30, 100)])
def test_candidates_begin_with_the_first_that_would_pass_with_half_the_risk(images, steps):
    for risk in (0.05, 0.3):
        counts = sorted({max(1, k * images // steps) for k in range(1, steps + 1)})
        passing = [m for m in counts if binom.cdf(math.floor(m * risk / 2), m, risk) <= 0.05]
        if passing:
            assert abstaining._candidates(images, risk, 0.05, steps).tolist() == counts[counts.index(passing[0]) :]


def test_many_equal_scores_at_the_top_do_not_end_the_search():
    """Confidences in float32 are often exactly 1: the thresholds among them answer nothing and are left out."""
    scores = torch.cat([torch.ones(600), torch.linspace(0, 0.9, 400)])
    rule = abstaining.fit(scores, scores > 0.3)
    assert rule.answered >= 600


@pytest.mark.parametrize(("search", "steps"), [("sequence", 100), ("union", 20)])
def test_ties_that_leave_fewer_answers_than_the_first_candidate_are_left_out(search, steps):
    first = int(abstaining._candidates(1000, 0.05, 0.05, steps)[0])
    right = torch.arange(1000) < first - 1
    with pytest.warns(RbueWarning, match="nothing is answered"):
        abstaining.fit(right, right, search=search)


def test_whole_numbers_are_scores_too():
    votes = torch.arange(1000) // 10
    rule, same = (abstaining.fit(scores, votes >= 20) for scores in (votes, votes.double()))
    assert rule == same
    assert rule.answered > 700


def test_all_right_answers_everything_and_all_wrong_nothing():
    scores = torch.rand(100)
    everything = abstaining.fit(scores, torch.ones(100, dtype=torch.bool))
    assert (everything.threshold, everything.coverage) == (-math.inf, 1.0)
    with pytest.warns(RbueWarning, match="nothing is answered"):
        nothing = abstaining.fit(scores, torch.zeros(100, dtype=torch.bool))
    assert (nothing.threshold, nothing.coverage) == (math.inf, 0.0)
    assert not nothing(scores).any()


@pytest.mark.parametrize("search", ["sequence", "union"])
def test_too_few_images_say_how_many_are_needed(search):
    """0.95^58 is 0.0510 and 0.95^59 is 0.0485."""
    with pytest.raises(InvalidInput, match=r"58 images are too few for risk 0.05.*at least 59"):
        abstaining.fit(torch.rand(58), torch.ones(58, dtype=torch.bool), search=search)
    assert abstaining.fit(torch.rand(59), torch.ones(59, dtype=torch.bool), search=search).coverage == 1.0


def test_the_risk_is_not_rounded_to_the_default_dtype():
    """8 errors among 141 are too many for 0.1, and would not be for the bfloat16 next to it."""
    scores, correct = torch.arange(141, 0, -1).double(), torch.arange(141) < 133
    expected = abstaining.fit(scores, correct, risk=0.1, steps=141)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = abstaining.fit(scores, correct, risk=0.1, steps=141)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == expected
    assert found.risk_bound <= 0.1


def test_maps_are_refused():
    with pytest.raises(InvalidInput, match=r"scores has shape \(4, 50\); give one score an image, \(B,\): pixels"):
        abstaining.fit(torch.rand(4, 50), torch.ones(4, 50, dtype=torch.bool))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"risk": 0.0}, "risk is 0.0; give a number"),
        ({"confidence": 1}, "confidence is 1; give a number"),
        ({"search": "all"}, "search is 'all'"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_errors(settings, message):
    with pytest.raises(InvalidInput, match=message):
        abstaining.fit(torch.rand(100), torch.ones(100, dtype=torch.bool), **settings)
