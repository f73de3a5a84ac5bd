"""What outputs may mean: each kind of prediction against a plain loop over samples."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from networks import build
from scipy import special
from torch import nn

import rbue
from rbue.errors import InvalidInput, RbueError, RbueWarning
from rbue.prediction import GaussianStatistics, MultiLabel, Prediction, Regression, RegressionStatistics, concatenate
from rbue.sampling.stacking import StackedPasses
from rbue.sampling.tasks import TASKS, looks_like_probs

SAMPLES = 7


@dataclass
class Output:
    mean: torch.Tensor
    variance: torch.Tensor


def reader(form):
    """What a network returns of a mean and a variance, in one of the forms."""
    return {
        "tuple": lambda mean, variance: (mean, variance),
        "dict": lambda mean, variance: {"variance": variance, "mean": mean, "more": None},
        "object": Output,
        "distribution": lambda mean, variance: torch.distributions.Normal(mean, variance.sqrt()),
        "tensor": lambda mean, variance: torch.stack([mean, variance], 1),
    }[form]


class Net(nn.Module):
    """``finish`` makes what the network returns of its last layer, ``(B, width)``."""

    def __init__(self, width, finish=lambda out: out):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, width))
        self.finish = finish

    def forward(self, x):
        return self.finish(self.layers(x))


def network(width, finish=lambda out: out):
    torch.manual_seed(0)
    return rbue.convert(Net(width, finish).eval(), rbue.DropReLU(0.6)), torch.randn(5, 6)


def loop(net, x, samples=SAMPLES):
    """The last layer's outputs, one call a sample, in float64."""
    rbue.seed(net, 0)
    kept = []
    hook = net.layers.register_forward_hook(lambda _, __, out: kept.append(out.double()))
    with torch.no_grad():
        for _ in range(samples):
            net(x)
    hook.remove()
    return torch.stack(kept).numpy()


def predict(net, x, outputs, **settings):
    settings = {"samples": SAMPLES, "draws": "independent", "return_samples": True} | settings
    return rbue.predict(net, x, outputs=outputs, **settings)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def bernoulli_entropy(p):
    return special.entr(p) + special.entr(1 - p)


@pytest.mark.parametrize("finish", [lambda out: out, lambda out: out[:, 0], lambda out: out[:, :, None, None]])
def test_binary_is_two_classes(finish):
    net, x = network(1, finish)
    found = predict(net, x, "binary")
    p = special.expit(loop(net, x)[:, :, 0])
    assert type(found) is Prediction
    assert found.outputs == "binary"
    close(found.probs[:, 1].flatten(), p.mean(0))
    close(found.probs[:, 0].flatten(), 1 - p.mean(0))
    close(found.expected_entropy.flatten(), bernoulli_entropy(p).mean(0))
    assert found.votes[:, 1].flatten().tolist() == (p > 0.5).sum(0).tolist()


def test_tokens_have_their_classes_last():
    net, x = network(12, lambda out: out.unflatten(1, (4, 3)))
    found = predict(net, x, "tokens")
    p = special.softmax(loop(net, x).reshape(SAMPLES, 5, 4, 3), axis=3)
    assert type(found) is Prediction
    close(found.probs, np.moveaxis(p.mean(0), 2, 1))
    assert found.label.tolist() == p.mean(0).argmax(2).tolist()
    net, x = network(3)
    with pytest.raises(InvalidInput, match=r"outputs='tokens' is for scores of each token, .* returned \(\d+, 3\)"):
        predict(net, x, "tokens")


def test_a_token_classifier_is_not_taken_for_one_with_as_many_classes_as_tokens():
    net, x = network(12, lambda out: out.unflatten(1, (4, 3)))
    rbue.predict(net, x, samples=2)
    net.config = SimpleNamespace(num_labels=3)
    with pytest.raises(InvalidInput, match=r"\(B, 4, 3\) and has 3 classes, which stand last; give outputs='tokens'"):
        rbue.predict(net, x, samples=2)
    rbue.predict(net, x, samples=2, outputs="logits")


@pytest.mark.parametrize("shape", [(4,), (2, 2, 1)])
def test_multilabel_is_a_probability_for_each_label(shape):
    net, x = network(4, lambda out: out.reshape(-1, *shape))
    found = predict(net, x, "multilabel")
    p = special.expit(loop(net, x)).reshape(SAMPLES, 5, *shape)
    assert type(found) is MultiLabel
    close(found.probs, p.mean(0))
    close(found.variance, p.var(0))
    close(found.samples, p)
    close(found.expected_entropy, bernoulli_entropy(p).mean(0))
    close(found.entropy, bernoulli_entropy(p.mean(0)))
    close(found.mutual_information, bernoulli_entropy(p.mean(0)) - bernoulli_entropy(p).mean(0))
    assert found.label.dtype == torch.bool
    assert found.label.tolist() == (p.mean(0) > 0.5).tolist()
    assert found.votes.tolist() == (p > 0.5).sum(0).tolist()
    assert f"{shape[0]} labels" in repr(found)


@pytest.mark.parametrize("finish", [lambda out: out[:, :1], lambda out: out[:, 0], lambda out: out])
def test_values_have_mean_and_std(finish):
    net, x = network(3, finish)
    found = predict(net, x, "values")
    values = np.stack([finish(torch.from_numpy(one)).numpy() for one in loop(net, x)])
    assert type(found) is Regression
    close(found.mean, values.mean(0))
    close(found.std, values.std(0))
    close(found.epistemic, values.var(0))
    close(found.samples, values)
    assert found.aleatoric is None
    assert found.samples_used.tolist() == [SAMPLES] * 5
    assert f"{'x'.join(map(str, found.mean.shape[1:])) or 1} values each" in repr(found)


@pytest.mark.parametrize("form", ["tuple", "dict", "object", "distribution", "tensor"])
@pytest.mark.parametrize("single", [True, False])
def test_gaussian_is_a_mixture_of_normal_distributions(form, single):
    def finish(out):
        mean, variance = out[:, :2], nn.functional.softplus(out[:, 2:])
        return reader(form)(*((mean[:, 0], variance[:, 0]) if single else (mean, variance)))

    net, x = network(4, finish)
    found = predict(net, x, "gaussian")
    drawn = loop(net, x)
    mean, variance = drawn[..., :2], np.log1p(np.exp(drawn[..., 2:]))
    if single:
        mean, variance = mean[..., 0], variance[..., 0]
    assert type(found) is Regression
    close(found.mean, mean.mean(0))
    close(found.epistemic, mean.var(0))
    close(found.aleatoric, variance.mean(0))
    close(found.variance, (variance + mean**2).mean(0) - mean.mean(0) ** 2)  # E[X²] - E[X]² of the mixture
    close(found.std, found.variance.sqrt())
    close(found.samples, np.stack([mean, variance], 2))
    assert "aleatoric" in repr(found)


def test_quantiles_and_a_function_of_the_outputs():
    net, x = network(3, lambda out: out.sort(1).values)
    found = predict(net, x, "quantiles")
    drawn = np.sort(loop(net, x), axis=2)
    close(found.mean, drawn.mean(0))
    close(found.std, drawn.std(0))
    net, x = network(3, lambda out: {"depth": (out, None)})

    def norm(out):
        return out["depth"][0].square().sum(1)

    found = predict(net, x, norm)
    squares = (loop(net, x) ** 2).sum(2)
    close(found.mean, squares.mean(0))
    close(found.std, squares.std(0))
    assert found.outputs == "norm"
    assert all(plan.share for plan in net._rbue_conversion.plans.values())
    predict(net, x, norm)
    assert len(net._rbue_conversion.plans) == 1


def test_regression_keeps_double_precision():
    net, x = network(1, lambda out: out + 1e6)
    found = predict(net.double(), x.double(), "values")
    close(found.mean - 1e6, loop(net, x.double()).mean(0))
    assert found.mean.dtype == torch.float64


@pytest.mark.parametrize("outputs", ["binary", "multilabel", "values", "gaussian", "quantiles"])
def test_predictions_do_not_depend_on_batches_or_memory(outputs):
    width = 1 if outputs == "binary" else 2
    net, x = network(width, (lambda out: out.exp()) if outputs == "gaussian" else (lambda out: out))
    whole = predict(net, x, outputs)
    for other in (predict(net, list(x.split(2)), outputs), predict(net, x, outputs, memory=1)):
        assert type(other) is type(whole)
        for name in ("probs", "variance", "votes", "expected_entropy", "mean", "epistemic", "aleatoric", "samples"):
            one, expected = getattr(other, name, None), getattr(whole, name, None)
            assert (one is None) == (expected is None)
            if one is not None:
                close(one, expected)
        assert other.outputs == outputs
    assert len(concatenate([whole, whole])) == 10


@pytest.mark.parametrize("outputs", ["multilabel", "values", "gaussian"])
def test_adaptive_stops_when_the_means_are_known(outputs):
    net, x = network(2, (lambda out: out.exp()) if outputs == "gaussian" else (lambda out: out))
    net.layers = net.layers[3:]
    torch.manual_seed(0)
    x = torch.randn(5, 16)
    x[4] = x[4].abs()  # which no random ReLU changes
    tolerance = 0.05
    found = predict(net, x, outputs, samples=512, adaptive=rbue.Adaptive(tolerance, first=8), return_samples=False)
    limit = predict(net, x, outputs, samples=4000, return_samples=False)
    main = "probs" if outputs == "multilabel" else "mean"
    assert found.samples_used[4] == 8
    assert found.samples_used.max() > 8
    off = (getattr(found, main) - getattr(limit, main)).reshape(5, -1).abs().amax(1)
    assert float(off[found.samples_used < 512].max()) < tolerance


def test_a_tolerance_has_the_unit_of_the_values():
    net, x = network(1, lambda out: 1000 * out)
    wide = predict(net, x, "values", samples=64, adaptive=rbue.Adaptive(tolerance=5000, first=8), return_samples=False)
    assert wide.samples_used.tolist() == [8] * 5
    net, x = network(3)
    with pytest.raises(InvalidInput, match=r"tolerance must lie in \(0, 1\) for probabilities, not 5000"):
        predict(net, x, None, adaptive=rbue.Adaptive(tolerance=5000), return_samples=False)


def test_settled_rules():
    rows = torch.arange(2)
    statistics = GaussianStatistics(2, torch.device("cpu"))
    statistics.add(rows, torch.rand(4, 2, 2))
    half_width = torch.tensor([[0.1, 9.0], [0.3, 0.0]])
    assert statistics.settled(rows, half_width, 0.2).tolist() == [True, False]
    labels = TASKS["multilabel"].statistics(2, torch.device("cpu"))
    labels.add(rows, torch.tensor([[[0.7, 0.9], [0.5, 0.1]]]))
    assert labels.settled(rows, torch.full((2, 2), 0.1), 0.2).tolist() == [[True, True], [False, True]]


@pytest.mark.parametrize("finish", [lambda out: out, lambda out: out[:, 0], lambda out: out[:, :, None]])
@pytest.mark.parametrize("outputs", [None, "logits"])
def test_one_number_an_image_has_two_meanings(finish, outputs):
    net, x = network(1, finish)
    with pytest.raises(InvalidInput, match=r"one number an image, \(B,.*outputs='binary' .* or outputs='values'"):
        predict(net, x, outputs)


def bad_tasks():
    return [
        (2, lambda out: out, "binary", r"'binary' is for one logit an image, but the network returned \(B, 2\)"),
        (2, lambda out: out[:, 0], "multilabel", r"for each label, \(B, K\), but the network returned \(B,\)"),
        (1, lambda out: out, "quantiles", r"at least two quantiles an image, \(B, Q\), .* returned \(B, 1\)"),
        (4, lambda out: out.reshape(-1, 2, 2), "quantiles", r"the network returned \(B, 2, 2\)"),
        (3, lambda out: out, "gaussian", r"a tensor \(B, 2, \.\.\.\); the network returned shape \(\d+, 3\)"),
        (2, lambda out: (out, -out.exp()), "gaussian", r"returned the variance -.* if it is a log-variance, return"),
        (2, lambda out: (out, 0 * out.exp()), "gaussian", "returned the variance 0, and a variance is positive"),
        (2, lambda out: (out.mean(), out.var()), "gaussian", "one number for the whole batch"),
        (
            2,
            lambda out: torch.cat([out, out]),
            "values",
            r"returned \d+ rows for \d+ inputs; rbue needs one row for each",
        ),
        (3, lambda out: 9 * out, "probs", r"are not probabilities: .*; use outputs='logits'\."),
        (2, lambda out: (out, out[:, :1]), "gaussian", r"mean of shape \(\d+, 2\) and a variance of shape \(\d+, 1\)"),
        (2, lambda out: (out, out, out), "gaussian", "the network returned tuple"),
        (2, lambda out: (out, out), None, r"returned tuple; .* out\[0\]\); .* give outputs= a function"),
        (2, lambda out: {"scores": out}, None, r"returned dict; .* out: out\['scores'\]\);"),
        (2, lambda out: out, lambda out: 3, "the function given as outputs returned int; it has to return a tensor"),
        (2, lambda out: out, lambda out: out.sum(), "one number for the whole batch"),
        (2, lambda out: out, lambda out: out.argmax(1), "returned torch.int64"),
        (2, lambda out: out, "value", r"outputs must be 'logits', .* not 'value' \(did you mean 'values'\?\)"),
        (2, lambda out: out, 3, "outputs must be 'logits', .* not 3"),
        (2, lambda out: out.log(), "values", "returned NaN or infinity, first for image"),
    ]


@pytest.mark.parametrize(("width", "finish", "outputs", "message"), bad_tasks())
def test_a_task_that_does_not_fit_is_one_clear_sentence(width, finish, outputs, message):
    net, x = network(width, finish)
    with pytest.raises(RbueError, match=message) as error:
        predict(net, x, outputs)
    assert "\n" not in str(error.value)


def test_the_improbable_answer_of_a_sure_network_keeps_its_digits():
    found = TASKS["binary"].sampled(torch.full((1, 1), 40.0))
    assert float(found[0, 0, 0]) == pytest.approx(special.expit(-40), rel=1e-5, abs=0)


def test_rounded_probabilities_look_like_probabilities():
    probs = torch.randn(2, 5, 100, generator=torch.Generator().manual_seed(0)).softmax(2)
    assert looks_like_probs(probs)
    assert looks_like_probs(probs.bfloat16())


class Compared:
    """Equal to others of its class, and without a hash."""

    def __eq__(self, other):
        return isinstance(other, Compared)

    def __call__(self, out):
        return out


def test_a_function_without_a_hash_reads_outputs_too():
    net, x = network(2)
    assert torch.equal(predict(net, x, Compared()).mean, predict(net, x, "values").mean)


def test_sigmoids_taken_for_logits_of_labels_are_noticed():
    net, x = network(3, lambda out: (20 * out).sigmoid())
    with pytest.warns(RbueWarning, match="look like probabilities.*ends in a sigmoid, leave that out"):
        predict(net, x, "multilabel")


def test_maps_of_classes_values_and_labels():
    net, x = build("per-pixel")
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    rbue.seed(net, 0)
    with torch.no_grad():
        drawn = torch.stack([net(x)["out"] for _ in range(SAMPLES)]).double().numpy()
    p = special.softmax(drawn, 2)
    classes = predict(net, x, None)
    close(classes.probs, p.mean(0))
    close(classes.variance, p.var(0))
    close(classes.expected_entropy, special.entr(p).sum(2).mean(0))
    assert classes.label.shape == (4, 6, 6)
    close(predict(net, x, "values").std, drawn.std(0))
    close(predict(net, x, "multilabel").probs, special.expit(drawn).mean(0))


def test_the_memory_of_maps_is_counted():
    """A last layer of many classes: its probabilities are larger than anything inside the network."""
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 64, 1))
    x = torch.randn(4, 1, 8, 8)
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    plan = StackedPasses(net, x, 0).plan
    of_map = 64 * 8 * 8 * 4
    assert plan.for_row >= 2 * of_map


@pytest.mark.parametrize("at_once", [70, 20])  # two samples of an image, or none
def test_large_maps_are_added_piece_by_piece_to_the_same_statistics(monkeypatch, at_once):
    monkeypatch.setattr("rbue.prediction._AT_ONCE", at_once)
    samples = torch.randn(6, 3, 2, 4, 4, dtype=torch.float64)
    statistics = RegressionStatistics(3, torch.device("cpu"))
    statistics.add(torch.arange(3), samples[:4])
    statistics.add(torch.arange(3), samples[4:])
    found = statistics.prediction(0)
    close(found.mean, samples.mean(0))
    close(found.epistemic, samples.var(0, correction=0))
    assert math.isclose(float(found.std[0, 0, 0, 0]), float(samples[:, 0, 0, 0, 0].std(correction=0)))


def test_outputs_that_a_function_moved_are_brought_back():
    brought = []

    class Moved(torch.Tensor):
        def to(self, device):
            brought.append(device)
            return self.as_subclass(torch.Tensor)

    net, x = network(2)
    predict(net, x, lambda out: out.as_subclass(Moved))
    assert {*brought} == {x.device}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("images", [1, 3])
def test_outputs_of_a_gpu_that_a_function_moves_to_the_cpu_are_sampled_alike(images):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).cuda(), torch.randn(images, 8).cuda()
    rbue.convert(net, rbue.DropReLU(0.5), example=x)
    calls = []
    net.register_forward_pre_hook(lambda *_: calls.append(None))
    found = rbue.predict(net, x, samples=20, outputs=lambda out: out.cpu())
    passes = len(calls)
    expected = rbue.predict(net, x, samples=20, outputs="values")
    assert torch.equal(found.mean, expected.mean)
    assert passes == len(calls) - passes  # the same small ones beforehand
