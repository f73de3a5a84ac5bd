"""Decisions of tensors on a GPU stay there and are those of a CPU."""

import pytest
import torch
from torch import nn

import rbue
from rbue.decisions import abstaining, acquiring, conformal
from rbue.decisions import out_of_distribution as ood

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def data(device):
    """Samples, labels, logits, features and numbers with their standard deviations and targets."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(6, 400, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits[0].softmax(1), 1, generator=generator).squeeze(1)
    features = torch.randn(400, 12, generator=generator, dtype=torch.float64) + labels[:, None]
    mean, std = torch.randn(400, generator=generator), torch.rand(400, generator=generator) + 0.1
    targets = mean + std * torch.randn(400, generator=generator)
    return [values.to(device) for values in (logits.softmax(2), labels, logits, features, mean, std, targets)]


def decided(device):
    """Every kind of decision, by name."""
    samples, labels, logits, features, mean, std, targets = data(device)
    held, new = slice(0, 200), slice(200, 400)
    detectors = {
        "nearest": ood.KNearest.fit(features[held], k=5),
        "mahalanobis": ood.Mahalanobis.fit(features[held], labels[held]),
    }
    yield from ood.scores(samples, logits=logits, features=features, detectors=detectors).items()
    for score in (conformal.LAC(), conformal.APS(), conformal.RAPS(penalty=0.01, free_ranks=2)):
        for by_class in (False, True):
            sets = score.fit(samples[:, held], labels[held], coverage=0.8, by_class=by_class)
            yield f"{type(score).__name__} {by_class}", sets(samples[:, new], never_empty=True)
    for residuals, parts in (
        (conformal.Residuals(), lambda rows: mean[rows]),
        (conformal.NormalisedResiduals(), lambda rows: (mean[rows], std[rows])),
        (conformal.QuantileResiduals(), lambda rows: torch.stack([mean - std, mean + std], 1)[rows]),
    ):
        intervals = residuals.fit(parts(held), targets[held], coverage=0.9)(parts(new))
        yield type(residuals).__name__, torch.stack(intervals)
    confidence = samples[0].amax(1)
    rule = abstaining.fit(confidence, samples[0].argmax(1) == labels, risk=0.3)
    yield "abstaining", rule(confidence)
    for pick in (acquiring.entropy, acquiring.margin, acquiring.variation_ratio, acquiring.bald, acquiring.batch_bald):
        yield pick.__name__, pick(samples, 8)
    yield "core_set", acquiring.core_set(features[new], 8, labelled=features[held])


def test_gpu_equals_cpu():
    for (name, here), (_, there) in zip(decided("cpu"), decided("cuda"), strict=True):
        assert there.device.type == "cuda", name
        torch.testing.assert_close(there.cpu(), here, rtol=1e-6, atol=1e-9, msg=name)


def test_detection_of_scores_on_a_gpu():
    inside, outside = torch.randn(500), torch.randn(300) + 1
    assert ood.detection(inside.cuda(), outside.cuda()) == pytest.approx(ood.detection(inside, outside))


def test_a_prediction_keeps_logits_and_features_on_the_gpu():
    torch.manual_seed(0)
    x, labels = torch.randn(40, 6), torch.arange(40) % 3
    net = rbue.convert(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), rbue.DropReLU(0.8), example=x)
    found = []
    for device in ("cpu", "cuda"):
        kept = rbue.predict(net.to(device), x.to(device), samples=20, keep=("logits", "features"))
        assert kept.features.device.type == kept.energy.device.type == device
        detectors = {"nearest": ood.KNearest.fit(kept, k=3), "mahalanobis": ood.Mahalanobis.fit(kept, labels)}
        found.append(ood.scores(kept, detectors=detectors))
    for name, here in found[0].items():
        torch.testing.assert_close(found[1][name].cpu(), here, rtol=1e-3, atol=1e-3, msg=name)
