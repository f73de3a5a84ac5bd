"""Gaussian layers against closed forms, and in networks that use their layers in unusual ways."""

import math
import threading
from copy import deepcopy

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.utils import parametrizations, prune

from rbue.errors import InvalidInput, RbueWarning
from rbue.lab.methods.gaussian_layers import gaussian_layers, make_gaussian, standard_normal, weight_draw


def test_stream_normals_are_standard_normal_and_independent():
    like = torch.empty(400, 500)
    a, b = (standard_normal(like, 0, sample, 7).flatten() for sample in (0, 1))
    assert stats.kstest(a.numpy(), "norm").pvalue > 1e-3
    for other in (b, standard_normal(like, 1, 0, 7).flatten(), standard_normal(like, 0, 0, 8).flatten()):
        assert abs(float((a * other).mean())) < 4 / math.sqrt(a.numel())
    half = a.numel() // 2
    assert abs(float((a[:half] * a[half:]).mean())) < 4 / math.sqrt(half)


@pytest.mark.parametrize("samples", [500, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layer", [nn.Linear(6, 5), nn.Conv2d(6, 5, 3, padding=1, groups=1)])
def test_local_reparameterisation_has_the_moments_of_weight_draws(layer, samples):
    """For one output position the two ways have the same mean and variance."""
    torch.manual_seed(0)
    x = torch.randn(1, 6) if isinstance(layer, nn.Linear) else torch.randn(1, 6, 1, 1)
    network = make_gaussian(nn.Sequential(deepcopy(layer)), relative_std=1.0)
    draws = 20_000
    with torch.no_grad():
        local = network(x.expand(draws, *x.shape[1:])).flatten(1)
        weights = []
        for sample in range(samples):
            with weight_draw(network, 0, sample):
                weights.append(network(x).flatten(1))
    sampled = torch.cat(weights)
    error = local.std(0) * math.sqrt(1 / draws + 1 / samples)
    assert ((local.mean(0) - sampled.mean(0)).abs() < 5 * error).all()
    assert ((local.var(0) / sampled.var(0)).log().abs() < 5 * math.sqrt(2 / samples)).all()


def test_a_variance_that_a_fast_convolution_rounds_below_zero_is_none(monkeypatch):
    """As that of NNPACK does, which torch takes where oneDNN is off."""
    (layer,) = make_gaussian(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)), relative_std=0.1)
    exact, x = layer.linear_map, torch.ones(1, 1, 5, 5, requires_grad=True)
    monkeypatch.setattr(
        layer, "linear_map", lambda x, weight, bias: exact(x, weight, bias) * (1 if bias is not None else -1e-9)
    )
    out = layer(x)
    torch.testing.assert_close(out, exact(x, layer.weight, layer.bias))
    out.sum().backward()
    assert all(one.grad.isfinite().all() for one in (x, layer.weight, layer.weight_rho))


def test_kl_against_torch_distributions():
    torch.manual_seed(0)
    network = make_gaussian(nn.Sequential(nn.Linear(7, 4)), relative_std=0.3)
    ((_, layer),) = gaussian_layers(network)
    q = torch.distributions.Normal(layer.weight, layer.std)
    p = torch.distributions.Normal(torch.zeros(4, 7), 0.5)
    expected = torch.distributions.kl_divergence(q, p).sum()
    torch.testing.assert_close(layer.kl(0.5), expected)
    tied = torch.distributions.Normal(layer.weight, 0.5)
    torch.testing.assert_close(layer.kl(0.5, tied=True), torch.distributions.kl_divergence(q, tied).sum())


def test_a_sample_is_one_network_for_all_images():
    torch.manual_seed(0)
    network = make_gaussian(nn.Sequential(nn.Linear(7, 4)), relative_std=1.0)
    x = torch.randn(3, 7)
    with torch.no_grad(), weight_draw(network, 5, 2):
        whole, parts = network(x), torch.cat([network(row[None]) for row in x])
    torch.testing.assert_close(whole, parts)
    with torch.no_grad(), weight_draw(network, 5, 3):
        assert not torch.allclose(whole, network(x))
    assert network[0].drawn is None


@pytest.mark.slow
def test_bayesian_linear_regression_reaches_the_exact_posterior():
    """With a Gaussian likelihood the best factorised posterior is known: the exact mean, and ``1/diag(Λ)``."""
    torch.manual_seed(0)
    n, features, noise, prior = 200, 4, 0.5, 1.0
    x = torch.randn(n, features) @ (torch.eye(features) + 0.4 * torch.ones(features, features))
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + noise * torch.randn(n)
    precision = x.T @ x / noise**2 + torch.eye(features) / prior**2
    mean = torch.linalg.solve(precision, x.T @ y / noise**2)
    deviation = precision.diagonal() ** -0.5

    network = make_gaussian(nn.Sequential(nn.Linear(features, 1, bias=False)), relative_std=0.1)
    ((_, layer),) = gaussian_layers(network)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 3000)
    for _ in range(3000):
        optimiser.zero_grad()
        likelihood = ((network(x).squeeze(1) - y) ** 2).sum() / (2 * noise**2)
        (likelihood + layer.kl(prior)).backward()
        optimiser.step()
        schedule.step()
    assert ((layer.weight[0] - mean).abs() < 0.3 * deviation).all()
    torch.testing.assert_close(layer.std[0].detach(), deviation, rtol=0.05, atol=0)


def test_a_network_without_layers_to_make_random_is_refused():
    with pytest.raises(InvalidInput, match=r"Conv1d has no nn\.Conv2d or nn\.Linear"):
        make_gaussian(nn.Conv1d(3, 4, 2), relative_std=0.1)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "computed",
    [
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        parametrizations.weight_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ],
    ids=["weight_norm", "spectral_norm", "parametrization", "prune"],
)
def test_layers_whose_weight_is_computed_stay_plain_with_a_warning(computed):
    network = nn.Sequential(computed(nn.Linear(6, 5)), nn.ReLU(), nn.Linear(5, 3))
    with pytest.warns(RbueWarning, match=r"as they are: 0 \(weight computed from other tensors\); where") as given:
        make_gaussian(network, relative_std=0.1)
    assert len(given) == 1
    assert [path for path, _ in gaussian_layers(network)] == ["2"]
    with pytest.raises(InvalidInput, match=r"for SVI to make random: it has 0 \(weight computed .*; use plain layers"):
        make_gaussian(nn.Sequential(computed(nn.Linear(6, 5))), relative_std=0.1)


class Subclass(nn.Conv2d):
    pass


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.attention = Subclass(3, 8, 2, 2), nn.MultiheadAttention(8, 2, batch_first=True)
        self.patched, self.classes = nn.Linear(8, 8), nn.Linear(8, 3)
        self.patched.forward = self.patched.forward

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.classes(self.patched(self.attention(x, x, x)[0]).mean(1))


def test_layers_that_cannot_be_made_gaussian_are_named_once():
    left = r"patches \(class Subclass\), attention \(nn.MultiheadAttention\), patched \(forward set on the instance\);"
    network = Attending()
    with pytest.warns(RbueWarning, match=f"as they are: {left}") as given:
        make_gaussian(network, relative_std=0.1)
    assert len(given) == 1
    assert [path for path, _ in gaussian_layers(network)] == ["classes"]


def transformer():
    """Layers 0 and 1 alone are Gaussian, which the fused kernel would leave out."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    network = nn.TransformerEncoder(layer, 2)
    with pytest.warns(RbueWarning, match=r"layers\.0\.self_attn \(nn\.MultiheadAttention\), layers\.1\.self_attn "):
        return make_gaussian(network, relative_std=1.0).eval()


@pytest.mark.parametrize("mask", [None, torch.tensor([[False, False, True], [False, False, False]])])
def test_draws_act_inside_transformer_layers_that_torch_would_fuse(mask):
    network, x = transformer(), torch.randn(2, 3, 8)
    found = []
    with torch.no_grad():
        for sample in (0, 1):
            with weight_draw(network, 0, sample):
                found.append(network(x, src_key_padding_mask=mask))
    with weight_draw(network, 0, 0):
        expected = network(x, src_key_padding_mask=mask)  # with gradients nothing is fused
    torch.testing.assert_close(found[0], expected)
    assert not torch.allclose(found[0], found[1])


def test_the_switch_of_the_fused_kernel_is_put_back_when_draws_overlap_in_threads():
    network, inside, leave = transformer(), threading.Event(), threading.Event()

    def draw_until_told():
        with weight_draw(network, 0, 0):
            inside.set()
            leave.wait(10)

    other = threading.Thread(target=draw_until_told)
    with weight_draw(transformer(), 0, 0):
        other.start()
        assert inside.wait(10)
    assert not torch.backends.mha.get_fastpath_enabled()  # the other one still draws
    leave.set()
    other.join()
    assert torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with weight_draw(network, 0, 0):
            pass
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize(
    "wrap",
    [nn.DataParallel, lambda network: torch.compile(network, backend="eager")],
    ids=["DataParallel", "torch.compile"],
)
def test_a_wrapper_leaves_the_draws_as_they_are(wrap):
    torch.manual_seed(0)
    network = make_gaussian(nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 4)), relative_std=1.0)
    x, wrapped = torch.randn(3, 7), wrap(network)
    with torch.no_grad():
        with weight_draw(network, 5, 2):
            expected = network(x)
        with weight_draw(wrapped, 5, 2):
            assert wrapped(x).equal(expected)


@pytest.mark.parametrize("relative", [1e-3, 2.0])
def test_standard_deviations_start_where_they_should(relative):
    layer = make_gaussian(nn.Linear(4, 3), relative)
    torch.testing.assert_close(layer.std, torch.full((3, 4), relative / 2))
