"""What an exported file says and costs, against `rbue.predict` in one run on this CPU.

    python benchmarks/exported.py [--networks resnet18 vgg13 densenet121 vit] [--samples 10] [--trials 5]
        [--compare onnx pt2] [--out results/exported.json]

Each network is exported as ONNX and as pt2. A fresh process that cannot import torch and rbue runs the ONNX file, one
that cannot import rbue the pt2 file. Their outputs are compared with those of ``predict``, those of another seed with
the first, and those of an image alone with its row in a batch. Milliseconds are medians of calls that take turns, with
one thread each. Weights are random, with BatchNorm statistics from a few batches. What the file has already, from the
same machine, versions and settings, stays in it unless it is measured anew.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import rbue
from harness import medians
from rbue.files import write_json
from rbue.lab.environment import facts
from rbue.lab.models import create

SEED, BATCH = 3, 8
RUNS = ((SEED, 0, BATCH), (SEED, 0, BATCH), (SEED + 1, 0, BATCH), (SEED, 5, 6))
"""Seed, first image and end of each call in a fresh process."""

IN_ONNXRUNTIME = """
import sys
sys.modules["torch"] = sys.modules["rbue"] = None  # importing them fails from here on
import numpy as np, onnxruntime
x = np.load("x.npy")
session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
for k, (seed, start, stop) in enumerate({runs}):
    found = session.run(None, {{"x": x[start:stop], "seed": np.array(seed), "offset": np.array(start)}})
    np.savez(f"onnx{{k}}.npz", *found)
"""
IN_TORCH = """
import sys
sys.modules["rbue"] = None
import numpy as np, torch
x = torch.from_numpy(np.load("x.npy"))
run = torch.export.load("net.pt2").module()
for k, (seed, start, stop) in enumerate({runs}):
    with torch.no_grad():
        found = run(x[start:stop], seed=torch.tensor(seed), offset=torch.tensor(start))
    np.savez(f"pt2{{k}}.npz", *found)
"""


def network(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A converted network and its images."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, 3, 32, 32)
    if name == "vit":
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
            num_labels=10,
        )
        model: nn.Module = ViTForImageClassification(config).eval()
        with torch.no_grad():  # as it is made, its scores are almost 0
            model.classifier.weight.mul_(20)  # type: ignore[union-attr, operator]
        return rbue.convert(model, rbue.DropActivation(q=0.9), example=x), x
    model = create(name, classes=10).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            # The mean of all batches. A moving one is still near its start, and the scores of a deep network explode:
            # probabilities of 0 and 1 agree whatever the file does.
            module.momentum = None
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(32, 3, 32, 32))
    return rbue.convert(model.eval(), rbue.DropReLU(q=0.9), example=x), x


def in_fresh_process(code: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", code.format(runs=RUNS)], cwd=folder, check=True)


def agreement(folder: Path, kind: str, expected: Any) -> dict[str, Any]:
    """What the calls of a fresh process say, against a prediction."""
    first, again, other, alone = ([np.load(folder / f"{kind}{k}.npz")[f"arr_{n}"] for n in range(3)] for k in range(4))
    wanted = [one.numpy() for one in (expected.probs, expected.entropy, expected.mutual_information)]
    return {
        "mean confidence": float(expected.confidence.mean()),
        "labels equal": bool((first[0].argmax(1) == expected.label.numpy()).all()),
        "largest differences": {
            name: float(np.abs(one - two).max())
            for name, one, two in zip(("probs", "entropy", "mutual_information"), first, wanted, strict=True)
        },
        "same seed, same answer": all((one == two).all() for one, two in zip(first, again, strict=True)),
        "difference of another seed": float(np.abs(first[0] - other[0]).max()),
        "difference of an image alone": float(np.abs(first[0][5:6] - alone[0]).max()),
    }


def compared(model: nn.Module, x: torch.Tensor, samples: int, kinds: Sequence[str], folder: Path) -> dict[str, Any]:
    """Write the files and run them elsewhere."""
    found: dict[str, Any] = {}
    np.save(folder / "x.npy", x.numpy())
    expected = rbue.predict(model, x, samples=samples, seed=SEED)
    for kind in kinds:
        start = time.process_time()
        rbue.export(model, folder / f"net.{kind}", x, samples=samples)
        seconds = time.process_time() - start
        print(f"{kind} file in {seconds:.0f} processor seconds", flush=True)
        in_fresh_process(IN_ONNXRUNTIME if kind == "onnx" else IN_TORCH, folder)
        found[kind] = agreement(folder, kind, expected) | {
            "processor seconds to export": round(seconds, 1),
            "megabytes": round((folder / f"net.{kind}").stat().st_size / 1e6, 1),
        }
    return found


def timed(model: nn.Module, x: torch.Tensor, samples: int, trials: int, folder: Path) -> dict[str, Any]:
    """Milliseconds of both files and of ``predict``, in turns."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "net.onnx"), options, providers=["CPUExecutionProvider"])
    run = torch.export.load(folder / "net.pt2").module()
    found: dict[str, Any] = {}
    for batch in (1, BATCH):
        part, images = x[:batch], x[:batch].numpy()
        numbers = {"seed": np.array(SEED), "offset": np.array(0)}
        tensors = {key: torch.from_numpy(value) for key, value in numbers.items()}
        with torch.no_grad():
            seconds_of = medians(
                {
                    "predict": lambda part=part: rbue.predict(model, part, samples=samples, seed=SEED),
                    "onnxruntime": lambda images=images, numbers=numbers: session.run(None, {"x": images, **numbers}),
                    "pt2": lambda part=part, tensors=tensors: run(part, **tensors),
                },
                trials,
            )
        found[f"batch of {batch}"] = {
            "milliseconds": {key: round(1e3 * value, 1) for key, value in seconds_of.items()},
            "over predict": {key: round(value / seconds_of["predict"], 2) for key, value in seconds_of.items()},
        }
    return found


def _settings(result: dict[str, Any]) -> dict[str, Any]:
    """What two runs have to have in common to stand in one file; a ratio is within a network, so of one run."""
    varying = ("commit", "date")
    known = {key: value for key, value in result["facts"].items() if key not in varying}
    return {**result, "facts": known, "networks": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["resnet18", "vgg13", "densenet121", "vit"])
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--compare", nargs="+", choices=["onnx", "pt2"], help="compare the outputs of these, time none")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    from onnxruntime import __version__ as version

    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "facts": {**facts(), "date": date.today().isoformat(), "onnxruntime": version},
        "samples": arguments.samples,
        "trials": arguments.trials,
        "images": "32x32",
        "networks": {},
    }
    for name in arguments.networks:
        model, x = network(name)
        rbue.set_temperature(model, 1.3)
        with tempfile.TemporaryDirectory() as place:
            found = compared(model, x, arguments.samples, arguments.compare or ["onnx", "pt2"], Path(place))
            if not arguments.compare:
                found |= timed(model, x, arguments.samples, arguments.trials, Path(place))
        print(name, found, flush=True)
        if arguments.out is not None and arguments.out.exists():
            before = json.loads(arguments.out.read_text())
            if _settings(before) == _settings(result):
                result["networks"] = before["networks"]
        result["networks"].setdefault(name, {}).update(found)
        if arguments.out is not None:
            write_json(arguments.out, result)


if __name__ == "__main__":
    main()
