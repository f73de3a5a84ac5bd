"""Images with as many channels as a GPU likes.

The first convolution of a network has three channels, for which cuDNN has no kernel that uses the GPU's matrix units
well. With channels of zeros beside them it computes the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

_CHANNELS = 8
"""16 bytes in half precision, the least that a matrix unit reads at once."""


def widen_convolutions(graph: Graph) -> None:
    """Give inputs and weights of convolutions in half precision at least eight channels."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default):
        x, weight, _, _, _, _, transposed, _, groups = node.args
        if transposed or groups != 1 or not _is_narrow(x.meta["val"]):
            continue
        with graph.inserting_before(node):
            node.args = (_widened(graph, x), _widened(graph, weight), *node.args[2:])


def _is_narrow(x: torch.Tensor) -> bool:
    return x.dim() == 4 and x.shape[1] < _CHANNELS and x.dtype in (torch.float16, torch.bfloat16)


def _widened(graph: Graph, node: Any) -> Node:
    pad = torch.ops.aten.constant_pad_nd.default
    value = node.meta["val"]
    sizes = [0, 0, 0, 0, 0, _CHANNELS - value.shape[1]]
    widened = graph.call_function(pad, (node, sizes, 0.0))
    widened.meta["val"] = pad(value, sizes, 0.0)
    return widened
