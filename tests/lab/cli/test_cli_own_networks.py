"""Networks that do not fit the data, or into memory, are refused before training."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from importlib import invalidate_caches
from pathlib import Path

import pytest
import torch
from tiny_runs import TINY
from torch import nn
from typer.testing import CliRunner

from rbue.errors import InvalidInput
from rbue.lab import data, models
from rbue.lab.cli import app
from rbue.lab.runs.networks import check_fits

NETWORKS = """
from torch import nn

def layers(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))

def seven_classes():
    return layers(64, 7)

def seventy_classes():
    return layers(64, 70)

def large_images(classes):
    return layers(3072, classes)

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = layers(64, 10)

    def forward(self, x):
        return self.layers(x), x

def lazy(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Linear(16, classes))

def lazy_seven(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(7))

def double(classes):
    return layers(64, classes).double()

class Noted(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = layers(64, classes)

    def get_extra_state(self):
        return {"a": "note"}

    def set_extra_state(self, state):
        pass

    def forward(self, x):
        return self.layers(x)
"""


@pytest.fixture
def own(fails):
    """Trains a network of one's own that must be refused, and gives the sentence."""
    Path("unfit_networks.py").write_text(NETWORKS)

    def refused(name, method="single"):
        return fails("train", "--model", f"unfit_networks:{name}", "--method", method, "--epochs", 1, code=2)

    return refused


@pytest.mark.parametrize("method", ["single", "mc-droprelu"])
def test_a_network_that_does_not_fit_the_data(own, method):
    assert "of shape (2, 7) for two images of 1x8x8; digits has 10 classes" in own("seven_classes", method)
    assert "of shape (2, 70)" in own("seventy_classes", method)
    assert "of type tuple" in own("Pair", method)
    message = own("large_images", method)
    assert "unfit_networks:large_images cannot take images of 1x8x8 as in digits (RuntimeError: " in message
    assert "mat1 and mat2 shapes cannot" in message
    assert "of shape (2, 7)" in own("lazy_seven", method)
    assert "must have the same dtype" in own("double", method)
    assert "no tensor ('_extra_state'), which runs cannot save" in own("Noted", method)
    assert not Path("runs").exists()


@pytest.mark.parametrize("method", ["single", "mc-droprelu", "svi"])
def test_lazy_layers_get_their_weights_before_training(command, method):
    Path("unfit_networks.py").write_text(NETWORKS)
    words = ("--model", "unfit_networks:lazy", "--method", method, "--epochs", 1)
    command("train", *words)
    command("evaluate", *words, "--samples", 2)


@pytest.mark.filterwarnings("always")
def test_a_network_whose_file_changed_after_training_is_warned_of(command):
    file = Path("networks_that_change.py")
    file.write_text(NETWORKS)
    words = ("--model", "networks_that_change:lazy", "--method", "deep-ensemble:2", "--epochs", 1)
    command("train", *words)
    assert "has changed" not in command("evaluate", *words).stderr
    file.write_text(NETWORKS + "CHANGED = True")
    for again in ("train", "evaluate"):
        said = command(again, *words).stderr
        assert "the file of networks_that_change:lazy has changed since" in said
        assert said.count("remove that folder to train it again") == 2  # of two members


def test_a_factory_that_gives_its_network_twice_is_refused(fails):
    Path("kept_networks.py").write_text(NETWORKS + "from functools import lru_cache\nkept = lru_cache(lazy)\n")
    words = ("--model", "kept_networks:kept", "--method", "deep-ensemble:2", "--epochs", 1)
    assert "kept_networks:kept returned the same network twice" in fails("train", *words, code=2)


@pytest.mark.parametrize("width", ["100000", "1e9", "1e30"])
def test_a_width_beyond_all_memory_is_never_allocated(fails, monkeypatch, width):
    def only_without_memory(*settings):
        assert torch.empty(0).device.type == "meta", "this machine's memory was asked for"
        return create(*settings)

    create = models.create
    monkeypatch.setattr(models, "create", only_without_memory)
    message = fails("train", *TINY, "--width", width, code=2)
    assert f"small_cnn with width {float(width):g} does not fit into memory; choose a smaller --width" in message
    assert not Path("runs").exists()


def test_memory_that_is_refused(fails, monkeypatch):
    def refused(*settings):
        if torch.empty(0).device.type != "meta":
            raise RuntimeError("DefaultCPUAllocator: not enough memory")
        return create(*settings)

    create = models.create
    monkeypatch.setattr(models, "create", refused)
    assert "small_cnn with width 2 does not fit into memory" in fails("train", *TINY, "--width", 2, code=2)


class Restless(nn.Module):
    """Changes what it can, also in evaluation mode."""

    def __init__(self, fails=False):
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(1), nn.Linear(64, 10)
        self.frozen = nn.BatchNorm1d(10).eval()
        self.fails = fails
        self.register_buffer("added", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))

    def forward(self, x):
        self.added += 1
        self.replaced = self.replaced + torch.rand(())
        if self.fails:
            raise RuntimeError("no")
        return self.frozen(self.head(self.norm(x).flatten(1)))


@pytest.mark.parametrize("broken", [False, True])
def test_the_check_leaves_no_trace(broken):
    network, images = Restless(broken), data.load("digits", "test")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    buffers = [id(buffer) for buffer in network.buffers()]
    torch.manual_seed(1)
    with pytest.raises(InvalidInput, match="RuntimeError: no") if broken else nullcontext():
        check_fits(network, "restless", (1, 8, 8), images)
    drawn = torch.rand(())
    torch.manual_seed(1)
    assert drawn == torch.rand(())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert [id(buffer) for buffer in network.buffers()] == buffers
    assert [module.training for module in network.modules()] == [True, True, True, False]
    assert all(parameter.grad is None for parameter in network.parameters())


METHOD = """
from dataclasses import dataclass
from rbue.lab.methods import Method

@dataclass(frozen=True)
class Mine(Method):
    amount: float = 0.1

class Other:
    pass
"""


@pytest.mark.filterwarnings("always")
def test_a_method_of_ones_own_is_found_by_its_name(command, fails, monkeypatch):
    file = Path("methods_of_mine.py")
    file.write_text(METHOD)
    run = command("train", "--method", "methods_of_mine:Mine:0.2", *TINY).stdout.splitlines()[-1]
    assert Path(run).name.startswith("methods_of_mine-Mine-0.2-seed0-")
    assert "has changed" not in command("evaluate", run).stderr
    file.write_text(METHOD + "CHANGED = True")
    assert "the file of methods_of_mine:Mine has changed since" in command("evaluate", run).stderr
    assert "is no method; it must be" in fails("train", "--method", "methods_of_mine:Other", code=2)
    assert "(did you mean 'Mine'?)" in fails("train", "--method", "methods_of_mine:Mime", code=2)
    file.unlink()
    monkeypatch.delitem(sys.modules, "methods_of_mine")
    invalidate_caches()
    for verb in (("evaluate", run), ("predict", run, "x.png"), ("shift", run)):
        assert "there is no module 'methods_of_mine' to import for 'methods_of_mine:Mine:0.2'" in fails(*verb, code=2)


BROKEN = """
from dataclasses import dataclass
from torch.nn import functional as F
from rbue.errors import InvalidInput
from rbue.lab.methods import Method

def kind(of):
    def made(self, network, x, y, progress):
        return of(F.cross_entropy(network(x), y), network(x))
    return dataclass(frozen=True)(type("Kind", (Method,), {"loss": made, "__module__": __name__}))

OnlyLoss = kind(lambda loss, logits: loss)
Nothing = kind(lambda loss, logits: None)
Three = kind(lambda loss, logits: (loss, logits, 0))
Number = kind(lambda loss, logits: (loss.item(), logits))
Detached = kind(lambda loss, logits: (loss.detach(), logits))
Swapped = kind(lambda loss, logits: (logits, loss))
Flat = kind(lambda loss, logits: (loss, logits.flatten()))
Good = kind(lambda loss, logits: [loss, logits])

@dataclass(frozen=True)
class NoNetwork(Method):
    def prepare(self, network, example):
        return 3

def helper():
    raise KeyError("a key")

@dataclass(frozen=True)
class Loss(Method):
    amount: int = 1

    def loss(self, network, x, y, progress):
        helper()

@dataclass(frozen=True)
class Refusing(Method):
    def prepare(self, network, example):
        raise InvalidInput("no")

@dataclass(frozen=True)
class Epochs(Method):
    def check_training(self, epochs, average):
        raise ValueError("too few")

@dataclass(frozen=True)
class Draw(Method):
    def stream(self, networks, x, seed, draws="independent"):
        def draw(x, samples, images):
            raise ValueError("drawn")
        return draw

@dataclass(frozen=True)
class NoStream(Method):
    def stream(self, networks, x, seed, draws="independent"):
        pass

@dataclass(frozen=True)
class Unmade(Method):
    amount: int

    def __post_init__(self):
        raise ValueError("never")
"""


@pytest.fixture
def broken_methods(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "broken_methods", raising=False)
    Path("broken_methods.py").write_text(BROKEN)
    yield
    monkeypatch.delitem(sys.modules, "broken_methods", raising=False)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("OnlyLoss", "returned a Tensor; it must return (loss, logits)"),
        ("Nothing", "returned None;"),
        ("Three", "returned a tuple of 3;"),
        ("Number", "returned a float and a Tensor;"),
        ("Detached", "returned a loss without a gradient;"),
        ("Swapped", "returned a loss of shape (128, 10);"),
        ("Flat", "returned logits of shape (1280,) for 128 images;"),
    ],
)
def test_what_a_loss_must_return(broken_methods, command, fails, name, sentence):
    assert f":{name}.loss {sentence}" in fails("train", "--method", f"broken_methods:{name}", *TINY, code=1)
    command("train", "--method", "broken_methods:Good", *TINY)


def test_a_broken_method_is_named_with_its_line(broken_methods, fails):
    words = ("train", "--method", "broken_methods:Loss", *TINY)
    line = BROKEN[: BROKEN.index('raise KeyError("a key")')].count("\n") + 1
    place = f"(line {line} of {Path('broken_methods.py').absolute()})"
    said = fails(*words, code=1)
    assert said == f"error: broken_methods:Loss failed with KeyError: 'a key' {place}; mend it."
    shown = CliRunner().invoke(app, [*words, "--debug"]).stderr
    assert "in helper" in shown
    assert shown.splitlines()[-1] == said


def test_a_broken_method_does_not_stop_a_comparison(broken_methods, command):
    broken = {
        "NoNetwork": "NoNetwork.prepare returned an int; it must return the network",
        "Loss:3": "Loss failed with KeyError: 'a key'",
        "Refusing": "Refusing failed with InvalidInput: no",
        "Epochs": "Epochs failed with ValueError: too few",
        "Draw": "Draw failed with ValueError: drawn",
        "NoStream": "NoStream failed with TypeError: 'NoneType' object is not callable",
    }
    broken = {f"broken_methods:{name}": sentence for name, sentence in broken.items()}
    broken["deep-ensemble:2[broken_methods:Loss]"] = broken["broken_methods:Loss:3"]
    methods = ["single", *broken, "mc-droprelu:0.9"]
    rows = json.loads(command("compare", "--methods", " ".join(methods), *TINY, "--json", code=1).stdout)["methods"]
    assert [row["method"] for row in rows] == methods
    assert all(row["accuracy"] > 0 for row in (rows[0], rows[-1]))
    for row, sentence in zip(rows[1:-1], broken.values(), strict=True):
        assert row["trouble"] == "failed"
        assert row["error"].startswith(f"broken_methods:{sentence}")


def test_a_method_that_cannot_be_made(broken_methods, fails):
    for settings, said in ((":1", "ValueError: never"), ("", "TypeError: ")):
        name = f"broken_methods:Unmade{settings}"
        assert f"{name!r} cannot be made: {said}" in fails("compare", "--methods", f"single {name}", *TINY, code=2)
