"""Augmented passes of the laboratory's methods: the same versions of an image for all of them, named in results."""

import pytest
import torch
from torch import nn

import rbue
from rbue.augment import Augmentation, Flip, Shift
from rbue.lab.methods import parse
from rbue.lab.runs.augmented import augmented, canonical, parse_augment
from rbue.sampling.collect import collect


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()


def drawn(method, networks, x, samples):
    augmentation = Augmentation([Flip(), Shift(2)], 7, x.device)
    stream = augmented(method.stream(networks, x, 7), augmentation, method.limit)
    numbers = torch.arange(len(x), dtype=torch.int32)
    return collect(stream, x, numbers, samples, seed=7, return_samples=True).samples


def version(x, sample):
    numbers = torch.arange(len(x), dtype=torch.int32)
    return Augmentation([Flip(), Shift(2)], 7, x.device)(x, torch.tensor([sample], dtype=torch.int32), numbers)


@pytest.mark.parametrize(("spec", "members"), [("single", 1), ("deep-ensemble:3", 3)])
def test_plain_networks_go_on_with_other_versions(spec, members):
    x, networks = torch.randn(6, 3, 8, 8), [network(seed) for seed in range(members)]
    samples = drawn(parse(spec), networks, x, 7)
    for k in range(7):
        expected = networks[k % members](version(x, k)).softmax(1)
        torch.testing.assert_close(samples[k], expected, rtol=1e-4, atol=1e-6)


def test_random_passes_are_those_of_predict():
    x, method = torch.randn(6, 3, 8, 8), parse("mc-droprelu:0.8")
    net = method.prepare(network(0), x)
    samples = drawn(method, [net], x, 5)
    settings = {"seed": 7, "draws": "independent", "augment": [Flip(), Shift(2)], "return_samples": True}
    torch.testing.assert_close(samples, rbue.predict(net, x, samples=5, **settings).samples, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flop", r"no augmentation 'flop' \(did you mean 'flip'\?\)"),
        ("shift:two", "'shift:two' is no augmentation; write flip, shift:2"),
        ("flip:1", "'flip:1' is no augmentation"),
        ("shift:0", r"'shift:0' is no augmentation; .* shift:2 \(pixels, from 1 on\)"),
        ("flip,crop:2", r"'crop:2' is no augmentation; .* crop:0.8 \(a part of the sides, up to 1\)"),
    ],
)
def test_texts_that_name_none_are_refused(text, message):
    with pytest.raises(rbue.InvalidInput, match=message):
        canonical(text)


def test_a_black_pixel_fills_what_comes_in():
    shift = parse_augment("shift:1", [-1.0, -2.0, -3.0])[0]
    moved = shift(torch.zeros(1, 3, 4, 4), lambda n: torch.full((1, n), 0.99))
    assert moved[0, :, 0, 0].tolist() == [-1, -2, -3]
    assert moved[0, :, 1:, 1:].eq(0).all()
