import math
import re
import warnings

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from rbue import metrics
from rbue.calibration import Temperature, cross_fit, cross_fitted
from rbue.errors import InvalidInput, RbueWarning
from rbue.prediction import Prediction


def overconfident(images=2000, classes=5, factor=3.0, seed=0, dtype=torch.float64):
    """Labels drawn from ``softmax(z)``, predictions ``softmax(factor·z)``: the true temperature is factor."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return (factor * logits).to(dtype), labels


def reference_temperature(logits, labels):
    """The same minimum by a search that knows no derivatives."""

    def loss(log_t):
        return torch.nn.functional.cross_entropy(logits.double() / math.exp(log_t), labels).item()

    bounds = (math.log(0.01), math.log(100))
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    return math.exp(best.x)


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0, 20.0])
def test_fit_finds_the_minimum_scipy_finds(factor):
    logits, labels = overconfident(factor=factor)
    fitted = Temperature.fit(logits, labels, inputs="logits").value
    assert fitted == pytest.approx(reference_temperature(logits, labels), rel=1e-5)
    assert fitted == pytest.approx(factor, rel=0.1)


def test_the_derivative_vanishes_at_the_fit():
    logits, labels = overconfident()
    beta = torch.tensor(1 / Temperature.fit(logits, labels, inputs="logits").value, dtype=torch.float64)
    beta.requires_grad_()
    (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(beta * logits, labels), beta)
    assert abs(slope.item()) < 1e-12


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0, 20.0])
def test_few_passes_over_the_images_are_enough(factor, monkeypatch):
    calls, softmax = [], torch.Tensor.softmax
    logits, labels = overconfident(factor=factor)
    monkeypatch.setattr(torch.Tensor, "softmax", lambda *given, **named: calls.append(1) or softmax(*given, **named))
    Temperature.fit(logits, labels, inputs="logits", prior=50)
    assert len(calls) < 15  # halving alone takes 45


def test_probabilities_and_logits_give_the_same():
    logits, labels = overconfident()
    probs = logits.softmax(1)
    from_logits = Temperature.fit(logits, labels, inputs="logits")
    from_probs = Temperature.fit(probs, labels)
    assert Temperature.fit(probs.float(), labels) == Temperature.fit(probs.float().double(), labels)
    assert from_probs.value == pytest.approx(from_logits.value, rel=1e-9)
    torch.testing.assert_close(from_probs(probs), from_probs(logits, inputs="logits"))


def test_applying_is_the_softmax_of_the_scaled_logits():
    logits, _ = overconfident(images=7)
    torch.testing.assert_close(Temperature(2.5)(logits, inputs="logits"), (logits / 2.5).softmax(1))
    probs = logits.softmax(1)
    torch.testing.assert_close(Temperature(1.0)(probs), probs)
    powers = probs**0.4
    torch.testing.assert_close(Temperature(2.5)(probs), powers / powers.sum(1, keepdim=True))


@pytest.mark.parametrize("value", [5e-324, 1e-320, 1e-308, 1e-300, 1e300])
def test_no_temperature_is_too_extreme(value):
    probs = torch.full((3, 1000), 1e-3, dtype=torch.float64)
    probs[1, 7], probs[1, 8] = 1.5e-3, 0.5e-3
    probs[2] = torch.nn.functional.one_hot(torch.tensor(3), 1000)
    one = torch.nn.functional.one_hot(torch.tensor(7), 1000).double()
    torch.testing.assert_close(
        Temperature(value)(probs), torch.stack([probs[0], one if value < 1 else probs[0], probs[2]])
    )


def test_it_calibrates():
    logits, labels = overconfident(images=5000)
    half = slice(0, 2500), slice(2500, None)
    probs = logits.softmax(1)
    calibrated = Temperature.fit(probs[half[0]], labels[half[0]])(probs[half[1]])
    held_out = labels[half[1]]
    assert metrics.ece(calibrated, held_out) < 0.3 * metrics.ece(probs[half[1]], held_out)
    assert metrics.nll(calibrated, held_out) < metrics.nll(probs[half[1]], held_out)
    assert metrics.accuracy(calibrated, held_out) == metrics.accuracy(probs[half[1]], held_out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_shape_and_dtype_are_kept(dtype):
    logits, labels = overconfident(images=60, dtype=dtype)
    images = logits.unflatten(0, (5, 3, 4)).movedim(3, 1)
    folded = labels.unflatten(0, (5, 3, 4))
    flat = Temperature.fit(logits, labels, inputs="logits")
    assert flat == Temperature.fit(logits.double(), labels, inputs="logits")
    deep = Temperature.fit(images, folded, inputs="logits")
    assert deep.value == pytest.approx(flat.value, rel=1e-12)
    out = deep(images, inputs="logits")
    assert out.shape == images.shape
    assert out.dtype == dtype
    torch.testing.assert_close(out.movedim(1, 3).flatten(0, 2), flat(logits, inputs="logits"))


def test_zero_probabilities_stay_zero():
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.9, 0.1, 0.0], [0.0, 0.7, 0.3]])
    labels = torch.tensor([0, 0, 1, 1])
    temperature = Temperature.fit(probs, labels)
    assert temperature.value > 1
    out = temperature(probs)
    assert torch.equal(out == 0, probs == 0)
    torch.testing.assert_close(out.sum(1), torch.ones(4))
    # A class that is impossible everywhere changes nothing.
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 1, 1])
    without = Temperature.fit(logits, labels, inputs="logits")
    padded = torch.cat([logits, torch.full((3, 1), -math.inf)], 1)
    assert Temperature.fit(padded, labels, inputs="logits").value == pytest.approx(without.value)
    added = Temperature.fit(logits, labels, inputs="logits", prior=1)
    assert Temperature.fit(padded, labels, inputs="logits", prior=1).value == pytest.approx(added.value)


def test_images_with_an_impossible_label_are_left_out():
    probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [1.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 1])
    with pytest.warns(RbueWarning, match="1 of 5 images"):
        assert Temperature.fit(probs, labels).value == pytest.approx(2.0)
    with pytest.raises(InvalidInput, match="all 1 images"):
        Temperature.fit(probs[4:], labels[4:])


@pytest.mark.parametrize("strength", [1e-3, 0.1, 1.0, 5.0, 30.0])
def test_all_right_ends_at_the_lower_bound(strength):
    logits = torch.eye(5, dtype=torch.float64) * strength
    # The right class is never the first in the row sum, so rounding has every chance to flip the sign.
    logits[:, 0] -= 0.1 * strength
    with pytest.warns(RbueWarning, match=r"0\.01, the lower bound"):
        assert Temperature.fit(logits[1:], torch.arange(1, 5), inputs="logits").value == Temperature.LOWEST


@pytest.mark.parametrize("right", [1.0, 0.7])
def test_a_prior_is_so_many_images_of_any_label(right):
    """The same images with each label, in as many copies as make up one of them."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(50, 4, generator=generator, dtype=torch.float64)
    labels = logits.argmax(1)
    labels = torch.where(torch.rand(50, generator=generator) < right, labels, (labels + 1) % 4)
    rows = torch.cat([logits.repeat(200, 1), logits.repeat_interleave(4, 0)])
    every = torch.cat([labels.repeat(200), torch.arange(4).repeat(50)])  # 4 added for each 200 copies
    found = Temperature.fit(logits, labels, inputs="logits", prior=50 * 4 / 200).value
    assert found == pytest.approx(Temperature.fit(rows, every, inputs="logits").value)
    assert Temperature.LOWEST < found < Temperature.HIGHEST


def test_a_softmax_that_is_saturated_at_the_start_is_fitted_too():
    """Of two classes that are 800 apart, one image in 4,001 is wrong: ``exp(-800 / T)`` has to be 1 / 4,000."""
    logits = torch.tensor([800.0, 0.0], dtype=torch.float64).expand(4001, 2)
    labels = (torch.arange(4001) == 0).long()
    found = Temperature.fit(logits, labels, inputs="logits").value
    assert found == pytest.approx(800 / math.log(4000), rel=1e-12)


def test_worse_than_chance_ends_at_the_upper_bound():
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    with pytest.warns(RbueWarning, match=r"100\.0, the upper bound"):
        assert Temperature.fit(probs, torch.tensor([1, 0])).value == Temperature.HIGHEST


@pytest.mark.parametrize("ruled_out", [[], [0, 1], [0, 1, 2, 3]])
def test_uniform_predictions_keep_temperature_one(ruled_out):
    probs = torch.full((4, 3), 1 / 3)
    probs[ruled_out] = torch.tensor([0.5, 0.5, 0.0])
    with pytest.warns(RbueWarning, match="every prediction is uniform"):
        assert Temperature.fit(probs, torch.tensor([0, 1, 1, 0])).value == 1.0


def test_ordinary_data_give_no_warning():
    logits, labels = overconfident(images=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Temperature.fit(logits, labels, inputs="logits")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(2, 6), st.floats(0.05, 50))
@example(6, 6, 6, 25.4140625)  # the slope becomes exactly 0 on the way
def test_no_other_temperature_is_better(seed, images, classes, factor):
    logits, labels = overconfident(images, classes, factor, seed)

    def loss(temperature):
        return torch.nn.functional.cross_entropy(logits / temperature, labels).item()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RbueWarning)
        fitted = Temperature.fit(logits, labels, inputs="logits").value
    assert Temperature.LOWEST <= fitted <= Temperature.HIGHEST
    for other in (0.01, 0.1, 1.0, 10.0, 100.0, fitted * 1.01, fitted / 1.01):
        if Temperature.LOWEST <= other <= Temperature.HIGHEST:
            assert loss(fitted) <= loss(other) + 1e-12


def test_cross_fit_uses_only_the_other_fold():
    logits, labels = overconfident(images=101)
    probs = logits.softmax(1)
    calibrated = cross_fit(probs, labels, folds=2, seed=3)
    assert calibrated.shape == probs.shape
    # Every image was calibrated by one of two temperatures: p ∝ probs^(1/T) gives T back.
    top = probs.topk(2, 1).indices

    def log_odds(values):
        high, low = values.gather(1, top).log().unbind(1)
        return high - low

    temperatures = log_odds(probs) / log_odds(calibrated)
    groups = temperatures.mul(1e6).round().unique()
    assert len(groups) == 2
    for value in groups / 1e6:
        inside = (temperatures - value).abs() < 1e-5
        assert inside.sum() in (50, 51)
        expected = Temperature.fit(probs[~inside], labels[~inside]).value
        assert value.item() == pytest.approx(expected, abs=1e-5)


def test_the_folds_do_not_depend_on_torchs_default_device():
    logits, labels = overconfident(200)
    probs = logits.softmax(1)
    fold = cross_fitted(probs, labels).fold
    with torch.device("meta"):
        assert cross_fitted(probs, labels).fold.equal(fold)


@pytest.mark.parametrize("prior", [0.0, 50.0])
def test_cross_fitted_names_the_temperature_of_each_fold(prior):
    logits, labels = overconfident(images=4001, factor=3.0)
    probs = logits.softmax(1)
    found = cross_fitted(probs, labels, seed=5, prior=prior)
    assert torch.equal(found.probs, cross_fit(probs, labels, seed=5)) == (prior == 0)
    assert found.fold.bincount().tolist() == [2001, 2000]
    for k, value in enumerate(found.temperatures):
        assert value == Temperature.fit(probs[found.fold != k], labels[found.fold != k], prior=prior).value
        assert value == pytest.approx(3.0, rel=0.1)
        torch.testing.assert_close(found.probs[found.fold == k], Temperature(value)(probs[found.fold == k]))
    assert found.temperatures[0] != found.temperatures[1]


@pytest.mark.parametrize("half", [0, 1])
def test_labels_of_a_half_do_not_reach_its_own_temperature(half):
    logits, labels = overconfident(images=300)
    probs = logits.softmax(1)
    before = cross_fitted(probs, labels)
    inside = before.fold == half
    changed = torch.where(inside, (labels + 1) % 5, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RbueWarning)  # wrong labels ask for the greatest temperature
        after = cross_fitted(probs, changed)
    assert after.temperatures[half] == before.temperatures[half]
    assert after.temperatures[1 - half] > 2 * before.temperatures[1 - half]
    assert torch.equal(after.probs[inside], before.probs[inside])
    assert not torch.equal(after.probs[~inside], before.probs[~inside])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(2, 6), st.floats(0.01, 80))
def test_no_decision_changes(seed, images, classes, factor):
    """In float64, as probabilities kept in half precision are read, whatever bound the temperatures end at."""
    logits, labels = overconfident(images, classes, factor, seed)
    probs = logits.softmax(1).half().clamp_min(2.0**-24).double()
    probs /= probs.sum(1, keepdim=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RbueWarning)
        scaled = cross_fitted(probs, labels, seed=seed).probs
    assert torch.equal(scaled.argmax(1), probs.argmax(1))
    assert metrics.accuracy(scaled, labels) == metrics.accuracy(probs, labels)


def test_cross_fit_depends_on_the_seed_alone():
    logits, labels = overconfident(images=100)
    probs = logits.softmax(1)
    state = torch.random.get_rng_state()
    assert torch.equal(cross_fit(probs, labels, seed=1), cross_fit(probs, labels, seed=1))
    assert not torch.equal(cross_fit(probs, labels, seed=1), cross_fit(probs, labels, seed=2))
    assert torch.equal(torch.random.get_rng_state(), state)


PROBS = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Temperature(0.0), "value is 0.0"),
        (lambda: Temperature(-1.0), "value is -1.0"),
        (lambda: Temperature(math.inf), "value is inf"),
        (lambda: Temperature(math.nan), "value is nan"),
        (lambda: Temperature("2"), "value is '2'"),
        (lambda: Temperature(True), "value is True"),
        (lambda: Temperature.fit(PROBS * 2, LABELS), "1.8"),
        (lambda: Temperature.fit(PROBS, LABELS + 1), "holds 2"),
        (lambda: Temperature.fit(PROBS, LABELS.float()), "torch.float32"),
        (lambda: Temperature.fit(PROBS, LABELS, inputs="scores"), "inputs is 'scores'"),
        (lambda: Temperature.fit(PROBS, LABELS, prior=-1), "prior is -1"),
        (lambda: Temperature.fit(PROBS, LABELS, prior=math.inf), "prior is inf"),
        (lambda: Temperature.fit(PROBS, LABELS, prior=True), "prior is True"),
        (lambda: Temperature.fit(PROBS, LABELS, prior="1"), "prior is '1'"),
        (lambda: Temperature.fit(PROBS[0], LABELS, inputs="logits"), "(2,)"),
        (lambda: Temperature.fit(PROBS[:0], LABELS[:0], inputs="logits"), "(0, 2)"),
        (lambda: Temperature.fit(PROBS / 0, LABELS, inputs="logits"), "inf as the largest value of row 0"),
        (lambda: Temperature.fit(PROBS * math.nan, LABELS, inputs="logits"), "4 NaN"),
        (lambda: Temperature(1.0)(torch.full((1, 2), -math.inf), inputs="logits"), "-inf as the largest"),
        (lambda: Temperature(1.0)(PROBS, inputs="log"), "inputs is 'log'"),
        (lambda: cross_fit(PROBS, LABELS, folds=1), "folds is 1"),
        (lambda: cross_fit(PROBS, LABELS, folds=3), "folds is 3"),
        (lambda: cross_fit(PROBS[:1], LABELS[:1]), "(1, 2), that is 1 image"),
        (lambda: cross_fit(PROBS, LABELS, seed=-1), "seed is -1"),
        (lambda: cross_fit(PROBS * 2, LABELS), "1.8"),
    ],
)
def test_bad_inputs(call, said):
    with pytest.raises(InvalidInput, match=re.escape(said)):
        call()


def test_a_prediction_is_fitted_as_no_temperature_has_changed_it():
    logits, labels = overconfident(images=60)
    probs = logits.softmax(1)
    plain = Prediction(probs, probs, probs.argmax(1), probs[:, 0], samples_used=torch.full((60,), 5), seed=0)
    for one in (plain, plain.scaled(3.0)):
        assert Temperature.fit(one, labels) == Temperature.fit(probs, labels)
        with pytest.raises(InvalidInput, match="has probabilities; leave out inputs="):
            Temperature.fit(one, labels, inputs="logits")
        assert torch.equal(cross_fitted(one, labels).probs, cross_fitted(probs, labels).probs)


def test_what_is_in_one_group_is_in_one_fold():
    torch.manual_seed(0)
    probs, labels = (3 * torch.randn(60, 3)).softmax(1), torch.randint(3, (60,))
    labels[::2] = probs[::2].argmax(1)
    groups = torch.arange(60) // 5 * 7
    found = cross_fitted(probs, labels, folds=4, groups=groups)
    assert [len(found.fold[groups == one].unique()) for one in groups.unique()] == [1] * 12
    assert found.fold[::5].bincount().tolist() == [3] * 4
    for k, value in enumerate(found.temperatures):
        assert value == Temperature.fit(probs[found.fold != k], labels[found.fold != k]).value
    with pytest.raises(InvalidInput, match=r"folds is 13; .* at most 12"):
        cross_fitted(probs, labels, folds=13, groups=groups)
    for bad in (groups[:3], groups.tolist()):
        with pytest.raises(InvalidInput, match="groups must be a tensor with one number for each of 60 images"):
            cross_fitted(probs, labels, groups=bad)
    with pytest.raises(InvalidInput, match="that is 1 group; give at least 2"):
        cross_fitted(probs, labels, groups=groups * 0)
