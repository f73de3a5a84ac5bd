"""The corruptions a second time, slowly: other libraries, plain loops, and statistics of what must come out."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import lru_cache

import cv2
import numpy as np
from PIL import Image
from scipy import ndimage
from skimage import color
from skimage.filters import gaussian

from rbue.lab.corruptions import CORRUPTIONS, constants_of
from rbue.lab.corruptions.corrupting import Batch
from rbue.lab.corruptions.frost import ice, shrink


@lru_cache
def scenes(count: int | None = None, side: int = 32) -> np.ndarray:
    """Coloured shapes on smooth grounds with some texture; a few grey, black and white pixels."""
    count = count or (24 if side <= 32 else 10)
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:side, :side] / side
    images = np.empty((count, side, side, 3))
    for image in images:
        ground = ndimage.zoom(random.uniform(60, 180, (4, 4, 3)), (side / 4, side / 4, 1), order=1)
        image[:] = ground
        for _ in range(5):
            (y, x), (h, w) = random.random(2), random.uniform(0.08, 0.3, 2)
            inside = (
                ((rows - y) / h) ** 2 + ((columns - x) / w) ** 2 < 1
                if random.random() < 0.5
                else ((abs(rows - y) < h) & (abs(columns - x) < w))
            )
            image[inside] = random.uniform(15, 240, 3)
        image += 8 * ndimage.gaussian_filter(random.standard_normal((side, side, 1)), (0.7, 0.7, 0))
    images = np.clip(images, 0, 255).astype(np.uint8)
    images[0, :4, :4], images[1, :4, :4], images[2, :4, :4] = 0, 255, 128
    images[3] = images[3].mean(-1, keepdims=True)
    return images


def draws(images: np.ndarray, name: str, severity: int, seed: int = 0) -> Batch:
    """The random numbers that belong to images 0, 1, ... under a corruption."""
    return Batch(images, np.arange(len(images), dtype=np.uint64), seed, severity, CORRUPTIONS.index(name))


def cut(fractions: np.ndarray) -> np.ndarray:
    return (np.clip(fractions, 0, 1) * 255).astype(np.uint8)


def constants(images: np.ndarray, name: str, severity: int) -> tuple[float, ...]:
    return constants_of(name, severity, images.shape[1])


# What must come out, value by value


def defocus_blur(images: np.ndarray, severity: int) -> np.ndarray:
    radius, deviation = constants(images, "defocus_blur", severity)
    line = np.arange(-8, 9)
    kernel = np.float32(np.hypot(*np.meshgrid(line, line)) <= radius)
    kernel = cv2.GaussianBlur(kernel / kernel.sum(), (3, 3), deviation)
    return np.stack([cut(cv2.filter2D(image / 255.0, -1, kernel)) for image in images])


def gaussian_blur(images: np.ndarray, severity: int) -> np.ndarray:
    (deviation,) = constants(images, "gaussian_blur", severity)
    return np.stack([cut(gaussian(image / 255.0, deviation, channel_axis=-1)) for image in images])


def glass_blur(images: np.ndarray, severity: int) -> np.ndarray:
    deviation, reach, rounds = constants(images, "glass_blur", severity)
    side = images.shape[1]
    steps = draws(images, "glass_blur", severity).integers(-reach, reach, rounds, 2, side - 2 * reach, side - 2 * reach)
    results = []
    for image, moves in zip(images, steps, strict=True):
        pixels = cut(gaussian(image / 255.0, deviation, channel_axis=-1))
        for down, right in moves:
            for row in range(side - reach, reach, -1):
                for column in range(side - reach, reach, -1):
                    at = row - reach - 1, column - reach - 1
                    pixels[row, column] = pixels[row + down[at], column + right[at]]
        results.append(cut(gaussian(pixels / 255.0, deviation, channel_axis=-1)))
    return np.stack(results)


def trail(image: np.ndarray, radius: float, deviation: float, degrees: float) -> np.ndarray:
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * deviation**2))
    rows, columns = np.indices(image.shape[:2])
    total = np.zeros(image.shape)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        down = math.ceil(step * math.sin(math.radians(degrees)) - 0.5)
        right = math.ceil(step * math.cos(math.radians(degrees)) - 0.5)
        total += (
            weight * image[np.clip(rows + down, 0, image.shape[0] - 1), np.clip(columns + right, 0, image.shape[1] - 1)]
        )
    return np.floor(total + 0.0019).astype(np.uint8)


def motion_blur(images: np.ndarray, severity: int) -> np.ndarray:
    radius, deviation = constants(images, "motion_blur", severity)
    angles = draws(images, "motion_blur", severity).uniform(-45, 45)
    return np.stack([trail(image, radius, deviation, angle) for image, angle in zip(images, angles, strict=True)])


def enlarged(image: np.ndarray, factor: float) -> np.ndarray:
    side = len(image)
    kept = math.ceil(side / factor)
    first = (side - kept) // 2
    middle = image[first : first + kept, first : first + kept]
    larger = ndimage.zoom(middle, (factor, factor, 1), order=1)
    margin = (len(larger) - side) // 2
    return larger[margin : margin + side, margin : margin + side]


def zoom_blur(images: np.ndarray, severity: int) -> np.ndarray:
    (largest,) = constants(images, "zoom_blur", severity)
    factors = np.arange(1, largest, 0.01)
    results = []
    for image in images / 255.0:
        total = image + sum(enlarged(image, factor) for factor in factors)
        results.append(cut(total / (len(factors) + 1)))
    return np.stack(results)


def snow(images: np.ndarray, severity: int) -> np.ndarray:
    mean, deviation, factor, threshold, radius, blur, mix = constants(images, "snow", severity)
    batch = draws(images, "snow", severity)
    layers, angles = batch.normal(*images.shape[1:3]) * deviation + mean, batch.uniform(-135, -45)
    results = []
    for image, layer, angle in zip(images, layers, angles, strict=True):
        flakes = enlarged(layer[..., None], factor)
        flakes = trail(cut(np.where(flakes < threshold, 0, flakes)), radius, blur, angle) / 255.0
        clear = np.float32(image) / 255
        pale = np.maximum(clear, cv2.cvtColor(clear, cv2.COLOR_RGB2GRAY)[..., None] * 1.5 + 0.5)
        results.append(cut(mix * clear + (1 - mix) * pale + flakes + np.rot90(flakes, 2)))
    return np.stack(results)


def spatter(images: np.ndarray, severity: int) -> np.ndarray:
    mean, deviation, smoothing, threshold, strength, mud = constants(images, "spatter", severity)
    layers = draws(images, "spatter", severity).normal(*images.shape[1:3]) * deviation + mean
    results = []
    for image, layer in zip(images / 255.0, layers, strict=True):
        liquid = gaussian(layer, smoothing)
        if mud:
            cover = gaussian((liquid > threshold).astype(np.float64), strength)[..., None]
            cover = np.where(cover < 0.8, 0, cover)
            results.append(cut(image * (1 - cover) + cover * np.array([63, 42, 20]) / 255))
            continue
        drops = (np.where(liquid < threshold, 0, liquid) * 255).astype(np.uint8)
        distance = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
        distance = cv2.threshold(distance, 20, 20, cv2.THRESH_TRUNC)[1]
        relief = cv2.equalizeHist(np.uint8(cv2.blur(distance, (3, 3))))
        relief = cv2.filter2D(relief, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
        shine = drops * np.float32(cv2.blur(relief, (3, 3)))
        shine = strength * shine / max(shine.max(), 1e-9)
        results.append(cut(image + shine[..., None] * np.array([175, 238, 238]) / 255))
    return np.stack(results)


def brightness(images: np.ndarray, severity: int) -> np.ndarray:
    (added,) = constants(images, "brightness", severity)
    hsv = color.rgb2hsv(images)
    hsv[..., 2] = np.clip(hsv[..., 2] + added, 0, 1)
    return cut(color.hsv2rgb(hsv))


def saturate(images: np.ndarray, severity: int) -> np.ndarray:
    factor, added = constants(images, "saturate", severity)
    hsv = color.rgb2hsv(images)
    hsv[..., 1] = np.clip(hsv[..., 1] * factor + added, 0, 1)
    return cut(color.hsv2rgb(hsv))


def contrast(images: np.ndarray, severity: int) -> np.ndarray:
    (factor,) = constants(images, "contrast", severity)
    return np.stack(
        [cut(factor * image + (1 - factor) * image.mean((0, 1), keepdims=True)) for image in images / 255.0]
    )


def elastic_transform(images: np.ndarray, severity: int) -> np.ndarray:
    strength, smoothing, jitter = constants(images, "elastic_transform", severity)
    side = images.shape[1]
    batch = draws(images, "elastic_transform", severity)
    moves = batch.uniform(-jitter * side, jitter * side, 3, 2)
    fields = batch.uniform(-1, 1, 2, side, side) if strength else np.zeros((len(images), 2, side, side))
    middle, third = side // 2, side // 3
    corners = np.float32([(middle + a * third, middle + b * third) for a, b in ((1, 1), (1, -1), (-1, -1))])
    results = []
    for image, move, field in zip(images, moves, fields, strict=True):
        affine = cv2.getAffineTransform(corners, corners + np.float32(move))
        warped = cv2.warpAffine(np.float32(image) / 255, affine, (side, side), borderMode=cv2.BORDER_REFLECT_101)
        down, right = (
            strength * side * gaussian(part, smoothing * side, mode="reflect", truncate=3) if strength else part
            for part in field
        )
        rows, columns = np.indices((side, side)) + np.stack([down, right])
        channels = [ndimage.map_coordinates(warped[..., c], [rows, columns], order=1, mode="reflect") for c in range(3)]
        results.append(cut(np.stack(channels, -1)))
    return np.stack(results)


def pixelate(images: np.ndarray, severity: int) -> np.ndarray:
    (share,) = constants(images, "pixelate", severity)
    side = images.shape[1]
    coarse = int(side * share)

    def box(size: int, new: int) -> np.ndarray:
        """How much of each old pixel lies in each new one; Pillow takes old pixels whole, by their middles."""
        old = np.arange(size) + 0.5
        inside = np.abs(old - (np.arange(new)[:, None] + 0.5) * size / new) <= max(1, size / new) / 2
        return inside / inside.sum(1, keepdims=True)

    down, up = box(side, coarse), box(coarse, side)
    for weights in (down, up):
        for axis in (2, 1):
            means = np.moveaxis(np.tensordot(images.astype(float), weights, (axis, 1)), -1, axis)
            images = np.floor(means + 0.5).astype(np.uint8)
    return images


def jpeg_compression(images: np.ndarray, severity: int) -> np.ndarray:
    (quality,) = constants(images, "jpeg_compression", severity)
    results = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, format="JPEG", quality=quality)
        results.append(np.asarray(Image.open(io.BytesIO(file.getvalue()))))
    return np.stack(results)


# By corruption, the reference and how many grey levels the mean absolute difference may reach. A result that is exactly
# a whole level may be cut off to the one below; this is common for saturate. OpenCV rounds places to 1/32 of a pixel.
REFERENCES: dict[str, tuple[Callable[[np.ndarray, int], np.ndarray], float]] = {
    "defocus_blur": (defocus_blur, 0.05),
    "gaussian_blur": (gaussian_blur, 0.01),
    "glass_blur": (glass_blur, 0.01),
    "motion_blur": (motion_blur, 0.01),
    "zoom_blur": (zoom_blur, 0.05),
    "snow": (snow, 0.05),
    "spatter": (spatter, 0.05),
    "brightness": (brightness, 0.05),
    "saturate": (saturate, 0.15),
    "contrast": (contrast, 0.01),
    "elastic_transform": (elastic_transform, 0.3),
    "pixelate": (pixelate, 0.05),
    "jpeg_compression": (jpeg_compression, 0.0),
}


@lru_cache
def reference(name: str, severity: int, side: int) -> np.ndarray:
    return REFERENCES[name][0](scenes(side=side), severity)


# What must come out, in distribution


def _noise(images: np.ndarray, damaged: np.ndarray, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """The clean values between two levels and what was added to them, as fractions."""
    chosen = (images >= low) & (images <= high)
    clean = images[chosen] / 255.0
    return clean, (damaged[chosen] + 0.5) / 255.0 - clean


def _is_normal(values: np.ndarray, deviation: float) -> None:
    assert abs(values.mean()) < 0.1 * deviation
    assert values.std() == np.clip(values.std(), 0.93 * deviation, 1.07 * deviation)
    assert abs((np.abs(values) < deviation).mean() - 0.683) < 0.03


def check_gaussian_noise(images: np.ndarray, damaged: np.ndarray, severity: int) -> None:
    (deviation,) = constants(images, "gaussian_noise", severity)
    for low, high in ((70, 120), (130, 190)):
        _is_normal(_noise(images, damaged, low, high)[1], deviation)


def check_speckle_noise(images: np.ndarray, damaged: np.ndarray, severity: int) -> None:
    (deviation,) = constants(images, "speckle_noise", severity)
    for low, high in ((60, 90), (120, 160)):
        clean, added = _noise(images, damaged, low, high)
        _is_normal(added / clean, deviation)


def check_shot_noise(images: np.ndarray, damaged: np.ndarray, severity: int) -> None:
    (photons,) = constants(images, "shot_noise", severity)
    possible = cut(np.arange(2 * photons) / photons)
    assert np.isin(damaged, possible).all()
    for low, high in ((50, 90), (120, 160)):
        clean, added = _noise(images, damaged, low, high)
        _is_normal(added / np.sqrt(clean / photons), 1.0)


def check_impulse_noise(images: np.ndarray, damaged: np.ndarray, severity: int) -> None:
    (amount,) = constants(images, "impulse_noise", severity)
    inner = (images > 0) & (images < 255)
    lost = (images != damaged) & inner
    assert set(np.unique(damaged[lost])) == {0, 255}
    assert abs(lost.sum() / inner.sum() / amount - 1) < 0.25
    assert abs((damaged[lost] == 255).mean() - 0.5) < 0.1
    alone = lost.sum(-1) == 1
    assert alone.sum() > 0.7 * (lost.any(-1)).sum()


def check_fog(images: np.ndarray, damaged: np.ndarray, severity: int) -> None:
    """Undone, what remains is one grey cloud an image that just fills 0 to 1."""
    amount, _ = constants(images, "fog", severity)
    largest = images.max((1, 2, 3), keepdims=True) / 255.0
    cloud = ((damaged + 0.5) / 255.0 * (largest + amount) / largest - images / 255.0) / amount
    slack = 0.6 / 255 * (1 + amount / largest.min()) / amount
    assert np.ptp(cloud, axis=-1).max() < 2 * slack
    assert np.abs(cloud.min((1, 2, 3))).max() < slack
    assert np.abs(cloud.max((1, 2, 3)) - 1).max() < slack
    flat = cloud.mean(-1)
    assert np.abs(np.diff(flat, axis=1)).mean() < 0.7 * np.abs(flat - np.roll(flat, flat.shape[1] // 2, 1)).mean()


def check_frost(images: np.ndarray, damaged: np.ndarray, severity: int) -> None:
    """Undone, what remains is found somewhere in one of the textures."""
    image_weight, frost_weight, scale = constants(images, "frost", severity)
    textures = [np.float32(shrink(texture, scale)) for texture in ice()]
    found = set()
    for image, result in zip(images[:8], damaged[:8], strict=True):
        piece = np.float32((result + 0.5 - image_weight * image) / frost_weight)
        visible = np.float32(result < 255)
        misses = [
            cv2.matchTemplate(texture, piece, cv2.TM_SQDIFF, mask=visible).min() / visible.sum() for texture in textures
        ]
        assert min(misses) < 4.0 / frost_weight
        found.add(int(np.argmin(misses)))
    assert len(found) > 1


STATISTICS: dict[str, Callable[[np.ndarray, np.ndarray, int], None]] = {
    "gaussian_noise": check_gaussian_noise,
    "speckle_noise": check_speckle_noise,
    "shot_noise": check_shot_noise,
    "impulse_noise": check_impulse_noise,
    "fog": check_fog,
    "frost": check_frost,
}


def check(name: str, damaged: np.ndarray, severity: int) -> None:
    """Raises AssertionError unless ``damaged`` is what a corruption makes of :func:`scenes`."""
    side = damaged.shape[1]
    if name in STATISTICS:
        STATISTICS[name](scenes(side=side), damaged, severity)
        return
    difference = np.abs(damaged.astype(int) - reference(name, severity, side))
    assert difference.mean() <= REFERENCES[name][1], f"{difference.mean():.4f} levels off, at most {difference.max()}"
    assert (difference > 1).mean() <= (0.05 if name == "elastic_transform" else 0.001), difference.max()
