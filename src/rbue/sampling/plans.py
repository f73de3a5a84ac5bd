"""What is found out about a network's passes before many of them are run."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rbue.call_sites import NotFoldable
from rbue.call_sites.host_reads import HostReads
from rbue.call_sites.live_rows import LiveRows
from rbue.call_sites.prefix import repeat_rows
from rbue.errors import warn
from rbue.kernels import kept_tables
from rbue.kernels.triton_support import by_formula
from rbue.sampling.outputs import agree
from rbue.sampling.pass_runner import PassRunner
from rbue.sampling.products import Products

_LIVE_TENSORS = 4
"""A pass holds about this many tensors of the largest size at once, where they cannot be followed."""
_UNSEEN = 1.5
"""How many times the memory that a pass can be seen to hold it takes: libraries work in memory of their own."""


@dataclass(frozen=True)
class PassPlan:
    """What is known about a network's passes on inputs of one shape.

    Attributes:
        share: whether what comes before the first random site runs once for all samples.
        for_image: bytes that a pass takes for each image.
        for_row: bytes that it takes for each sample of each image.
        hold: whether calls may be held back (:mod:`rbue.call_sites.postponing`).
        company_matters: whether an image's samples were seen to depend on the batch it is in.
        stack: whether samples may share a pass. Not where one of them comes out differently alone: one mask of a ReLU
            of what was made from weights would serve all samples of a pass, and what is computed of the whole batch
            would be computed of all samples. Nor where the network's code looks at what random sites made.
        telling: whether the samples it was made with were different. If not, as before a last layer of zeros is
            trained, the next time may tell more.
    """

    share: bool
    for_image: float
    for_row: float
    hold: bool = True
    company_matters: bool = False
    stack: bool = True
    telling: bool = True

    def cost(self, images: int, samples: int) -> float:
        """Bytes of activations that a pass holds at once, roughly."""
        return images * self.for_image + images * samples * self.for_row


def make_plan(runner: PassRunner, x: Tensor, earlier: PassPlan | None = None) -> PassPlan:
    """Find out from two images whether samples may share a pass and what comes before its first random site.

    What an ``earlier`` plan has warned of is not said again.
    """
    two = x[:2] if len(x) > 1 else repeat_rows(x, 2)
    numbers = torch.arange(2, dtype=torch.int32, device=x.device)
    company_matters, shared = False, None
    stacking = _Stacking()
    # Forms of the kernels that the passes to come may have no use for are not compiled for the first of these; tables
    # for compiled code are kept where kernels run.
    first = nullcontext if runner.compiled else by_formula
    with _as_written() if runner.compiled else nullcontext():
        # Whatever a network's code says to rows that multiply on the way, or to being watched, the plain way remains;
        # an error of its own shows again there.
        with suppress(Exception), first():
            company_matters = len(x) > 1 and _depends_on_company(runner, two, numbers)
        with suppress(Exception):
            with first():
                stacked, stacking = _stack(runner, x[:2], two, numbers)
            shared = _plan_of_sharing(runner, two, numbers, stacked) if stacking.possible else None
    company_matters |= len(x) > 1 and not stacking.by_image
    warned = earlier is not None and earlier.company_matters
    if company_matters and not warned:
        warn_of_company()
    company_matters |= warned
    if shared is None:
        meter = _Meter()
        with uncompiled(), meter:
            runner.run(x[:1], numbers[:1], numbers[:1], share=False, model=runner.network)
        shared = PassPlan(False, 0, _LIVE_TENSORS * max(meter.largest, x[:1].nbytes))
    return replace(shared, company_matters=company_matters, stack=stacking.possible, telling=stacking.telling)


def _depends_on_company(runner: PassRunner, x: Tensor, numbers: Tensor) -> bool:
    """Whether a sample of one of two images is another one without the other image beside it."""
    beside = _output(runner, x, numbers[:1], numbers)
    alone = [_output(runner, x[k : k + 1], numbers[:1], numbers[k : k + 1]) for k in (0, 1)]
    return not bool(torch.isnan(beside).any()) and not agree(torch.cat(alone, 1), beside, slack=10)


class _Stacking(NamedTuple):
    """What two samples in one pass have shown.

    Attributes:
        possible: whether they are those of passes of their own.
        telling: whether they were different at all.
        by_image: whether the rows of every random site are those of images.
    """

    possible: bool = False
    telling: bool = True
    by_image: bool = True


def _stack(runner: PassRunner, x: Tensor, two: Tensor, numbers: Tensor) -> tuple[Tensor, _Stacking]:
    """Run two samples of the rows ``two`` in one pass, and look whether they are those of passes of their own.

    Each is run beside a copy of itself: at its own place among as many rows the kernels are the same, and so are the
    outputs, to the last digits. Where kernels add in any order they are not, and less is asked. A network with random
    numbers of its own does not tell, nor do outputs that are no numbers.

    Both are run without their copies too, on the images ``x`` as they are, one or two. What is computed of the whole
    batch shows then, what depends on the place in it or its size, and a site with as many rows as before, which are not
    those of images: two samples may have the same mask there, and others not.
    """
    try:
        stacked = _output(runner, two, numbers, numbers)
    except NotFoldable:
        return two, _Stacking(by_image=False)
    twice, images = repeat_rows(two, 2), numbers.repeat(2)
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
    if any(map(operator.eq, few, many)):
        return stacked, _Stacking(False, telling, by_image=False)
    if reads.found:
        return stacked, _Stacking(False, telling)
    if not agree(again, first, slack=0.1):
        return stacked, _Stacking(True, telling)
    alone, slack = torch.cat([first, second]), 0.01 if torch.equal(first, again) else 1
    same = agree(stacked, alone, slack) and agree(stacked[:, : len(x)], torch.cat(plain), slack=10)
    return stacked, _Stacking(same, telling)


def _output(runner: PassRunner, x: Tensor, samples: Tensor, images: Tensor, **options: Any) -> Tensor:
    """The outputs of a pass that shares nothing, in memory of their own: a network may write the next ones into its."""
    return runner.run(x, samples, images, share=False, **options).clone()


def _plan_of_sharing(runner: PassRunner, x: Tensor, numbers: Tensor, stacked: Tensor) -> PassPlan | None:
    """What sharing takes, if it gives what stacking at the input gave.

    Compiled code does not share. It is given up where sharing saves more: where most of the work comes before the first
    random site.
    """
    hold = next((hold for hold in (True, False) if _shares(runner, x, numbers, stacked, hold)), None)
    if hold is None:
        return None
    if runner.compiled and shared_work(runner, x, numbers) < 0.5:
        return None
    live = LiveRows()
    runner.run(x, numbers, numbers, share=True, live=live, hold=hold)
    for_image, for_row = (_UNSEEN * live.peak[sampled] for sampled in (False, True))
    return PassPlan(True, for_image, for_row, hold)


def _shares(runner: PassRunner, x: Tensor, numbers: Tensor, stacked: Tensor, hold: bool) -> bool:
    """Whether sharing gives what stacking gave; code that torch does not show can read what is held back.

    An image alone is looked at too: where it has one row, a ``squeeze()`` takes it for none.
    """
    with suppress(Exception):
        found = [runner.run(x[:images], numbers, numbers[:images], share=True, hold=hold) for images in (2, 1)]
        return all(agree(part, stacked[:, : part.shape[1]]) for part in found)
    return False


def shared_work(runner: PassRunner, x: Tensor, numbers: Tensor) -> float:
    """What part of a pass's products two samples do once if they share it, and twice if not; 0 if nobody knows."""
    done = {}
    with suppress(Exception):  # being watched is no reason to fail
        for share in (False, True):
            with Products() as products:
                runner.run(x, numbers, numbers, share, model=runner.network)
            done[share] = products.count
    return 2 * (1 - done[True] / done[False]) if len(done) == 2 and done[False] else 0


def warn_of_company() -> None:
    """Say that samples depend on the batch."""
    warn(
        "an image's samples depend on the batch it is in: the network mixes the rows of its images before a random "
        "site, or draws random numbers of its own."
    )


class _Meter(TorchFunctionMode):
    """Notes the largest tensor that any call returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.largest = max(self.largest, out.nbytes)
        return out


_stance = threading.RLock()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled networks as they are written; one thread at a time, since torch has one stance for all."""
    with _stance, torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def _as_written() -> Iterator[None]:
    """Run a compiled network uncompiled, and keep the tables that its compiled form is going to read."""
    with uncompiled(), kept_tables.keeping():
        yield
