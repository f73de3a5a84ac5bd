"""Stateless random bits: ``(seed, sample, image, site, element) -> 32 bits``.

Nothing here has a hidden state. The bits of one element of one activation depend only on five numbers, so
sample ``k`` of image ``i`` is the same whatever the batch size, the chunking, the memory format, the device
or the number of processes, in eager, compiled, vmapped and exported form.

Two steps lead from the five numbers to the bits:

1. *Key.* Two 32-bit lanes absorb the words ``seed_low, seed_high, sample, image, site`` one after the other,
   ``lane <- mix(lane ^ word)``. The lanes start from different constants, so together they are a 64-bit key
   ``(k1, k2)``. One key serves a whole feature map.
2. *Bits.* With ``t = mix(element)``, the element's place in logical ``C, H, W`` order::

       h = (t ^ k1) * 0x9E3779B1
       h = h ^ (h >>> 15)
       h = (h ^ k2) * 0x85EBCA77

   ``t`` does not depend on the key. It is one table for all sites, images and samples, which leaves six
   cheap integer operations an element. The multiplications carry upwards, so the high bits are the good
   ones: a consumer compares the whole signed word (:func:`threshold`) or takes its top bits
   (:func:`odd_words`).

Each element has a hash of its own. Sharing one between neighbours would tie the stream to a memory layout,
cost more than it saves on a CPU, and cut a probability to 16 bits; kernels save the same work by holding
``t`` in registers across images.

*Balanced draws* turn one word into those of a whole cycle of samples; see :class:`Cycle`.

All arithmetic is modulo 2**32; ``>>>`` is the logical shift. Words travel as ``int32`` tensors. Changing any
constant here changes every result: raise :data:`VERSION` with it.
"""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from rbue.errors import InvalidInput

VERSION = 1
"""Version of the stream. It is written into every result; equal versions mean equal bits."""

LANE_START = (0x243F6A88, 0x13198A2E)
"""Where the two key lanes start: the first and third word of the fraction of pi."""

MIX_MULTIPLIERS = (0x21F0AAAD, 0x735A2D97)
BITS_MULTIPLIERS = (0x9E3779B1, 0x85EBCA77)

BALANCED, AUGMENTED = 0xA4093822, 0x299F31D0
"""What the lanes absorb after the seed where draws are balanced, and for augmentations: the fifth and sixth word of the
fraction of pi."""

_WORD = 0xFFFFFFFF


def signed32(word: int) -> int:
    """The ``int32`` with the same bits as ``word`` modulo 2**32.

    >>> signed32(0xFFFFFFFF), signed32(5)
    (-1, 5)
    """
    word &= _WORD
    return word - (1 << 32) if word & 0x80000000 else word


def multiply(x: Tensor, constant: int) -> Tensor:
    """``x * constant`` modulo 2**32, for ``int32`` words or ``int64`` words in ``[0, 2**32)``.

    The constant is taken as a signed word, so the ``int64`` product stays below 2**63 in magnitude.
    """
    product = x * signed32(constant)
    return product & _WORD if x.dtype == torch.int64 else product


def shift_right(x: Tensor, by: int) -> Tensor:
    """The logical shift of words."""
    if x.dtype == torch.int64:
        return x >> by
    # torch shifts int32 arithmetically; copies of the sign bit would cancel the top bits in the xor.
    return (x >> by) & ((1 << (32 - by)) - 1)


def mix(x: Tensor) -> Tensor:
    """Scramble words one-to-one, each output bit depending on every input bit."""
    x = multiply(x ^ shift_right(x, 16), MIX_MULTIPLIERS[0])
    x = multiply(x ^ shift_right(x, 15), MIX_MULTIPLIERS[1])
    return x ^ shift_right(x, 15)


def mix_int(word: int) -> int:
    """:func:`mix` of one Python integer, as an unsigned word."""
    word &= _WORD
    word = ((word ^ (word >> 16)) * MIX_MULTIPLIERS[0]) & _WORD
    word = ((word ^ (word >> 15)) * MIX_MULTIPLIERS[1]) & _WORD
    return word ^ (word >> 15)


def check_seed(seed: int) -> int:
    """Return ``seed`` as Python's integer, which NumPy's may be too, if it has at most 64 bits, else raise."""
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise InvalidInput(f"seed must be an integer, not {seed!r}.")
    if not 0 <= seed < 1 << 64:
        raise InvalidInput(f"seed must lie in [0, 2**64), not {seed}.")
    return int(seed)


def seed_lanes(seed: int) -> tuple[int, int]:
    """The two lanes after absorbing a 64-bit seed, as signed 32-bit integers."""
    seed = check_seed(seed)
    low, high = seed & _WORD, seed >> 32
    first, second = (signed32(mix_int(mix_int(start ^ low) ^ high)) for start in LANE_START)
    return first, second


def seed_state(seed: int | Tensor, device: torch.device | str | None = None) -> Tensor:
    """The two lanes after absorbing the seed, as an ``int32`` tensor of shape ``(2,)``.

    A tensor seed (one integer, read as 64 bits) stays on its device and may be traced, captured or vmapped.
    """
    if not isinstance(seed, Tensor):
        return _pair(seed_lanes(seed), torch.int32, device)
    if seed.is_floating_point() or seed.dtype == torch.bool or seed.dim():
        raise InvalidInput(f"a seed tensor must hold one integer, not shape {tuple(seed.shape)} of {seed.dtype}.")
    wide = seed.to(torch.int64)
    start = _pair(LANE_START, torch.int64, seed.device)
    return to_int32(mix(mix(start ^ (wide & _WORD)) ^ ((wide >> 32) & _WORD)))


def _pair(numbers: tuple[int, int], dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    """Two numbers as a tensor, filled where they are needed: a graph cannot capture a copy from the host."""
    return torch.stack([torch.full((), number, dtype=dtype, device=device) for number in numbers])


def to_int32(x: Tensor) -> Tensor:
    """The low 32 bits of integers as ``int32``, without relying on how a cast treats overflow."""
    if x.dtype == torch.int32:
        return x
    half = 1 << 31
    return (((x.to(torch.int64) & _WORD) ^ half) - half).to(torch.int32)


def number(value: int | Tensor, device: torch.device | None = None) -> Tensor:
    """A sample, image or site number as ``int32`` word(s), reduced modulo 2**32."""
    if isinstance(value, Tensor):
        return to_int32(value)
    return torch.full((), signed32(value), dtype=torch.int32, device=device)


def working_words(x: Tensor) -> Tensor:
    """``int32`` words in the type to compute in: themselves, or ``int64`` inside a compiled CPU graph.

    Compiled CPU code multiplies ``int32`` as C++ does, where overflow is undefined and does go wrong; the
    ``int64`` form never overflows. Eager kernels and GPU code wrap around as they should.
    """
    if torch.compiler.is_compiling() and x.device.type == "cpu":
        return x.to(torch.int64) & _WORD
    return x


def absorb(state: Tensor, word: Tensor) -> Tensor:
    """Let the lanes take in a word that broadcasts against them; ``int32`` in and out."""
    return to_int32(mix(working_words(state) ^ working_words(word)))


def bits(table: Tensor, k1: Tensor, k2: Tensor) -> Tensor:
    """The random ``int32`` words of elements with ``table = mix(element)`` under the key ``(k1, k2)``.

    The reference every backend is tested against. The arguments broadcast.
    """
    h = multiply(working_words(table) ^ working_words(k1), BITS_MULTIPLIERS[0])
    h = h ^ shift_right(h, 15)
    return to_int32(multiply(h ^ working_words(k2), BITS_MULTIPLIERS[1]))


def unfinished_bits_into(out: Tensor, scratch: Tensor, table: Tensor, k1: Tensor, k2: Tensor) -> Tensor:
    """:func:`bits` without the last multiplication, written into ``out`` by way of ``scratch``: the eager form.

    Large CPU tensors cost page faults when they are allocated, so the caller says where to work.
    """
    torch.bitwise_xor(table, k1, out=out)
    out.mul_(signed32(BITS_MULTIPLIERS[0]))
    torch.bitwise_right_shift(out, 15, out=scratch)
    return out.bitwise_xor_(scratch.bitwise_and_((1 << 17) - 1)).bitwise_xor_(k2)


def finish_(unfinished: Tensor) -> Tensor:
    """The words, in place."""
    return unfinished.mul_(signed32(BITS_MULTIPLIERS[1]))


def finish_complement_(unfinished: Tensor) -> Tensor:
    """The complements ``~word = -1 - word`` of the words, in place, at the price of :func:`finish_`."""
    minus_one = unfinished.new_full((), -1)
    return torch.sub(minus_one, unfinished, alpha=signed32(BITS_MULTIPLIERS[1]), out=unfinished)


def element_table(count: int, device: torch.device | str | None = None) -> Tensor:
    """``mix(0), ..., mix(count - 1)``; a shorter table is a prefix of a longer one."""
    return to_int32(mix(working_words(torch.arange(count, dtype=torch.int32, device=device))))


def threshold(probability: float) -> int:
    """The ``int32`` ``t`` with ``P(word < t) = probability``, to within 2**-32, for one up to ``1 - 2**-31``.

    ``t`` is even, so that ``word < t`` equals ``(word >> 1) - t // 2 < 0``, which cannot overflow. Above
    ``1 - 2**-31`` the result is that of ``1 - 2**-31``; a probability of 1 is for callers to treat apart.

    >>> threshold(0.0) == -(2**31), threshold(0.5)
    (True, 0)
    """
    return 2 * min(round(probability * (1 << 31)), (1 << 31) - 1) - (1 << 31)


def odd_words(words: Tensor) -> Tensor:
    """The top 23 bits of each word as an odd integer in ``(-2**23, 2**23)``, in ``float32``, exactly.

    ``0.5 + odd / 2**24`` is uniform on the open interval ``(0, 1)`` and its mean is 1/2 exactly.
    """
    return ((words >> 8) | 1).to(torch.float32)


def as_mantissas(words: Tensor) -> Tensor:
    """``1.5 * 2**23 + (odd - 1) / 2`` in ``float32``, exactly: the top 23 bits of each word become a mantissa.

    GPUs convert integers slowly; this converts none.
    """
    return ((words >> 9) + 0x4B400000).view(torch.float32)


# Balanced draws


class Cycle(NamedTuple):
    """How the samples of one cycle share a word, so that their errors cancel.

    Sample ``k`` belongs to cycle ``k div length``, whose number takes the place of the sample's in the key. Its *turn*
    follows from its place ``r = k mod length`` there. As fractions of 2**32, the word ``u`` becomes
    ``frac(u + r / length)``, or, mirrored, ``u`` and ``1 - u`` in turn. Each sample alone has the words of independent
    draws: uniform, and independent across elements, sites, images and cycles.

    Attributes:
        length: samples in a cycle.
        correlation: between what one element does in two samples of a cycle: ``-1 / (length - 1)`` where all of them
            cancel. What two elements do together has the square of it, and so on.
        mirrored: see above; such a cycle has two samples.
    """

    length: int = 1
    correlation: float = 0.0
    mirrored: bool = False

    def error(self, samples: int, interactions: float) -> float:
        """The variance of the mean of the first ``samples``, over that of independent ones.

        Let a share ``interactions`` of a sample's variance come from what elements do in pairs, the rest from what each
        does alone. Both are correlated within a cycle, and not across cycles.

        >>> ten = Cycle(10, -1 / 9)
        >>> round(ten.error(10, 0.0), 12), round(ten.error(5, 0.0), 3), round(ten.error(10, 0.2), 3)
        (0.0, 0.556, 0.222)
        """
        cycles, rest = divmod(samples, self.length)

        def pairs(correlation: float) -> float:
            inside = cycles * self.length * (self.length - 1) + rest * (rest - 1)
            return 1 + correlation * inside / samples

        return (1 - interactions) * pairs(self.correlation) + interactions * pairs(self.correlation**2)


INDEPENDENT = Cycle()
"""Where every sample is a cycle of its own."""

_LONGEST = 1 << 16  # samples of a cycle: nobody draws more, and the arithmetic of turns stays within 64 bits


def drop_cycle(probability: float) -> Cycle:
    """The cycle of a yes with this probability: ``round(1 / p)`` samples, of which each element has one yes.

    ``p`` is that of the rarer answer. Where ``length * p`` is whole the count is exact but for 2**-32 of the elements;
    elsewhere some elements have one more, or one less.

    >>> drop_cycle(0.1), drop_cycle(0.8).length, drop_cycle(0.0).length
    (Cycle(length=10, correlation=-0.1111111111111111, mirrored=False), 5, 1)
    """
    rare = min(probability, 1 - probability)
    if rare <= 0:
        return INDEPENDENT
    length = round(min(1 / rare, _LONGEST))
    part = length * rare % 1
    part = 0.0 if min(part, 1 - part) < 1e-9 else part
    # Of one element the yeses of a cycle vary by part * (1 - part), and by the sum of variances and covariances.
    single = rare * (1 - rare)
    return Cycle(length, (part * (1 - part) - length * single) / (length * (length - 1) * single))


def balanced_state(state: Tensor) -> Tensor:
    """The lanes of balanced draws, from those after the seed: a domain of their own."""
    return absorb(state, number(BALANCED, state.device))


def augmented_state(state: Tensor) -> Tensor:
    """The lanes of augmentations, from those after the seed; samples of either kind have them."""
    return absorb(state, number(AUGMENTED, state.device))


def turns(samples: Tensor, cycle: Cycle) -> tuple[Tensor, Tensor]:
    """The number of each sample's cycle, and its turn there; ``int32`` words."""
    wide = samples.to(torch.int64) & _WORD
    place = wide % cycle.length
    return to_int32(wide // cycle.length), to_int32(-place if cycle.mirrored else (place << 32) // cycle.length)


def turned(words: Tensor, turn: Tensor, mirrored: bool) -> Tensor:
    """The words of samples from those of their cycles; a mirrored one is the complement."""
    return words ^ turn if mirrored else to_int32(working_words(words) + working_words(turn))
