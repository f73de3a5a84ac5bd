"""Compiled code is not exported code."""

import pytest
import torch
from torch import nn

from rbue.torch_internals import is_exporting


class Says(nn.Module):
    """Adds one when it is being exported."""

    def forward(self, x):
        return x + 1 if is_exporting() else x


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_neither_plain_nor_compiled_code_is_exported():
    assert Says()(torch.zeros(2)).tolist() == [0, 0]
    assert torch.compile(Says(), backend="eager", fullgraph=True)(torch.zeros(2)).tolist() == [0, 0]


@pytest.mark.parametrize("strict", [True, False])
def test_exported_code_is(strict):
    program = torch.export.export(Says(), (torch.zeros(2),), strict=strict)
    assert program.module()(torch.zeros(2)).tolist() == [1, 1]
    assert not is_exporting()
