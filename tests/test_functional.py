import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import numpy_stream
from rbue import functional, random_stream
from rbue.errors import InvalidInput

SEEDS = [0, 7, 2**63, 2**64 - 1]
SHAPES = [(5,), (3, 17), (2, 3, 5), (4, 3, 5, 6), (2, 3, 2, 3, 4)]


def mask(shape, q, **numbers):
    """Where DropReLU keeps its ReLU, by the independent stream."""
    return torch.from_numpy(numpy_stream.rows(shape, **numbers)) >= random_stream.threshold(1 - q)


def negative(*shape, dtype=torch.float32):
    return torch.full(shape, -1.0, dtype=dtype)


class TestBits:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
    def test_masks_equal_the_independent_stream(self, shape, seed, dtype):
        numbers = {"seed": seed, "sample": 3, "site": 2**31 + 5}
        kept = functional.drop_relu(negative(*shape, dtype=dtype), 0.7, **numbers) == 0
        assert kept.equal(mask(shape, 0.7, **numbers))

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_a_channel_is_kept_or_dropped_as_one(self, shape):
        numbers = {"seed": 7, "sample": 3, "site": 5}
        kept = functional.drop_relu(negative(*shape), 0.7, mask="channel", **numbers) == 0
        channels = mask(shape[:2], 0.7, **numbers)
        assert kept.equal(channels.reshape(*shape[:2], *[1] * (len(shape) - 2)).expand(shape))

    @pytest.mark.parametrize("seed", SEEDS)
    def test_slopes_equal_the_independent_stream(self, seed):
        slopes = -functional.rrelu(negative(4, 500), 0.25, 0.75, seed=seed, sample=1)
        words = torch.from_numpy(numpy_stream.rows((4, 500), seed, 1))
        assert torch.allclose(slopes.double(), 0.5 + 0.5 * words.double() / 2**32, rtol=0, atol=2**-23)

    def test_tensors_and_numbers_mean_the_same(self):
        x = negative(4, 50)
        expected = functional.drop_relu(x, 0.5, seed=2**40, sample=5, image=torch.tensor([3, 1, 2, 0]), site=9)
        for kind in (torch.int64, torch.int32, torch.uint8):
            numbers = {"sample": torch.tensor(5, dtype=kind), "site": torch.tensor(9, dtype=kind)}
            image = torch.tensor([3, 1, 2, 0], dtype=kind)
            assert functional.drop_relu(x, 0.5, seed=torch.tensor(2**40), image=image, **numbers).equal(expected)

    def test_every_row_may_have_its_own_sample_and_site(self):
        samples, sites = torch.tensor([4, 4, 8]), torch.tensor([1, 2, 1])
        out = functional.drop_relu(negative(3, 50), 0.5, seed=1, sample=samples, site=sites)
        for row in range(3):
            numbers = {"seed": 1, "sample": samples[row].item(), "site": sites[row].item()}
            assert (out[row] == 0).equal(mask((3, 50), 0.5, **numbers)[row])

    @pytest.mark.parametrize("batch", [1, 7, 64])
    def test_an_image_keeps_its_mask_in_any_batch(self, batch):
        x, image = negative(64, 3, 6, 6), torch.arange(100, 164)
        parts = zip(x.split(batch), image.split(batch), strict=True)
        outs = torch.cat([functional.drop_relu(part, 0.5, seed=1, image=numbers) for part, numbers in parts])
        assert outs.equal(functional.drop_relu(x, 0.5, seed=1, image=image))

    def test_a_single_number_means_one_image_without_a_batch(self):
        for mask in ("element", "channel"):
            batch = functional.drop_relu(negative(4, 3, 5, 5), 0.5, mask=mask, seed=1)
            for image in (2, torch.tensor(2)):
                found = functional.drop_relu(negative(3, 5, 5), 0.5, mask=mask, seed=1, image=image)
                assert found.equal(batch[2])

    @pytest.mark.parametrize("image", [None, 0])
    def test_a_scalar_is_one_element_of_image_0(self, image):
        x = torch.tensor(-1.0, requires_grad=True)
        out = functional.rrelu(x, seed=1, image=image)
        assert out.shape == ()
        assert out == functional.rrelu(negative(1, 1), seed=1).squeeze()
        out.backward()
        assert x.grad == -out

    def test_in_place_gives_back_the_very_tensor(self):
        for x, image in ((negative(3, 20), None), (negative(20), 5), (torch.tensor(-1.0), None)):
            expected = functional.rrelu(x, seed=1, image=image)
            assert functional.rrelu(x, seed=1, image=image, inplace=True) is x
            assert x.equal(expected)

    @pytest.mark.parametrize("shape", [(0,), (0, 3, 4), (3, 0)])
    def test_empty_tensors_stay_empty(self, shape):
        assert functional.drop_relu(torch.empty(shape), 0.5, seed=0).shape == shape
        assert functional.rrelu(torch.empty(shape), seed=0).shape == shape


WORKER = """
import sys, torch
from rbue import functional
x = torch.randn(64, 3, 6, 6, generator=torch.Generator().manual_seed(0))[32:]
image = torch.arange(32, 64)
torch.save([functional.drop_relu(x, 0.5, seed=2**40, sample=3, image=image),
            functional.rrelu(x, seed=2**40, sample=3, image=image)], sys.argv[1])
"""


def test_another_process_with_half_of_the_images_draws_what_one_draws(tmp_path):
    source = str(Path(functional.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-c", WORKER, tmp_path / "half.pt"], env=environment, check=True, timeout=120)
    x = torch.randn(64, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    drop_relu, rrelu = torch.load(tmp_path / "half.pt")
    assert drop_relu.equal(functional.drop_relu(x, 0.5, seed=2**40, sample=3)[32:])
    assert rrelu.equal(functional.rrelu(x, seed=2**40, sample=3)[32:])


X = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"q": 1.5}, r"must lie in \[0, 1\], not 1.5"),
        ({"q": -0.1}, r"must lie in \[0, 1\], not -0.1"),
        ({"q": float("nan")}, "q must be a finite number, not nan"),
        ({"q": True}, "q must be a finite number, not True"),
        ({"seed": -1}, r"seed must lie in \[0, 2\*\*64\), not -1"),
        ({"seed": 2**64}, r"seed must lie in \[0, 2\*\*64\), not 18446744073709551616"),
        ({"seed": 0.5}, "seed must be an integer, not 0.5"),
        ({"seed": torch.ones(2, dtype=torch.int64)}, r"one integer, not shape \(2,\)"),
        ({"seed": torch.tensor(0, device="meta")}, "seed is on meta but x is on cpu"),
        ({"x": torch.ones(4, 3, dtype=torch.int64)}, "floating-point tensor, not torch.int64"),
        ({"x": torch.ones(4, 3, dtype=torch.complex64)}, "floating-point tensor, not torch.complex64"),
        ({"x": [1.0]}, "floating-point tensor, not list"),
        ({"image": torch.arange(3)}, r"number the 4 rows of x, but its shape is \(3,\)"),
        ({"image": torch.zeros(4, 1, dtype=torch.int64)}, r"its shape is \(4, 1\)"),
        ({"image": torch.ones(4)}, "image must hold integers, not torch.float32"),
        ({"image": torch.ones(4).bool()}, "image must hold integers, not torch.bool"),
        ({"image": torch.arange(4, device="meta")}, "image is on meta but x is on cpu"),
        ({"sample": torch.arange(3)}, r"sample must be one number or number the 4 rows of x, but .* \(3,\)"),
        ({"sample": 1.5}, "sample must be an integer or a tensor of integers, not 1.5"),
        ({"sample": True}, "sample must be an integer or a tensor of integers, not True"),
        ({"sample": 1 << 32}, r"sample must lie in \[0, 2\*\*32\), not 4294967296"),
        ({"image": -(1 << 40)}, r"image must lie in \[0, 2\*\*32\), not -1099511627776"),
        ({"sample": torch.tensor(0, device="meta")}, "sample is on meta but x is on cpu"),
        ({"site": torch.arange(2)}, r"site must be one number or number the 4 rows of x, but .* \(2,\)"),
        ({"site": torch.tensor(0, device="meta")}, "site is on meta but x is on cpu"),
    ],
)
def test_bad_arguments_of_drop_relu_are_named(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        functional.drop_relu(**{"x": X, "q": 0.5, "seed": 0} | arguments)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gpu_draws_what_the_cpu_draws(shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    numbers = {"seed": 2**63 + 1, "sample": 3, "site": 5}
    forms = [x.cuda()]
    if x.dim() == 4:
        forms += [forms[0].contiguous(memory_format=torch.channels_last), forms[0].mT.contiguous().mT]
    for form in forms:
        out = functional.drop_relu(form, 0.5, **numbers)
        assert out.device == form.device
        assert out.cpu().equal(functional.drop_relu(x, 0.5, **numbers))
        slopes = functional.rrelu(form, **numbers).cpu().double()
        expected = functional.rrelu(x, **numbers).double()
        assert torch.allclose(slopes, expected, rtol=2 * torch.finfo(dtype).eps if dtype != torch.float64 else 3e-7)
