"""The random stream written a second time, in numpy's uint32, from the text of its documentation alone."""

import numpy as np

WORD = np.uint32


def mix(word):
    word = np.asarray(word).astype(WORD)
    with np.errstate(over="ignore"):
        word = (word ^ (word >> WORD(16))) * WORD(0x21F0AAAD)
        word = (word ^ (word >> WORD(15))) * WORD(0x735A2D97)
    return word ^ (word >> WORD(15))


def words_of(numbers):
    """Any integers modulo 2**32."""
    return np.asarray(np.asarray(numbers, dtype=object) & 0xFFFFFFFF).astype(WORD)


def keys(seed, sample=0, image=0, site=0, domain=()):
    """``(k1, k2)``; the numbers broadcast against each other."""
    absorbed = [seed & 0xFFFFFFFF, seed >> 32, *domain, sample, image, site]
    lanes = []
    for start in (0x243F6A88, 0x13198A2E):
        lane = WORD(start)
        for word in absorbed:
            lane = mix(lane ^ words_of(word))
        lanes.append(lane)
    return lanes


def bits(element, k1, k2):
    with np.errstate(over="ignore"):
        h = (mix(element) ^ k1) * WORD(0x9E3779B1)
        h = h ^ (h >> WORD(15))
        return (h ^ k2) * WORD(0x85EBCA77)


def rows(shape, seed, sample=0, image=None, site=0):
    """The signed words of a batch of shape ``(B, ...)``, in logical order."""
    image = np.arange(shape[0]) if image is None else image
    lanes = [np.broadcast_to(lane, shape[:1])[:, None] for lane in keys(seed, sample, image, site)]
    elements = np.arange(np.prod(shape[1:], dtype=int))
    return bits(elements, *lanes).view(np.int32).reshape(shape)


def balanced_rows(shape, seed, sample, length, mirrored=False, image=None, site=0):
    """The same for balanced draws, whose cycles have ``length`` samples."""
    image = np.arange(shape[0]) if image is None else image
    cycle, place = divmod(sample, length)
    lanes = [np.broadcast_to(lane, shape[:1])[:, None] for lane in keys(seed, cycle, image, site, domain=[0xA4093822])]
    words = bits(np.arange(np.prod(shape[1:], dtype=int)), *lanes)
    with np.errstate(over="ignore"):
        words = (~words if place else words) if mirrored else words + WORD((place << 32) // length)
    return words.view(np.int32).reshape(shape)
