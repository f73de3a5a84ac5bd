"""The networks: exact sizes, any image, any width, call sites, gradients, and a small CNN that learns."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import rbue
from rbue.lab.models import create, list_models, parameters
from rbue.lab.models._building import halved, scaled

PARAMETERS = {
    ("vgg13", 10): 9_416_010,
    ("resnet18", 10): 11_173_962,
    ("densenet121", 10): 6_956_298,
    ("small_cnn", 10): 24_346,
    ("vgg13", 100): 9_416_010 + 90 * 513,
    ("resnet18", 100): 11_173_962 + 90 * 513,
    ("densenet121", 100): 6_956_298 + 90 * 1025,
    ("small_cnn", 100): 24_346 + 90 * 65,
}
SITES = {"vgg13": 10, "resnet18": 17, "densenet121": 120, "small_cnn": 3}
NARROW = 0.125


def narrow(name, **options):
    torch.manual_seed(0)
    return create(name, width=NARROW, **options)


@pytest.fixture(params=sorted(SITES))
def name(request):
    return request.param


def test_every_network_is_tested_here():
    assert sorted(SITES) == list_models()


@pytest.mark.parametrize(("network", "classes"), sorted(PARAMETERS))
def test_parameter_counts(network, classes):
    with torch.device("meta"):
        assert parameters(create(network, classes=classes)) == PARAMETERS[network, classes]


def test_any_image_size_at_full_width(name):
    with torch.device("meta"):
        network = create(name, classes=7).eval()
        for side in (8, 64):
            assert network(torch.empty(2, 3, side, side)).shape == (2, 7)


@pytest.mark.parametrize(("channels", "sides"), [(3, (1, 16, 64)), (1, (5, 8, 32))])
def test_any_image_size_and_channels(name, channels, sides):
    network = narrow(name, classes=5, channels=channels).eval()
    for side in sides:
        with torch.no_grad():
            scores = network(torch.randn(2, channels, side, side))
        assert scores.shape == (2, 5)
        assert scores.isfinite().all()


def test_the_size_of_the_image_adds_no_parameters_and_no_sites(name):
    network = narrow(name)
    tables = [rbue.sites(network, torch.zeros(1, 3, side, side)) for side in (8, 64)]
    assert [site.name for site in tables[0]] == [site.name for site in tables[1]]


def test_call_sites(name):
    assert len(rbue.sites(narrow(name), torch.zeros(1, 3, 8, 8))) == SITES[name]


def test_densenet_has_no_relu_or_norm_after_its_stem():
    seen = []
    network = narrow("densenet121").eval()
    network.stem.register_forward_hook(lambda _, inputs, output: seen.append(output))
    network.blocks[0][0].norm1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network(torch.randn(1, 3, 8, 8))
    assert seen[0] is seen[1]


def test_width_factors():
    assert [scaled(64, width) for width in (1, 0.5, 0.25, 0.2, 0.001, 1.5)] == [64, 32, 16, 16, 8, 96]
    with torch.device("meta"):
        for name in list_models():
            sizes = [parameters(create(name, width=width)) for width in (0.125, 0.33, 1.0, 1.5, 2.0)]
            assert sizes == sorted(sizes)
            assert sizes[0] < sizes[-3] / 3 < sizes[-1] / 9


@pytest.mark.parametrize("width", [0.01, 0.3, 0.77])
def test_odd_widths_give_working_networks(name, width):
    with torch.device("meta"):
        assert create(name, width=width).eval()(torch.empty(1, 3, 8, 8)).shape == (1, 10)


@pytest.mark.parametrize("width", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_impossible_widths_are_refused(name, width):
    with pytest.raises(rbue.InvalidInput, match="width is"):
        create(name, width=width)


@pytest.mark.parametrize("kind", ["max", "average"])
def test_pooling_stops_before_the_map_vanishes(kind):
    assert halved(torch.zeros(1, 1, 5, 4), kind).shape[-2:] == (2, 2)
    for shape in [(1, 1), (1, 6), (6, 1)]:
        assert halved(torch.zeros(1, 1, *shape), kind).shape[-2:] == shape


@pytest.mark.parametrize("activation", [rbue.DropReLU(0.9), rbue.RReLU()])
def test_random_relus_add_no_parameters(name, activation):
    network = narrow(name).eval()
    x = torch.randn(2, 3, 8, 8)
    keys, count, plain = list(network.state_dict()), parameters(network), network(x)
    rbue.convert(network, activation, example=x)
    assert parameters(network) == count
    assert list(network.state_dict()) == keys
    assert not torch.equal(network(x), plain)
    assert torch.equal(rbue.revert(network)(x), plain)


@pytest.mark.parametrize("random", [False, True])
def test_gradients_reach_every_parameter(name, random):
    network = narrow(name).train()
    x = torch.randn(8, 3, 16, 16)
    if random:
        rbue.convert(network, rbue.DropReLU(0.9), example=x)
    F.cross_entropy(network(x), torch.arange(8)).backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key


def test_initialisation_keeps_the_scale(name):
    network = create(name, width=0.5)
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
        if getattr(module, "bias", None) is not None:
            assert not module.bias.any()


def test_the_seed_decides_the_weights(name):
    first, second = narrow(name), narrow(name)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_the_head_is_the_last_linear_layer(name):
    network = narrow(name, classes=4)
    assert [m for m in network.modules() if isinstance(m, nn.Linear)] == [network.head]
    assert network.head.out_features == 4


def test_small_cnn_learns_the_digits():
    bunch = load_digits()
    x, y = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(bunch.target)
    torch.manual_seed(0)
    test, train = torch.randperm(len(x)).split([400, len(x) - 400])
    network = create("small_cnn", channels=1, width=0.5).train()
    optimiser = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 8)
    for _ in range(8):
        for batch in train[torch.randperm(len(train))].split(64):
            optimiser.zero_grad()
            F.cross_entropy(network(x[batch]), y[batch]).backward()
            optimiser.step()
        schedule.step()
    with torch.no_grad():
        accuracy = rbue.metrics.accuracy(network.eval()(x[test]).softmax(1), y[test])
    assert accuracy > 0.96
