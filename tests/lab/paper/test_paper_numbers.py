"""The paper's numbers, typed from its tables."""

from __future__ import annotations

import pytest

from rbue.errors import InvalidInput
from rbue.lab.paper.experiments import METHODS, MODELS
from rbue.lab.paper.numbers import TABLES, paper_numbers, paper_value, printed

HOUR = 3600.0


@pytest.mark.parametrize(
    ("data", "model", "method", "accuracy", "ece", "hours"),
    [
        ("cifar10", "vgg13", "single", 0.9385, 0.05, 1.4),
        ("cifar10", "resnet18", "mc-droprelu:0.95", 0.9532, 0.02, 2.0),
        ("cifar10", "densenet121", "svi", 0.9348, 0.05, 3.6),
        ("cifar100", "vgg13", "mc-rrelu", 0.7431, 0.09, 1.4),
        ("cifar100", "resnet18", "deep-ensemble:4", 0.7945, 0.06, 6.8),
        ("cifar100", "densenet121", "mc-droprelu:0.85", 0.7548, 0.06, 3.9),
        ("tiny-imagenet", "vgg13", "mc-dropout:0.5", 0.569, 0.20, 4.0),
        ("tiny-imagenet", "resnet18", "mc-droprelu:0.8", 0.6489, 0.04, 7.7),
        ("tiny-imagenet", "densenet121", "deep-ensemble:4", 0.6553, 0.04, 34.4),
    ],
)
def test_clean_tables(data, model, method, accuracy, ece, hours):
    assert paper_value(data, model, method, "accuracy") == pytest.approx(accuracy, abs=1e-9)
    assert paper_value(data, model, method, "ece") == ece
    assert paper_value(data, model, method, "training_seconds") == pytest.approx(hours * HOUR)


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("deep-ensemble:4", (0.020, 0.021, 0.043, 0.045)),
        ("mc-droprelu:0.8", (0.017, 0.017, 0.044, 0.046)),
        ("svi", (0.009, 0.009, 0.032, 0.041)),
        ("mc-rrelu", (0.002, 0.002, 0.010, 0.010)),
        ("mc-dropout:0.2", (0.001, 0.001, 0.009, 0.011)),
    ],
)
def test_diversity_tables(method, values):
    measures = ("mean_jsd", "max_jsd", "mean_dis", "max_dis")
    assert tuple(paper_value("cifar10", "resnet18", method, measure) for measure in measures) == values


def test_position_accuracies_are_fractions_already():
    place = ("tiny-imagenet", "densenet121")
    for method in ("mc-droprelu:0.8,last", "mc-droprelu:0.8,first"):
        assert paper_value(*place, method, "accuracy") == 0.63
        assert paper_value(*place, method, "ece") == 0.06
        assert paper_value(*place, method, "training_seconds") == pytest.approx(9.3 * HOUR)
    assert paper_value(*place, "mc-droprelu:0.8", "accuracy", table="table6-position") == 0.63
    assert paper_value(*place, "mc-droprelu:0.8", "training_seconds", table="table6-position") == 13.2 * HOUR
    assert paper_value(*place, "mc-droprelu:0.8", "training_seconds") == 14.3 * HOUR


def test_every_row_of_every_table_is_there():
    for data in TABLES.values():
        for model in MODELS:
            for method in METHODS:
                accuracy = paper_value(data, model, method, "accuracy")
                assert accuracy is not None
                assert 0.5 < accuracy < 1
                assert paper_value(data, model, method, "relative_size") == (4 if "ensemble" in method else 1)
    assert all(0 <= value < 1 for (*_, measure), value in paper_numbers().items() if measure in ("accuracy", "ece"))


def test_names_are_ours_and_unknown_ones_have_no_number():
    assert paper_value("cifar10", "resnet18", "mc-droprelu", "accuracy") == 0.9486  # q=0.9 is the default
    assert paper_value("cifar10", "resnet18", "mc-droprelu:0.7", "accuracy") is None
    assert paper_value("digits", "resnet18", "single", "accuracy") is None
    with pytest.raises(InvalidInput, match="table9"):
        paper_value("cifar10", "resnet18", "single", "accuracy", table="table9")


def test_the_source_is_beside_the_numbers():
    assert "RBUE" in printed()["source"]
    assert "3090" in printed()["hardware"]
