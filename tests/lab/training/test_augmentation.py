"""Cutout, mixup, noise, AugMix and label smoothing: each against a plain form of it, in training and resumed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from test_trainer import CPU, METHODS, RECIPE, batches, fresh, same, weights
from torch.nn import functional as F

from rbue.errors import InvalidInput, RbueError
from rbue.lab.methods import parse
from rbue.lab.methods.base import Method, TrainingProgress
from rbue.lab.training import Batches, Job, Recipe, train, train_together, trainer
from rbue.lab.training.augmentation import (
    _affine_maps,
    add_noise,
    affine,
    augmix,
    autocontrast,
    cutout,
    equalize,
    posterize,
    rotation,
    solarize,
)
from rbue.lab.training.step import TrainingStep

ON = {"cutout": 3, "mixup": 0.4, "noise": 0.2, "augmix": 1.0}
ALL = replace(RECIPE, epochs=3, label_smoothing=0.1, average="swa", average_start=1, **ON)
EVERYTHING = torch.arange(96)


def pictures(count=40, height=32, width=24, channels=3, seed=0):
    """Smooth images with a texture, of any contrast."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    waves = np.sin(rows[..., None] / rng.uniform(3, 9, (count, 1, 1, channels)) + columns[..., None] / 5)
    middle, swing = rng.uniform(60, 200, (count, 1, 1, channels)), rng.uniform(5, 120, (count, 1, 1, channels))
    return np.clip(middle + swing * waves + rng.normal(0, 4, waves.shape), 0, 255).astype(np.uint8)


def strengths(values):
    return torch.tensor(values, dtype=torch.float64)[:, None, None, None]


@pytest.mark.parametrize("side", [1, 2, 3, 8])
def test_cutout_is_a_square_of_zeros_cut_off_at_the_border(side):
    centres = [(0, 0), (7, 5), (3, 4), (0, 5)]
    x = torch.full((4, 2, 8, 6), 9.0)
    found = cutout(x, side, torch.tensor(centres))
    for image, (row, column) in zip(found, centres, strict=True):
        expected = np.full((2, 8, 6), 9)
        top, left = row - side // 2, column - side // 2
        expected[:, max(top, 0) : top + side, max(left, 0) : left + side] = 0
        np.testing.assert_array_equal(image, expected)


def test_cutout_comes_last_and_its_centres_are_any_pixel():
    data, plain = batches(cutout=3), batches()
    plan = data.plan(2)
    assert {tuple(centre) for epoch in range(9) for centre in data.plan(epoch).centres.tolist()} == {
        (row, column) for row in range(8) for column in range(8)
    }
    settings = {"batch": 20, "padding": 0, "flip": False, "seed": 0, "device": CPU, "cutout": 2}
    oblong = Batches(np.zeros((200, 4, 2, 1), np.uint8), np.zeros(200, int), [0.4], [0.25], **settings)
    pixels = [[row, column] for row in range(4) for column in range(2)]
    assert torch.unique(oblong.plan(0).centres, dim=0).tolist() == pixels
    x, y = data.take(plan, EVERYTHING)
    whole, labels = plain.take(plain.plan(2), EVERYTHING)
    changed = x != whole
    assert y.equal(labels)
    assert (x[changed] == 0).all()
    assert 0.1 < changed.float().mean() < 9 / 64  # some squares are cut off at the border


def test_noise_has_the_deviation_of_each_image_and_leaves_the_others():
    images = torch.full((6, 40, 40, 3), 128, dtype=torch.uint8)
    std = torch.tensor([0.0, 0.01, 0.05, 0.1, 0.0, 0.1])
    found = add_noise(images, std, 3).double() / 255
    assert found[0].eq(128 / 255).all()
    assert found[4].eq(128 / 255).all()
    for image, expected in zip(found, std.tolist(), strict=True):
        rounded = (expected**2 + (expected > 0) / 12 / 255**2) ** 0.5
        assert image.std().item() == pytest.approx(rounded, rel=0.03)
        assert image.mean().item() == pytest.approx(128 / 255, abs=0.006)
    one, other = (found[number].flatten() for number in (3, 5))
    assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < 0.05
    assert not add_noise(images, std, 4).equal(add_noise(images, std, 3))
    assert add_noise(torch.full_like(images, 250), std, 3).max() == 255  # and does not wrap around


def test_noise_of_an_image_does_not_depend_on_how_many_are_changed_at_once(monkeypatch):
    images, std = torch.from_numpy(pictures(9)), torch.linspace(0, 0.3, 9)
    whole = add_noise(images, std, 1)
    monkeypatch.setattr("rbue.lab.training.augmentation._PIXELS", {"cpu": 2 * 32 * 24})
    assert add_noise(images, std, 1).equal(whole)
    assert augmix(images, np.random.default_rng(0)).shape == images.shape


def test_half_of_the_images_are_clean_and_the_others_have_all_amounts_of_noise():
    images, labels = np.full((600, 16, 16, 1), 128, np.uint8), np.zeros(600, int)
    settings = {"batch": 20, "padding": 0, "flip": False, "seed": 0, "device": CPU}
    data = Batches(images, labels, [0.4], [0.25], noise=0.1, **settings)
    std = data.plan(0).images.double().flatten(1).std(1) / 255
    noisy = std[std > 0]
    assert 250 < len(noisy) < 350
    for part in (0.25, 0.5, 0.75):
        assert (noisy < part * 0.1).double().mean().item() == pytest.approx(part, abs=0.1)
    assert not data.plan(0).images.equal(data.plan(1).images)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_mixup_is_the_mixture_of_two_images_and_of_their_losses(alpha):
    data = batches(mixup=alpha)
    method, plan, progress = parse("single"), data.plan(1), TrainingProgress(torch.tensor(0.0), 96)
    network = fresh(method)
    step = TrainingStep(network, method, data, RECIPE, 0)
    step.plan = plan
    for start in (0, 20, 80):  # the last one is smaller
        places = torch.arange(start, min(start + 20, 96))
        part = plan.parts[start // 20].item()
        x, y = data.take(plan, places)
        (loss, logits), labels = step.loss_at(places)
        mixed = torch.stack([part * x[i] + (1 - part) * x[-1 - i] for i in range(len(x))])
        expected = part * F.cross_entropy(network(mixed), y) + (1 - part) * F.cross_entropy(network(mixed), y.flip(0))
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(logits, network(mixed))
        assert labels.equal(y)
        assert method.loss(network, mixed, y, progress)[0] != loss
    parts = torch.cat([data.plan(epoch).parts for epoch in range(400)])
    assert parts.min() >= 0.5
    expected = np.random.default_rng(0).beta(alpha, alpha, 100_000)
    np.testing.assert_allclose(parts.mean(), np.maximum(expected, 1 - expected).mean(), atol=0.01)


@pytest.mark.parametrize("spec", [*METHODS, "own"])
def test_label_smoothing_is_that_of_cross_entropy_for_every_method(spec):
    class Own(Method):
        def loss(self, network, x, y, progress):
            logits = network(x)
            return F.cross_entropy(logits, y), logits

    method, data = Own() if spec == "own" else parse(spec), batches(classes=2)
    torch.manual_seed(0)
    network, found = fresh(method), []
    for smoothing in (0.0, 0.3):
        step = TrainingStep(network, method, data, replace(RECIPE, label_smoothing=smoothing), 0)
        step.start_epoch(0)  # the same masks and noise
        found.append(step.next_loss(20, step.loss_at))
    ((plain, logits), y), ((smooth, _), _) = found
    more = F.cross_entropy(logits, y, label_smoothing=0.3) - F.cross_entropy(logits, y)
    torch.testing.assert_close(smooth, plain + more)
    assert smooth != plain


def test_labels_are_smoothed_over_classes_that_no_image_has():
    data = batches(classes=5)
    x, y = data.take(data.plan(0), EVERYTHING)
    _, target = data.soften(data.plan(0), EVERYTHING, x, y, 0.2)
    assert target.shape == (96, 5)
    torch.testing.assert_close(target.sum(1), torch.ones(96))
    assert target.unique().tolist() == pytest.approx([0.04, 0.84])
    assert batches().classes == 2


@pytest.mark.parametrize(
    ("ours", "pillows"), [(autocontrast, ImageOps.autocontrast), (equalize, ImageOps.equalize)], ids=lambda one: ""
)
def test_contrast_is_that_of_pillow(ours, pillows):
    images = pictures()
    images[0], images[1, ..., 0] = 7, 200  # nothing to stretch
    images[2, :, :, 1] = np.where(np.arange(24) < 12, 40, 90)
    expected = [np.asarray(pillows(Image.fromarray(image))) for image in images]
    difference = np.abs(ours(torch.from_numpy(images)).numpy().astype(int) - np.stack(expected))
    assert difference.max() <= 1  # Pillow cuts off, we round
    assert (difference > 0).mean() < (0.7 if ours is autocontrast else 1e-9)


@pytest.mark.parametrize(
    ("ours", "amounts", "pillows"),
    [
        (posterize, [0.0, 0.1, 0.26, 0.5], [(ImageOps.posterize, bits) for bits in (4, 4, 3, 2)]),
        (solarize, [0.01, 0.1, 0.3, 1.0], [(ImageOps.solarize, threshold) for threshold in (254, 231, 180, 0)]),
    ],
    ids=["posterize", "solarize"],
)
def test_operations_on_values_are_those_of_pillow(ours, amounts, pillows):
    images = pictures(4)
    images[:, 0] = np.arange(24)[:, None] * 11
    found = ours(torch.from_numpy(images), strengths(amounts))
    assert found.dtype == torch.uint8
    for image, changed, (pillow, amount) in zip(images, found, pillows, strict=True):
        np.testing.assert_array_equal(changed, np.asarray(pillow(Image.fromarray(image), amount)))


def test_a_quarter_turn_and_whole_steps_are_exact():
    images = torch.from_numpy(pictures(2, 16, 16))
    turned = np.concatenate([rotation(np.array([90.0, -90.0])), np.zeros((2, 2, 1))], 2)
    for image, found, quarters in zip(images, affine(images, turned), (-1, 1), strict=True):
        np.testing.assert_array_equal(found, np.rot90(image, quarters))
    steps = np.tile(np.eye(2, 3), (2, 1, 1))
    steps[0, 0, 2], steps[1, 1, 2] = 3, -2
    right, down = affine(images, steps)
    np.testing.assert_array_equal(right, np.pad(images[0], ((0, 0), (0, 3), (0, 0)))[:, 3:])
    np.testing.assert_array_equal(down, np.pad(images[1], ((2, 0), (0, 0), (0, 0)))[:-2])


def test_a_shear_of_an_oblong_image_is_in_its_pixels():
    """As Pillow samples it, whose maps begin at a corner."""
    image = pictures(1, 32, 24)
    shear = 0.25
    (found,) = affine(torch.from_numpy(image), np.array([[[1, shear, 0], [0, 1, 0]]]))
    corner = (1, shear, -shear * 16, 0, 1, 0)
    expected = np.asarray(Image.fromarray(image[0]).transform((24, 32), Image.Transform.AFFINE, corner, 2))
    inside = np.abs(found.numpy().astype(int) - expected)[:, 5:-5]
    assert inside.max() <= 1
    assert np.abs(found.numpy().astype(int) - image[0]).max() > 10


def test_the_strongest_turn_shears_and_steps():
    """30 degrees, a slope of 0.3 along rows and columns, and whole pixels of a third of the width and height."""
    turn, *others = _affine_maps(np.arange(4, 9), np.ones(5), torch.Size((32, 23)))
    np.testing.assert_array_equal(turn[:, :2], rotation(np.array([30.0]))[0])
    changed = [{(i, j): map_[i, j] - np.eye(2, 3)[i, j] for i, j in np.ndindex(2, 3)} for map_ in others]
    changed = [{place: amount for place, amount in one.items() if amount} for one in changed]
    assert changed == [{(0, 1): 0.3}, {(1, 0): 0.3}, {(0, 2): 7}, {(1, 2): 10}]


def test_augmix_is_a_mixture_of_chains(monkeypatch):
    """With operations that write down what they did: weights that sum to one, chains of one to three operations."""
    images = torch.full((2000, 2, 2, 1), 100, dtype=torch.uint8)
    seen = []

    def noting(x, operations, amounts):
        seen.append((operations, amounts))
        x[torch.from_numpy(operations >= 0)] = 200

    monkeypatch.setattr("rbue.lab.training.augmentation._apply_", noting)
    found = augmix(images, np.random.default_rng(0))[:, 0, 0, 0].double()
    assert 100 <= found.min() < 105
    assert 195 < found.max() <= 200
    assert found.mean() == pytest.approx(150, abs=3)  # every chain is 200, and the weight of all of them uniform
    operations = np.stack([one for one, _ in seen]).reshape(3, 3, 2000)
    assert set(operations.flatten().tolist()) == set(range(-1, 9))
    assert (operations[:, 0] >= 0).all()
    np.testing.assert_allclose((operations >= 0).mean((0, 2)), [1, 2 / 3, 1 / 3], atol=0.03)
    amounts = np.abs(np.stack([amount for _, amount in seen]))
    assert 0.01 <= amounts.min() < amounts.max() <= 0.3


def test_augmix_changes_images_but_they_stay_themselves():
    images = torch.from_numpy(pictures(200, seed=3))
    found = augmix(images, np.random.default_rng(0))
    assert found.dtype == torch.uint8
    assert found.equal(augmix(images, np.random.default_rng(0)))
    pairs = torch.stack([images.flatten(1).double(), found.flatten(1).double()])
    alike = torch.stack([torch.corrcoef(pairs[:, number])[0, 1] for number in range(200)])
    assert alike.median() > 0.8
    assert (found != images).flatten(1).any(1).float().mean() > 0.9
    assert images.equal(torch.from_numpy(pictures(200, seed=3)))  # not in place
    some = augmix(images, np.random.default_rng(0), 0.3)
    same, whole = ((some == other).flatten(1).all(1) for other in (images, found))
    assert (same | whole).all()
    assert 0.2 < whole.float().mean() < 0.45
    data = batches(augmix=0.3)
    assert 0.1 < (data.plan(0).images != data.images).flatten(1).any(1).float().mean() < 0.5


@pytest.mark.parametrize("name", ON)
def test_what_one_draws_does_not_depend_on_the_others(name):
    alone, together = (batches(**settings).plan(3) for settings in ({name: ON[name]}, ON))
    plain = batches().plan(3)
    for drawn in ("order", "shifts", "flips"):
        assert getattr(alone, drawn).equal(getattr(plain, drawn))
    for drawn in {"cutout": ["centres"], "mixup": ["parts"]}.get(name, []):
        assert getattr(alone, drawn).equal(getattr(together, drawn))
    assert (plain.centres, plain.parts, plain.images) == (None, None, None)


def trained(spec="mc-droprelu:0.8", recipe=ALL, seed=0, **settings):
    method = parse(spec)
    network = fresh(method)
    train(Job(network, method, batches(seed, **ON), recipe, seed, **settings), "plain")
    return network


@pytest.mark.parametrize(
    "spec", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("single", "svi")), "mc-droprelu:0.8"]
)
def test_a_stopped_run_with_everything_on_goes_on_bit_for_bit(spec, tmp_path, monkeypatch):
    file = tmp_path / "state.safetensors"
    monkeypatch.setattr(trainer._Runner, "_is_time_to_save", lambda *_: True)

    def interrupt(report):
        if report.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(spec, checkpoint=file, report=interrupt)
    with pytest.raises(RbueError, match=r"holds a training with .*mixup"):
        trained(spec, replace(ALL, mixup=0.0), checkpoint=file)
    assert same(weights(trained(spec, checkpoint=file)), weights(trained(spec)))
    assert not same(weights(trained(spec)), weights(trained(spec, seed=1)))


def test_networks_side_by_side_are_those_of_training_alone():
    method = parse("mc-droprelu:0.8")
    jobs = [Job(fresh(method), method, batches(seed, **ON), ALL, seed) for seed in (0, 1)]
    train_together(jobs, "plain")
    for seed, job in enumerate(jobs):
        assert same(weights(job.network), weights(trained(seed=seed)))


def test_a_network_learns_with_everything_on():
    reports = []
    trained("single", replace(ALL, epochs=15), report=reports.append)
    assert reports[-1].accuracy > 0.8 > reports[0].accuracy


def test_epochs_are_the_same_whatever_torchs_default_device_is():
    data = batches(**ON)
    plan = data.plan(1)
    with torch.device("meta"):
        elsewhere = data.plan(1)
    for name in ("order", "shifts", "flips", "centres", "parts", "images"):
        assert getattr(elsewhere, name).equal(getattr(plan, name))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *(("label_smoothing", value, "a number from 0 to below 1") for value in (-0.1, 1.0, "0.1", None)),
        *(("mixup", value, "a number of at least 0") for value in (-0.1, float("inf"), True)),
        *(("noise", value, "a number from 0 to 1") for value in (-0.1, 1.5, float("nan"))),
        *(("cutout", value, "a whole number of at least 0") for value in (1.5, None)),
        *(("augmix", value, "a number from 0 to 1") for value in (3, -0.1, True, "yes")),
    ],
)
def test_what_cannot_be_is_named(name, value, allowed):
    with pytest.raises(InvalidInput) as refusal:
        Recipe(**{name: value})
    assert str(refusal.value) == f"{name} must be {allowed}, not {value!r}."


def test_a_square_larger_than_the_images_is_refused():
    assert batches(cutout=8).cutout == 8
    with pytest.raises(InvalidInput, match=r"^cutout must be at most 8 pixels, the side of the images, not 9\.$"):
        batches(cutout=9)


def test_only_what_is_on_is_stored():
    on = {"label_smoothing": 0.1, **ON}
    assert not on.keys() & Recipe().as_json().keys()
    assert Recipe(**dict.fromkeys(on, 0)).as_json() == Recipe().as_json()
    for name, value in on.items():
        content = Recipe(**{name: value}).as_json()
        assert content == {**Recipe().as_json(), name: value}
        assert Recipe.from_json(content) == Recipe(**{name: value})


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["captured", "compiled"])
def test_everything_on_a_gpu_is_as_in_the_plain_loop(engine):
    """Bit for bit when captured; closely when compiled."""
    method, found = parse("mc-droprelu:0.8"), []
    for name in ("plain", engine):
        network = fresh(method).cuda()
        summary = train(Job(network, method, batches(device=torch.device("cuda"), **ON), ALL, 0), name)
        assert summary.engine == name
        found.append(torch.cat([value.flatten().double() for value in weights(network).values()]))
    tolerance = 0.0 if engine == "captured" else 0.05
    torch.testing.assert_close(found[1], found[0], atol=tolerance, rtol=tolerance)


@pytest.mark.gpu
def test_a_gpu_sees_the_images_of_a_cpu():
    images, labels = pictures(500), np.arange(500) % 10
    settings = {"batch": 100, "padding": 4, "flip": True, "seed": 0, "noise": 0.2, "augmix": 1.0}
    here, there = (
        Batches(images, labels, [0.4] * 3, [0.25] * 3, device=torch.device(device), **settings).plan(2).images.cpu()
        for device in ("cpu", "cuda")
    )
    difference = (here.int() - there.int()).abs()
    assert difference.max() <= 40  # equalize has steps: a value that was rounded the other way may be on the next
    assert (difference > 1).float().mean() < 1e-3
