"""What is found out about a network before many of its passes are run.

Samples may be stacked along the batch, and share what comes before the first random site, only where each comes out as
it would alone. Most networks show that in three small passes (:func:`_quick_plan`). Whatever looks odd there is looked
at one question at a time, in a dozen passes (:func:`_thorough_plan`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rbue.call_sites import NotFoldable
from rbue.call_sites.batch import Batch
from rbue.call_sites.untouched import forked_generators
from rbue.errors import warn
from rbue.kernels import kept_tables, native
from rbue.kernels.triton_support import by_formula
from rbue.sampling.passes import PassRunner
from rbue.sampling.rounding import agree
from rbue.sampling.shared_prefix import UNSHAREABLE
from rbue.sampling.watching import Generators, HostReads, LargestTensor, LiveRows, Products
from rbue.torch_internals import uncompiled

_LIVE_TENSORS = 4
"""A pass holds about this many tensors of the largest size at once, where they cannot be followed."""
_UNSEEN = 1.5
"""How many times the memory that a pass can be seen to hold it takes: libraries work in memory of their own."""
_SMALL = 1 << 17
"""Bytes of an image of which one more in a first pass costs nothing to speak of."""
_APART = {1: ([0], [0]), 3: ([1, 1], [2, 0]), 4: ([3, 0], [2, 1])}
"""Which of so many rows are run apart from the others: two sets without a common image, though of two images the third
row is the first again, and of three the fourth."""


@dataclass(frozen=True)
class PassPlan:
    """What is known about a network's passes on inputs of one shape.

    Attributes:
        share: whether what comes before the first random site runs once for all samples.
        for_image: bytes that a pass takes for each image.
        for_row: bytes that it takes for each sample of each image.
        fuse: whether calls may be fused (:mod:`rbue.sampling.fusing`).
        alone: whether an image alone was looked at too.
        batch_dependent: whether an image's samples were seen to depend on the batch it is in.
        odd_site: the name of a site whose rows were seen not to be those of images.
        stack: whether samples may share a pass. Not where one of them comes out differently alone: one mask of a ReLU
            of what was made from weights would serve all samples of a pass, and what is computed of the whole batch
            would be computed of all samples. Nor where the network's code looks at what random sites made.
        telling: whether the samples it was made with were different. If not, as before a last layer of zeros is
            trained, the next time may tell more.
        random: whether they met a random site.
        keeps: the paths of modules that keep tensors of a pass for later ones.
        made_of: a hash of the network that it was made with.
    """

    share: bool
    for_image: float
    for_row: float
    fuse: bool = True
    alone: bool = True
    batch_dependent: bool = False
    odd_site: str = ""
    stack: bool = True
    telling: bool = True
    random: bool = True
    keeps: frozenset[str] = frozenset()
    made_of: int = 0

    def cost(self, images: int, samples: int) -> float:
        """Bytes of activations that a pass holds at once, roughly."""
        return images * self.for_image + images * samples * self.for_row


@dataclass
class FirstPass:
    """What a prediction of one image asks for first: a plan can be made with it, and it need not be run again.

    Attributes:
        samples: the numbers of the samples.
        images: the number of the image, ``(1,)``.
        budget: bytes that the pass may take.
        out: its outputs ``(s, 1, ...)``, if the plan was made with it.
    """

    samples: Tensor
    images: Tensor
    budget: float
    out: Tensor | None = None

    def fits(self, largest: int) -> bool:
        """Whether it may be run, if the largest tensor of one row has so many bytes."""
        return len(self.samples) > 2 and len(self.samples) * _UNSEEN * _LIVE_TENSORS * largest <= self.budget


def make_plan(
    runner: PassRunner, x: Batch, earlier: PassPlan | None = None, sharing: bool = True, first: FirstPass | None = None
) -> PassPlan:
    """Find out whether samples may share a pass and what comes before its first random site, and warn of what is odd.

    What an ``earlier`` plan has warned of is not said again. Without ``sharing`` they share no more than the pass. What
    is to be run ``first`` may be run here.
    """
    plan = None
    if x.device.type == "cpu":
        native.library()  # the first use in a process tries the kernels, which should not be watched
    if sharing and not runner.compiled:
        with suppress(Exception):  # what it is, the thorough way shows, or the passes themselves
            plan = _quick_plan(runner, x, first)
    plan = plan or _thorough_plan(runner, x, sharing)
    if plan.batch_dependent and not (earlier is not None and earlier.batch_dependent):
        warn_of_batch_dependence(plan.odd_site)
    if earlier is None and not plan.random and not plan.telling:
        warn(
            "the network ran without meeting a random site, so its samples are all the same; if modules were replaced "
            "after rbue.convert, or its example took another way through the network, convert it again with an input "
            "like this one."
        )
    return replace(plan, batch_dependent=True) if earlier is not None and earlier.batch_dependent else plan


def _quick_plan(runner: PassRunner, x: Batch, first: FirstPass | None = None) -> PassPlan | None:
    """The plan of an ordinary network; None if it may not be one.

    Samples 0 and 1 of images ``[0, 1, 2, 3]`` are run in one pass that shares its prefix: ``(4, ...)`` rows become
    ``(2 * 4, ...)``. Sample 1 of images ``[3, 0]`` is run as it would be by itself, and so is sample 0 of ``[2, 1]``.
    Both must come out the same, and then

    - neighbours, places and the size of a batch do not matter: all of them are others, before and after the first
      random site. The greatest number of a batch is in one of two sets that have no image in common, so the other
      shows it if images are scaled by that number, or cut to the longest;
    - what is shared may be shared.

    Besides, the rows at each random site grow with those of the pass, or they are not rows of images; no number that
    depends on random ones is read; and the network draws none of its own. Large images are 3. One that comes alone is
    never with others: ``(1, ...)`` rows become ``(3, ...)``, of which two are run by themselves; or all that are to be
    run first, which saves a pass and, on a CPU, the preparation of every convolution for three rows.

    The passes use other kernels, which round in other ways. Where they differ by more than :func:`agree` takes for
    nothing, yet by as little as rounding can make of half precision or TF32, one more has the shapes of the shared one,
    and image 1 has other neighbours. There the same kernels have to give the same bits.
    """
    count = 1 if len(x) == 1 else 4 if len(x) > 2 and x[:1].nbytes <= _SMALL else 3
    images = x[:count] if len(x) >= count else x.repeat(2)[:count]
    places = torch.arange(count, dtype=torch.int32, device=x.device)
    numbers = places if first is None else first.images
    samples = torch.arange(3 if count == 1 else 2, dtype=torch.int32, device=x.device)
    one, other = (places[some] for some in _APART[count])
    few: list[int] = []
    many: list[int] = []
    reads, live, largest, generators = HostReads(), LiveRows(), LargestTensor(), Generators(x.device)
    # Triton would compile kernels for rows that no other pass has.
    with by_formula(), nullcontext() if first is None else largest:
        apart = [
            _output(runner, images[one], samples[1:2], numbers[one], seen=few, reads=reads),
            _output(runner, images[other], samples[:1], numbers[other]),
        ]
    if first is not None and first.fits(max(largest.nbytes, x.nbytes)):
        samples = first.samples
    together = runner.run(images, samples, numbers, share=True, live=live, seen=many).clone()
    if [len(one) * rows for rows in many] != [len(samples) * count * rows for rows in few]:
        return None
    if reads.found or generators.moved:
        return None
    found, expected = torch.cat([together[1:2, one], together[:1, other]], 1), torch.cat(apart, 1)
    if not agree(found, expected, slack=0.01, among=together, by_column=True):
        if not agree(found, expected, among=together):
            return None
        place = min(1, count - 1)
        others = images[place : place + 1].repeat(count)
        other_numbers, other_samples = numbers + 8, samples + 8
        other_numbers[place], other_samples[1] = numbers[place], samples[1]
        again = runner.run(others, other_samples, other_numbers, share=True, live=LiveRows())
        if not torch.equal(again[1, place], together[1, place]):
            return None
    if first is not None and samples is first.samples:
        first.out = together
    telling = bool((together != together[1]).any())
    return _sharing_plan(live, together, alone=count == 1, telling=telling, random=bool(few))


def _thorough_plan(runner: PassRunner, x: Batch, sharing: bool) -> PassPlan:
    """The plan of a network that may be batch-dependent, draw random numbers of its own or look at those of others.

    Two images show it, or one that is there twice.
    """
    two = x[:2] if len(x) > 1 else x.repeat(2)
    numbers = torch.arange(2, dtype=torch.int32, device=x.device)
    batch_dependent, shared = False, None
    stacking = _Stacking()
    # Forms of the kernels that the passes to come may have no use for are not compiled for the first of these; tables
    # for compiled code are kept where kernels run.
    first = nullcontext if runner.compiled else by_formula
    with _as_written() if runner.compiled else nullcontext():
        # Whatever a network's code says to rows that multiply on the way, or to being watched, the plain way remains;
        # an error of its own shows again there.
        with suppress(Exception), first():
            batch_dependent = _draws_of_its_own(runner, two, numbers)
            batch_dependent |= len(x) > 1 and _depends_on_the_batch(runner, two, numbers)
        with suppress(Exception):
            with first():
                stacked, stacking = _stack(runner, x[:2], two, numbers)
            if sharing and stacking.possible:
                shared = _plan_of_sharing(runner, two, numbers, stacked)
    if shared is None:
        largest = LargestTensor()
        with uncompiled(), largest:
            runner.run(x[:1], numbers[:1], numbers[:1], share=False, model=runner.network)
        shared = PassPlan(False, 0, _LIVE_TENSORS * max(largest.nbytes, x[:1].nbytes))
    return replace(
        shared,
        batch_dependent=batch_dependent or (len(x) > 1 and not stacking.by_image),
        odd_site=stacking.odd_site,
        stack=stacking.possible,
        telling=stacking.telling,
        random=stacking.random,
    )


def _draws_of_its_own(runner: PassRunner, x: Batch, numbers: Tensor) -> bool:
    """Whether torch's generators decide a sample too: from the same state the same bits come out, from another others.

    Many networks draw what they use in training alone.
    """
    with forked_generators(x.device):
        generators = Generators(x.device)
        once = _output(runner, x, numbers[:1], numbers)
        if not generators.moved:
            return False
        later = _output(runner, x, numbers[:1], numbers)
    with forked_generators(x.device):
        again = _output(runner, x, numbers[:1], numbers)
    return torch.equal(again, once) and not torch.equal(later, once)


def _depends_on_the_batch(runner: PassRunner, x: Batch, numbers: Tensor) -> bool:
    """Whether a sample of one of two images is another one without the other beside it, with another one, or swapped.

    Alone an image may meet other kernels, and rounding may do much. At its place beside another image they are the
    same, and it does nothing; unless the same pass comes out differently, which kernels that add in any order do, or
    random numbers. A network that sorts its rows may find the two in order, but not both ways round.
    """
    beside, again = (_output(runner, x, numbers[:1], numbers) for _ in range(2))
    alone = [_output(runner, x[k : k + 1], numbers[:1], numbers[k : k + 1]) for k in (0, 1)]
    if bool(torch.isnan(beside).any()):
        return False
    if not agree(torch.cat(alone, 1), beside, slack=10):
        return True
    if not torch.equal(again, beside):
        return False
    swapped = _output(runner, x[numbers.flip(0)], numbers[:1], numbers.flip(0)).flip(1)
    others = []
    for k in (0, 1):
        images = numbers + 8
        images[k] = k
        others.append(_output(runner, x[k : k + 1].repeat(2), numbers[:1], images)[:, k : k + 1])
    return not (agree(swapped, beside) and agree(torch.cat(others, 1), beside, slack=0.01, by_column=True))


def _sharing_plan(live: LiveRows, out: Tensor, **found: Any) -> PassPlan:
    """The plan of a pass that shares, with the memory it held; its outputs are ``out``, ``(s, b, ...)``."""
    for_image, for_row = (_UNSEEN * live.peak[sampled] for sampled in (False, True))
    # Maps of many classes, or features, may be larger than anything in the pass, and there are two of each row: the
    # outputs, and what is averaged of them or what they were joined from.
    return PassPlan(True, for_image, max(for_row, 2 * out[0, 0].nbytes), **found)


class _Stacking(NamedTuple):
    """What two samples in one pass have shown.

    Attributes:
        possible: whether they are those of passes of their own.
        telling: whether they were different at all.
        by_image: whether the rows of every random site are those of images.
        random: whether there was a random site.
        odd_site: the name of one whose rows are not those of images, where it shows.
    """

    possible: bool = False
    telling: bool = True
    by_image: bool = True
    random: bool = True
    odd_site: str = ""


def _stack(runner: PassRunner, x: Batch, two: Batch, numbers: Tensor) -> tuple[Tensor, _Stacking]:
    """Run two samples of the rows ``two`` in one pass, and look whether they are those of passes of their own.

    Each is run beside a copy of itself: at its own place among as many rows the kernels are the same, and so are the
    outputs, to the last digits. Where kernels add in any order they are not, and less is asked. A network with random
    numbers of its own does not tell, nor do outputs that are no numbers.

    Both are run without their copies too, on the images ``x`` as they are, one or two. What is computed of the whole
    batch shows then, what depends on the place in it or its size, and a site with as many rows as before, which are not
    those of images: two samples may have the same mask there, and others not.
    """
    try:
        stacked = _output(runner, two, numbers, numbers)  # rows: sample 0 of image 0 and 1, sample 1 of image 0 and 1
    except NotFoldable as error:
        return torch.empty(0), _Stacking(by_image=False, odd_site=error.site)
    twice, images = two.repeat(2), numbers.repeat(2)
    few: list[int] = []
    many: list[int] = []
    reads = HostReads()
    plain = [
        _output(runner, x, numbers[k : k + 1], numbers[: len(x)], **watching)
        for k, watching in ((0, {"seen": few, "reads": reads}), (1, {}))
    ]
    first, again, second = (
        _output(runner, twice, numbers[k : k + 1], images, seen=seen)[:, 2 * k : 2 * k + 2]
        for k, seen in ((0, many), (0, None), (1, None))
    )
    telling = not torch.equal(first, second) and not bool(first.isnan().any())
    known = _Stacking(False, telling, random=bool(few))
    if any(map(operator.eq, few, many)):
        return stacked, known._replace(by_image=False)
    if reads.found:
        return stacked, known
    if not agree(again, first, slack=0.1):
        return stacked, known._replace(possible=True)
    alone, slack = torch.cat([first, second]), 0.01 if torch.equal(first, again) else 1
    same = agree(stacked, alone, slack, by_column=slack < 1) and agree(stacked[:, : len(x)], torch.cat(plain), slack=10)
    return stacked, known._replace(possible=same)


def _output(runner: PassRunner, x: Batch, samples: Tensor, images: Tensor, **options: Any) -> Tensor:
    """The outputs of a pass that shares nothing, in memory of their own: a network may write the next ones into its."""
    return runner.run(x, samples, images, share=False, **options).clone()


def _plan_of_sharing(runner: PassRunner, x: Batch, numbers: Tensor, stacked: Tensor) -> PassPlan | None:
    """What sharing takes, if it gives what stacking at the input gave.

    Compiled code does not share. It is given up where sharing saves more: where most of the work comes before the first
    random site.
    """
    fuse = next((fuse for fuse in (True, False) if _shares(runner, x, numbers, stacked, fuse)), None)
    if fuse is None:
        return None
    if runner.compiled and shared_work(runner, x, numbers) < 0.5:
        return None
    live = LiveRows()
    runner.run(x, numbers, numbers, share=True, live=live, fuse=fuse)
    return _sharing_plan(live, stacked, fuse=fuse)


def _shares(runner: PassRunner, x: Batch, numbers: Tensor, stacked: Tensor, fuse: bool) -> bool:
    """Whether sharing gives what stacking gave; code that torch does not show can read what is deferred.

    An image alone is looked at too: where it has one row, a ``squeeze()`` takes it for none.
    """
    seen: list[int] = []
    with suppress(Exception):
        for images in {len(x), 1}:
            found = runner.run(x[:images], numbers, numbers[:images], share=True, fuse=fuse, seen=seen)
            if UNSHAREABLE in seen or not agree(found, stacked[:, :images]):
                return False
        return True
    return False


def shares_alone(runner: PassRunner, x: Batch, fuse: bool) -> bool:
    """Whether sharing works, and batches do not matter, for an image alone too, which is one row before any site.

    Three small passes show it of most networks: sample 1 of an image alone, beside another, and shared with sample 0.
    """
    numbers = torch.arange(2, dtype=torch.int32, device=x.device)
    one, two, sample = x[:1], x[:1].repeat(2), numbers[1:]
    with suppress(Exception):
        seen: list[int] = []
        beside = _output(runner, two, sample, numbers)[:, :1]
        alone = _output(runner, one, sample, numbers[:1])
        shared = runner.run(one, numbers, numbers[:1], share=True, fuse=fuse, seen=seen)
        found = torch.cat([alone, shared[1:]])
        if UNSHAREABLE not in seen and agree(found, beside.expand_as(found), slack=0.01, among=shared, by_column=True):
            return True
    with suppress(Exception):
        stacked = _output(runner, one, numbers, numbers[:1])
        return not _depends_on_the_batch(runner, two, numbers) and _shares(runner, one, numbers, stacked, fuse)
    return False


def shared_work(runner: PassRunner, x: Batch, numbers: Tensor) -> float:
    """What part of a pass's products two samples do once if they share it, and twice if not; 0 if nobody knows."""
    done = {}
    with suppress(Exception):  # being watched is no reason to fail
        for share in (False, True):
            with Products() as products:
                runner.run(x, numbers, numbers, share, model=runner.network)
            done[share] = products.count
    return 2 * (1 - done[True] / done[False]) if len(done) == 2 and done[False] else 0


def warn_of_batch_dependence(site: str) -> None:
    """Say that samples depend on the batch, and which random site makes them, if its name is known."""
    why = (
        f"the rows at the random site {site} are not those of images; where= can leave it out."
        if site
        else "the network mixes the rows of its images before a random site, or draws random numbers of its own."
    )
    warn(f"an image's samples depend on the batch it is in: {why}")


@contextmanager
def _as_written() -> Iterator[None]:
    """Run a compiled network uncompiled, and keep the tables that its compiled form is going to read."""
    with uncompiled(), kept_tables.keeping():
        yield
