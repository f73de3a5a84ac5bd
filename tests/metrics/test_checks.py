"""Bad inputs: every message names the offending value."""

import math
import re

import numpy as np
import pytest
import torch

from rbue import metrics
from rbue.errors import InvalidInput
from rbue.prediction import of_samples

PROBS = torch.tensor([[0.7, 0.3], [0.4, 0.6]])
LABELS = torch.tensor([0, 1])
SAMPLES = torch.stack([PROBS, PROBS.flip(0)])
LABELLED = [
    metrics.accuracy,
    lambda probs, labels: metrics.top_k_accuracy(probs, labels, k=1),
    metrics.ece,
    metrics.adaptive_ece,
    metrics.mce,
    metrics.reliability,
    metrics.nll,
    metrics.brier,
]
SAMPLED = [metrics.expected_entropy, metrics.mutual_information, metrics.jsd, metrics.disagreement]
SCORED = [metrics.auroc, metrics.aupr, metrics.fpr95, metrics.aurc, metrics.risk_coverage]


def refuses(said, call, *args, **kwargs):
    with pytest.raises(InvalidInput, match=re.escape(said)) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert message.endswith(".")
    assert ";" in message, "says what was wrong and, after the semicolon, what to do"


class Split:
    """A column of a table after a split, as of pandas: NumPy reads it, and it has no entry 0."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        raise KeyError(index)

    def __array__(self, dtype=None, copy=None):
        return LABELS.numpy()


@pytest.mark.parametrize("labels", [Split(), [0, 1], LABELS.numpy()], ids=lambda labels: type(labels).__name__)
def test_the_way_out_of_what_is_no_tensor_is_one(labels):
    with pytest.raises(InvalidInput, match="give a tensor") as caught:
        metrics.accuracy(PROBS, labels)
    way = str(caught.value).partition("e.g. ")[2].rstrip(".")
    given = eval(way, {"torch": torch, "numpy": np, "labels": labels})
    assert metrics.accuracy(PROBS, given) == metrics.accuracy(PROBS, LABELS)


BAD_PROBS = [
    (PROBS.numpy(), "is a ndarray"),
    (of_samples(SAMPLES), "prediction.probs"),
    (torch.tensor([[1, 0], [0, 1]]), "torch.int64"),
    (PROBS.to(torch.float8_e4m3fn), "torch.float8_e4m3fn"),
    (PROBS.to_sparse(), "layout torch.sparse_coo"),
    (torch.tensor([0.5, 0.5]), "(2,)"),
    (torch.empty(0, 2), "(0, 2)"),
    (torch.empty(2, 0), "(2, 0)"),
    (torch.tensor([[0.5, 0.5], [math.nan, 0.5]]), "1 NaN, the first at (1, 0)"),
    (torch.tensor([[0.5, 0.5], [0.5, math.inf]]), "inf at (1, 1)"),
    (torch.tensor([[0.5, 0.5], [-math.inf, 0.5]]), "-inf at (1, 0)"),
    (torch.tensor([[0.5, 0.5], [-0.25, 1.25]]), "-0.25"),
    (torch.tensor([[0.5, 0.5], [3.5, 0.5]]), "3.5"),
    (torch.tensor([[0.5, 0.5], [0.5, 0.25]]), "0.75"),
    (torch.tensor([[0.5, 0.5], [0.5, 0.501]]), "1.001"),
]


@pytest.mark.parametrize(("probs", "said"), BAD_PROBS)
def test_bad_probabilities(probs, said):
    refuses(said, metrics.nll, probs, LABELS)


@pytest.mark.parametrize("call", [*LABELLED, lambda probs, labels: metrics.entropy(probs)])
def test_every_metric_of_probabilities_looks_at_them(call):
    for probs, said in (BAD_PROBS[0], BAD_PROBS[-2]):
        refuses(said, call, probs, LABELS)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([0, 1], "is a list"),
        (torch.tensor([0.0, 1.0]), "torch.float32"),
        (torch.tensor([True, False]), "torch.bool"),
        (torch.tensor([0, 1]).to_sparse(), "layout torch.sparse_coo"),
        (torch.tensor([0, 1, 1]), "(3,)"),
        (torch.tensor([[0], [1]]), "shape (2, 1); probs with (2, 2) needs (2,); give labels.squeeze(1)."),
        (torch.tensor([[0, 1], [1, 0]]), "needs (2,); of one-hot labels give labels.argmax(1), and several labels an "),
        (torch.tensor([0, 2]), "holds 2"),
        (torch.tensor([-1, 0]), "holds -1"),
        (torch.zeros(2, dtype=torch.long, device="meta"), "labels on meta"),
    ],
)
def test_bad_labels(labels, said):
    refuses(said, metrics.ece, PROBS, labels)


def test_labels_to_ignore_are_left_out_as_the_error_says():
    probs = torch.rand(2, 3, 4).softmax(1)
    labels = torch.tensor([[0, 255, 1, 2], [2, 1, 255, 0]])
    refuses("leave pixels without a class out: probs.movedim(1, -1)[labels != 255]", metrics.nll, probs, labels)
    inside = labels != 255
    assert metrics.nll(probs.movedim(1, -1)[inside], labels[inside]).isfinite()


@pytest.mark.parametrize("call", LABELLED)
def test_every_metric_with_labels_looks_at_them(call):
    refuses("holds 2", call, PROBS, torch.tensor([0, 2]))


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (SAMPLES.tolist(), "is a list"),
        (PROBS, "(2, 2)"),
        (SAMPLES.long(), "torch.int64"),
        (SAMPLES[:0], "(0, 2, 2)"),
        (SAMPLES[:, :0], "(2, 0, 2)"),
        (SAMPLES * 2, "1.4"),
        (SAMPLES / 2, "0.5"),
        (SAMPLES.masked_fill(SAMPLES > 0.65, math.nan), "2 NaN, the first at (0, 0, 0)"),
    ],
)
def test_bad_samples(samples, said):
    refuses(said, metrics.jsd, samples)


@pytest.mark.parametrize("call", SAMPLED)
def test_every_metric_of_samples_looks_at_them(call):
    refuses("(2, 2)", call, PROBS)
    refuses("1.4", call, SAMPLES * 2)


@pytest.mark.parametrize("call", [metrics.jsd, metrics.disagreement])
def test_one_sample_has_no_pair(call):
    refuses("(1, 2, 2), that is 1 sample", call, SAMPLES[:1])


@pytest.mark.parametrize("call", [metrics.mean_pairwise, metrics.max_pairwise])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (4,), (2, 2, 2)])
def test_bad_matrices(call, shape):
    refuses(str(shape), call, torch.zeros(shape))
    refuses("is a list", call, [[0.0, 1.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("call", "bins"),
    [
        (metrics.ece, 0),
        (metrics.mce, -3),
        (metrics.adaptive_ece, 2.5),
        (metrics.adaptive_ece, 0),
        (metrics.reliability, True),
        (metrics.ece, "30"),
    ],
)
def test_bad_bins(call, bins):
    refuses(f"bins is {bins!r}", call, PROBS, LABELS, bins=bins)


@pytest.mark.parametrize("k", [0, 3, 1.0])
def test_bad_k(k):
    refuses(f"k is {k}", metrics.top_k_accuracy, PROBS, LABELS, k=k)


@pytest.mark.parametrize(
    ("scores", "flags", "said"),
    [
        ([0.1, 0.2], torch.tensor([True, False]), "is a list"),
        (torch.tensor([1, 2]), torch.tensor([True, False]), "torch.int64"),
        (torch.rand(2), [True, False], "is a list"),
        (torch.rand(2), torch.tensor([True]), "(1,)"),
        (torch.rand(0), torch.rand(0).bool(), "(0,)"),
        (torch.tensor([0.5, math.nan]), torch.tensor([True, False]), "the first at (1,)"),
        (torch.rand(2), torch.tensor([0, 2]), "holds 2"),
        (torch.rand(2), torch.tensor([0.5, 1.0]), "holds 0.5"),
        (torch.rand(2), torch.ones(2, dtype=torch.bool, device="meta"), "on meta"),
    ],
)
def test_bad_scores(scores, flags, said):
    refuses(said, metrics.auroc, scores, flags)


@pytest.mark.parametrize("call", SCORED)
def test_every_metric_of_scores_looks_at_them(call):
    refuses("the first at (1,)", call, torch.tensor([0.5, math.nan]), torch.tensor([True, False]))
    refuses("holds 2", call, torch.rand(2), torch.tensor([0, 2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rounding_of_the_dtype_is_forgiven(dtype):
    probs = torch.randn(200, 300, generator=torch.Generator().manual_seed(0)).softmax(1).to(dtype)
    assert metrics.entropy(probs).isfinite().all()
    assert metrics.nll(probs, torch.zeros(200, dtype=torch.long)).isfinite()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_may_miss_one_by_a_few_units_and_no_more(dtype):
    unit = torch.finfo(dtype).eps
    near, far = (torch.tensor([[0.5 + units * unit, 0.5 + units * unit]], dtype=dtype) for units in (1, 4))
    assert metrics.entropy(near).isfinite().all()
    refuses("instead of 1", metrics.entropy, far)


def test_a_probability_above_one_by_rounding_is_in_the_last_bin():
    probs = torch.tensor([[1.00001, 0.0]])
    assert metrics.reliability(probs, torch.tensor([0]), bins=4).counts.tolist() == [0, 0, 0, 1]
    assert metrics.entropy(probs).item() == metrics.expected_entropy(probs[None]).item() == 0.0


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64]
)
def test_every_integer_dtype_is_a_label(dtype):
    assert metrics.accuracy(PROBS, LABELS.to(dtype)).item() == 1.0


def test_numpy_integers_are_whole_numbers():
    assert metrics.ece(PROBS, LABELS, bins=np.int64(30)) == metrics.ece(PROBS, LABELS)


def test_scores_may_have_any_shape():
    scores, flags = torch.tensor([[0.9, 0.4], [0.6, 0.1]]), torch.tensor([[True, False], [True, False]])
    for call in SCORED:
        torch.testing.assert_close(call(scores, flags), call(scores.flatten(), flags.flatten()))


@pytest.mark.filterwarnings("error")
def test_inputs_are_left_as_they_were_and_may_need_gradients():
    probs, labels, samples = PROBS.clone().requires_grad_(), LABELS.clone(), SAMPLES.clone().requires_grad_()
    for call in LABELLED:
        call(probs, labels)
    for call in SAMPLED:
        call(samples)
    assert torch.equal(probs, PROBS)
    assert torch.equal(labels, LABELS)
    assert torch.equal(samples, SAMPLES)


@pytest.mark.parametrize("metric", [metrics.Accuracy, metrics.ECE, metrics.NLL])
def test_streaming_metrics_refuse_what_the_functions_refuse(metric):
    refuses("is a list", metric().update, [[0.7, 0.3]], LABELS)
    refuses("is a list", metrics.JSD(num_samples=2).update, [[[0.7, 0.3]]])
    refuses("has shape ()", metrics.JSD(num_samples=2).update, torch.tensor(0.5))
