"""rbue.export: files that say what rbue.predict says, and errors in one sentence."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rbue
from rbue import ConversionError, DropActivation, Dropout, DropReLU, InvalidInput, RbueError, RReLU
from rbue.call_sites.batch import Batch
from rbue.exporting.sampled_network import SampledNetwork
from rbue.sampling.tasks import task_of

CLOSE = 1e-5


class Residual(nn.Module):
    """Its first random ReLU is in place, and a skip connection comes from before it."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (
            nn.Conv2d(2, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Linear(4, 3),
        )
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.first(x)
        skip = x * 2
        F.relu_(x)
        x = F.relu(self.norm(self.second(x)) + skip)
        return 4 * self.head(x.mean((2, 3)))


class OfWeights(nn.Module):
    """The rows of its ReLU are not images."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6))

    def forward(self, x):
        return x @ F.relu(self.weight * 2).T


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).eval()


def images(count=4, *shape):
    return torch.randn(count, *(shape or (6,)), generator=torch.Generator().manual_seed(1))


def largest_difference(found, prediction):
    expected = prediction.probs, prediction.entropy, prediction.mutual_information
    return max(float(np.abs(np.asarray(one) - two.numpy()).max()) for one, two in zip(found, expected, strict=True))


def onnx_session(path):
    onnxruntime = pytest.importorskip("onnxruntime")
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run_onnx(session, x, seed=0, offset=0):
    return session.run(None, {"x": x.numpy(), "seed": np.array(seed), "offset": np.array(offset)})


def run_pt2(path):
    program = torch.export.load(path).module()

    def run(x, seed=0, offset=0):
        with torch.no_grad():
            return program(x, seed=torch.tensor(seed), offset=torch.tensor(offset))

    return run


@pytest.mark.slow  # torch.onnx.export takes seconds for the smallest network
def test_an_onnx_file_predicts_as_rbue_does(tmp_path):
    pytest.importorskip("onnxscript")
    net, x = mlp(), images()
    rbue.convert(net, DropReLU(q=0.8), example=x)
    rbue.set_temperature(net, 1.7)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        rbue.export(net, tmp_path / "net.onnx", x, samples=12, classes=["cat", "dog", "bird"])
    session = onnx_session(tmp_path / "net.onnx")
    assert session.get_inputs()[0].shape == ["batch", 6]
    assert [one.shape for one in session.get_outputs()] == [["batch", 3], ["batch"], ["batch"]]
    expected = rbue.predict(net, x, samples=12, seed=5)
    found = run_onnx(session, x, seed=5)
    assert largest_difference(found, expected) < CLOSE
    assert (found[0].argmax(1) == expected.label.numpy()).all()
    assert np.array_equal(found[0], run_onnx(session, x, seed=5)[0])
    assert not np.allclose(found[0], run_onnx(session, x, seed=6)[0], atol=1e-3)
    assert np.allclose(found[0][2:3], run_onnx(session, x[2:3], seed=5, offset=2)[0], atol=CLOSE)
    note = json.loads(session.get_modelmeta().custom_metadata_map["rbue"])
    assert note["activation"] == "DropReLU(q=0.8)"
    assert (note["samples"], note["temperature"], note["stream_version"]) == (12, 1.7, 1)
    assert note["classes"] == ["cat", "dog", "bird"]
    assert str(tmp_path.home()).encode() not in (tmp_path / "net.onnx").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("draws", ["balanced", "independent"])
@pytest.mark.parametrize(
    "activation", [DropReLU(0.8), DropReLU(0.8, mask="channel"), RReLU(), Dropout(0.3)], ids=lambda one: repr(one)
)
@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_every_kind_of_randomness(format, activation, draws, tmp_path):
    torch.manual_seed(0)
    net, x = Residual().eval(), images(4, 2, 6, 6)
    rbue.convert(net, activation, example=x)
    if format == "onnx":
        pytest.importorskip("onnxscript")
    rbue.export(net, tmp_path / "net", x, samples=7, format=format, draws=draws)
    if format == "onnx":
        session = onnx_session(tmp_path / "net")
        run = lambda *numbers: run_onnx(session, *numbers)  # noqa: E731
    else:
        run = run_pt2(tmp_path / "net")
    for seed in (0, 2**63 + 1):
        given = seed - 2**64 if seed >= 2**63 else seed
        expected = rbue.predict(net, x, samples=7, seed=seed, draws=draws)
        assert largest_difference(run(x, given), expected) < CLOSE
        last = rbue.predict(net, x[3:], samples=7, seed=seed, draws=draws, index=torch.tensor([9]))
        assert largest_difference(run(x[3:], given, 9), last) < CLOSE


@pytest.mark.slow
def test_one_pass_before_the_first_random_site(tmp_path):
    torch.manual_seed(0)
    net, x = Residual().eval(), images(4, 2, 6, 6)
    rbue.convert(net, DropReLU(0.8), where="last", example=x)
    rbue.export(net, tmp_path / "net.pt2", x, samples=7)
    graph = torch.export.load(tmp_path / "net.pt2").graph
    rows = [node.meta["val"].shape[0] for node in graph.nodes if "conv2d" in str(node.target)]
    images_alone = next(node.meta["val"].shape[0] for node in graph.nodes if node.name == "tensors_0")
    assert len(rows) == 2
    assert all(one == images_alone for one in rows)


class FirstToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.last(h[:, 0] + h[:, -2:].mean(1))


def test_indices_of_what_lies_within_an_image(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 6)
    net = rbue.convert(FirstToken().eval(), rbue.DropReLU(0.8), example=x)
    rbue.export(net, tmp_path / "net.pt2", example=x, samples=7)
    found = run_pt2(tmp_path / "net.pt2")(x, 4)
    assert largest_difference(found, rbue.predict(net, x, samples=7, seed=4)) < CLOSE


@pytest.mark.slow
def test_a_transformer_with_drop_activation(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=5, num_channels=1, **sizes)
    net, x = transformers.ViTForImageClassification(config).eval(), images(3, 1, 8, 8)
    rbue.convert(net, DropActivation(0.9), example=x)
    rbue.export(net, tmp_path / "net.pt2", {"pixel_values": x}, samples=6)
    found = run_pt2(tmp_path / "net.pt2")(x, 4)
    assert largest_difference(found, rbue.predict(net, x, samples=6, seed=4)) < CLOSE


@pytest.mark.slow
def test_neither_file_needs_rbue_nor_onnx_needs_torch(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net, x = mlp(), images()
    rbue.convert(net, DropReLU(q=0.8), example=x)
    np.save(tmp_path / "x.npy", x.numpy())
    for ending in ("onnx", "pt2"):
        rbue.export(net, tmp_path / f"net.{ending}", x, samples=5)
    blocked = "import sys; sys.modules['rbue'] = None\n"
    in_onnxruntime = blocked + (
        "sys.modules['torch'] = None\nimport numpy as np, onnxruntime\n"
        "session = onnxruntime.InferenceSession('net.onnx')\n"
        "feeds = {'x': np.load('x.npy'), 'seed': np.array(1), 'offset': np.array(0)}\n"
        "np.save('found.npy', session.run(['probs'], feeds)[0])\n"
    )
    in_torch = blocked + (
        "import numpy as np, torch\nnet = torch.export.load('net.pt2').module()\n"
        "found = net(torch.from_numpy(np.load('x.npy')), seed=torch.tensor(1), offset=torch.tensor(0))\n"
        "np.save('found.npy', found[0].detach().numpy())\n"
    )
    expected = rbue.predict(net, x, samples=5, seed=1).probs.numpy()
    for code in (in_onnxruntime, in_torch):
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
        assert np.allclose(np.load(tmp_path / "found.npy"), expected, atol=CLOSE)


# Errors


def converted(example):
    return rbue.convert(mlp(), DropReLU(q=0.8), example=example)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"file": "net.tflite"}, ["net.tflite", "format='onnx'"]),
        ({"format": "onxx"}, ["format='onxx'", "format='pt2'"]),
        ({"example": None}, ["example=x"]),
        ({"samples": 0}, ["samples is 0"]),
        ({"draws": "some"}, ["'some'"]),
        ({"classes": ["a", "b"]}, ["2 names for", "one each"]),
        ({"outputs": "values"}, ["'values'", "rbue.predict"]),
        ({"adaptive": rbue.Adaptive()}, ["adaptive", "samples="]),
        ({"return_samples": True}, ["return_samples="]),
        ({"sample": 3}, ["sample=", "did you mean 'samples'"]),
    ],
)
def test_settings_that_cannot_be(settings, said, tmp_path):
    x = images()
    call = {"file": "net.pt2", "example": x, "samples": 3} | settings
    file = tmp_path / call.pop("file")
    with pytest.raises(InvalidInput) as error:
        rbue.export(converted(x), file, **call)
    message = str(error.value)
    assert all(words in message for words in said), message
    assert message.count(". ") == 0
    assert not list(tmp_path.iterdir())


def test_a_network_that_is_not_converted(tmp_path):
    with pytest.raises(ConversionError, match="not converted"):
        rbue.export(mlp(), tmp_path / "net.pt2", images())


def test_a_site_whose_rows_are_not_images(tmp_path):
    torch.manual_seed(0)
    net, x = OfWeights(), images()
    rbue.convert(net, DropReLU(0.5), example=x)
    with pytest.raises(ConversionError, match="not images"):
        rbue.export(net, tmp_path / "net.pt2", x)
    assert not list(tmp_path.iterdir())


def test_without_the_packages_for_onnx(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    x = images()
    with pytest.raises(RbueError, match=r"pip install 'rbue\[export\]'"):
        rbue.export(converted(x), tmp_path / "net.onnx", x)


class Looking(nn.Module):
    """Looks at a number of a tensor, which a program cannot."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(x)
        return self.head(x if torch.ones(3).sum() > 2 else -x)


@pytest.mark.slow
def test_what_torch_cannot_trace_is_one_sentence(tmp_path, capsys):
    x = images()
    with pytest.raises(ConversionError, match=r"cannot trace Looking .*; use rbue.predict"):
        rbue.export(rbue.convert(Looking(), DropReLU(0.8), example=x), tmp_path / "net.pt2", x, samples=2)
    assert len(capsys.readouterr().err) < 300  # torch prints the graph so far


class Shifted(nn.Module):
    """An argument has the name of an input of the graph."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x, offset):
        return self.head(F.relu(x + offset))


def lacking(*_):
    raise RuntimeError("a screen of advice") from ValueError("no function for i0e")


@pytest.mark.parametrize(
    ("written", "said", "dtype"),
    [
        (lacking, "ONNX has no form of .*no function for i0e", torch.float32),
        pytest.param(lambda *_: b"", "onnxruntime cannot run", torch.float32, marks=pytest.mark.slow),
        (lambda *_: b"", "onnxruntime cannot run .*BFloat16", torch.bfloat16),
    ],
)
def test_what_onnx_or_onnxruntime_lacks_is_one_sentence(written, said, dtype, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("rbue.exporting.onnx_file.check_installed", lambda: None)
    monkeypatch.setattr("rbue.exporting.onnx_file.onnx_bytes", written)
    x = images().to(dtype)
    net = rbue.convert(mlp().to(dtype), DropReLU(q=0.8), example=x)
    with pytest.raises(ConversionError, match=f"{said}.*format='pt2'"):
        rbue.export(net, tmp_path / "net.onnx", x, samples=2)
    assert not list(tmp_path.iterdir())


def test_an_argument_with_the_name_of_an_input_of_the_graph(tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr("rbue.exporting.onnx_file.check_installed", lambda: None)
    monkeypatch.setattr("rbue.exporting.onnx_file.onnx_bytes", lambda _, inputs, *__: names.extend(inputs) or b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    x = images()
    rbue.export(rbue.convert(Shifted(), DropReLU(0.8), example=(x, x)), tmp_path / "net.onnx", (x, x), samples=2)
    assert names == ["x0", "x1"]  # two named offset would be an error of torch


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, pixels, return_dict=True, scale=1.0, more=None):
        return self.net(pixels) * scale if more is None else self.net(pixels) + self.net(more)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"return_dict": True, "pixels": images()}, ["pixels"]),
        ({"pixels": images(), "scale": torch.tensor(2.0), "more": images()}, ["pixels", "more"]),
        ((images(), True, 1.0, images()), ["pixels", "more"]),
    ],
    ids=["flag", "number", "by position"],
)
def test_constants_take_no_name_from_an_input(given, expected, tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr("rbue.exporting.onnx_file.check_installed", lambda: None)
    monkeypatch.setattr("rbue.exporting.onnx_file.onnx_bytes", lambda _, inputs, *__: names.extend(inputs) or b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    rbue.export(rbue.convert(Named(), DropReLU(0.8), example=given), tmp_path / "net.onnx", given, samples=2)
    assert names == expected


class Flattens(nn.Sequential):
    def __call__(self, x):
        return super().__call__(x.flatten(1))


def test_a_network_may_have_a_call_of_its_own():
    x = images(4, 2, 3)
    net = rbue.convert(Flattens(*mlp()), DropReLU(0.8), example=x)
    sampled = SampledNetwork(net, Batch((x,)), 2, True, task_of(None), 1.0, share=True, elements=16, as_operators=False)
    with torch.no_grad():
        found = sampled(x, seed=torch.tensor(0), offset=torch.tensor(0))
    assert torch.allclose(found[0], rbue.predict(net, x, samples=2).probs, atol=CLOSE)


def test_torch_onnx_export_is_refused(tmp_path):
    x = images()
    with pytest.raises(ConversionError, match=r"rbue\.export"):
        torch.onnx.export(converted(x), (x,), tmp_path / "net.onnx", dynamo=False)


@pytest.mark.slow
def test_torch_onnx_export_by_dynamo_is_refused_but_for_the_mean(tmp_path):
    pytest.importorskip("onnxscript")
    x = images()
    net = converted(x)
    with pytest.raises(Exception, match=r"rbue\.export"):
        torch.onnx.export(net, (x,), tmp_path / "net.onnx", dynamo=True)
    with rbue.mode(net, "mean"):
        torch.onnx.export(net, (x,), tmp_path / "net.onnx", dynamo=True)
        expected = net(x).detach().numpy()
    session = onnx_session(tmp_path / "net.onnx")
    assert np.allclose(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0], expected, atol=CLOSE)
