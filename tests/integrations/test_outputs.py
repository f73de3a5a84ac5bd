"""A prediction in the form of a network's outputs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rbue
from rbue.integrations import as_outputs


def network(outputs):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, outputs), nn.Unflatten(1, (outputs,)))
    return rbue.convert(net, rbue.DropReLU(0.7))


X = torch.randn(9, 6, generator=torch.Generator().manual_seed(1))


def test_logits():
    prediction = rbue.predict(network(3), X, samples=8)
    found, labels = as_outputs(prediction), torch.arange(9) % 3
    assert torch.allclose(found.softmax(1), prediction.probs)
    assert torch.equal(found.argmax(1), prediction.label)
    assert F.cross_entropy(found, labels).item() == pytest.approx(rbue.metrics.nll(prediction.probs, labels).item())


def test_a_probability_of_zero_has_a_finite_logarithm():
    net = network(3)
    with torch.no_grad():
        net[2].weight.mul_(1e4)
    prediction = rbue.predict(net, X, samples=8)
    assert prediction.probs.min() == 0
    assert as_outputs(prediction).isfinite().all()


@pytest.mark.parametrize(("outputs", "columns"), [("binary", 1), ("multilabel", 4)])
def test_yes_or_no(outputs, columns):
    prediction = rbue.predict(network(columns), X, samples=8, outputs=outputs)
    yes = prediction.probs[:, 1:] if outputs == "binary" else prediction.probs
    assert torch.allclose(as_outputs(prediction).sigmoid(), yes)


@pytest.mark.parametrize(("logit", "wrong"), [(10.0, 0.0), (18.0, 0.0), (60.0, 0.0), (-18.0, 1.0), (-60.0, 1.0)])
def test_a_surely_wrong_label_costs_no_more_than_its_logit(logit, wrong):
    net = network(4)
    with torch.no_grad():
        net[2].weight.zero_()
        net[2].bias.fill_(logit)
    found = as_outputs(rbue.predict(net, X, samples=2, outputs="multilabel"))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(found, torch.full_like(found, wrong))
    assert float(loss) == pytest.approx(abs(logit), rel=0.05) or (logit == 60 and 17 < float(loss) < 18)


def test_tokens_stand_before_classes():
    net = rbue.convert(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), rbue.DropReLU(0.7))
    prediction = rbue.predict(net, X.reshape(3, 3, 6), samples=8, outputs="tokens")
    assert torch.allclose(as_outputs(prediction).softmax(-1), prediction.probs.movedim(1, -1))


def test_numbers_and_probabilities_stay():
    net = network(2)
    values = rbue.predict(net, X, samples=8, outputs="values")
    assert as_outputs(values) is values.mean
    given = rbue.predict(net, X, samples=8, outputs=lambda out: out.softmax(1))
    assert as_outputs(given) is given.mean
    net.append(nn.Softmax(1))
    probs = rbue.predict(net, X, samples=8, outputs="probs")
    assert as_outputs(probs) is probs.probs
    gaussian = rbue.predict(net, X, samples=8, outputs="gaussian")
    assert torch.equal(as_outputs(gaussian), torch.stack([gaussian.mean, gaussian.variance], 1))


@pytest.mark.parametrize("outputs", ["logits", "multilabel", "values"])
def test_a_prediction_moves(outputs):
    prediction = rbue.predict(network(3), X, samples=4, outputs=outputs, return_samples=True)
    moved = prediction.to("meta")
    assert type(moved) is type(prediction)
    assert moved.samples.is_meta
    assert moved.samples_used.is_meta
    assert moved.variance.is_meta
    assert (moved.seed, moved.outputs, moved.draws) == (prediction.seed, prediction.outputs, prediction.draws)
