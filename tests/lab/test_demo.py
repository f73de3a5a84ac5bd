"""The demonstration on digits: what it trains on, and what its tables show."""

import pytest
import torch
from sklearn.datasets import load_digits

import rbue
from rbue.call_sites import following
from rbue.lab import demo


@pytest.fixture(scope="module")
def digits():
    return demo.Digits.load()


def test_every_digit_is_trained_on_or_tested_and_none_both(digits):
    assert (len(digits.train_x), len(digits.test_x)) == (1348, 449)
    own = torch.cat([digits.train_x, digits.test_x]).flatten(1).tolist()
    assert sorted(own) == sorted((load_digits().images / 16).reshape(1797, 64).tolist())
    assert (digits.train_x.min(), digits.train_x.max()) == (0, 1)


def test_what_fine_tuning_brings_stands_after_what_conversion_costs(digits, monkeypatch):
    """Fine-tuning is replaced by forgetting everything: every class as probable as any other."""

    def forget(network, *_, **__):
        torch.nn.init.zeros_(network.head.weight)
        torch.nn.init.zeros_(network.head.bias)

    monkeypatch.setattr(demo, "train", forget)
    monkeypatch.setattr(demo, "SAMPLES", 2)
    monkeypatch.setattr(demo, "QS", (0.8, 0.9))
    torch.manual_seed(0)
    few = demo.Digits(digits.train_x[:4], digits.train_y[:4], digits.test_x[:4], torch.zeros(4, dtype=torch.int64))
    table, kept = demo.conversion_table(demo.SmallResNet(), few)
    names, where, before, after = (list(column.cells) for column in table.columns)
    assert list(zip(names, where, strict=True))[:3] == [
        ("plain ReLU", ""),
        ("DropReLU q=0.8", "all"),
        ("DropReLU q=0.8", "last"),
    ]
    assert set(after) == {"100.0 %   0.900"}
    assert not set(before) & set(after)
    assert kept.__dict__[following.CONVERSION].activation == rbue.DropReLU(0.9)
    assert kept.head.weight.count_nonzero() == 0
