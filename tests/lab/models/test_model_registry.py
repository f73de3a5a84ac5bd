"""The registry: names, a user's own factory, what goes wrong with either; sizes against closed forms and hooks."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rbue
from rbue import InvalidInput
from rbue.lab import models
from rbue.lab.models import create, list_models, multiply_adds, parameters, register, registry

OWN = '''
import functools

import torch
from torch import nn

from rbue import InvalidInput

def make(classes, channels):
    """Both arguments."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * 4, classes))

def fixed():
    return nn.Linear(2, 3)

def wide(*, width=1.0, classes=2):
    return nn.Linear(int(8 * width), classes)

def anything(**options):
    network = nn.Identity()
    network.options = options
    return network

class Own(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.head = nn.Linear(2, classes)

partial = functools.partial(make, channels=5)
network = nn.Linear(2, 2)
number = 3

def nothing(classes):
    pass

def tensor():
    return torch.zeros(3)

def demanding(classes, depth):
    return nn.Identity()

def positional(classes, /):
    return nn.Identity()

def fails(classes):
    raise RuntimeError("no weights here")
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "networks.py").write_text(OWN)
    (package / "broken.py").write_text("import module_that_is_not_there\n")
    (package / "crash.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_package.networks"
    for key in [key for key in sys.modules if key.split(".")[0] == "own_package"]:
        del sys.modules[key]


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


def test_the_networks_of_the_paper_are_there():
    assert list_models() == sorted(list_models())
    assert {"vgg13", "resnet18", "densenet121", "small_cnn"} <= set(list_models())


def test_public_names():
    assert sorted(models.__all__) == models.__all__
    assert all(hasattr(models, name) for name in models.__all__)


def test_create_passes_its_arguments():
    network = create("small_cnn", classes=4, channels=1, width=0.5)
    assert (network.conv1.in_channels, network.conv1.out_channels, network.head.out_features) == (1, 8, 4)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("resnet81", "resnet18"), ("ResNet-18", "resnet18"), ("VGG_13", "vgg13"), ("small-cnn", "small_cnn")],
)
def test_unknown_name_with_a_suggestion(typo, meant):
    with pytest.raises(InvalidInput, match=f"no network called '{typo}' .did you mean '{meant}'.*package.module:fac"):
        create(typo)


def test_unknown_name_without_a_suggestion():
    with pytest.raises(InvalidInput, match="no network called 'transformer'; there are densenet121, resnet18"):
        create("transformer")
    with pytest.raises(InvalidInput, match="name cannot be None"):
        create(None)


@pytest.mark.parametrize("value", [0, -3, 2.5, "10", True, None])
@pytest.mark.parametrize("argument", ["classes", "channels"])
def test_impossible_counts(argument, value):
    with pytest.raises(InvalidInput, match=f"{argument} is .*; give a whole number of at least 1"):
        create("small_cnn", **{argument: value})


def test_register(fresh):
    @register("mine")
    class Mine(nn.Linear):
        def __init__(self, classes=10, channels=3, width=1.0):
            super().__init__(channels, classes)

    assert "mine" in list_models()
    assert isinstance(create("mine", classes=2), Mine)
    register("mine")(Mine)  # the same again, as on a reload, is no conflict
    with pytest.raises(InvalidInput, match="already a network called 'mine'"):
        register("mine")(nn.Linear)


@pytest.mark.parametrize("name", ["", "a:b", None])
def test_names_that_cannot_be_registered(name):
    with pytest.raises(InvalidInput, match="cannot be registered"):
        register(name)


def test_a_new_network_needs_one_file_only(tmp_path, fresh):
    """The package's own import loop, in a folder that holds one new file."""
    (tmp_path / "__init__.py").write_text(Path(models.__file__).read_text())
    (tmp_path / "newcomer.py").write_text(
        "from torch import nn\nfrom rbue.lab.models.registry import register\n"
        "@register('newcomer')\ndef newcomer(classes=10, channels=3, width=1.0):\n    return nn.Linear(2, classes)\n"
    )
    spec = importlib.util.spec_from_file_location(
        "copied_models", tmp_path / "__init__.py", submodule_search_locations=[str(tmp_path)]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["copied_models"] = package
    try:
        spec.loader.exec_module(package)
        assert create("newcomer", classes=6).out_features == 6
    finally:
        for key in ("copied_models", "copied_models.newcomer"):
            sys.modules.pop(key, None)


def test_own_factory(own):
    network = create(f"{own}:make", classes=7, channels=2)
    assert network(torch.zeros(1, 2, 2, 2)).shape == (1, 7)
    assert create(f"{own}:fixed", classes=7).out_features == 3
    assert create(f"{own}:Own", classes=7, channels=2).head.out_features == 7
    wide = create(f"{own}:wide", classes=4, width=0.5)
    assert (wide.in_features, wide.out_features) == (4, 4)
    assert create(f"{own}:anything", classes=4, channels=1).options == dict(classes=4, channels=1, width=1.0)
    assert create(f"{own}:partial", classes=4)[1].in_features == 3 * 4


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("mak", r"no 'mak' \(did you mean 'make'\?\)"),
        ("own", r"no 'own' \(did you mean 'Own'\?\)"),
        ("zzzzz", "no 'zzzzz'; .* must name something defined in"),
        ("number", "is an int; it must name a function or class"),
        ("network", "is a Linear; it must name a function or class"),
        ("nothing", "returned None; it must return a torch.nn.Module"),
        ("tensor", "returned a Tensor; it must return a torch.nn.Module"),
        ("demanding", "cannot be called with classes .*depth.*; give its other parameters a default"),
        ("positional", "cannot be called with no arguments"),
        ("fails", r"called with \(classes=10\) raised RuntimeError: no weights here"),
    ],
)
def test_own_factory_that_cannot_be_used(own, factory, message):
    with pytest.raises(InvalidInput, match=message):
        create(f"{own}:{factory}")


def test_a_width_that_would_be_ignored_is_refused(own):
    with pytest.raises(InvalidInput, match=r"takes no width, so width=0\.5 has no effect"):
        create(f"{own}:make", width=0.5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_package:make", "no module 'no_such_package' to import .* PYTHONPATH"),
        ("own_package.no_such_file:make", "no module 'own_package.no_such_file'"),
        ("own_package.broken:make", "failed with ModuleNotFoundError: No module named 'module_that_is_not_there'"),
        ("own_package.crash:make", "failed with ZeroDivisionError"),
        ("own_package.networks:", "does not name a network"),
        (":make", "does not name a network"),
        ("a:b:c", "does not name a network"),
        ("./file.py:make", "does not name a network"),
        (".relative:make", "does not name a network"),
    ],
)
def test_places_that_cannot_be_imported(own, spec, message):
    with pytest.raises(InvalidInput, match=message):
        create(spec)


def counted_by_hooks(network, shape):
    """Convolutions and linear layers only, from the shapes that pass."""
    total = 0

    def count(module, inputs, output):
        nonlocal total
        weights = module.weight.numel() // module.weight.shape[0]
        total += output.numel() * weights

    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(count)
    network.eval()(torch.empty(1, *shape, device="meta"))
    return total


def test_closed_form():
    a, b, c, head = 32 * 32 * 16 * 27, 16 * 16 * 32 * 144, 8 * 8 * 64 * 288, 640
    assert multiply_adds(create("small_cnn"), (3, 32, 32)) == a + b + c + head


KNOWN = {"resnet18": 0.556, "vgg13": 0.228, "densenet121": 0.888}


@pytest.mark.parametrize("name", list_models())
def test_agrees_with_hooks_and_known_sizes(name):
    with torch.device("meta"):
        network = create(name)
    found = {side: multiply_adds(network, (3, side, side)) for side in (8, 32)}
    assert found == {side: counted_by_hooks(network, (3, side, side)) for side in found}
    assert found[32] / 1e9 == pytest.approx(KNOWN.get(name, found[32] / 1e9), abs=0.001)


def test_functional_calls_grouped_and_transposed_convolutions_count():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(5, 4))
            self.up = nn.ConvTranspose2d(4, 6, 2, 2)
            self.grouped = nn.Conv2d(6, 6, 3, padding=1, groups=3)

        def forward(self, x):
            return F.linear(self.grouped(self.up(x)).mean((2, 3))[:, :4], self.weight)

    assert multiply_adds(Odd(), (4, 5, 5)) == 5 * 5 * 4 * 6 * 4 + 10 * 10 * 6 * 2 * 9 + 20


def test_the_network_is_not_touched():
    network = create("small_cnn").double().train()
    rbue.convert(network, rbue.DropReLU(0.5), example=torch.zeros(1, 3, 8, 8, dtype=torch.float64))
    network.norm1.eval()
    before = {key: value.clone() for key, value in [*network.state_dict().items(), *network.named_buffers()]}
    plain = multiply_adds(create("small_cnn"), (3, 8, 8))
    assert multiply_adds(network, (3, 8, 8)) == plain
    after = dict([*network.state_dict().items(), *network.named_buffers()])
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert (network.training, network.norm1.training, network.norm2.training) == (True, False, True)


def test_a_shared_parameter_counts_once():
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[1].weight = network[0].weight
    assert parameters(network) == 16 + 4 + 4
    assert parameters(nn.Identity()) == 0
    assert multiply_adds(nn.Identity(), (3,)) == 0


@pytest.mark.parametrize("shape", [(), (3, 0, 8), (3, -1, 8), (3, 8.0, 8)])
def test_impossible_shapes(shape):
    with pytest.raises(rbue.InvalidInput, match="input_shape is"):
        multiply_adds(nn.Identity(), shape)
