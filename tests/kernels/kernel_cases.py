"""The Triton kernels against the formula; run by test_triton_kernels.py in a process of its own.

Whether Triton interprets is settled when the kernels are imported, so it cannot change inside a test run.
"""

import math
from types import SimpleNamespace

import pytest
import torch

from rbue import random_stream
from rbue.activations import DropReLU, RReLU
from rbue.kernels import fused, keys, random_relu, triton_fused, triton_kernels
from rbue.kernels.dispatch import expanded, random_words
from rbue.kernels.layout import ElementLayout
from rbue.kernels.slope_forms import form_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")
ACTIVATIONS = [DropReLU(0.6), DropReLU(0.6, "channel"), RReLU(), RReLU(0, 1)]
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
CASES = {  # shape, rows, copies; few are quickly interpreted
    "few": [((1, 1), 1, 1), ((6, 3, 5, 6), 3, 1), ((2, 3, 4, 4), 6, 3)],
    "more": [
        ((4, 3, 5, 6), 4, 1),
        ((3, 1100), 3, 1),
        ((5,), 5, 1),
        ((2, 3, 2, 3, 4), 2, 1),
        ((2, 32, 9, 8), 2, 1),
        ((4, 48, 3, 5), 2, 1),
        ((2, 2100, 1, 2), 2, 1),
    ],
}


def draw(shape, dtype, channels_last=False, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    x.view(-1)[:3] = torch.tensor([0.0, -0.0, math.nan])[: x.numel()]
    x = x.to(DEVICE)
    return x.contiguous(memory_format=FORMATS[x.dim()]) if channels_last else x


def make_keys(rows):
    """Of independent draws for an odd number of rows; for an even one balanced, with a third lane of turns."""
    lanes = 2 if rows % 2 else 3
    words = torch.randint(-(2**31), 2**31, (lanes, rows), generator=torch.Generator().manual_seed(1))
    return words.to(torch.int32).to(DEVICE)


def close(a, b, activation, x):
    """Equal for DropReLU; for RReLU one ulp of ``upper`` in the slope of ``x``, and two in the product."""
    if isinstance(activation, DropReLU):
        return torch.equal(a.nan_to_num(9), b.nan_to_num(9))
    eps = torch.finfo(a.dtype).eps
    tiny = torch.finfo(a.dtype).smallest_normal * eps
    a, b = a.double(), b.double()
    bound = 2 * eps * b.abs() + torch.finfo(torch.float32).eps * activation.upper * x.double().abs() + tiny
    return bool(((a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= bound)).all())


def formats(shape):
    return [False, True] if len(shape) in FORMATS else [False]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("cap", [None, 0.5])
@pytest.mark.parametrize("shapes", CASES)
def test_forward_and_backward_equal_the_formula(activation, cap, dtype, shapes):
    for shape, rows, repeat in CASES[shapes]:
        for channels_last in formats(shape):
            x, key = draw(shape, dtype, channels_last), make_keys(rows)
            layout = ElementLayout.of(x, rows, repeat, activation.mask)
            out = triton_kernels.forward(x, form_of(activation), key, layout, cap, False)
            copies = expanded(x, layout) if repeat > 1 else x
            expected = activation.capped_forward(copies, random_words(key, layout, activation), cap)
            assert out.stride() == copies.stride()
            assert close(out, expected, activation, copies), (shape, channels_last)
            if repeat == 1:
                grad = torch.ones_like(out)
                saved = None if isinstance(activation, DropReLU) else key
                result = triton_kernels.backward(grad, out, form_of(activation), saved, layout, cap)
                wanted = activation.capped_backward(grad, out, random_words(key, layout, activation), cap)
                finite = ~out.isnan()
                assert close(result[finite], wanted[finite], activation, grad[finite]), (shape, channels_last)
                assert result[out.isnan()].isfinite().all()


@pytest.mark.parametrize("q", [0.05, 0.5, 0.999, 1])
def test_the_threshold_is_the_formula_s(q):
    x = torch.full((2, 4000), -1.0, device=DEVICE)
    layout, key = ElementLayout.of(x, 2), make_keys(2)
    out = triton_kernels.forward(x, form_of(DropReLU(q)), key, layout, None, False)
    assert (out == 0).equal(random_words(key, layout, DropReLU(q)) >= random_stream.threshold(1 - q))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_default_slopes_agree_to_one_ulp(dtype):
    x = torch.full((2, 4000), -1.0, device=DEVICE, dtype=dtype)
    layout, key = ElementLayout.of(x, 2), make_keys(2)
    out = triton_kernels.forward(x, form_of(RReLU()), key, layout, None, False).cpu()
    expected = RReLU().capped_forward(x, random_words(key, layout, RReLU()), None).cpu()
    low, high = (torch.nextafter(expected, torch.full_like(expected, end)) for end in (-math.inf, math.inf))
    assert ((low <= out) & (out <= high)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_underflow_keeps_its_slope_and_zero_has_none(dtype):
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    x = torch.tensor([[0.0, -0.0, -tiny, -1.0, -math.inf]], dtype=dtype).to(DEVICE)
    layout, key = ElementLayout.of(x, 1), make_keys(1)
    out = triton_kernels.forward(x, form_of(RReLU()), key, layout, None, False)
    grad = triton_kernels.backward(torch.ones_like(out), out, form_of(RReLU()), key, layout, None)
    ones = triton_kernels.forward(-torch.ones_like(x), form_of(RReLU()), key, layout, None, False)
    assert grad[0, :2].tolist() == [0, 0]
    assert grad[0, 2:].equal(-ones[0, 2:])


def test_in_place_writes_into_the_input_and_says_so():
    x, key = draw((4, 40), torch.float32), make_keys(4)
    layout = ElementLayout.of(x, 4)
    expected = triton_kernels.forward(x, form_of(RReLU()), key, layout, None, False)
    version = x._version
    assert triton_kernels.forward(x, form_of(RReLU()), key, layout, None, True) is x
    assert x.nan_to_num(9).equal(expected.nan_to_num(9))
    assert x._version > version


@pytest.mark.parametrize("samples", [[3], [0, 3, 2**31 - 1, -1, 5, 6, 7]])
def test_keys_equal_the_formula(samples):
    state, sites = random_stream.seed_state(2**63, DEVICE), torch.tensor([5, -7, 2**31 - 1])
    numbers = [values.to(torch.int32).to(DEVICE) for values in (torch.tensor(samples), torch.arange(7), sites)]
    made = triton_kernels.site_keys(state, *numbers)
    assert made.cpu().equal(keys.site_keys(state.cpu(), *(words.cpu() for words in numbers)))


def test_keys_of_one_site_are_read_in_place():
    """A network hands over one slice of the keys of all its sites."""
    every = torch.stack([make_keys(4), make_keys(4) + 1], 1)
    x = draw((4, 40), torch.float32)
    layout = ElementLayout.of(x, 4)
    out = triton_kernels.forward(x, form_of(DropReLU(0.5)), every[:, 1], layout, None, False)
    assert out.nan_to_num(9).equal(
        triton_kernels.forward(x, form_of(DropReLU(0.5)), every[:, 1].contiguous(), layout, None, False).nan_to_num(9)
    )


@pytest.mark.parametrize(("elements", "supported"), [(2**30, True), (2**30 + 1, False), (2**31, False), (0, False)])
def test_rows_too_long_for_32_bits_are_left_to_the_formula(elements, supported):
    x = SimpleNamespace(is_cuda=True, dtype=torch.float32, numel=lambda: 2 * elements, is_neg=lambda: False)
    layout = ElementLayout((2, elements), 2, 1, torch.contiguous_format, True, torch.device("cuda"))
    assert triton_kernels.supports(x, layout) is supported
    assert triton_kernels.supports(x, layout, hashed=False) is (elements % 2**20 == 0 and elements > 0)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("activation", [DropReLU(0.6), RReLU()], ids=["drop", "rrelu"])
def test_very_many_rows_take_several_launches(activation, memory_format, monkeypatch):
    x = draw((19, 5, 3, 3), torch.float32).contiguous(memory_format=memory_format)
    layout, key = ElementLayout.of(x, 19), make_keys(19)
    expected = triton_kernels.forward(x, form_of(activation), key, layout, None, False)
    monkeypatch.setattr(triton_kernels, "MOST_PROGRAMS_DOWN", 2)
    assert len(list(triton_kernels.Launch.of(layout, True).parts())) == 3
    out = triton_kernels.forward(x, form_of(activation), key, layout, None, False)
    assert out.nan_to_num(9).equal(expected.nan_to_num(9))
    gradients = triton_kernels.backward(torch.ones_like(x), out, form_of(activation), key, layout, None)
    monkeypatch.undo()
    assert gradients.equal(triton_kernels.backward(torch.ones_like(x), out, form_of(activation), key, layout, None))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_kernels_have_two_forms_however_many_rows_there_are(memory_format):
    """Each is compiled, and the sampler tries passes of one and two images before the large ones."""
    maps = [torch.empty(rows, 32, 4, 4).to(memory_format=memory_format) for rows in range(1, 20)]
    layouts = [ElementLayout.of(x, x.shape[0]) for x in maps]
    forms = [triton_kernels.Launch.of(layout, True).constants for layout in layouts]
    assert forms[1:] == forms[-1:] * 18
    assert [triton_fused._block(layout)[0] for layout in layouts] == [1] + [4] * 18


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 2**27),
        (2**20, 3),
        (3_000_000, 10),
        (64, 802_816),
        (1, 1),
        (70_000, 24, 7, 7),
        (64, 3, 224, 224),
        (2, 96, 1, 1),
        (3, 2**30),
    ],
    ids=str,
)
def test_programs_cover_every_element_within_the_limits_of_cuda(shape, hashed):
    for memory_format in (torch.contiguous_format, torch.channels_last)[: len(shape) - 1]:
        layout = ElementLayout(shape, shape[0], 1, memory_format, True, torch.device(DEVICE))
        launch = triton_kernels.Launch.of(layout, hashed)
        parts = list(launch.parts())
        programs = sum(along * down for _, (along, down) in parts)
        rows, pixels, channels = launch.block
        assert launch.rows * launch.elements == math.prod(shape)
        assert all(along < 2**31 and down < 2**16 for _, (along, down) in parts)
        assert [first for first, _ in parts] == [rows * 65535 * part for part in range(len(parts))]
        assert launch.elements <= 2**30
        assert all(size & (size - 1) == 0 for size in (pixels, channels))
        patches = launch.elements // (launch.channels * launch.plane)
        covered = programs * rows * pixels * channels / patches
        assert launch.rows * launch.channels * launch.plane <= covered
        assert covered < (launch.rows + rows) * (launch.channels + channels) * (launch.plane + pixels)


FUSED_CASES = {  # shape, copies; few are quickly interpreted
    "few": [((3, 3, 3, 5), 2), ((2, 1, 3, 3), 1)],
    "more": [
        ((3, 5, 4, 6), 1),
        ((2, 64, 2, 4), 3),
        ((4, 70), 1),
        ((2, 6, 1, 1), 4),
        ((2, 2, 2, 1, 3), 2),
        ((2, 3, 50, 50), 1),  # more pixels than a program has; slow to interpret
    ],
}


def batch_norm(channels, seed=3, affine=True):
    generator = torch.Generator().manual_seed(seed)
    mean, weight, bias = (torch.randn(channels, generator=generator).to(DEVICE) for _ in range(3))
    var = torch.rand(channels, generator=generator).to(DEVICE) + 0.1
    return (mean, var, weight, bias, 1e-5) if affine else (mean, var, None, None, 1e-3)


def plain_relu(x, cap):
    return x.clamp(0, cap)


def nearly(found, expected, dtype):
    """Equal but for the rounding of the separate steps."""
    slack = 2e-2 if dtype is not torch.float32 else 1e-5
    return torch.allclose(found.double(), expected.double(), rtol=slack, atol=slack)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS[:3]], ids=str)
@pytest.mark.parametrize(
    ("residual", "cap"), [("none", None), ("none", 0.5), ("plain", None), ("plain", 0.5), ("normalised", None)]
)
@pytest.mark.parametrize("shapes", FUSED_CASES)
def test_batch_norm_a_sum_and_a_relu_in_one(activation, residual, cap, dtype, shapes):
    for shape, repeat in FUSED_CASES[shapes]:
        if activation is None and repeat > 1:
            continue
        # Where channels lie first, a program has one of them, which takes long to interpret for 64.
        for channels_last in [True] if shape[1] == 64 and DEVICE == "cpu" else formats(shape):
            x, other = (draw(shape, torch.float32, channels_last, seed).nan_to_num(0.5).to(dtype) for seed in (0, 1))
            norm, second = batch_norm(shape[1], affine=residual == "none"), batch_norm(shape[1], seed=4)
            rows, mask = shape[0] * repeat, "element" if activation is None else activation.mask
            layout, key = ElementLayout.of(x, rows, repeat, mask), make_keys(rows)
            added = None if residual == "none" else other
            added_norm = triton_fused.affine(*second) if residual == "normalised" else None
            found = triton_fused.normalised_relu(
                x, triton_fused.affine(*norm), added, added_norm, form_of(activation), key, layout, cap
            )
            before = torch.nn.functional.batch_norm(x.float(), *norm[:4], eps=norm[4])
            if residual == "plain":
                before += other.float()
            if residual == "normalised":
                before += torch.nn.functional.batch_norm(other.float(), *second[:4], eps=second[4])
            if activation is None:
                expected = plain_relu(before, cap)
            else:
                copies = expanded(before, layout) if repeat > 1 else before
                expected = activation.capped_forward(copies, random_words(key, layout, activation), cap)
            assert found.dtype is dtype
            assert found.stride() == expected.stride()
            assert nearly(found, expected, dtype), (shape, channels_last)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS[:3], ids=str)
@pytest.mark.parametrize("cap", [None, 0.5])
@pytest.mark.parametrize("shapes", FUSED_CASES)
def test_a_relu_and_the_mean_over_its_pixels_in_one(activation, cap, dtype, shapes):
    for shape, repeat in FUSED_CASES[shapes]:
        if math.prod(shape) > 10_000:
            continue
        for channels_last in formats(shape):
            x = draw(shape, torch.float32, channels_last).nan_to_num(0.5).to(dtype)
            rows = shape[0] * repeat
            layout, key = ElementLayout.of(x, rows, repeat, activation.mask), make_keys(rows)
            found = triton_fused.pooled_relu(x, form_of(activation), key, layout, cap)
            copies = (expanded(x, layout) if repeat > 1 else x).float()
            expected = activation.capped_forward(copies, random_words(key, layout, activation), cap)
            assert found.shape == (shape[0] * repeat, shape[1])
            assert nearly(found, expected.flatten(2).mean(2) if x.dim() > 2 else expected, dtype), (
                shape,
                channels_last,
            )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", [DropReLU(0.6), RReLU()], ids=str)
def test_nan_and_infinity_pass_through_the_fused_kernels_as_through_the_formula(activation, dtype):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -1.0, 1.0], device=DEVICE, dtype=dtype)
    x = x.repeat(2, 8).reshape(2, 5, 4, 2)
    layout, key = ElementLayout.of(x, 2), make_keys(2)
    norm = triton_fused.affine(*(torch.full((5,), value, device=DEVICE) for value in (0.0, 1.0)), None, None, 0.0)
    expected = activation.capped_forward(x.float(), random_words(key, layout, activation), None)
    found = triton_fused.normalised_relu(x, norm, None, None, form_of(activation), key, layout, None)
    assert torch.isnan(expected).any()
    torch.testing.assert_close(found.float(), expected.to(dtype).float(), equal_nan=True, rtol=1e-2, atol=0)
    found = triton_fused.pooled_relu(
        x[:, :, :1, :1].contiguous(), form_of(activation), key, ElementLayout.of(x[:, :, :1, :1], 2), None
    )
    assert torch.isnan(found).any()


@pytest.mark.parametrize("activation", [None, RReLU()], ids=str)
def test_two_batch_norms_their_sum_and_a_relu(activation, monkeypatch):
    monkeypatch.setattr(fused, "_gpu_kernels", lambda x: triton_fused)
    x, other = (draw((5, 3, 2, 4), torch.float32, seed=seed).nan_to_num(0.5) for seed in (0, 1))
    key = None if activation is None else make_keys(5)
    before = fused.Normalised(x, *batch_norm(3), residual=fused.Normalised(other, *batch_norm(3, seed=4)))
    expected = before.compute().relu() if activation is None else random_relu(before.compute(), activation, key)
    assert nearly(fused.normalised_relu(before, activation, key), expected, x.dtype)


@pytest.mark.parametrize("repeat", [1, 2])
def test_images_cut_into_patches(repeat, monkeypatch):
    """The frames of a video along the batch, say: there are fewer keys than rows."""
    monkeypatch.setattr(fused, "_gpu_kernels", lambda x: triton_fused)
    x, key, activation = draw((6, 3, 2, 4), torch.float32).nan_to_num(0.5), make_keys(3 * repeat), DropReLU(0.6)
    before = fused.Normalised(x, *batch_norm(3), residual=fused.Normalised(-x, *batch_norm(3, seed=4)))
    expected = random_relu(before.compute(), activation, key, repeat=repeat)
    assert nearly(fused.normalised_relu(before, activation, key, repeat=repeat), expected, x.dtype)
    expected = random_relu(x, activation, key, repeat=repeat).mean((2, 3))
    assert nearly(fused.pooled_relu(x, activation, key, repeat=repeat), expected, x.dtype)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_very_many_rows_take_several_fused_launches(memory_format, monkeypatch):
    channels = 64 if memory_format is torch.channels_last else 3
    x = draw((5, channels, 4, 8), torch.float32).nan_to_num(0.5).contiguous(memory_format=memory_format)
    arguments = (
        x,
        triton_fused.affine(*batch_norm(channels)),
        None,
        None,
        form_of(DropReLU(0.6)),
        make_keys(5),
        ElementLayout.of(x, 5),
        None,
    )
    expected = triton_fused.normalised_relu(*arguments)
    monkeypatch.setattr(triton_fused, "MOST_PROGRAMS_DOWN", 1)
    assert triton_fused.normalised_relu(*arguments).equal(expected)


def test_parameters_that_are_slices_of_one():
    mean, var, weight, bias = torch.rand((5, 4), generator=torch.Generator().manual_seed(0)).to(DEVICE).unbind(1)
    found = triton_fused.affine(mean, var, weight, bias, 1e-5)
    scale = weight / (var + 1e-5).sqrt()
    torch.testing.assert_close(found, torch.stack([scale, bias - mean * scale, mean, bias]))


def test_a_large_mean_leaves_the_digits_that_count():
    x = 1000 + 0.01 * draw((4, 3, 2, 2), torch.float32).nan_to_num(0.5)
    norm = (torch.full((3,), 1000.0), torch.full((3,), 1e-4), None, None, 0.0)
    affine = triton_fused.affine(*(part.to(DEVICE) if torch.is_tensor(part) else part for part in norm))
    found = triton_fused.normalised_relu(x, affine, None, None, None, None, ElementLayout.of(x, 4), None)
    torch.testing.assert_close(found.double(), ((x.double() - 1000) / 0.01).clamp(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_large_mean_leaves_the_digits_that_narrow_numbers_have(dtype):
    x = (1000 + 10 * draw((4, 3, 2, 2), torch.float32).nan_to_num(0.5)).to(dtype)
    norm = (torch.full((3,), 1000.0), torch.full((3,), 100.0), None, None, 0.0)
    affine = triton_fused.affine(*(part.to(DEVICE) if torch.is_tensor(part) else part for part in norm))
    found = triton_fused.normalised_relu(x, affine, None, None, None, None, ElementLayout.of(x, 4), None)
    expected = ((x.double() - 1000) / 10).clamp(0)
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=2e-5)
