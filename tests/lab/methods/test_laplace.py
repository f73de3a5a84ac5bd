"""Laplace of the last layer: samples of it at a pass's price, and what laplace-torch makes of the trained network."""

import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from tiny_training import CPU, RECIPE, X, batches, network, samples, trained
from torch import nn

from rbue.errors import InvalidInput, RbueError
from rbue.lab.methods import laplace, parse
from rbue.lab.runs.folders import RunConfig
from rbue.lab.runs.training import train_run
from rbue.lab.training.step import TrainingStep


def prepare(net):
    return parse("laplace:3").prepare(net, X[:2])


@pytest.mark.parametrize("bias", [True, False])
def test_a_sample_is_the_network_with_another_last_layer(bias):
    plain = network()
    plain[8] = nn.Linear(8, 3, bias=bias)
    prepared = prepare(plain).eval()
    prepared.samples.copy_(torch.randn(prepared.samples.shape))
    found, expected = samples("laplace:3", prepared, 3), []
    for drawn in prepared.samples:
        nn.utils.vector_to_parameters(drawn, plain[8].parameters())
        expected.append(plain.eval()(X).softmax(1))
    torch.testing.assert_close(found, torch.stack(expected))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    def forward(self, x):
        return 2 * self.body(x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Scaled, r"Scaled does more after its last nn\.Linear"),
        (lambda: nn.Sequential(nn.Conv2d(1, 3, 6), nn.Flatten()), r"the last layer of Sequential is no nn\.Linear"),
    ],
)
def test_networks_without_a_last_layer_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        prepare(make())


def test_without_laplace_torch_one_sentence_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(laplace, "find_spec", lambda _: None)
    with pytest.raises(RbueError, match=r"needs laplace-torch, which is not here; `pip install 'rbue\[laplace\]'`"):
        train_run(RunConfig(method="laplace"), tmp_path, CPU)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidInput, match="samples of laplace must be at least 2, not 1"):
        parse("laplace:1")


def test_laplace_torch_gets_weights_that_it_can_flatten(monkeypatch):
    """It views them as one vector; a network that is trained on a GPU has its channels last."""
    seen = []

    class Library:
        def __init__(self, model, *_, **__):
            seen.append(model)
            nn.utils.parameters_to_vector(model.parameters())

        fit = optimize_prior_precision = lambda *_, **__: None
        sample = lambda *_, **__: torch.ones(3, 27)  # noqa: E731

    monkeypatch.setitem(sys.modules, "laplace", SimpleNamespace(Laplace=Library))
    prepared = prepare(network()).to(memory_format=torch.channels_last)
    parse("laplace:3").end_epoch(prepared, 6, 6, lambda: iter(()))
    assert len(seen) == 1
    assert prepared.samples.eq(1).all()
    assert not prepared.network[3].weight.is_contiguous(), "the network itself stays as it is"


def test_the_samples_are_those_of_laplace_torch():
    """Fitted to the trained network, on the images of the epoch after the last; the network stays as it is."""
    library = pytest.importorskip("laplace")
    found, _ = trained("laplace:200")
    step = TrainingStep(network(), parse("single"), batches(), RECIPE, 0)
    data = [list(parts) for parts in zip(*step._batches_of(RECIPE.epochs), strict=True)]
    images = torch.utils.data.TensorDataset(*(torch.cat(parts) for parts in data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = library.Laplace(found.network, "classification", "last_layer", "kron")
        own.fit(torch.utils.data.DataLoader(images, batch_size=16))
        own.optimize_prior_precision(method="marglik")
    expected = own.sample(200, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.samples, expected, rtol=1e-3, atol=1e-3)
    layer = nn.utils.parameters_to_vector(found.network[8].parameters()).detach()
    torch.testing.assert_close(found.samples.mean(0), layer, rtol=0, atol=4 * found.samples.std(0).max().item() / 14)
    assert found.samples.std(0).min() > 0.01
    plain, _ = trained("single")
    assert all(found.network.state_dict()[name].equal(value) for name, value in plain.state_dict().items())
