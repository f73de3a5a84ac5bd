"""The same keys give the same masks in every memory layout, type, batch and backend of the eager operator."""

import pytest
import torch

from rbue.activations import DropReLU, RReLU
from rbue.kernels import layout, random_relu
from rbue.kernels.layout import ElementLayout

pytestmark = pytest.mark.usefixtures("cpu_form")

SHAPES = [(5,), (3, 17), (2, 3, 5), (4, 3, 5, 6), (2, 3, 2, 3, 4), (3, 1, 4, 4), (3, 4, 1, 1)]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
CHANNELS = DropReLU(0.5, "channel")
ACTIVATIONS = [DropReLU(0.5), DropReLU(0.9), CHANNELS, RReLU(), RReLU(0, 1)]


def strided_forms(x):
    """``x`` with the same values in other places of memory."""
    yield "contiguous", x
    if x.dim() in (4, 5):
        channels_last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        yield "channels last", x.contiguous(memory_format=channels_last)
    if x.dim() > 1:
        yield "last dimension outermost", x.movedim(-1, 0).contiguous().movedim(0, -1)
        yield "batch innermost", x.movedim(0, -1).contiguous().movedim(-1, 0)
    wide = torch.zeros(*x.shape, 3, dtype=x.dtype)
    wide[..., 1] = x
    yield "every third element", wide[..., 1]


def one_ulp(a, b):
    """Whether the elements of ``a`` and ``b`` are equal or neighbours in their type."""
    low, high = torch.nextafter(b, torch.full_like(b, -torch.inf)), torch.nextafter(b, torch.full_like(b, torch.inf))
    return bool(((low <= a) & (a <= high)).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("activation", "cap"), [(DropReLU(0.5), 0.5), (CHANNELS, None), (RReLU(), None), (RReLU(0, 1), 0.5)], ids=str
)
def test_memory_layout_does_not_matter(shape, activation, cap, make_x, make_keys, formula):
    x, keys = make_x(*shape), make_keys(shape[0])
    expected = formula(x, activation, keys, cap)
    for name, form in strided_forms(x):
        out = random_relu(form, activation, keys, cap=cap)
        assert out.equal(expected), name
        assert random_relu(form.clone(), activation, keys, cap=cap, inplace=True).equal(expected), name


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_type_does_not_change_the_mask(dtype, activation, make_x, make_keys, formula):
    x, keys = make_x(4, 3, 8, 8, dtype=dtype), make_keys(4)
    out = random_relu(x, activation, keys)
    assert out.dtype == dtype
    assert out.equal(formula(x, activation, keys))
    if isinstance(activation, DropReLU):
        assert (out == 0).equal(random_relu(x.float(), activation, keys) == 0)
    elif dtype != torch.float64:
        assert one_ulp(out, random_relu(x.float(), activation, keys).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", [DropReLU(0.5), RReLU()], ids=str)
def test_the_output_has_the_strides_of_relu(activation, dtype, make_x, make_keys):
    keys = make_keys(4)
    for name, form in strided_forms(make_x(4, 3, 5, 6, dtype=dtype)):
        assert random_relu(form, activation, keys).stride() == torch.relu(form).stride(), name


@pytest.mark.parametrize("activation", [one for one in ACTIVATIONS if one is not CHANNELS], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_patches_of_an_image_count_on(activation, memory_format, make_x, make_keys, formula):
    keys = make_keys(3)
    x = make_x(3 * 4, 2, 5, 5)
    out = random_relu(x.contiguous(memory_format=memory_format), activation, keys)
    assert out.equal(formula(x.reshape(3, 4, 2, 5, 5), activation, keys).reshape(x.shape))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_channels_of_patches_count_on_too(memory_format, make_x, make_keys, formula):
    keys = make_keys(3)
    x = make_x(3 * 4, 2, 5, 5)
    out = random_relu(x.contiguous(memory_format=memory_format), CHANNELS, keys)
    assert out.equal(formula(x.reshape(3, 4 * 2, 5, 5), CHANNELS, keys).reshape(x.shape))


@pytest.mark.parametrize(
    ("memory_format", "cap"), [(torch.contiguous_format, 0.5), (torch.channels_last, None)], ids=str
)
@pytest.mark.parametrize(
    ("activation", "dtype"),
    [
        *((one, torch.float32) for one in (*ACTIVATIONS, DropReLU(0), DropReLU(1))),
        *((one, torch.float16) for one in (DropReLU(0.5), RReLU(), DropReLU(0))),
    ],
    ids=str,
)
def test_repeat_gives_every_sample_its_keys(activation, memory_format, dtype, cap, make_x, make_keys):
    x, keys = make_x(4, 3, 5, 5, dtype=dtype).contiguous(memory_format=memory_format), make_keys(12)
    out = random_relu(x, activation, keys, repeat=3, cap=cap)
    assert out.shape == (12, 3, 5, 5)
    assert out.is_contiguous(memory_format=memory_format)
    for sample in range(3):
        rows = slice(4 * sample, 4 * sample + 4)
        assert out[rows].equal(random_relu(x, activation, keys[:, rows], cap=cap))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_row_keeps_its_bits_in_any_batch(activation, chunk, make_x, make_keys):
    x, keys = make_x(64, 3, 7, 7), make_keys(64)
    parts = zip(x.split(chunk), keys.split(chunk, dim=1), strict=True)
    assert torch.cat([random_relu(*part[:1], activation, part[1]) for part in parts]).equal(
        random_relu(x, activation, keys)
    )


def test_tables_grow_and_shrink_without_changing(make_x, make_keys, formula):
    keys = make_keys(2)
    for size in (10, 5000, 3, 4999, 70_000):
        x = make_x(2, size)
        assert random_relu(x, DropReLU(0.5), keys).equal(formula(x, DropReLU(0.5), keys))


def test_tables_in_another_memory_order_do_not_pile_up(make_x, make_keys, formula, monkeypatch):
    monkeypatch.setattr(layout, "_MOST_REORDERED", 1000)
    monkeypatch.setattr(layout, "_reordered", {})
    for size in (4, 5, 6, 30, 4, 7, 8, 9, 10, 11):
        x = make_x(2, 3, size, size).contiguous(memory_format=torch.channels_last)
        assert random_relu(x, DropReLU(0.5), make_keys(2)).equal(formula(x, DropReLU(0.5), make_keys(2)))
        others = [table for table in layout._reordered.values() if table.shape[-1] != size]
        assert not others or sum(table.numel() for table in layout._reordered.values()) <= 1000
    assert [shape[-1] for shape, *_ in layout._reordered] == [9, 10, 11]


def test_a_table_made_in_inference_mode_serves_training(make_x, make_keys):
    shape = (2, 12_347)  # no other test has it
    with torch.inference_mode():
        expected = random_relu(make_x(*shape), RReLU(), make_keys(2))
    x = make_x(*shape).requires_grad_()
    out = random_relu(x, RReLU(), make_keys(2))
    out.sum().backward()
    assert out.equal(expected.clone())
    assert x.grad.min() > 0


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format], ids=str)
def test_layout_recognises_dense_formats(memory_format, make_x):
    layout = ElementLayout.of(make_x(2, 3, 4, 4).contiguous(memory_format=memory_format), 2)
    assert layout.dense
    assert layout.memory_format is memory_format


def test_layout_recognises_gaps(make_x):
    assert not ElementLayout.of(make_x(2, 3, 4, 4)[..., ::2], 2).dense
