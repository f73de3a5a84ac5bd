import math
import re

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rbue import DropReLU, RReLU
from rbue.activations import SiteCall
from rbue.errors import InvalidInput


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan, math.inf, True, "0.5", None])
def test_a_bad_q_is_named(q):
    with pytest.raises(InvalidInput, match=f"q .*{re.escape(repr(q))}"):
        DropReLU(q)


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (0.5, 1.5), (math.nan, 0.5), (0, math.inf), (True, 1), ("0", 1), (0, "1")],
)
def test_bad_slopes_are_named(lower, upper):
    with pytest.raises(InvalidInput, match=r"lower|upper") as error:
        RReLU(lower, upper)
    named = [repr(value) in str(error.value) for value in (lower, upper)]
    assert any(named)


def test_a_bad_mask_is_named():
    with pytest.raises(InvalidInput, match="mask must be 'element' or 'channel', not 'row'"):
        DropReLU(mask="row")


def test_numbers_of_numpy_become_those_of_python():
    assert {repr(DropReLU(kind(0.5))) for kind in (np.float32, np.float64, float)} == {"DropReLU(q=0.5)"}


def test_the_plain_form_of_a_capped_relu_has_its_cap():
    x = torch.linspace(-2, 8, 11)
    assert torch.equal(SiteCall("F.relu6", x, cap=6.0).plain(x), F.relu6(x))


@pytest.mark.parametrize("q", [0, 1, 0.5])
def test_moments_of_drop_relu(q):
    assert DropReLU(q).mean_slope == 1 - q
    assert DropReLU(q).slope_variance == q * (1 - q)


def test_moments_of_rrelu():
    assert RReLU(0, 1).mean_slope == 0.5
    assert RReLU(0, 1).slope_variance == pytest.approx(1 / 12)
