"""The words of an exported graph are those of the stream, as the formula and as operators."""

import pytest
import torch

from rbue import random_stream
from rbue.activations import DropReLU, RReLU
from rbue.kernels.exported_words import ExportedWords
from rbue.kernels.keys import site_keys
from rbue.kernels.layout import ElementLayout

CPU = torch.device("cpu")


def same_words(found, expected):
    return torch.equal(random_stream.to_int32(found), expected)


@pytest.mark.parametrize("as_operators", [False, True])
@pytest.mark.parametrize("seed", [0, 3, 2**63 + 5, 2**64 - 1])
def test_the_state_of_a_seed(seed, as_operators):
    words = ExportedWords(4, CPU, as_operators)
    given = torch.tensor(seed - 2**64 if seed >= 2**63 else seed)
    state = random_stream.seed_state(seed)
    assert same_words(words.seed_state(given, balanced=False), state)
    assert same_words(words.seed_state(given, balanced=True), random_stream.balanced_state(state))


@pytest.mark.parametrize("as_operators", [False, True])
@pytest.mark.parametrize(("activation", "mask"), [(DropReLU(0.8), "element"), (RReLU(), "element"), (None, "channel")])
def test_keys_and_words_of_a_site(activation, mask, as_operators):
    words = ExportedWords(3 * 4 * 5, CPU, as_operators)
    state = words.seed_state(torch.tensor(7), balanced=False)
    samples, images = torch.arange(6), torch.tensor([0, 1, 2**31, 2**32 - 1, 4, 5])
    numbers = torch.tensor([5, -6], dtype=torch.int32)
    keys = words.site_keys(state, samples, images, numbers)
    as_int32 = random_stream.to_int32(samples), random_stream.to_int32(images)
    expected = site_keys(random_stream.seed_state(7), *as_int32, numbers)
    assert same_words(keys, expected)

    layout = ElementLayout.of(torch.zeros(6, 3, 4, 5), rows=6, mask=mask)
    k1, k2 = layout.broadcast_keys(expected[:, 1])
    plain = random_stream.bits(layout.traced_table(), k1, k2)
    if activation is None:
        assert torch.equal(words.draw(layout, keys[:, 1], False), plain)
        return
    mirrored = activation.cycle.mirrored
    _, turn = random_stream.turns(as_int32[0], activation.cycle)
    balanced = random_stream.turned(plain, layout.broadcast_keys(turn.unsqueeze(0))[0], mirrored)
    assert torch.equal(words.draw(layout, torch.cat([keys[:, 1], turn.unsqueeze(0)]), mirrored), balanced)
    assert not torch.equal(balanced, plain)
