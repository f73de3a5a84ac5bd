"""What a message suggests."""

import pytest

from rbue.errors import did_you_mean

KNOWN = ("table1-cifar10", "table3-tinyimagenet", "fig-q-sweep", "Own", "mc-droprelu", "fashion_mnist", "resnet18")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("table1", "table1-cifar10"),  # its beginning
        ("tabel3", "table3-tinyimagenet"),
        ("fig-qsweep", "fig-q-sweep"),
        ("own", "Own"),
        ("mc-dropreul", "mc-droprelu"),
        ("mnist", "fashion_mnist"),  # a part of it
        ("ResNet-81", "resnet18"),
    ],
)
def test_a_word_that_is_alike_is_suggested(given, meant):
    assert did_you_mean(given, KNOWN) == f" (did you mean {meant!r}?)"


@pytest.mark.parametrize("given", ["", "1", "foo", "nothing", "transformer"])
def test_another_word_is_not(given):
    assert did_you_mean(given, KNOWN) == ""
    assert did_you_mean(given, ()) == ""
