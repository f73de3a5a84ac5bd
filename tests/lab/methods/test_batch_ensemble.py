"""BatchEnsemble: its members are the networks whose weights its formula gives."""

import pytest
import torch
from tiny_training import X, batches, fresh, network, samples
from torch import nn
from torch.nn import functional as F

from rbue.errors import InvalidInput
from rbue.lab.methods import TrainingProgress, parse
from rbue.lab.methods.batch_ensemble import RankOneLayer, make_rank_one
from rbue.lab.models import create, parameters
from rbue.lab.training import Recipe
from rbue.lab.training.step import TrainingStep

PROGRESS = TrainingProgress(torch.tensor(0.0), 48)


def shaken(ensemble):
    """With biases and statistics that differ from each other, too."""
    torch.manual_seed(3)
    for name, tensor in ensemble.state_dict().items():
        if "num_batches" not in name:
            tensor += 0.2 * torch.rand(tensor.shape)
    return ensemble.eval()


def alone(ensemble, member, plain):
    """A plain network with the weights of one member."""
    for path, layer in ensemble.network.named_modules():
        own = plain.get_submodule(path)
        if isinstance(layer, RankOneLayer):
            factor = torch.outer(layer.fast_out[member], layer.fast_in[member])
            own.weight.data = layer.weight * factor.view(*factor.shape, *[1] * (layer.weight.dim() - 2))
            if own.bias is not None:
                own.bias.data = layer.member_bias[member]
        elif isinstance(layer, nn.BatchNorm2d):
            own.load_state_dict(layer.state_dict())
    return plain.eval()


def test_members_are_networks_with_scaled_weights_and_own_biases():
    ensemble = shaken(fresh("batch-ensemble:3"))
    expected = torch.stack([alone(ensemble, member, network())(X).softmax(1) for member in range(3)])
    torch.testing.assert_close(samples("batch-ensemble:3", ensemble, 3), expected)
    torch.testing.assert_close(ensemble(X).transpose(0, 1).softmax(2), expected)
    assert (expected[0] - expected[1]).abs().max() > 0.01


@pytest.mark.parametrize(
    "name", ["resnet18", "vgg13", "small_cnn", pytest.param("densenet121", marks=pytest.mark.slow)]
)
def test_the_networks_of_the_laboratory(name):
    plain = create(name, 10, 1, 0.125)
    ensemble = shaken(parse("batch-ensemble:2").prepare(create(name, 10, 1, 0.125), X))
    found = ensemble(X)
    for member in (0, 1):
        torch.testing.assert_close(found[:, member], alone(ensemble, member, plain)(X), rtol=1e-3, atol=1e-4)


def test_the_loss_is_the_mean_over_members_of_all_images():
    ensemble, y = shaken(fresh("batch-ensemble:2")), torch.tensor([0, 1, 2, 0, 1])
    scores = ensemble(X)
    loss, probs = parse("batch-ensemble:2").loss(ensemble, X, y, PROGRESS)
    torch.testing.assert_close(loss, (F.cross_entropy(scores[:, 0], y) + F.cross_entropy(scores[:, 1], y)) / 2)
    torch.testing.assert_close(probs, scores.softmax(2).mean(1))
    soft, _ = parse("batch-ensemble:2").loss(ensemble, X, F.one_hot(y, 3).float(), PROGRESS)  # as mixup has them
    torch.testing.assert_close(soft, loss)


def test_vectors_start_as_signs_are_few_and_do_not_decay():
    ensemble = fresh("batch-ensemble:4")
    layer = ensemble.network[3]
    assert set(layer.fast_in.unique().tolist()) == {-1, 1}
    assert parameters(ensemble) == parameters(network()) + 4 * (1 + 8 + 8 + 8 + 8 + 3) + 3 * (8 + 3)
    decaying = Recipe(epochs=1, batch=16, learning_rate=0.1, weight_decay=0.5)
    optimiser = TrainingStep(ensemble, parse("batch-ensemble:4"), batches(), decaying, 0).optimiser
    decayed = {id(one): group["weight_decay"] for group in optimiser.param_groups for one in group["params"]}
    assert [decayed[id(one)] for one in (layer.fast_in, layer.fast_out, layer.weight)] == [0, 0, 0.5]


def test_linear_layers_of_sequences():
    torch.manual_seed(0)
    ensemble, x = nn.Sequential(nn.Linear(4, 5)), torch.randn(6, 7, 4)
    make_rank_one(ensemble, 2)
    layer = ensemble[0]
    for member, rows in enumerate((slice(0, 3), slice(3, 6))):
        weight = layer.weight * torch.outer(layer.fast_out[member], layer.fast_in[member])
        torch.testing.assert_close(ensemble(x)[rows], F.linear(x[rows], weight, layer.member_bias[member]))


def test_every_input_of_a_convolution_in_groups_has_a_factor():
    layer = nn.Conv2d(8, 6, 3, groups=2)
    make_rank_one(layer, 3)
    assert (layer.fast_in.shape, layer.fast_out.shape) == ((3, 8), (3, 6))


def test_a_network_without_layers_is_refused():
    with pytest.raises(InvalidInput, match=r"Sequential has no nn\.Conv2d or nn\.Linear for the members"):
        parse("batch-ensemble:2").prepare(nn.Sequential(nn.Flatten()), X)
