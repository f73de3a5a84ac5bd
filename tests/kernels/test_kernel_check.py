"""The parts of benchmarks/kernel_check.py that need no GPU."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kernel_check.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("kernel_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SHAPES = [(3, 17), (4, 3, 5, 6), (2, 3, 2, 3, 4)]
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="says something else with a CUDA device")
def test_without_a_gpu_it_says_so(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kernel_check.py"])
    assert script.main() == 2
    assert "needs a CUDA device" in capsys.readouterr().out


def test_a_device_agrees_with_itself(script):
    assert all(passed for _, passed, _ in script.bits_check("cpu"))


def test_a_wrong_bit_is_noticed(script, monkeypatch):
    right = script.functional.drop_relu
    wrong = iter(range(100))
    monkeypatch.setattr(script.functional, "drop_relu", lambda x, q, **n: right(x, q, **n | {"sample": next(wrong)}))
    assert not all(passed for name, passed, _ in script.bits_check("cpu") if name.startswith("DropReLU"))


def test_the_report_counts_failures(script, capsys):
    content = script.report([("good", True, 1), ("bad", False, 2)])
    assert not content["passed"]
    assert content["checks"]["bad"] == {"passed": False, "value": 2}
    assert "FAILED  bad: 2" in capsys.readouterr().out
