"""Weight gradients of convolutions beside the rest of a compiled backward pass.

Going back through a convolution takes two products: the gradient at its input, for which the layer before waits, and
that of its weights, which only the optimiser needs. At a batch of 128 few kernels fill a large GPU, so in the graph of
a backward pass each weight gradient is begun on a stream of its own and awaited some convolutions later. The kernels
and their results stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor
from torch.fx import Graph, Node

_AHEAD = 2
"""After how many convolutions a weight gradient is awaited: later saves little time, and keeps more maps in memory."""

_aten_backward = torch.ops.aten.convolution_backward.default
_begun: dict[int, torch.cuda.Event] = {}
"""What tells that a weight gradient is there, by its address."""


@torch.library.custom_op("rbue::convolution_backward", mutates_args=())
def _convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> tuple[Tensor, Tensor]:
    """The gradients at the input and at the weights; on a GPU the second one is only begun."""
    operands = gradient, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups
    if not x.is_cuda:
        return _aten_backward(*operands, [True, True, False])[:2]
    here, beside = torch.cuda.current_stream(x.device), _stream_beside(x.device)
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        at_weights = _aten_backward(*operands, [False, True, False])[1]
    _begun[at_weights.data_ptr()] = beside.record_event()
    return _aten_backward(*operands, [True, False, False])[0], at_weights


@_convolution_backward.register_fake
def _(gradient, x, weight, *others):  # type: ignore[no-untyped-def]
    return _aten_backward(gradient, x, weight, *others, [True, True, False])[:2]


@torch.library.custom_op("rbue::weight_gradient_awaited", mutates_args={"at_weights"})
def _weight_gradient_awaited(at_weights: Tensor, held: list[Tensor], moment: Tensor) -> None:
    """Wait for a weight gradient.

    Nothing is done with ``held``, what the gradient is computed from; but a compiler that sees it read here does not
    give its memory away before. Nor with ``moment``, what must be computed before it is worth waiting.
    """
    event = _begun.pop(at_weights.data_ptr(), None)
    if event is not None:
        torch.cuda.current_stream(at_weights.device).wait_event(event)


@_weight_gradient_awaited.register_fake
def _(at_weights, held, moment):  # type: ignore[no-untyped-def]
    return None


@cache
def _stream_beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def overlap_weight_gradients(graph: Graph) -> None:
    """Begin the weight gradients of a backward graph early, and await them late."""
    backwards = [node for node in graph.nodes if node.target is _aten_backward]
    for index, node in enumerate(backwards[:-1]):
        _overlap(graph, node, backwards[min(index + _AHEAD, len(backwards) - 1)])


def _overlap(graph: Graph, node: Node, later: Node) -> None:
    """Await the weight gradient of ``node`` just before ``later``; leave it, if that one needs it."""
    *operands, wanted = node.args
    found = [user for user in node.users if user.args[1] == 1]
    if list(wanted) != [True, True, False] or len(found) != 1:  # type: ignore[arg-type]
        return
    (at_weights,) = found
    waiting = list(_dependants(at_weights, later))
    if not {at_weights, *waiting}.isdisjoint(later.all_input_nodes):
        return
    with graph.inserting_before(node):
        begun = graph.call_function(torch.ops.rbue.convolution_backward.default, tuple(operands))
    begun.meta = {**node.meta, "val": tuple(node.meta["val"][:2])}
    node.replace_all_uses_with(begun)
    graph.erase_node(node)
    with graph.inserting_before(later):
        target = torch.ops.rbue.weight_gradient_awaited.default
        place = graph.call_function(target, (at_weights, list(operands[:2]), later.args[0]))
    for dependant in waiting:
        place.append(dependant)
        place = dependant


def _dependants(node: Node, end: Node) -> Iterator[Node]:
    """What is computed from a node, up to another one."""
    known = {node}
    while (node := node.next) is not end:
        if not known.isdisjoint(node.all_input_nodes):
            known.add(node)
            yield node
