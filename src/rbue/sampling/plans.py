"""What is found out about a network's passes before many of them are run."""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rbue.activations import kept_tables
from rbue.activations.triton_support import by_formula
from rbue.call_sites.live_rows import LiveRows
from rbue.call_sites.prefix import repeat_rows
from rbue.errors import RbueWarning
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
            would be computed of all samples.
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
    company_matters, stack, telling, shared = False, False, True, None
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
                stacked = runner.run(two, numbers, numbers, share=False)
                stack, telling = _stacks(runner, two, numbers, stacked)
            shared = _plan_of_sharing(runner, two, numbers, stacked) if stack else None
    warned = earlier is not None and earlier.company_matters
    if company_matters and not warned:
        warn_of_company()
    company_matters |= warned
    if shared is None:
        meter = _Meter()
        with uncompiled(), meter:
            runner.run(x[:1], numbers[:1], numbers[:1], share=False, model=runner.network)
        shared = PassPlan(False, 0, _LIVE_TENSORS * max(meter.largest, x[:1].nbytes))
    return replace(shared, company_matters=company_matters, stack=stack, telling=telling)


def _depends_on_company(runner: PassRunner, x: Tensor, numbers: Tensor) -> bool:
    """Whether a sample of the second image is another one without the first image beside it."""
    beside = runner.run(x, numbers[:1], numbers, share=False)[:, 1:]
    alone = runner.run(x[1:], numbers[:1], numbers[1:], share=False)
    return not bool(torch.isnan(beside).any()) and not agree(alone, beside, slack=10)


def _stacks(runner: PassRunner, x: Tensor, numbers: Tensor, stacked: Tensor) -> tuple[bool, bool]:
    """Whether two samples of one pass are those of passes of their own, and whether they were different at all.

    Each is run beside a copy of itself: at its own place among as many rows the kernels are the same, and so are the
    outputs, to the last digits. Where kernels add in any order they are not, and less is asked. A network with random
    numbers of its own does not tell, nor do outputs that are no numbers.

    The first is run without its copy too. What is computed of the whole batch shows then, and a site with as many rows
    as before, which are not those of images: two samples may have the same mask there, and others not.
    """
    twice, images = repeat_rows(x, 2), numbers.repeat(2)
    few: list[int] = []
    many: list[int] = []
    plain = runner.run(x, numbers[:1], numbers, share=False, seen=few)
    first, again, second = (
        runner.run(twice, numbers[k : k + 1], images, share=False, seen=seen)[:, 2 * k : 2 * k + 2]
        for k, seen in ((0, many), (0, None), (1, None))
    )
    telling = not torch.equal(first, second) and not bool(first.isnan().any())
    if any(map(operator.eq, few, many)):
        return False, telling
    if not agree(again, first, slack=0.1):
        return True, telling
    alone, slack = torch.cat([first, second]), 0.01 if torch.equal(first, again) else 1
    return agree(stacked, alone, slack) and agree(stacked[:1], plain, slack=10), telling


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
    warnings.warn(
        "an image's samples depend on the batch it is in: the network mixes the rows of its images before a random "
        "site, or draws random numbers of its own.",
        RbueWarning,
        stacklevel=2,
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
