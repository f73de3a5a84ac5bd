"""What a network says of itself: ``rbue.conversion``, ``print``, and the warning of activations that stay plain."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from style_networks import SharedReluResNet, TransformerClassifier, images, mlp, rows
from torch import Tensor, nn
from torch.nn import functional as F

import rbue
from rbue import InvalidInput


class Mixed(nn.Module):
    """One ReLU, two GELUs, a gate and a squashed output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gelu = nn.Linear(4, 4), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.gelu(self.gelu(F.relu(self.layer(x))))
        return torch.tanh(x * torch.sigmoid(x))


def test_it_counts_what_is_random_and_what_stayed_plain() -> None:
    network = Mixed()
    plain = rbue.conversion(network)
    assert (bool(plain), plain.line, plain.everywhere, plain.temperature) == (False, "not converted", False, 1)
    assert repr(rbue.conversion(network)) == "Mixed is not converted."
    with pytest.warns(rbue.RbueWarning, match=r"^1 ReLU random; 2 GELU plain: use rbue\.DropActivation\(q\)") as seen:
        rbue.convert(network, rbue.DropReLU(0.9), example=torch.zeros(2, 4))
    assert len(seen) == 1
    for where in ("first", "last"):
        with pytest.warns(rbue.RbueWarning, match="2 GELU plain"):
            rbue.convert(Mixed(), rbue.DropReLU(0.9), where=where, example=torch.zeros(2, 4))
    found = rbue.conversion(network)
    assert dict(found.plain) == {"GELU": 2, "Sigmoid": 1, "Tanh": 1}
    assert [site.name for site in found.random] == ["(root)"]
    assert found.everywhere
    assert repr(found) == (
        "Mixed: DropReLU(q=0.9) at 1 of 1 ReLU call sites; 2 GELU plain; 1 Sigmoid plain; 1 Tanh plain"
    )


@pytest.mark.parametrize(
    ("build", "activation", "settings"),
    [
        (Mixed, rbue.DropActivation(0.9), {}),
        (Mixed, rbue.Dropout(0.1), {}),
        (Mixed, rbue.DropReLU(0.9), {"where": "*"}),
        (Mixed, rbue.DropReLU(0.9), {"where": [0]}),
        (Mixed, rbue.DropReLU(0.9), {"where": np.array([0, -1])}),
        (lambda: nn.Sequential(mlp(), nn.Softmax(1), nn.Sigmoid(), nn.Tanh()), rbue.RReLU(), {}),
    ],
    ids=["DropActivation", "Dropout", "pattern", "index", "array", "outputs only"],
)
def test_nothing_is_said_where_nothing_is_missing(build: Any, activation: Any, settings: dict[str, Any]) -> None:
    network = build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rbue.convert(network, activation, example=rows()[:, :4] if isinstance(network, Mixed) else rows(), **settings)
    assert isinstance(activation, rbue.Dropout) <= (not rbue.conversion(network).plain)


def test_attention_is_no_activation() -> None:
    network, x = TransformerClassifier(), images()
    rbue.convert(network, rbue.DropReLU(0.9), example=x)
    assert not rbue.conversion(network).plain


def test_print_shows_it_and_revert_takes_it_away() -> None:
    network, x = SharedReluResNet(), images()
    before = repr(network)
    rbue.convert(network, rbue.DropReLU(0.5), where="last", example=x)
    rbue.set_temperature(network, 2.5)
    line = "  rbue: DropReLU(q=0.5) at 1 of "
    for one in (network, copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert repr(one).splitlines()[1].startswith(line)
        assert repr(one).splitlines()[1].endswith(" ReLU call sites; temperature 2.5")
        assert repr(one).count("rbue") == 1
    assert repr(rbue.revert(network)) == before


def test_a_network_with_a_line_of_its_own_keeps_it() -> None:
    class Scale(nn.Module):
        def extra_repr(self) -> str:
            return "by=2"

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x) * 2

    network = rbue.convert(Scale(), rbue.DropReLU(0.5))
    assert repr(network) == "Scale(\n  rbue: DropReLU(q=0.5) at every ReLU call site\n  by=2\n)"


def test_a_wrapper_is_looked_into() -> None:
    network = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows())
    assert rbue.conversion(nn.DataParallel(network)) == rbue.conversion(network)


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (["layers.0.*", -1], ["layers.0.relu", "layers.0.relu[1]", "layers.0.relu[2]", "last"]),
        (["relu", "layers.1.relu[1]"], ["relu", "layers.1.relu[1]"]),
        (("first", "last"), ["first", "last"]),
    ],
    ids=str,
)
def test_sites_by_lists_of_names_patterns_and_indices(where: Any, names: list[str]) -> None:
    network, x = SharedReluResNet(), images()
    table = rbue.sites(network, x)
    ends = {"first": table[0].name, "last": table[-1].name}
    rbue.convert(network, rbue.DropReLU(0.5), where=where, example=x)
    assert {site.name for site in rbue.conversion(network).random} == {ends.get(name, name) for name in names}


def test_a_temperature_stays_with_the_conversion_it_was_fitted_to() -> None:
    network, x = rbue.convert(mlp(), rbue.DropReLU(0.5)), rows()
    rbue.set_temperature(network, rbue.calibration.Temperature(1.5))
    assert rbue.conversion(copy.deepcopy(network)).temperature == 1.5
    rbue.convert(network, rbue.DropReLU(0.5), example=x)
    assert rbue.conversion(network).temperature == 1
    for bad in (0, -1.0, float("nan"), True, "hot"):
        with pytest.raises(InvalidInput, match="give "):
            rbue.set_temperature(network, bad)
    with pytest.raises(rbue.ConversionError, match="not converted"):
        rbue.set_temperature(mlp(), 1.5)
