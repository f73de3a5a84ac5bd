"""Run many samples of many images through a converted network in few passes.

Samples are stacked along the batch (samples first), as many rows as the memory budget allows. Images are split
before samples, so that what comes before the first random site runs once for an image, however many samples. The
pieces of a split are of one size, and a compiled network gets the last one filled up, so that a batch needs no more
than one compilation.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rbue import random_stream
from rbue.activations import kept_tables
from rbue.call_sites import Draw, NotFoldable, conversion_of, innermost, running
from rbue.call_sites.live_rows import LiveRows
from rbue.call_sites.prefix import repeat_rows
from rbue.errors import RbueError, RbueWarning
from rbue.sampling.products import Products

CPU_BUDGET = 256 << 20
GPU_BUDGET, GPU_SHARE = 8 << 30, 0.25
"""Enough rows that a large GPU takes longer for them than Python for starting their operations; more would only be held
in memory. Never more than a share of what is free."""
_LIVE_TENSORS = 4
"""A pass holds about this many tensors of the largest size at once, where they cannot be followed."""
_UNSEEN = 1.5
"""How many times the memory that a pass can be seen to hold it takes: libraries work in memory of their own."""
_NEVER = 9e3
"""Networks give a class that is impossible a score at least this far from 0: often -1e4, which is -9984 in bfloat16."""


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
            of what was made from weights would serve all samples of a pass.
    """

    share: bool
    for_image: float
    for_row: float
    hold: bool = True
    company_matters: bool = False
    stack: bool = True

    def cost(self, images: int, samples: int) -> float:
        """Bytes of activations that a pass holds at once, roughly."""
        return images * self.for_image + images * samples * self.for_row


@dataclass(frozen=True)
class Piece:
    """Some samples of some images, to be run in one pass.

    Attributes:
        batch: which images.
        stack: which samples.
        size: how many images the pass has room for; the last piece of a split may not fill it.
    """

    batch: slice
    stack: slice
    size: int

    @property
    def samples(self) -> int:
        """How many samples."""
        return self.stack.stop - self.stack.start

    def with_samples(self, start: int, stop: int) -> Piece:
        """The same images, some of the samples."""
        return Piece(self.batch, slice(start, stop), self.size)

    def one_by_one(self) -> list[Piece]:
        """The same images, each sample in a piece of its own, the first one last."""
        return [self.with_samples(k, k + 1) for k in reversed(range(self.stack.start, self.stack.stop))]

    def with_fewer_images(self, most: int) -> list[Piece]:
        """As few pieces as ``most`` images in each allow, all with room for the same number."""
        start, stop = self.batch.start, self.batch.stop
        pieces = math.ceil(self.size / min(most, self.size - 1))
        size = math.ceil(self.size / pieces)
        return [Piece(slice(at, min(at + size, stop)), self.stack, size) for at in range(start, stop, size)]


def _filled(rows: Tensor, size: int) -> Tensor:
    """At least ``size`` rows: the last one again until there are."""
    missing = size - len(rows)
    return rows if missing <= 0 else torch.cat([rows, repeat_rows(rows[-1:], missing)])


class StackedPasses:
    """Stochastic passes of one network on inputs of one shape."""

    def __init__(self, model: nn.Module, x: Tensor, seed: int, memory: int | None = None) -> None:
        self.model: Callable[[Tensor], Any]
        self.model, self.compiled = _in_this_thread(model)
        self.network = innermost(model)
        self.conversion = conversion_of(self.network)
        self.state = random_stream.seed_state(seed, x.device)
        several = len(x) > 1  # an image alone does not show whether others would change its samples
        self.key = (tuple(x.shape[1:]), x.dtype, x.device, self.compiled, several)
        self.telling = True
        self.plan: PassPlan = self.conversion.plans.get(self.key) or self._make_plan(x)
        if self.telling:
            self.conversion.plans[self.key] = self.plan
        if self.compiled and self.plan.share:
            self.model, self.compiled = self.network._call_impl, False
        self.budget = _default_budget(x.device) if memory is None else memory

    def __call__(self, x: Tensor, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield ``(which images, which samples, outputs (s, b, ...))`` until all are done."""
        work = [Piece(slice(0, len(x)), slice(0, len(samples)), len(x))]
        while work:
            piece = work.pop()
            if not self.plan.stack and piece.samples > 1:
                work += piece.one_by_one()
                continue
            cost = self.plan.cost(piece.size, piece.samples)
            single = piece.size * piece.samples == 1
            if cost > self.budget and not single:
                work += reversed(self._split(piece))
                continue
            batch, stack, out = piece.batch, piece.stack, None
            fill = piece.size if self.compiled else 0
            try:
                rows, numbers = _filled(x[batch], fill), _filled(images[batch], fill)
                out = self._pass(rows, samples[stack], numbers, self.plan.share, hold=self.plan.hold)
            except NotFoldable:
                if piece.samples == 1:
                    raise
                if len(x) > 1:
                    self._note_company()
                work += piece.one_by_one()
                continue
            except Exception as error:
                if not _is_out_of_memory(error):
                    if not self.plan.share or piece.samples == 1:
                        raise
                    self._stop_sharing()  # these images go another way than the two that the plan was made with
                    work.append(piece)
                    continue
                if single:
                    raise
            if out is None:  # here the error, and with it what the failed pass held, is gone
                self.budget = min(self.budget, cost) / 2
                _release_cached(x.device)
                work.append(piece)
            else:
                yield batch, stack, out[:, : batch.stop - batch.start]

    def _note_company(self) -> None:
        """Warn, once, of a site whose rows are not the images, as where only some images take a branch.

        The two images that the plan is made with may take the same one.
        """
        if not self.plan.company_matters:
            self.plan = self.conversion.plans[self.key] = replace(self.plan, company_matters=True)
            _warn_of_company()

    def _stop_sharing(self) -> None:
        for_row = self.plan.for_image + self.plan.for_row
        self.plan = self.conversion.plans[self.key] = replace(self.plan, share=False, for_image=0, for_row=for_row)

    def _split(self, piece: Piece) -> list[Piece]:
        """Smaller pieces of work: fewer images, or fewer samples of one."""
        if piece.size > 1:
            return piece.with_fewer_images(max(1, int(self.budget // self.plan.cost(1, piece.samples))))
        start, stop = piece.stack.start, piece.stack.stop
        middle = start + piece.samples // 2
        return [piece.with_samples(start, middle), piece.with_samples(middle, stop)]

    def _pass(self, x: Tensor, samples: Tensor, images: Tensor, share: bool, **options: Any) -> Tensor:
        try:
            return self._rows_pass(x, samples, images, share, **options)
        except Exception:
            if len(x) * len(samples) > 1:
                raise
            with suppress(Exception):  # a squeeze() takes a batch of one for none; beside a copy of itself it is one
                return self._rows_pass(repeat_rows(x, 2), samples, images.repeat(2), share, **options)[:, :1]
            raise

    def _rows_pass(
        self,
        x: Tensor,
        samples: Tensor,
        images: Tensor,
        share: bool,
        live: LiveRows | None = None,
        model: Callable[[Tensor], Any] | None = None,
        hold: bool = True,
    ) -> Tensor:
        stack, batch = len(samples), len(x)
        draw = Draw(
            self.state,
            samples if stack == 1 else samples.repeat_interleave(batch),
            images.repeat(stack),
            repeat=stack if share and stack > 1 else 1,
            live=live,
            hold=hold,
        )
        # The network gets rows of its own: one that works in place must not change the caller's tensor.
        rows = x.clone() if draw.repeat > 1 else repeat_rows(x, stack)
        before, running.draws = running.draws, (self.conversion.token, draw)
        try:
            with torch.no_grad():
                out = class_scores((self.model if model is None else model)(rows))
        finally:
            running.draws = before
        if not out.is_floating_point():
            raise RbueError(
                f"the network returned {out.dtype}; rbue needs scores of the classes in floating point, before any "
                "argmax or comparison."
            )
        if out.dim() == 0:
            raise RbueError(
                "the network returned one number for the whole batch; rbue needs outputs of shape (B, C, ...), before "
                "any loss or mean over the images."
            )
        if out.shape[0] != stack * batch:
            raise RbueError(
                f"the network returned {out.shape[0]} rows for {stack * batch} inputs; rbue needs one row for each."
            )
        return out.unflatten(0, (stack, batch))

    def _make_plan(self, x: Tensor) -> PassPlan:
        """Find out whether sharing the prefix gives what stacking at the input gives, and what rows cost."""
        two = x[:2] if len(x) > 1 else repeat_rows(x, 2)
        numbers = torch.arange(2, dtype=torch.int32, device=x.device)
        company_matters, stack, shared = False, False, None
        with _as_written() if self.compiled else nullcontext():
            # Whatever a network's code says to rows that multiply on the way, or to being watched, the plain way
            # remains; an error of its own shows again there.
            with suppress(Exception):
                company_matters = len(x) > 1 and self._depends_on_company(two, numbers)
            with suppress(Exception):
                stacked = self._pass(two, numbers, numbers, share=False)
                stack = self._stacks(stacked, two, numbers)
                shared = self._plan_of_sharing(stacked, two, numbers) if stack else None
        if company_matters:
            _warn_of_company()
        if shared is not None:
            return replace(shared, company_matters=company_matters)
        meter = _Meter()
        with _uncompiled(), meter:
            self._pass(x[:1], numbers[:1], numbers[:1], share=False, model=self.network)
        for_row = _LIVE_TENSORS * max(meter.largest, x[:1].nbytes)
        return PassPlan(False, 0, for_row, company_matters=company_matters, stack=stack)

    def _depends_on_company(self, x: Tensor, numbers: Tensor) -> bool:
        """Whether a sample of the second image is another one without the first image beside it."""
        beside = self._pass(x, numbers[:1], numbers, share=False)[:, 1:]
        alone = self._pass(x[1:], numbers[:1], numbers[1:], share=False)
        return not bool(torch.isnan(beside).any()) and not _agree(alone, beside, slack=10)

    def _stacks(self, stacked: Tensor, x: Tensor, numbers: Tensor) -> bool:
        """Whether two samples of one pass are those of a pass of their own, beside a copy of themselves.

        Such a pass has as many rows, so that it runs the same kernels. Networks with random numbers of their own do not
        tell. Where both samples are equal, as before a last layer of zeros is trained, the next time may tell more.
        """
        twice, images = repeat_rows(x, 2), numbers.repeat(2)
        first, again, second = (self._pass(twice, numbers[k : k + 1], images, share=False)[:, :2] for k in (0, 0, 1))
        self.telling = not torch.equal(first, second)
        same_again = torch.equal(first, again)
        return not same_again or _agree(stacked, torch.cat([first, second]), slack=0.01)

    def _plan_of_sharing(self, stacked: Tensor, x: Tensor, numbers: Tensor) -> PassPlan | None:
        """What sharing takes, if it gives what stacking at the input gives.

        Compiled code does not share. It is given up where sharing saves more: where most of the work comes before the
        first random site.
        """
        hold = next((hold for hold in (True, False) if self._shares(x, numbers, stacked, hold)), None)
        if hold is None:
            return None
        if self.compiled and self._shared_work(x, numbers) < 0.5:
            return None
        live = LiveRows()
        self._pass(x, numbers, numbers, share=True, live=live, hold=hold)
        for_image, for_row = (_UNSEEN * live.peak[sampled] for sampled in (False, True))
        return PassPlan(True, for_image, for_row, hold)

    def _shares(self, x: Tensor, numbers: Tensor, stacked: Tensor, hold: bool) -> bool:
        """Whether sharing gives what stacking gave; code that torch does not show can read what is held back.

        An image alone is looked at too: where it has one row, a ``squeeze()`` takes it for none.
        """
        with suppress(Exception):
            found = [self._pass(x[:images], numbers, numbers[:images], share=True, hold=hold) for images in (2, 1)]
            return all(_agree(part, stacked[:, : part.shape[1]]) for part in found)
        return False

    def _shared_work(self, x: Tensor, numbers: Tensor) -> float:
        """What part of a pass's products two samples do once if they share it, and twice if not; 0 if nobody knows."""
        done = {}
        with suppress(Exception):  # being watched is no reason to fail
            for share in (False, True):
                with Products() as products:
                    self._pass(x, numbers, numbers, share, model=self.network)
                done[share] = products.count
        return 2 * (1 - done[True] / done[False]) if len(done) == 2 and done[False] else 0


def _warn_of_company() -> None:
    warnings.warn(
        "an image's samples depend on the batch it is in: the network mixes the rows of its images before a random "
        "site, or draws random numbers of its own.",
        RbueWarning,
        stacklevel=2,
    )


def _agree(found: Tensor, expected: Tensor, slack: float = 1) -> bool:
    """Whether two outputs are equal but for the rounding of other kernels."""
    if found.shape != expected.shape:
        return False
    precision = slack * (1e-3 if expected.dtype in (torch.float32, torch.float64) else 3e-2)
    off = (found - expected).abs().masked_fill(found == expected, 0)
    return float(off.max()) <= precision * largest_score(found, expected) < math.inf


def largest_score(found: Tensor, expected: Tensor) -> float:
    """The largest score expected, as a measure of rounding; not one that stands for "never", such as -1e9 or -inf.

    Such a one is far from the others, whatever they are, and always exactly the same.
    """
    sizes = expected.abs()
    never = (found == expected) & (sizes >= _NEVER)
    return float(sizes.masked_fill(never, 0).max())


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


def class_scores(output: Any) -> Tensor:
    """The tensor of class scores in a network's output: itself, its ``.logits``, or its ``"logits"``/``"out"``."""
    for name in ("logits", "out"):
        if isinstance(output, dict) and name in output:
            output = output[name]
        elif not isinstance(output, Tensor) and hasattr(output, name):
            output = getattr(output, name)
    if not isinstance(output, Tensor):
        raise RbueError(
            f"the network returned {type(output).__name__}; rbue needs a tensor, or an object or dict with 'logits' or "
            "'out'; wrap the network in a module that returns its class scores alone, and convert that."
        )
    return output


def _in_this_thread(model: nn.Module) -> tuple[nn.Module, bool]:
    """What to call for a pass on one device, and whether it is compiled.

    It lies inside ``DataParallel``, whose threads do not know the draw of this one, and inside
    ``DistributedDataParallel``, which would wait for other processes.
    """
    found, compiled = model, False
    while True:
        compiled |= model._compiled_call_impl is not None
        if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
            compiled, model = True, model._orig_mod
        elif innermost(model) is not model:
            model = model.module  # type: ignore[assignment]
            found, compiled = model, False
        else:
            return found, compiled


_stance = threading.RLock()


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Run compiled networks as they are written; one thread at a time, since torch has one stance for all."""
    with _stance, torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def _as_written() -> Iterator[None]:
    """Run a compiled network uncompiled, and keep the tables that its compiled form is going to read."""
    with _uncompiled(), kept_tables.keeping():
        yield


def _default_budget(device: torch.device) -> float:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(GPU_BUDGET, GPU_SHARE * free)
    return CPU_BUDGET


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)


def _release_cached(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
