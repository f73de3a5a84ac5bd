"""Dropout as a random call site: on the inputs of layers, with masks from the stream."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import numpy_stream
import rbue
from rbue.call_sites.table import path_word
from rbue.errors import ConversionError, InvalidInput
from rbue.kernels import random_dropout
from rbue.lab import methods, models

X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network(**kwargs):
    torch.manual_seed(0)
    return models.create("small_cnn", classes=5, **kwargs).eval()


def expected_mask(shape, p, seed, sample=0, site=0):
    words = numpy_stream.rows(shape, seed, sample, site=site)
    return torch.from_numpy(words < round((p - 0.5) * 2**32))


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_masks_are_the_streams_and_the_scale_keeps_the_mean(p):
    """Against the second implementation of the stream: every kept value, every dropped one."""
    net = nn.Sequential(nn.Linear(400, 400, bias=False))
    nn.init.eye_(net[0].weight)
    rbue.convert(net, rbue.Dropout(p))
    rbue.seed(net, 7)
    x = torch.rand(50, 400) + 1
    out = net(x)
    dropped = expected_mask((50, 400), p, 7, site=path_word("0"))
    torch.testing.assert_close(out, torch.where(dropped, 0.0, x / (1 - p)))
    share, error = float(dropped.float().mean()), (p * (1 - p) / dropped.numel()) ** 0.5
    assert abs(share - p) < 5 * error


def test_default_placement_of_the_method_is_the_input_of_the_classifier():
    net = methods.parse("mc-dropout:0.5").prepare(network(), X[:2])
    seen = {}
    net.head.register_forward_pre_hook(lambda _, args: seen.setdefault("head", args[0]))
    linear = {}

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is F.linear:
                linear["input"] = args[0]
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Watch():
        net(X)
    changed = linear["input"] != seen["head"]
    assert ((linear["input"][changed] == 0) | (linear["input"][changed] == 2 * seen["head"][changed])).all()
    assert 0.2 < float(changed.float().mean()) <= 1


def test_every_layer_is_a_site_under_all():
    """A mask of each site of its own: with the identity in place of the weights the noise of two layers multiplies."""
    net = nn.Sequential(nn.Linear(2000, 2000, bias=False), nn.Linear(2000, 2000, bias=False))
    for layer in net:
        nn.init.eye_(layer.weight)
    rbue.convert(net, rbue.Dropout(0.5))
    with torch.no_grad():
        out = net(torch.ones(4, 2000))
    assert set(out.unique().tolist()) == {0.0, 4.0}
    assert abs(float((out == 4).float().mean()) - 0.25) < 0.03


@pytest.mark.parametrize("where", ["last", "all", "first"])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_predict_draws_the_samples_of_plain_calls(where, p):
    """Stacked, with a shared prefix, against one call a sample."""
    net = rbue.convert(network(), rbue.Dropout(p), where=where, example=X)
    rbue.seed(net, 3)
    with torch.no_grad():
        loop = torch.stack([net(X).softmax(1) for _ in range(5)])
    prediction = rbue.predict(net, X, samples=5, seed=3, return_samples=True, draws="independent")
    torch.testing.assert_close(prediction.samples, loop, atol=1e-6, rtol=1e-5)
    assert (prediction.mutual_information.mean() > 1e-4) == (p > 0)


def test_before_the_classifier_the_rest_runs_once():
    net = rbue.convert(network(), rbue.Dropout(0.5), where="last", example=X)
    rows = []
    first = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_hook(lambda *args: rows.append(args[2].shape[0]))
    rbue.predict(net, X, samples=50)
    rows.clear()
    rbue.predict(net, X, samples=50)
    assert sum(rows) <= 2 * len(X)


def test_gradients_pass_where_values_did():
    net = nn.Sequential(nn.Linear(30, 30, bias=False))
    nn.init.eye_(net[0].weight)
    rbue.convert(net, rbue.Dropout(0.4))
    x = torch.randn(8, 30, requires_grad=True)
    out = net(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(out == 0, 0.0, torch.full_like(x, 1 / 0.6)))


def test_plain_and_mean_modes_and_revert_give_the_plain_network_back():
    net = network()
    with torch.no_grad():
        plain = net(X)
        rbue.convert(net, rbue.Dropout(0.5), where="all", example=X)
        assert not torch.equal(net(X), plain)
        for name in ("plain", "mean"):
            with rbue.mode(net, name):
                assert torch.equal(net(X), plain)
        assert torch.equal(rbue.revert(net)(X), plain)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_masks_are_the_eager_ones(backend):
    net = rbue.convert(network(), rbue.Dropout(0.5), where="last", example=X)
    compiled = torch.compile(copy.deepcopy(net), fullgraph=True, backend=backend)
    for model in (net, compiled):
        rbue.seed(model, 1)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(X), net(X), atol=1e-5, rtol=1e-4)


def test_checkpointed_blocks_drop_the_same_values_again():
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(20, 20), nn.Linear(20, 3)
            self.checkpointed = False

        def block(self, x):
            return self.b(torch.tanh(self.a(x)))

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False) if self.checkpointed else self.block(x)

    torch.manual_seed(0)
    net = rbue.convert(Net(), rbue.Dropout(0.5))
    x, gradients = torch.randn(10, 20), []
    for net.checkpointed in (False, True):
        rbue.seed(net, 0)
        net.zero_grad()
        net(x).square().sum().backward()
        gradients.append(net.a.weight.grad.clone())
    torch.testing.assert_close(*gradients)


def test_dropped_infinities_do_not_become_nan():
    keys = torch.zeros(2, 4, dtype=torch.int32)
    out = random_dropout(torch.full((4, 1000), float("inf")), rbue.Dropout(0.5), keys)
    assert set(out.unique().tolist()) == {0.0, float("inf")}


def test_half_precision_keeps_its_type():
    keys = torch.arange(8, dtype=torch.int32).reshape(2, 4)
    x = torch.randn(4, 100)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        out = random_dropout(x.to(dtype), rbue.Dropout(0.5), keys)
        assert out.dtype == dtype
        np.testing.assert_array_equal((out == 0).numpy(), (random_dropout(x, rbue.Dropout(0.5), keys) == 0).numpy())


@pytest.mark.parametrize("p", [-0.1, 1, 1.5, float("nan"), "0.5", True])
def test_a_probability_out_of_range_is_refused(p):
    with pytest.raises(InvalidInput, match="p "):
        rbue.Dropout(p)


def test_a_network_without_weights_has_no_place_for_dropout():
    with pytest.raises(ConversionError, match="weight layer"):
        rbue.convert(nn.Sequential(nn.ReLU()), rbue.Dropout(0.5), where="last", example=X)


class OtherInputs(nn.Module):
    """A layer by keywords, and two that have no rows to drop values of: a vector, and whole numbers."""

    def forward(self, x):
        vector, numbers = F.linear(x[0], x[:1]), F.linear(x.long(), x.long())
        return F.linear(weight=torch.eye(x.shape[1]), input=x) + 0 * vector + 0 * numbers.float().sum()


def test_layers_by_keywords_are_sites_and_those_without_rows_are_not():
    x = torch.rand(3, 200) + 1
    assert len(rbue.sites(OtherInputs(), x, rbue.Dropout())) == 1
    out = rbue.convert(OtherInputs(), rbue.Dropout(0.5))(x)
    assert ((out == 0) | (out == 2 * x)).all()
    assert 0.4 < float((out == 0).float().mean()) < 0.6
