"""On a GPU everything stays there and equals the CPU."""

import pytest
import torch

from rbue import calibration, metrics, variance
from rbue.errors import InvalidInput

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def data(device):
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(4, 300, 5, generator=generator).mul(2).softmax(2)
    labels = torch.multinomial(samples[0].sqrt(), 1, generator=generator).squeeze(1)
    scores = torch.randint(0, 30, (300,), generator=generator).float()
    flags = torch.rand(300, generator=generator) < scores / 30
    return [tensor.to(device) for tensor in (samples, samples[0], labels, scores, flags)]


def functions(device):
    samples, probs, labels, scores, flags = data(device)
    for name in ("accuracy", "top_k_accuracy", "ece", "mce", "adaptive_ece", "nll", "brier"):
        yield name, getattr(metrics, name)(probs, labels)
    for name in ("expected_entropy", "mutual_information", "jsd", "disagreement"):
        yield name, getattr(metrics, name)(samples)
    for name in ("auroc", "aupr", "fpr95", "aurc"):
        yield name, getattr(metrics, name)(scores, flags)
    yield "entropy", metrics.entropy(probs)
    yield "risk_coverage", metrics.risk_coverage(scores, flags).risk
    yield "reliability", metrics.reliability(probs, labels).accuracy.nan_to_num()
    yield "mean_pairwise", metrics.mean_pairwise(metrics.jsd(samples))
    yield "temperature", calibration.Temperature.fit(probs, labels)(probs)
    yield "cross_fit", calibration.cross_fit(probs, labels)
    yield "drop_relu", variance.drop_relu(scores - 15, q=0.8)


def classes(device):
    samples, probs, labels, scores, flags = data(device)
    inputs = {
        (probs, labels): ("Accuracy", "TopKAccuracy", "ECE", "MCE", "AdaptiveECE", "NLL", "Brier"),
        (probs,): ("PredictiveEntropy",),
        (samples,): ("MutualInformation", "JSD", "Disagreement"),
        (scores, flags): ("AUROC", "AUPR", "FPR95", "AURC"),
    }
    for tensors, names in inputs.items():
        for name in names:
            metric = getattr(metrics, name)().to(device)
            metric.update(*tensors)
            yield name, metric.compute()


@pytest.mark.parametrize("values", [functions, classes])
def test_gpu_equals_cpu(values):
    for (name, here), (_, there) in zip(values("cpu"), values("cuda"), strict=True):
        assert there.device.type == "cuda", name
        assert torch.allclose(there.cpu(), here, rtol=1e-6, atol=1e-7), name


def test_simulation_on_the_gpu():
    x = torch.tensor([-1.0, 2.0, -0.5], device="cuda")
    seen = variance.simulate(x, "drop_relu", q=0.8, samples=100_000)
    assert (seen.variance - variance.drop_relu(x, q=0.8)).abs() < 4 * seen.standard_error


def test_a_metric_on_the_cpu_takes_gpu_batches():
    _, probs, labels, scores, flags = data("cuda")
    batches = {metrics.ECE(): (probs, labels), metrics.NLL(): (probs, labels), metrics.AUROC(): (scores, flags)}
    for metric, batch in batches.items():
        metric.update(*batch)
        assert metric.compute().device.type == "cpu"


def test_mixed_devices_are_refused():
    _, probs, labels, _, _ = data("cuda")
    with pytest.raises(InvalidInput, match="probs is on cuda:0 and labels on cpu"):
        metrics.ece(probs, labels.cpu())


def test_deterministic_algorithms_are_possible():
    torch.use_deterministic_algorithms(True)
    try:
        assert len(list(functions("cuda"))) > 0
    finally:
        torch.use_deterministic_algorithms(False)
