"""Augmented passes: what a sample sees depends on its numbers alone, and its output is that of a plain call on it."""

import numpy as np
import pytest
import torch
from torch import nn

import numpy_stream
import rbue
from rbue.augment import Augmentation, Crop, Flip, Shift
from rbue.errors import InvalidInput
from rbue.torch_internals import TorchDispatchMode, tree_leaves

EVERY = [Flip(), Shift(2), Crop(0.7)]


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 5)
    )


def images(count=6, seed=1):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def recorded(seen):
    """An augmentation that changes nothing and notes its numbers."""

    def augment(x, uniform):
        seen.append(uniform(3))
        return x

    return augment


@pytest.mark.parametrize("draws", ["independent", "balanced"])
def test_samples_are_those_of_the_augmented_images(draws):
    """Without shared prefix or stack: one sample at a time, on images that were changed before."""
    x, net = images(), rbue.convert(network(), rbue.DropReLU(0.8), example=images())
    drawn = rbue.predict(net, x, samples=7, seed=3, draws=draws, augment=EVERY, return_samples=True)
    change, numbers = Augmentation(EVERY, 3, x.device, draws), torch.arange(len(x), dtype=torch.int32)
    for k in range(7):
        changed = change(x, torch.tensor([k], dtype=torch.int32), numbers)
        alone = rbue.predict(net, changed, samples=k + 1, seed=3, draws=draws, return_samples=True)
        torch.testing.assert_close(drawn.samples[k], alone.samples[k], rtol=1e-4, atol=1e-6)
    plain = rbue.predict(net, x, samples=7, seed=3, draws=draws, return_samples=True)
    assert (drawn.samples - plain.samples).abs().max() > 0.01


@pytest.mark.parametrize("where", ["all", "last"])
def test_batch_size_memory_and_number_of_samples_do_not_matter(where):
    x, net = images(), rbue.convert(network(), rbue.DropReLU(0.8), where=where, example=images())
    whole = rbue.predict(net, x, samples=6, augment=EVERY, return_samples=True).samples
    single = rbue.predict(net, x.split(1), samples=6, augment=EVERY, return_samples=True).samples
    little = rbue.predict(net, x, samples=6, augment=EVERY, return_samples=True, memory=1 << 12).samples
    longer = rbue.predict(net, x, samples=11, augment=EVERY, return_samples=True).samples[:6]
    some = rbue.predict(net, x[2:4], index=torch.tensor([2, 3]), samples=6, augment=EVERY, return_samples=True).samples
    for other in (single, little, longer):
        torch.testing.assert_close(other, whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(some, whole[:, 2:4], rtol=1e-4, atol=1e-6)


def test_numbers_are_those_of_the_documented_stream():
    first, second = [], []
    change = Augmentation([recorded(first), recorded(second)], 2**40 + 7, torch.device("cpu"))
    change(images(), torch.tensor([5], dtype=torch.int32), torch.arange(6, dtype=torch.int32))
    for place, seen in enumerate((first, second)):
        lanes = numpy_stream.keys(2**40 + 7, 5, np.arange(6), place, domain=[0x299F31D0])
        words = numpy_stream.bits(np.arange(3), *(lane[:, None] for lane in lanes)).view(np.int32)
        expected = 0.5 + ((words >> 8) | 1) / 2**24
        assert np.allclose(seen[0].numpy(), expected, rtol=0, atol=1e-7)


def test_balanced_samples_come_in_mirrored_pairs():
    seen = []
    change = Augmentation(recorded(seen), 0, torch.device("cpu"), "balanced")
    for sample in range(4):
        change(images(), torch.tensor([sample], dtype=torch.int32), torch.arange(6, dtype=torch.int32))
    assert torch.equal(seen[0] + seen[1], torch.ones(6, 3))
    assert torch.equal(seen[2] + seen[3], torch.ones(6, 3))
    assert not torch.equal(seen[0], seen[2])


def test_numbers_are_uniform_and_images_differ():
    seen = []
    rows = torch.zeros(4000, 1, 1, 1)
    numbers = torch.arange(4000, dtype=torch.int32)
    Augmentation(recorded(seen), 0, torch.device("cpu"))(rows, numbers[:1], numbers)
    counts = torch.histc(seen[0][:, 0], 10, 0, 1)
    assert ((counts - 400) ** 2 / 400).sum() < 27.9  # the 0.999 quantile with 9 degrees of freedom
    assert torch.corrcoef(seen[0].T).triu(1).abs().max() < 0.06


@pytest.mark.parametrize(
    ("u", "down", "right"), [((0.1, 0.9), -2, 2), ((0.5, 0.3), 0, -1), ((0.999999, 0.0001), 2, -2)]
)
@pytest.mark.parametrize("fill", [9.0, (7.0, 8.0, 9.0)])
def test_a_shift_moves_by_whole_pixels(u, down, right, fill):
    x = images(1)[..., :6]
    moved = Shift(2, fill)(x, lambda n: torch.tensor([u]))
    for row in range(8):
        for column in range(6):
            inside = 0 <= row - down < 8 and 0 <= column - right < 6
            expected = x[0, :, row - down, column - right] if inside else torch.tensor(fill).expand(3)
            assert moved[0, :, row, column].equal(expected)


@pytest.mark.parametrize("step", [Flip(), Shift(2), Shift(1, (0.5, 1.0, 1.5)), Crop(0.7)], ids=repr)
def test_nothing_is_copied_from_the_host_where_a_gpu_would_wait_for_it(step):
    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            given = [x.device for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            assert all(device == x.device for device in given for x in tree_leaves(out)), func
            return out

    x = images().to("meta")
    with Copies():
        assert step(x, lambda n: x.new_full((len(x), n), 0.3)).is_meta


def test_every_second_image_is_flipped():
    x = images(2)
    assert Flip()(x, lambda n: torch.tensor([[0.51], [0.49]])).equal(torch.stack([x[0], x[1].flip(2)]))


def test_a_crop_is_a_window_enlarged():
    x = images(2)
    for images_ in (x, x.double()):
        same = Crop(1.0)(images_, lambda n: torch.full((2, n), 0.3))
        torch.testing.assert_close(same, images_, atol=1e-5, rtol=1e-5)
    corner = Crop(0.5)(x, lambda n: torch.tensor([[0.0, 0.0, 1.0]] * 2))  # the smallest window, left and at the bottom
    window = torch.nn.functional.interpolate(x[:, :, 4:, :4], scale_factor=2, mode="bilinear", align_corners=False)
    torch.testing.assert_close(corner[:, :, 1:, :-1], window[:, :, 1:, :-1])  # the other edges see pixels outside
    columns = torch.arange(16.0).expand(16, 16)
    slope = torch.stack([columns, columns.mT])[None]
    found = Crop(0.5)(slope, lambda n: torch.tensor([[0.5, 0.25, 0.75]]))[0, :, 1:-1, 1:-1]  # 12 pixels of the 16
    expected = 0.75 * (torch.arange(1, 15) + 0.5) - 0.5
    torch.testing.assert_close(
        found, torch.stack([(expected + 1).expand(14, -1), (expected + 3)[:, None].expand(-1, 14)])
    )


@pytest.mark.parametrize("step", EVERY, ids=repr)
def test_bytes_are_augmented_as_their_numbers_are(step):
    x = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    u = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    found = step(x, lambda n: u[:, :n])
    assert found.dtype == torch.uint8
    assert found.equal(step(x.double(), lambda n: u[:, :n]).round().to(torch.uint8))
    white = Shift(2, fill=255.0)(x, lambda n: torch.full((4, n), 0.999))
    assert (white[:, :, :2] == 255).all()


def test_of_several_inputs_the_first_is_augmented():
    class Masked(nn.Sequential):
        def forward(self, pixels, mask):
            return super().forward(pixels * mask)

    x, mask = images(), torch.ones(6, 1, 8, 8)
    net = rbue.convert(Masked(*network()), rbue.DropReLU(0.8), example={"pixels": x, "mask": mask})
    with pytest.warns(rbue.RbueWarning, match="pixels of the first input alone"):
        found = rbue.predict(net, {"pixels": x, "mask": mask}, samples=4, augment=EVERY, return_samples=True)
    plain = rbue.convert(network(), rbue.DropReLU(0.8), example=x)
    expected = rbue.predict(plain, x, samples=4, augment=EVERY, return_samples=True)
    torch.testing.assert_close(found.samples, expected.samples)


@pytest.mark.parametrize("outputs", ["logits", "multilabel", "values"])
def test_maps_are_not_averaged_over_moved_pixels(outputs):
    x = images()
    last = [nn.Conv2d(4, 1, 1), nn.Flatten(1, 2)] if outputs == "multilabel" else [nn.Conv2d(4, 2, 1)]
    net = rbue.convert(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), *last), rbue.DropReLU(0.8), example=x)

    def brighter(x, uniform):
        return x + uniform(1)[:, :, None, None]

    assert rbue.predict(net, x, samples=2, outputs=outputs, augment=brighter).samples_used.eq(2).all()
    with pytest.raises(InvalidInput, match=r"Shift\(pixels=1.*answers for each of them"):
        rbue.predict(net, x, samples=2, outputs=outputs, augment=[brighter, Shift(1)])


def test_an_augmentation_that_fails_is_not_tried_again():
    calls, net = [], rbue.convert(network(), rbue.DropReLU(0.9), example=images())
    with pytest.raises(rbue.InvalidInput):
        rbue.predict(net, images(), samples=4, augment=lambda x, uniform: calls.append(len(x)))
    assert calls == [24]


def test_adaptive_stopping_does_not_count_on_the_balance():
    x, net = images(), rbue.convert(network(), rbue.DropReLU(0.9), example=images())
    rule = rbue.Adaptive(tolerance=0.05, first=8)
    balanced = rbue.predict(net, x, samples=64, adaptive=rule, augment=Flip()).samples_used
    independent = rbue.predict(net, x, samples=64, adaptive=rule, augment=Flip(), draws="independent").samples_used
    plain = rbue.predict(net, x, samples=64, adaptive=rule).samples_used
    assert plain.float().mean() < balanced.float().mean()
    assert balanced.float().mean() <= 2 * independent.float().mean()


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ("flip", "augment must be a function of images .* not 'flip'"),
        ([Flip(), 3], "augment must be a function of images .* not 3"),
        (Shift, "augment must be a function of images .* not <class 'rbue.augment.Shift'>"),
        (
            lambda x: x.flip(3),
            r"augment must be a function of images and uniform numbers, augment\(x, uniform\), .* not <",
        ),
        (nn.ReLU(), r"augment must be .*, augment\(x, uniform\), .* not ReLU"),
        (Shift(99), r"a shift by 99 pixels moves images of \d+x\d+ out of sight; shift by less, such as 1\."),
        (Shift(1, fill=(1.0, 2.0)), r"fill is \(1\.0, 2\.0\) for images of 3 channels; give one, or one for each"),
        (
            lambda x, uniform: x[..., 1:],
            r"must keep images of shape \(.*, 3, 8, 8\) and .*, but <.*lambda.* gave shape \(.*, 3, 8, 7\) and ",
        ),
        (lambda x, uniform: x.double(), r"must keep .* torch\.float32 on .*lambda.* gave .* torch\.float64 on cpu\.$"),
        (lambda x, uniform: x.to("meta"), r"must keep .* on cpu, but .*lambda.* gave .* on meta\.$"),
        (lambda x, uniform: None, r"must keep .*, but <.*lambda.* gave NoneType, called as augment\(x, uniform\)\.$"),
        *(
            (step, rf"lambda.* failed \({error}: .*\); it was called as augment\(x, uniform\), where uniform\(n\) ")
            for step, error in (
                (lambda x, params=None: x[params["batch_prob"]], "TypeError"),
                (lambda x, size: x[..., : size.height], "AttributeError"),
                (lambda *args, **data: data["image"], "KeyError"),
            )
        ),
    ],
)
def test_what_is_no_augmentation_is_refused(augment, message):
    net = rbue.convert(network(), rbue.DropReLU(0.8), example=images())
    with pytest.raises(rbue.InvalidInput, match=message):
        rbue.predict(net, images(), samples=2, augment=augment)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shift(0), "pixels is 0"),
        (lambda: Crop(1.5), r"smallest .* must lie in \(0, 1\], not 1\.5"),
        (lambda: Crop(0), r"smallest .* must lie in \(0, 1\], not 0"),
        (lambda: Crop("most"), r"smallest .* must lie in \(0, 1\], not 'most'"),
        (lambda: Shift(4)(torch.zeros(1, 1, 4, 5), None), "a shift by 4 pixels moves images of 4x5 out of sight"),
        (lambda: Shift(4)(torch.zeros(1, 1, 5, 4), None), "a shift by 4 pixels moves images of 5x4 out of sight"),
        *(
            (lambda fill=fill: Shift(1, fill)(torch.zeros(1, 3, 4, 4).byte(), None), rf"fill is {fill}, which .*uint8")
            for fill in (-1, 256, 0.5)
        ),
        (lambda: Shift(1, (0, 1, -1))(torch.zeros(1, 3, 4, 4).byte(), None), r"fill is \(0, 1, -1\), which"),
        (lambda: Shift(1, fill="red"), "fill is 'red'; give a finite number, or one for each channel"),
        (lambda: Shift(1, fill=(0.0, float("nan"))), r"fill is \(0\.0, nan\); give"),
        *((lambda step=step: step(torch.zeros(3, 4), None), r"needs images .*, not \(3, 4\)") for step in EVERY),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(rbue.InvalidInput, match=message):
        make()
