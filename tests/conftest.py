"""Keys, inputs and the plain formula to compare with."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # imported where tests run: the process that hands them out to others can do without
    import torch
    from torch import Tensor

    from rbue.activations import RandomSlope


def pytest_configure():
    gc.disable()  # little of what is imported and collected can be freed


def pytest_collection_finish():
    """What was imported stays: a full collection, of which tracing makes many, need not look at all of it again."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # tracing and drawing make many objects; to look for cycles took 4 % of the time


def pytest_sessionfinish():
    gc.unfreeze()  # or libraries say at exit that objects of theirs leak


def pytest_runtest_setup():
    """A test draws the same numbers in any order and process, so that what fails here fails alone and tomorrow."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_runtest_teardown():
    """torch turns oneDNN off, for good, at the first product in bfloat16 on a CPU that lacks it."""
    if "torch" in sys.modules:
        sys.modules["torch"].backends.mkldnn.enabled = True


@pytest.fixture
def make_keys():
    """Keys of independent draws for an odd number of rows; for an even one balanced, with a third lane of turns."""
    import torch

    def make(rows: int, seed: int = 0, balanced: bool | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        lanes = 2 + int(rows % 2 == 0 if balanced is None else balanced)
        return torch.randint(-(2**31), 2**31, (lanes, rows), generator=generator).to(torch.int32)

    return make


@pytest.fixture
def make_x():
    import torch

    def make(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return make


@pytest.fixture
def formula():
    """The reference applied to ``x`` row by row, without any layout."""
    import torch

    from rbue import random_stream
    from rbue.activations import RReLU

    def apply(x: Tensor, activation: RandomSlope, keys: Tensor, cap: float | None = None) -> Tensor:
        rows = x.reshape(keys.shape[1], -1)
        k1, k2, *turn = keys.unsqueeze(-1)
        table = random_stream.element_table(rows.shape[1])
        if activation.mask == "channel":
            table = table[torch.arange(len(table)) // x.shape[2:].numel()]
        words = random_stream.bits(table, k1, k2)
        if turn:
            words = words ^ turn[0] if isinstance(activation, RReLU) else words + turn[0]
        return activation.capped_forward(rows, words, cap).reshape(x.shape)

    return apply


@pytest.fixture(params=["compiled", "torch operations"])
def cpu_form(request, monkeypatch):
    """Both forms of the activations on a CPU."""
    from rbue.kernels import native

    if request.param == "torch operations":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("needs a C compiler")
