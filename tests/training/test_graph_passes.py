"""What is changed in the graphs of compiled steps."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rbue.training import compiler, overlapping, widening

AWAITED = torch.ops.rbue.weight_gradient_awaited.default
BEGUN = torch.ops.rbue.convolution_backward.default
CONVOLUTION = torch.ops.aten.convolution.default
PAD = torch.ops.aten.constant_pad_nd.default


class Bottleneck(nn.Module):
    """Convolutions one after the other and side by side, as ResNets have them."""

    def __init__(self, layers=4, width=8):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.body = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(layers))
        self.shortcut = nn.Conv2d(width, width, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        x = y = self.norm(self.first(x)).relu()
        for layer in self.body:
            y = layer(y).relu()
        return (y + self.shortcut(x)).mean((2, 3))


@pytest.fixture
def seen(monkeypatch):
    """The graphs as the passes leave them."""
    torch._dynamo.reset()
    graphs = []
    own = overlapping.overlap_weight_gradients

    def noted(graph):
        own(graph)
        graph.lint()
        nodes = list(graph.nodes)
        for place, node in enumerate(nodes):
            if node.target is AWAITED:
                assert not set(nodes[:place]).intersection(node.args[0].users), "a gradient is read before it is there"
        graphs.append([node.target for node in nodes])

    monkeypatch.setattr(overlapping, "overlap_weight_gradients", noted)
    with torch._inductor.config.patch(force_disable_caches=True):
        yield graphs
    torch._dynamo.reset()


def gradients(network, x, run, autocast=False):
    network.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        loss = run(x).square().sum()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in network.named_parameters()}


@pytest.mark.parametrize("layers", [0, 4])
def test_gradients_are_the_same_and_every_one_is_awaited(seen, layers):
    torch.manual_seed(0)
    network, x = Bottleneck(layers), torch.randn(4, 3, 6, 6)
    expected = gradients(network, x, network)
    found = gradients(network, x, compiler.compile_step(network))
    torch.testing.assert_close(found, expected)
    (backward,) = (targets for targets in seen if overlapping._aten_backward in targets)
    assert backward.count(BEGUN) == backward.count(AWAITED) == layers + 1  # the first one has no gradient at its input
    assert backward.count(overlapping._aten_backward) == 1


def test_weight_gradients_are_awaited_two_convolutions_later(seen, monkeypatch):
    """Also in the code that is made of the graph."""
    network, x = Bottleneck(5), torch.randn(2, 3, 4, 4)
    run = compiler.compile_step(network)
    gradients(network, x, run)
    done, own = [], overlapping._aten_backward
    monkeypatch.setattr(overlapping, "_aten_backward", lambda *args: (done.append("begun"), own(*args))[1])
    monkeypatch.setattr(overlapping, "_begun", SimpleNamespace(pop=lambda *_: done.append("awaited")))
    gradients(network, x, run)
    assert done == ["begun", *["begun", "awaited"] * 5, "awaited"]


def test_what_is_computed_from_a_weight_gradient_waits_for_it(seen):
    """Such as its own kind of number in mixed precision."""
    network = Bottleneck()
    expected = gradients(network, torch.ones(2, 3, 4, 4), network, autocast=True)
    found = gradients(network, torch.ones(2, 3, 4, 4), compiler.compile_step(network), autocast=True)
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)
    (backward,) = (targets for targets in seen if BEGUN in targets)
    assert backward[backward.index(AWAITED) + 1] is torch.ops.prims.convert_element_type.default


@pytest.mark.gpu
def test_gradients_computed_beside_are_the_same_bits(monkeypatch):
    """The kernels stay, so other bits would come from memory that was given away too early, or read too early."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    torch.manual_seed(0)
    network = Bottleneck(8, 128).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(256, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    found = []
    for wait in (lambda graph: None, overlapping.overlap_weight_gradients):
        torch._dynamo.reset()
        monkeypatch.setattr(overlapping, "overlap_weight_gradients", wait)
        with torch._inductor.config.patch(force_disable_caches=True):
            run = compiler.compile_step(network)
            found.append([gradients(network, x, run, autocast=True) for _ in range(10)])
    expected = found[0][0]
    for some in found:
        for one in some:
            torch.testing.assert_close(one, expected, atol=0, rtol=0)


def test_a_weight_gradient_that_is_needed_at_once_is_left_alone():
    """Here the gradient of one convolution's weights is what the next one goes back through."""
    graph = torch.fx.Graph()
    gradient, x, weight = (graph.placeholder(name) for name in ("gradient", "x", "weight"))
    rest = ([0], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    def backward(at_output):
        node = graph.call_function(overlapping._aten_backward, (at_output, x, weight, *rest, [True, True, False]))
        return [graph.call_function(getattr, (node, part)) for part in (0, 1)]

    _, at_weights = backward(gradient)
    at_input, _ = backward(graph.call_function(torch.neg, (at_weights,)))
    graph.output(at_input)
    before = [node.target for node in graph.nodes]
    overlapping.overlap_weight_gradients(graph)
    assert [node.target for node in graph.nodes] == before


def test_a_backward_pass_with_gradients_of_a_bias_is_left_alone(seen):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten())
    x = torch.randn(2, 3, 8, 8)
    expected = gradients(network, x, network)
    torch.testing.assert_close(gradients(network, x, compiler.compile_step(network)), expected)
    assert all(BEGUN not in targets for targets in seen)


@pytest.mark.parametrize("bias", [False, True])
def test_narrow_images_are_widened_in_half_precision(seen, bias):
    torch.manual_seed(0)
    network = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=bias).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    expected = gradients(network, x, network, autocast=True)
    found = gradients(network, x, compiler.compile_step(network), autocast=True)
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)
    forward = next(targets for targets in seen if CONVOLUTION in targets)
    assert forward.count(PAD) == 2


def padded(size, weight_size, memory_format=torch.channels_last, dtype=torch.bfloat16, transposed=False, groups=1):
    """What is put into one convolution after the pass, if that is something else than before."""
    graph = torch.fx.Graph()
    nodes = graph.placeholder("x"), graph.placeholder("weight")
    with torch._subclasses.FakeTensorMode():
        for node, sizes in zip(nodes, (size, weight_size), strict=True):
            node.meta["val"] = torch.empty(sizes, dtype=dtype).to(memory_format=memory_format)
        ones, zeros = [1] * (len(size) - 2), [0] * (len(size) - 2)
        graph.output(graph.call_function(CONVOLUTION, (*nodes, None, ones, ones, ones, transposed, zeros, groups)))
        widening.widen_convolutions(graph)
    graph.lint()
    return [node.meta["val"] for node in graph.find_nodes(op="call_function", target=PAD)]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [1, 3, 7])
def test_padding_keeps_the_order_in_memory(channels, memory_format):
    wide = padded((2, channels, 8, 8), (16, channels, 3, 3), memory_format)
    assert [tuple(value.shape) for value in wide] == [(2, 8, 8, 8), (16, 8, 3, 3)]
    assert all(value.is_contiguous(memory_format=memory_format) for value in wide)


@pytest.mark.parametrize(
    ("size", "weight_size", "settings"),
    [
        ((2, 8, 8, 8), (16, 8, 3, 3), {}),
        ((2, 3, 8, 8), (16, 3, 3, 3), {"dtype": torch.float32}),
        ((2, 4, 8, 8), (16, 2, 3, 3), {"groups": 2}),
        ((2, 3, 8, 8), (3, 16, 3, 3), {"transposed": True}),
        ((2, 3, 8), (16, 3, 3), {"memory_format": torch.contiguous_format}),
    ],
)
def test_other_convolutions_are_not_widened(size, weight_size, settings):
    assert padded(size, weight_size, **settings) == []


def test_the_compiler_keeps_what_it_made_with_these_passes():
    """Its cache asks a pass for its name; one without would be compiled again each time."""
    ours = compiler._graph_pass()
    assert isinstance(ours.uuid(), bytes)
    assert ours.uuid() == compiler._graph_pass().uuid()


def test_a_compiler_that_cannot_be_loaded_fails_later_and_says_why(monkeypatch):
    def broken(function):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiler, "compile_step", broken)
    done = []
    with compiler.compiler_loading(torch.device("cpu")):
        done.append(F.relu(torch.ones(1)))
    assert done
