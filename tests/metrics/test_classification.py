import pytest
import torch
from sklearn.metrics import accuracy_score, top_k_accuracy_score

from rbue.metrics import accuracy, top_k_accuracy


def test_accuracy_equals_scikit_learn(make_batch):
    probs, labels = make_batch()
    assert accuracy(probs, labels).item() == pytest.approx(accuracy_score(labels, probs.argmax(1)), abs=1e-15)


@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_top_k_equals_scikit_learn(make_batch, k):
    probs, labels = make_batch(classes=6)
    expected = top_k_accuracy_score(labels, probs, k=k, labels=range(6))
    assert top_k_accuracy(probs, labels, k=k).item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("label", [0, 1, 2])
def test_ties_go_to_the_lower_class_number(label):
    probs, labels = torch.full((1, 3), 1 / 3), torch.tensor([label])
    assert accuracy(probs, labels).item() == (label == 0)
    for k in (1, 2, 3):
        assert top_k_accuracy(probs, labels, k=k).item() == (label < k)


def test_pixels_count_like_images(make_batch):
    probs, labels = make_batch(images=6, classes=4, extra=(3, 2))
    places = [(b, i, j) for b in range(6) for i in range(3) for j in range(2)]
    right = sum(int(probs[b, :, i, j].argmax() == labels[b, i, j]) for b, i, j in places)
    assert accuracy(probs, labels).item() == pytest.approx(right / 36)
