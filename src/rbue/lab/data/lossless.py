"""Lossless coding of image blocks: what neighbours and the green channel do not foretell, deflated.

Red and blue become differences to green; every pixel becomes its difference to ``left + above - above left``; all
modulo 256, so that running sums bring every bit back. On photographs this halves what deflate alone leaves.
"""

from __future__ import annotations

import zlib

import numpy as np

from rbue.lab.data.images import Bytes

_SAMPLE = 1 << 16


def encode_images(images: Bytes) -> bytes:
    """A block of images (N, H, W, C) as bytes."""
    rest = images.copy()
    if images.shape[3] == 3:
        rest[..., 0] -= images[..., 1]
        rest[..., 2] -= images[..., 1]
    rest[:, 1:] -= rest[:, :-1].copy()
    rest[:, :, 1:] -= rest[:, :, :-1].copy()
    return encode_bytes(np.ascontiguousarray(rest.transpose(3, 0, 1, 2)).tobytes())


def decode_images(data: bytes, count: int, shape: tuple[int, int, int]) -> Bytes:
    """The block of images again, bit for bit.

    Raises:
        ValueError: The bytes are not such a block.
    """
    height, width, channels = shape
    raw = decode_bytes(data, count * height * width * channels)
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(channels, count, height, width)
    images = planes.transpose(1, 2, 3, 0)
    images = np.cumsum(images, axis=2, dtype=np.uint8)
    images = np.cumsum(images, axis=1, dtype=np.uint8)
    if channels == 3:
        images[..., 0] += images[..., 1]
        images[..., 2] += images[..., 1]
    return images


def encode_bytes(raw: bytes) -> bytes:
    """Deflated with or without the search for repetitions, whichever suits the first bytes better."""
    strategies = (zlib.Z_HUFFMAN_ONLY, zlib.Z_DEFAULT_STRATEGY)
    return _deflate(raw, min(strategies, key=lambda strategy: len(_deflate(raw[:_SAMPLE], strategy))))


def _deflate(raw: bytes, strategy: int) -> bytes:
    coder = zlib.compressobj(6, zlib.DEFLATED, 15, 9, strategy)
    return coder.compress(raw) + coder.flush()


def decode_bytes(data: bytes, size: int) -> bytes:
    """Inflated to exactly ``size`` bytes.

    Raises:
        ValueError: The bytes are damaged or of another size.
    """
    coder = zlib.decompressobj()
    try:
        raw = coder.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(raw) != size or not coder.eof:
        raise ValueError(f"{len(raw)} bytes instead of {size}")
    return raw
