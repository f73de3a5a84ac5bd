"""``rbue serve``: which engine a word leads to, and what it refuses before it listens."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import torch
from torch import nn

import rbue
import rbue.serving
from rbue.serving.process import bound

HELD_OUT = {"probs": np.tile([[0.7, 0.2, 0.1]], (20, 1)), "labels": np.zeros(20, int)}


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


@pytest.fixture
def served(monkeypatch):
    """What would be served."""
    found = []
    monkeypatch.setattr(rbue.serving, "serve", lambda *given: found.append(given))
    return found


@pytest.fixture
def saved(tmp_path, monkeypatch):
    net = rbue.convert(make(), rbue.DropReLU(0.8), example=torch.zeros(1, 1, 6, 6))
    rbue.save(net, "net.safetensors", classes=["cat", "dog", "bird"])
    (tmp_path / "own_net.py").write_text("from test_cli_serve import make\n")
    return net


def test_a_saved_file_with_its_network(command, served, saved):
    np.savez("held.npz", **HELD_OUT)
    words = ("--port", 0, "--model", "own_net:make", "--samples", 8, "--conformal", 0.9, "--held-out", "held.npz")
    command("serve", "net.safetensors", *words, "--mean", "0.5", "--std", "0.25", "--max-mb", 1, "--max-wait-ms", 2)
    ((engine, settings, host, port),) = served
    assert (host, port) == ("127.0.0.1", 0)
    assert (settings.max_bytes, settings.max_wait, settings.token) == (1_000_000, 0.002, None)
    assert settings.conformal == rbue.serving.Conformal(pytest.approx(0.3), 0.9, 20)
    assert (engine.classes, engine.samples, engine.inputs.mean) == (("cat", "dog", "bird"), 8, (0.5,))
    x = np.random.default_rng(0).standard_normal((2, 1, 6, 6)).astype(np.float32)
    answers = engine.predict(x, np.arange(2), rbue.serving.Sampling(8))
    assert np.array_equal(answers.probs, rbue.predict(saved, torch.from_numpy(x), samples=8).probs)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nothing",), "there is no run"),
        (("net.safetensors",), "--model package:factory"),
        (("net.safetensors", "--model", "own_net:nothing"), "no 'nothing'"),
        (("net.onnx",), "there is no file"),
        (("net.onnx", "--samples", 5), "leave out --samples"),
        (("net.onnx", "--batching", "never"), "batching"),
        (("net.onnx", "--held-out", "net.pt2"), "--conformal"),
        (("net.pt2",), "cannot be served"),
        (("net.safetensors", "--model", "own_net:make", "--conformal", 0.9), "--held-out"),
        (("net.safetensors", "--model", "own_net:make", "--conformal", 0.9, "--held-out", "net.pt2"), "no .npz file"),
        (("net.safetensors", "--model", "own_net:make", "--held-out", "net.pt2"), "--conformal"),
        (("net.safetensors", "--model", "own_net:make", "--token", "short"), "at least 8"),
        (("net.safetensors", "--model", "own_net:make", "--mean", "x"), "--mean"),
        (("net.safetensors", "--model", "own_net:make", "--outputs", "values"), "'logits' and 'binary'"),
        (("net.safetensors", "--model", "own_net:make", "--outputs", "binary"), "one logit"),
        (("net.safetensors", "--model", "own_net:make", "--mean", "0.5"), "std"),
        (("net.safetensors", "--model", "own_net:make", "--batching", "never"), "batching"),
        (("net.safetensors", "--model", "own_net:make", "--max-mb", "inf"), "--max-mb"),
    ],
)
def test_mistakes_are_told_before_it_listens(fails, saved, served, tmp_path, words, says):
    (tmp_path / "net.pt2").write_bytes(b"x")
    assert says in fails("serve", *words, "--port", 0, code=2)
    assert not served


def test_a_taken_port_is_told_before_anything_is_loaded(fails, served):
    with closing(bound("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen at 127.0.0.1:{port} " in fails("serve", "nothing", "--port", port, code=2)
    assert not served
