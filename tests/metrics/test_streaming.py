"""The classes: batch by batch they give what the functions give on everything at once."""

from functools import partial

import pytest
import torch
from torch import multiprocessing
from torchmetrics import Metric, MetricCollection

from rbue import metrics
from rbue.errors import InvalidInput

LABELLED = [
    (metrics.Accuracy, metrics.accuracy),
    (metrics.TopKAccuracy, metrics.top_k_accuracy),
    (partial(metrics.TopKAccuracy, k=3), partial(metrics.top_k_accuracy, k=3)),
    (metrics.ECE, metrics.ece),
    (partial(metrics.ECE, bins=7), partial(metrics.ece, bins=7)),
    (metrics.AdaptiveECE, metrics.adaptive_ece),
    (partial(metrics.AdaptiveECE, bins=7), partial(metrics.adaptive_ece, bins=7)),
    (metrics.MCE, metrics.mce),
    (metrics.NLL, metrics.nll),
    (metrics.Brier, metrics.brier),
    (metrics.PredictiveEntropy, lambda probs: metrics.entropy(probs).mean()),
]
SAMPLED = [
    (metrics.MutualInformation, lambda samples: metrics.mutual_information(samples).mean()),
    (metrics.JSD, metrics.jsd),
    (partial(metrics.JSD, num_samples=4), metrics.jsd),
    (metrics.Disagreement, metrics.disagreement),
    (partial(metrics.Disagreement, num_samples=4), metrics.disagreement),
]
SCORED = [
    (metrics.AUROC, metrics.auroc),
    (metrics.AUPR, metrics.aupr),
    (metrics.FPR95, metrics.fpr95),
    (metrics.AURC, metrics.aurc),
    (metrics.AUGRC, metrics.augrc),
    (metrics.CoverageAtRisk, metrics.coverage_at_risk),
    (partial(metrics.CoverageAtRisk, risk=0.3), partial(metrics.coverage_at_risk, risk=0.3)),
]
NUMBERS = [
    (metrics.GaussianNLL, metrics.gaussian_nll),
    (metrics.GaussianCRPS, metrics.gaussian_crps),
    (metrics.IntervalCoverage, metrics.interval_coverage),
    (
        partial(metrics.QuantileCalibrationError, [0.1, 0.5, 0.9]),
        lambda quantiles, targets: metrics.quantile_calibration_error(
            quantiles, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), targets
        ),
    ),
]
# Unequal batches: a mean of batch means would be found out.
SPLIT = [5, 80, 15]


def inputs_for(pair, make_batch, make_samples):
    """The tensors one update takes, and the dimension along which images lie."""
    if pair in SAMPLED:
        return (make_samples(images=100),), 1
    if pair in SCORED:
        generator = torch.Generator().manual_seed(1)
        scores = torch.randint(0, 20, (100,), generator=generator).double()
        return (scores, torch.rand(100, generator=generator) < scores / 20), 0
    if pair in NUMBERS:
        generator = torch.Generator().manual_seed(1)
        numbers = torch.randn(100, 3, generator=generator, dtype=torch.float64)
        if pair is NUMBERS[3]:
            return (numbers.sort(1).values, numbers[:, 0].flip(0)), 0
        return (numbers - 1, numbers.abs() + 2, numbers.flip(0)), 0
    probs, labels = make_batch(images=100)
    return ((probs,) if pair[0] is metrics.PredictiveEntropy else (probs, labels)), 0


@pytest.mark.parametrize("pair", LABELLED + SAMPLED + SCORED + NUMBERS)
def test_batches_equal_the_function_on_everything(pair, make_batch, make_samples):
    make_metric, function = pair
    inputs, dim = inputs_for(pair, make_batch, make_samples)
    batches = list(zip(*(tensor.split(SPLIT, dim) for tensor in inputs), strict=True))
    metric = make_metric()
    assert isinstance(metric, Metric)
    for _ in range(2):
        for batch in batches:
            metric.update(*batch)
        torch.testing.assert_close(metric.compute(), function(*inputs), rtol=0, atol=1e-12)
        metric.reset()
    with pytest.warns(UserWarning, match="before"), pytest.raises(InvalidInput, match="seen 0 images"):
        metric.compute()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("pair", LABELLED + SAMPLED + SCORED + NUMBERS)
def test_forward_returns_the_batch_and_keeps_the_whole(pair, make_batch, make_samples):
    make_metric, function = pair
    inputs, dim = inputs_for(pair, make_batch, make_samples)
    batches = list(zip(*(tensor.split([40, 60], dim) for tensor in inputs), strict=True))
    metric = make_metric()
    for batch in batches:
        with_gradient = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in batch]
        found = metric(*with_gradient)
        torch.testing.assert_close(found, function(*batch), rtol=0, atol=1e-12)
        assert not found.requires_grad  # nor is a graph kept
    torch.testing.assert_close(metric.compute(), function(*inputs), rtol=0, atol=1e-12)
    assert not metric.compute().requires_grad


@pytest.mark.parametrize(
    "metric", [metrics.AUROC(), metrics.AUPR(), metrics.FPR95()], ids=lambda one: type(one).__name__
)
def test_a_batch_of_one_kind_has_no_score_and_loses_nothing(metric):
    scores, positive = torch.rand(6), torch.tensor([True, True, True, False, False, False])
    collection = MetricCollection([metric])
    assert [metric(scores[:3], positive[:3]).isnan(), metric._forward_cache.isnan()] == [True, True]
    (found,) = collection(scores[3:], positive=positive[3:]).values()
    assert found.isnan()
    whole = type(metric)._score(scores, positive)
    assert metric.compute() == whole
    assert metric(scores, positive) == whole
    metric.reset()
    metric.update(scores[:3], positive[:3])
    with pytest.raises(InvalidInput, match="marks 3 of 3 images"):
        metric.compute()


@pytest.mark.parametrize("pair", LABELLED + SAMPLED + SCORED + NUMBERS)
def test_two_metrics_merge(pair, make_batch, make_samples):
    make_metric, function = pair
    inputs, dim = inputs_for(pair, make_batch, make_samples)
    first, second = zip(*(tensor.split([30, 70], dim) for tensor in inputs), strict=True)
    one, other = make_metric(), make_metric()
    one.update(*first)
    other.update(*second)
    one.merge_state(other)
    torch.testing.assert_close(one.compute(), function(*inputs), rtol=0, atol=1e-12)


def test_state_does_not_grow_with_the_images(make_batch, make_samples):
    for pair in LABELLED + SAMPLED:
        metric, inputs = pair[0](), inputs_for(pair, make_batch, make_samples)[0]
        if isinstance(metric, metrics.AdaptiveECE):
            continue
        sizes = []
        for _ in range(3):
            metric.update(*inputs)
            sizes.append(sum(getattr(metric, name).numel() for name in metric._defaults))
        assert sizes[0] == sizes[1] == sizes[2]
        assert {getattr(metric, name).dtype for name in metric._defaults} == {torch.int64, torch.float64}


def test_float32_batches_are_summed_in_float64(make_batch):
    metric = metrics.NLL()
    probs, labels = make_batch(images=50)
    for _ in range(400):
        metric.update(probs.float(), labels)
    assert metric.compute().item() == pytest.approx(metrics.nll(probs.float(), labels).item(), rel=1e-12)


def test_a_collection_gives_what_the_functions_give(make_batch):
    probs, labels = make_batch(100)
    scores = metrics.collection(bins=7, prefix="val_")
    for part, truth in zip(probs.split(SPLIT), labels.split(SPLIT), strict=True):
        scores.update(part, truth)
    expected = {name: getattr(metrics, name)(probs, labels) for name in ("accuracy", "nll", "brier")}
    expected |= {"ece": metrics.ece(probs, labels, bins=7)}
    expected |= {"aurc": metrics.aurc(probs.amax(1), probs.argmax(1) == labels)}
    assert scores.compute() == {f"val_{name}": pytest.approx(value.item()) for name, value in expected.items()}


def test_a_collection_does_not_merge_what_only_starts_out_equal(make_samples):
    sure = torch.eye(3)
    collection = MetricCollection([metrics.Accuracy(), metrics.TopKAccuracy(k=2), metrics.NLL(), metrics.Brier()])
    collection.update(sure, torch.arange(3))  # Accuracy = top-2, NLL = Brier = 0
    collection.update(sure, torch.tensor([1, 2, 0]).clamp(max=1))
    values = collection.compute()
    assert values["Accuracy"].item() == pytest.approx(4 / 6)
    assert values["TopKAccuracy"].item() == 1.0
    assert values["Brier"].item() == pytest.approx(4 / 6)
    assert values["NLL"].item() == float("inf")

    pairs = MetricCollection([metrics.JSD(), metrics.Disagreement()])
    same = make_samples(samples=1).expand(3, -1, -1)
    pairs.update(same)  # both all zero
    pairs.update(make_samples(samples=3))
    both = torch.cat([same, make_samples(samples=3)], 1)
    torch.testing.assert_close(pairs.compute()["Disagreement"], metrics.disagreement(both))
    torch.testing.assert_close(pairs.compute()["JSD"], metrics.jsd(both))

    fair = MetricCollection({"fair": metrics.SampleCRPS(), "not": metrics.SampleCRPS(fair=False)})
    for samples in (torch.zeros(2, 1), torch.tensor([[0.0], [2.0]])):  # both 0 at first
        fair.update(samples, samples.mean(0))
    assert {name: value.item() for name, value in fair.compute().items()} == {"fair": 0, "not": 0.25}


def test_a_collection_shares_what_is_the_same(make_batch):
    collection = MetricCollection([metrics.ECE(), metrics.MCE()])
    probs, labels = make_batch()
    for part in (slice(0, 50), slice(50, None)):
        collection.update(probs[part], labels[part])
    assert len(collection.compute_groups) == 1
    assert collection.compute()["ECE"].item() == pytest.approx(metrics.ece(probs, labels).item())
    assert collection.compute()["MCE"].item() == pytest.approx(metrics.mce(probs, labels).item())


@pytest.mark.parametrize("make_metric", [metrics.JSD, metrics.Disagreement])
@pytest.mark.parametrize("how", ["update", "forward"])
def test_the_number_of_samples_may_not_change(make_metric, how, make_samples):
    metric = make_metric()
    metric.update(make_samples(samples=4))
    with pytest.raises(InvalidInput, match=r"3 samples; this \w+ compares 4"):
        getattr(metric, how)(make_samples(samples=3))
    # What was there before the mistake is still there.
    assert metric.compute().shape == (4, 4)
    metric.reset()
    metric.update(make_samples(samples=3))
    assert metric.compute().shape == (3, 3)
    other = make_metric()
    other.merge_state(metric)
    other.update(make_samples(samples=3))
    with pytest.raises(InvalidInput, match=r"3 samples; this \w+ compares 4"):
        make_metric(num_samples=4).merge_state(other)
    with pytest.raises(InvalidInput, match="compares 5"):
        getattr(make_metric(num_samples=5), how)(make_samples(samples=3))


@pytest.mark.parametrize(
    ("make_metric", "said"),
    [
        (partial(metrics.JSD, num_samples=1), "num_samples is 1"),
        (partial(metrics.ECE, bins=0), "bins is 0"),
        (partial(metrics.MCE, bins=-1), "bins is -1"),
        (partial(metrics.AdaptiveECE, bins=1.5), "bins is 1.5"),
        (partial(metrics.TopKAccuracy, k=0), "k is 0"),
        (partial(metrics.QuantileCalibrationError, "abc"), r"levels is 'abc'; give a list of numbers in \(0, 1\)"),
        (partial(metrics.QuantileCalibrationError, [5, 90]), "levels go from 5 to 90"),
        (partial(metrics.CoverageAtRisk, risk=5), "risk is 5; give an error rate"),
        (partial(metrics.CoverageAtRisk, risk="a"), "risk is 'a'; give an error rate"),
    ],
)
def test_bad_settings(make_metric, said):
    with pytest.raises(InvalidInput, match=said):
        make_metric()


def test_reliability_diagram_of_the_stream(make_batch):
    probs, labels = make_batch()
    metric = metrics.ECE(bins=10)
    metric.update(probs[:7], labels[:7])
    metric.update(probs[7:], labels[7:])
    expected = metrics.reliability(probs, labels, bins=10)
    assert torch.equal(metric.reliability().counts, expected.counts)
    torch.testing.assert_close(metric.reliability().accuracy, expected.accuracy, equal_nan=True)


def _one_process(rank, folder):
    meeting_point = f"file://{folder}/meeting_point"
    torch.distributed.init_process_group("gloo", init_method=meeting_point, rank=rank, world_size=2)
    probs = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]], dtype=torch.float32)
    labels = torch.tensor([0, 1, 1])
    samples = torch.stack([probs, probs.flip(0), probs.flip(1)])
    ece, brier, jsd, auroc = metrics.ECE(), metrics.Brier(), metrics.JSD(num_samples=3), metrics.AUROC()
    if rank == 0:
        ece.update(probs[:1], labels[:1])
        brier.update(probs[:1], labels[:1])
        auroc.update(probs[:, 0], labels)  # the other process sees nothing
        jsd.update(samples)
    else:
        ece.update(probs[1:], labels[1:])
        brier.update(probs[1:], labels[1:])
    values = [metric.compute() for metric in (ece, brier, jsd, auroc)]
    torch.save(values, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_add_up(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        multiprocessing.spawn(_one_process, args=(str(tmp_path),), nprocs=2)
    probs = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]])
    labels = torch.tensor([0, 1, 1])
    samples = torch.stack([probs, probs.flip(0), probs.flip(1)])
    expected = [
        metrics.ece(probs, labels),
        metrics.brier(probs, labels),
        metrics.jsd(samples),
        metrics.auroc(probs[:, 0], labels),
    ]
    for rank in range(2):
        for value, want in zip(torch.load(tmp_path / f"{rank}.pt", weights_only=True), expected, strict=True):
            torch.testing.assert_close(value, want, rtol=0, atol=1e-12)


def test_which_are_better_when_higher():
    """As ``torchmetrics.MetricTracker`` asks."""
    found = {pair[0]: pair[0].higher_is_better for pair in LABELLED + SAMPLED + SCORED if isinstance(pair[0], type)}
    better = {metrics.Accuracy, metrics.TopKAccuracy, metrics.JSD, metrics.Disagreement}
    better |= {metrics.AUROC, metrics.AUPR, metrics.CoverageAtRisk}
    neither = {metrics.PredictiveEntropy, metrics.MutualInformation}
    assert found == {one: None if one in neither else one in better for one in found}


def test_all_names_are_there():
    for name in metrics.__all__:
        assert getattr(metrics, name) is not None
    assert {name for name in metrics.__all__ if isinstance(getattr(metrics, name), type)} >= {
        "Accuracy", "TopKAccuracy", "ECE", "AdaptiveECE", "MCE", "NLL", "Brier", "PredictiveEntropy",
        "MutualInformation", "JSD", "Disagreement", "AUROC", "AUPR", "FPR95", "AURC",
    }  # fmt: skip
