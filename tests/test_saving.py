"""A saved network is the same one in a new process, and what is not the same is refused in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import rbue
from rbue import ConversionError, InvalidInput, files, random_stream, saving
from rbue.activations import Activation, SiteCall


class Net(nn.Module):
    """Convolutions, BatchNorm, one ReLU module that is called twice, tied weights and views of one memory."""

    def __init__(self, width: int = 8, activation: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.relu, self.activation = nn.ReLU(), activation
        self.head, self.also = nn.Linear(width, 5), nn.Linear(width, 5)
        self.also.weight = self.head.weight
        both = torch.ones(2, 5)
        self.register_buffer("one", both[0])
        self.register_buffer("other", both[1])

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.stem(x)))
        x = self.activation(self.conv(self.relu(x))).mean((2, 3))
        return (self.head(x) + self.also(x)) * self.one * self.other


def images(count: int = 6) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def trained(activation: Any = None, **settings: Any) -> nn.Module:
    """A network that differs from a fresh one in every tensor."""
    torch.manual_seed(3)
    net = Net()
    rbue.convert(net, activation or rbue.DropReLU(0.8), **{"example": images(), **settings})
    for buffer in (net.norm.running_mean, net.norm.running_var, net.one, net.other):
        buffer.add_(torch.rand_like(buffer))
    return net


CHILD = """
import sys, torch, rbue
sys.path.insert(0, sys.argv[1])
import test_saving
net = rbue.load(sys.argv[2], test_saving.Net())
found = rbue.predict(net, test_saving.images(), samples=30)
other = rbue.predict(net, test_saving.images(), samples=30, draws="independent")
torch.save([found.probs, found.variance, other.probs], sys.argv[3])
print(rbue.conversion(net))
"""


def test_a_new_process_predicts_the_same_bits(tmp_path: Path) -> None:
    net = trained(where=["relu[1]", -1])
    rbue.set_temperature(net, 1.5)
    rbue.save(net, tmp_path / "net.safetensors", classes=list("abcde"))
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), tmp_path / "net.safetensors", tmp_path / "out"]
    done = subprocess.run(command, text=True, capture_output=True, check=True)
    expected = rbue.predict(net, images(), samples=30)
    assert expected.temperature == 1.5
    independent = rbue.predict(net, images(), samples=30, draws="independent").probs
    for found, one in zip(torch.load(tmp_path / "out"), (expected.probs, expected.variance, independent), strict=True):
        assert torch.equal(found, one)
    line = "Net: DropReLU(q=0.8) at 2 of 3 ReLU call sites; temperature 1.5; 5 classes"
    assert done.stdout.strip() == line


@pytest.mark.parametrize("activation", [rbue.RReLU(0.1, 0.5), rbue.DropActivation(0.7), rbue.Dropout(0.3)], ids=repr)
def test_every_activation_comes_back(activation: Any, tmp_path: Path) -> None:
    net = trained(activation)
    rbue.save(net, tmp_path / "net")
    again = rbue.load(str(tmp_path / "net"), Net())
    assert rbue.conversion(again).activation == activation
    assert rbue.conversion(again).sites == rbue.conversion(net).sites
    assert torch.equal(rbue.predict(again, images(), 7).probs, rbue.predict(net, images(), 7).probs)


def test_state_types_and_ties_come_back(tmp_path: Path) -> None:
    net = trained().bfloat16()  # after its example was float32
    rbue.save(net, tmp_path / "net")
    fresh = Net()
    parameters = list(fresh.parameters())
    again = rbue.load(tmp_path / "net", fresh)
    assert again is fresh
    assert again.head.weight is again.also.weight
    assert all(map(lambda one, other: one is other, again.parameters(), parameters))
    for name, value in net.state_dict().items():
        found = again.state_dict()[name]
        assert (found.dtype, found.equal(value)) == (value.dtype, True), name
    x = images().bfloat16()
    assert torch.equal(rbue.predict(again, x, 7).probs, rbue.predict(net, x, 7).probs)


def test_saving_leaves_the_network_as_it_was_and_loading_replaces_a_conversion(tmp_path: Path) -> None:
    net = trained(where="last").train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    rbue.seed(net, 4)
    rbue.save(net, tmp_path / "net")
    rbue.save(net, tmp_path / "net")  # over the first
    assert net.training
    assert not net._forward_hooks
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    assert list(tmp_path.iterdir()) == [tmp_path / "net"]
    other = rbue.set_temperature(converted := rbue.convert(Net(), rbue.RReLU()), 3.0) or converted
    summary = rbue.conversion(rbue.load(tmp_path / "net", other, activation=rbue.DropReLU(0.8)))
    assert (summary.activation, len(summary.random), summary.temperature) == (rbue.DropReLU(0.8), 1, 1.0)
    assert not rbue.conversion(rbue.revert(other))


class TwoInputs(nn.Module):
    """Token numbers and a mask by keyword, as text classifiers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        x = self.embedding(ids) * scale
        return self.head(F.relu(x if mask is None else x * mask[..., None]).mean(1))


@pytest.mark.parametrize(
    "example",
    [
        {"ids": torch.ones(500, 4, dtype=torch.int64), "mask": torch.ones(500, 4), "scale": 2.0},
        (torch.ones(500, 4, dtype=torch.int64), None),
    ],
    ids=["dict", "tuple"],
)
def test_examples_of_several_inputs(example: Any, tmp_path: Path) -> None:
    net = rbue.convert(TwoInputs(), rbue.DropReLU(0.8), where="all", example=example)
    rbue.save(net, tmp_path / "net")
    again = rbue.load(tmp_path / "net", TwoInputs())
    assert rbue.conversion(again).sites == rbue.conversion(net).sites
    rbue.save(again, tmp_path / "again")
    _, note = files.read_safetensors(tmp_path / "again")
    assert str(note["example"]).count("[2, 4]") == (2 if isinstance(example, dict) else 1)  # not 500 rows


def test_without_an_example_everything_is_random_again(tmp_path: Path) -> None:
    net = rbue.convert(Net(), rbue.DropReLU(0.8))
    rbue.save(net, tmp_path / "net")
    again = rbue.load(tmp_path / "net", Net())
    assert repr(rbue.conversion(again)) == "Net: DropReLU(q=0.8) at every ReLU call site"
    assert torch.equal(rbue.predict(again, images(), 7).probs, rbue.predict(net, images(), 7).probs)


class Looks(nn.Module):
    """Takes the way with a ReLU for positive images alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(x) if x.sum() > 0 else x)


def test_sites_that_zeros_do_not_reach_need_an_example(tmp_path: Path) -> None:
    net = rbue.convert(Looks(), rbue.DropReLU(0.8), where="last", example=torch.ones(2, 4))
    rbue.save(net, tmp_path / "net")
    other = Looks()
    before = {name: one.clone() for name, one in other.state_dict().items()}
    with pytest.raises(InvalidInput, match=r"give load\(\.\.\., example=x\)\.$"):
        rbue.load(tmp_path / "net", other)
    assert all(one.equal(before[name]) for name, one in other.state_dict().items())
    assert len(rbue.conversion(rbue.load(tmp_path / "net", Looks(), example=torch.ones(2, 4))).random) == 1


@dataclass(frozen=True)
class DropSoftplus(Activation):
    q: float = 0.9
    calls = (F.softplus,)

    def read(self, func: Any, args: tuple, kwargs: Any) -> SiteCall | None:
        return SiteCall("F.softplus", args[0], function=F.softplus) if func is F.softplus else None

    def formula(self, x: Tensor, words: Tensor, call: SiteCall) -> Tensor:
        return torch.where(words < random_stream.threshold(1 - self.q), x, call.plain(x))

    def mean(self, x: Tensor, call: SiteCall) -> Tensor:
        return x

    variance = mean


def soft() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Softplus())


def test_an_activation_of_your_own_is_given_again(tmp_path: Path) -> None:
    net, x = rbue.convert(soft(), DropSoftplus(0.5), example=torch.zeros(2, 4)), torch.randn(5, 4)
    rbue.save(net, tmp_path / "net")
    with pytest.raises(
        InvalidInput, match=r"test_saving:DropSoftplus\(q=0\.5\), a class of your own.*activation=\.\.\."
    ):
        rbue.load(tmp_path / "net", soft())
    with pytest.raises(InvalidInput, match=r"saved with .*q=0\.5\), and activation is DropSoftplus\(q=0\.9\)"):
        rbue.load(tmp_path / "net", soft(), activation=DropSoftplus())
    again = rbue.load(tmp_path / "net", soft(), activation=DropSoftplus(0.5))
    assert torch.equal(rbue.predict(again, x, 7).probs, rbue.predict(net, x, 7).probs)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "net.safetensors"
    rbue.save(trained(where="last"), path)
    return path


def with_note(saved: Path, path: Path, **changes: Any) -> Path:
    tensors, note = files.read_safetensors(saved)
    path.write_bytes(files.safetensors_bytes(tensors, note | changes))
    return path


def untied() -> nn.Module:
    net = Net()
    net.also.weight = nn.Parameter(net.also.weight.detach() + 1)
    return net


@pytest.mark.parametrize(
    ("build", "kind", "words"),
    [
        (lambda: Net(width=9), InvalidInput, ["stem.weight (8x3x3x3, here 9x3x3x3)", "and 7 more"]),
        (lambda: nn.Sequential(nn.Linear(3, 2)), InvalidInput, ["it lacks 0.weight, 0.bias; it also has also.bias,"]),
        (lambda: Net(activation=F.relu6), ConversionError, ["lacks (root) (F.relu); it also has (root) (F.relu6)"]),
        (lambda: Net(activation=F.gelu), ConversionError, ["it lacks (root) (F.relu); build"]),
        (lambda: nn.Sequential(rbue.convert(Net(), rbue.RReLU())), ConversionError, ["inside at '0'"]),
        (lambda: Net().to("meta"), InvalidInput, ["meta device"]),
    ],
    ids=["width", "other network", "other form", "fewer sites", "converted inside", "meta"],
)  # fmt: skip
def test_another_network_is_refused(saved: Path, build: Any, kind: type[Exception], words: list[str]) -> None:
    network = build().double()
    before = {name: (value, value.data_ptr(), value.clone()) for name, value in network.state_dict().items()}
    with pytest.raises(kind) as error:
        rbue.load(saved, network)
    for name, value in network.state_dict().items():  # as it was: its bits, its types and its memory
        same, place, bits = before[name]
        assert (value.dtype, value.data_ptr()) == (same.dtype, place)
        assert value.is_meta or torch.equal(value, bits)
    for word in words:
        assert word in str(error.value)
    assert len(str(error.value)) < 500


def test_weights_that_one_memory_cannot_hold_are_refused(tmp_path: Path) -> None:
    rbue.save(rbue.convert(untied(), rbue.DropReLU()), tmp_path / "net")
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(InvalidInput, match="shares its memory with another tensor"):
        rbue.load(tmp_path / "net", net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert rbue.load(tmp_path / "net", untied())


class Views(nn.Sequential):
    """A buffer, a part of it, one that is not contiguous, and an output with two scores that are no classes."""

    def __init__(self, last: nn.Module, first: nn.Module) -> None:
        super().__init__(first, nn.ReLU(), last)
        whole = torch.rand(2, 3)
        self.register_buffer("whole", whole)
        self.register_buffer("part", whole[0])
        self.register_buffer("turned", torch.rand(2, 3).T)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize("last", [nn.Linear(4, 1), nn.Flatten(0), nn.Unflatten(1, (4, 1)), Twice()], ids=repr)
def test_views_and_names_of_classes_come_back_whatever_the_output_is(last: nn.Module, tmp_path: Path) -> None:
    net = rbue.convert(Views(last, nn.Linear(4, 4)), rbue.DropReLU(0.9), example=torch.zeros(2, 4))
    rbue.save(net, tmp_path / "net", classes=["no", "yes"])
    again = rbue.load(tmp_path / "net", Views(last, nn.LazyLinear(4)))
    assert all(value.equal(net.state_dict()[name]) for name, value in again.state_dict().items())
    rbue.save(again, tmp_path / "net")
    assert rbue.conversion(rbue.load(tmp_path / "net", Views(last, nn.Linear(4, 4)))).classes == ("no", "yes")


def cut_off(saved: Path, path: Path) -> None:
    path.write_bytes(saved.read_bytes()[:-7])


def flipped(saved: Path, path: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


FILES: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "nothing there": (lambda saved, path: None, "there is no file"),
    "cut off": (cut_off, "is cut off or no safetensors file"),
    "torch.save": (lambda saved, path: torch.save({"a": torch.ones(1)}, path), "into the network by load_state_dict"),
    "text": (lambda saved, path: path.write_text("weights"), "is cut off or no safetensors file"),
    "flipped bit": (flipped, "it is damaged: it does not have the checksum"),
    "plain safetensors": (lambda saved, path: save_file({"a": torch.ones(1)}, path), "rbue.save did not write it"),
    "other description": (lambda s, path: save_file({}, path, {"rbue": "1"}), "rbue.save did not write it"),
    "no format": (lambda saved, path: with_note(saved, path, format=None), "has format None"),
    "newer": (lambda saved, path: with_note(saved, path, format=2, rbue="9.1"), "format 2, by rbue 9.1.*update rbue"),
    "newer setting": (
        lambda saved, path: with_note(saved, path, activation={"class": "DropReLU", "settings": {"colour": 1}}),
        r"DropReLU\(colour=1\), which this rbue does not know",
    ),
    "no activation": (
        lambda saved, path: with_note(saved, path, activation={"class": "SiteCall", "settings": {"form": "", "x": 1}}),
        "which this rbue does not know",
    ),
    "no sites": (lambda saved, path: with_note(saved, path, sites=3), "damaged description"),
    "site that is not there": (lambda saved, path: with_note(saved, path, random=[77]), "damaged description"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_used_says_why(name: str, saved: Path, tmp_path: Path) -> None:
    make, message = FILES[name]
    make(saved, tmp_path / "net")
    with pytest.raises(InvalidInput, match=message) as error:
        rbue.load(tmp_path / "net", Net())
    assert "\n" not in str(error.value)


def test_another_stream_is_said(saved: Path, tmp_path: Path) -> None:
    with pytest.warns(rbue.RbueWarning, match="version 0 of the random stream and this is version"):
        rbue.load(with_note(saved, tmp_path / "net", stream=0), Net())


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    class WithState(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"a": 1}

    net = rbue.convert(nn.Sequential(WithState(2, 2), nn.ReLU()), rbue.DropReLU())
    for model, message in (
        (Net(), "Net is not converted"),
        (net, r"0\._extra_state in the state dict is a dict"),
        (rbue.convert(Net(), rbue.DropReLU()).to("meta"), "one in the state dict has no content"),
        (rbue.convert(nn.Sequential(nn.LazyLinear(2), nn.ReLU()), rbue.DropReLU()), "0.weight .* has no content yet"),
        (rbue.convert(nn.Sequential(nn.ReLU(), net), rbue.DropReLU()), "has a converted network inside at '1'"),
    ):
        with pytest.raises(rbue.RbueError, match=message):
            rbue.save(model, tmp_path / "net")
    for classes in ("abc", 3):
        with pytest.raises(InvalidInput, match=f"list of names, not {classes!r}"):
            rbue.save(trained(), tmp_path / "net", classes=classes)
    with pytest.raises(InvalidInput, match="1 name for 5 classes"):
        rbue.save(trained(), tmp_path / "net", classes=["a"])
    assert not list(tmp_path.iterdir())


def test_the_network_and_the_file_may_not_be_exchanged(saved: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the network must be a torch\.nn\.Module, not PosixPath"):
        rbue.load(Net(), saved)


def test_the_description_is_one_json_value(saved: Path) -> None:
    from safetensors import safe_open

    with safe_open(saved, "pt") as file:
        note = json.loads(file.metadata()["rbue"])
        assert "also.weight" not in file.keys()  # noqa: SIM118 (not a dict)
    assert (note["kind"], note["format"], note["stream"]) == (saving.KIND, 1, random_stream.VERSION)
    assert note["activation"] == {"class": "DropReLU", "settings": {"q": 0.8, "mask": "element"}}
    assert note["random"] == [2]
    assert note["same"] == {"also.weight": "head.weight"}


def noted(file: Path, **changed: Any) -> Path:
    """The file with other entries in its note, and its checksum right."""
    tensors, note = files.read_safetensors(file)
    file.write_bytes(files.safetensors_bytes(tensors, {**note, **changed}))
    return file


@pytest.mark.parametrize(
    "changed",
    [
        {"classes": ["a", 1]},
        {"classes": "abc"},
        {"temperature": float("nan")},
        {"temperature": 0},
        {"temperature": -1.0},
        {"temperature": float("inf")},
        {"example": {"shape": [1 << 20, 1 << 20], "dtype": "float32"}},
        {"example": {"shape": [-1], "dtype": "float32"}},
        {"example": {"shape": [2] * 100, "dtype": "float32"}},
        {"example": {"shape": [1], "dtype": "nn"}},
        {"sites": [["1", 0.5, "F.relu", []]]},
        {"sites": [[1, 0, "F.relu", []]]},
        {"sites": [["1", 0, 2, []]]},
    ],
    ids=str,
)
def test_a_note_that_cannot_be_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    net = rbue.convert(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), rbue.DropReLU(0.9), example=torch.zeros(1, 2))
    rbue.save(net, tmp_path / "net.safetensors")
    with pytest.raises(InvalidInput, match=r"net\.safetensors has a damaged description"):
        rbue.load(noted(tmp_path / "net.safetensors", **changed), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
