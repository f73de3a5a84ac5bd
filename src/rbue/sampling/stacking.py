"""Run many samples of many images through a converted network in few passes.

Samples are stacked along the batch, as many rows as the memory budget allows. Images are split before samples, so that
what comes before the first random site runs once for an image, however many samples. The pieces of a split are of one
size, and a compiled network gets the last one filled up, so that a batch needs no more than one compilation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import torch
from torch import Tensor, nn

from rbue.augment import Augment, Augmentation
from rbue.call_sites import NotFoldable
from rbue.call_sites.batch import Batch, as_batch, even_parts
from rbue.call_sites.following import CONVERSION
from rbue.errors import InvalidInput
from rbue.kernels.layout import repeat_rows
from rbue.sampling.passes import PassRunner, Reader, class_scores
from rbue.sampling.plans import FirstPass, PassPlan, make_plan, shares_alone, warn_of_batch_dependence

CPU_BUDGET = 64 << 20
"""The fastest or next to it for small and large networks and batches (benchmarks/sampling_memory.py --budgets). With
less, calls cost more than the work in them. With more, tensors exceed 32 MiB, which glibc's malloc gives back to the
system at each free: every page of the next one is faulted in again, up to half of the time of a small CNN."""
GPU_BUDGET, GPU_SHARE = 8 << 30, 0.25
"""Enough rows that a large GPU takes longer for them than Python for starting their operations; more would only be held
in memory. Never more than a share of what is free."""
_PLAIN, _FUNCTIONS = {bool, int, float, str, NoneType}, {FunctionType, BuiltinFunctionType}
_INTERNAL = {*vars(nn.Module()), CONVERSION}
"""Attributes of modules that are torch's or ours."""
_MOST_PLANS = 32
"""Plans that a network keeps: inputs may be of any number of shapes."""


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
    """Stochastic passes of one network on inputs of one shape.

    ``first`` has the samples and images that will be asked for first, where that is known. A network is run
    ``as_written``, not compiled, where hooks have to see it.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor | Batch,
        seed: int,
        memory: int | None = None,
        draws: str = "independent",
        read: Reader = class_scores,
        augment: Augment | Sequence[Augment] | None = None,
        first: tuple[Tensor, Tensor] | None = None,
        as_written: bool = False,
    ) -> None:
        x = as_batch(x)
        self.augment = None if augment is None else Augmentation(augment, seed, x.device, draws)
        if self.augment is not None:
            self.augment.warn_of_unmoved(x.first, x.rows[1:])
        self.runner = PassRunner(model, seed, x.device, draws, read)
        if as_written:
            self.runner.leave_compiled_code()
        several = len(x) > 1  # an image alone does not show whether others would change its samples
        form = _form(self.runner.network)
        self.key = (x.form, self.runner.compiled, several, form, read)
        self.budget = _default_budget(x.device) if memory is None else memory
        self.first: FirstPass | None = None
        exact = x.device.type == "cpu" and x.first.dtype in (torch.float32, torch.float64)
        if first is not None and not several and exact and augment is None:
            self.first = FirstPass(*first, self.budget)
        known: PassPlan | None = self.runner.conversion.plans.get(self.key)
        if known is not None and known.telling and known.made_of in _state(self.runner.network):
            self.plan = known
            self.runner.keeps = known.keeps
        else:
            self.plan = self._made(x, known, first=self.first)
        if self.shares:
            self.runner.leave_compiled_code()

    def _made(self, x: Batch, earlier: PassPlan | None, **how: Any) -> PassPlan:
        """A plan of the network as it is.

        Where its passes change what it holds, as one that counts them does, only the kinds tell that it is outdated.
        """
        _, before = _state(self.runner.network)
        with self.runner.trying_out():
            plan = make_plan(self.runner, x, earlier, **how)
        kinds, held = _state(self.runner.network)
        return replace(plan, keeps=self.runner.keeps, made_of=held if held == before else kinds)

    @property
    def shares(self) -> bool:
        """Whether samples share what comes before the first random site; they cannot if each sees another image."""
        return self.plan.share and self.augment is None

    @property
    def as_planned(self) -> bool:
        """Whether a pass shares what it can, and fuses calls: not compiled code, which does neither."""
        return self.plan.share and not self.runner.compiled

    def undivided(self) -> bool:
        """Whether the images of a batch belong together: their answers were seen to depend on it."""
        return self.plan.batch_dependent

    def _cost(self, images: int, samples: int) -> float:
        """Bytes that a pass holds at once, roughly."""
        return self.plan.cost(images, samples) if self.augment is None else self.plan.cost(images * samples, 1)

    def __call__(self, x: Tensor | Batch, samples: Tensor, images: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield ``(which images, which samples, outputs (s, b, ...))`` until all are done."""
        x = as_batch(x)
        everything = Piece(slice(0, len(x)), slice(0, len(samples)), len(x))
        work, whole, begun = [everything], False, False
        first, self.first = self.first, None
        if first is not None and first.out is not None and torch.equal(samples, first.samples):
            assert torch.equal(images, first.images)
            yield work.pop().batch, slice(0, len(samples)), first.out
        while work:
            if self.plan.batch_dependent and not whole and not begun:
                work, whole = [everything], True
            piece = work.pop()
            if not self.plan.stack and piece.samples > 1:
                work += piece.one_by_one()
                continue
            cost = self._cost(piece.size, piece.samples)
            single = piece.samples == 1 and (piece.size == 1 or whole)
            if cost > self.budget and not single:
                work += reversed(self._split(piece, whole))
                continue
            if piece.size == 1 and not self.plan.alone:
                work.append(piece)
                self._look_at_one_image(x)
                continue
            batch, stack, out = piece.batch, piece.stack, None
            fill = piece.size if self.runner.compiled else 0
            try:
                rows = x[batch].map(partial(_filled, size=fill))
                numbers = _filled(images[batch], fill)
                how = {"fuse": self.plan.fuse, "augment": self.augment}
                out = self.runner.run(rows, samples[stack], numbers, self.as_planned, **how)
            except NotFoldable as error:  # of several samples alone
                if len(x) > 1:
                    self._note_batch_dependence(error.site)
                work += piece.one_by_one()
                continue
            except Exception as error:
                if not is_out_of_memory(error):
                    shares = self.shares and piece.samples > 1
                    if isinstance(error, InvalidInput) or not (shares or (self.as_planned and self.plan.fuse)):
                        raise
                    if shares:
                        self._stop_sharing(x)  # these images go another way than those that the plan was made with
                    else:
                        self.plan = replace(self.plan, fuse=False)  # no plan tries what only other passes fuse
                    work.append(piece)
                    continue
                if single:
                    if piece.size > 1:
                        error.add_note("rbue: answers depend on the batch, so it is not divided; give smaller ones.")
                    raise
            if out is None:  # here the error, and with it what the failed pass held, is gone
                self.budget = min(self.budget, cost) / 2
                release_cached(x.device)
                work.append(piece)
            else:
                begun = True
                yield batch, stack, out[:, : batch.stop - batch.start]
        if self.plan.batch_dependent and not whole:  # noticed too late: the next call is to give the same
            self.plan = replace(self.plan, batch_dependent=False)
        self._keep_plan()  # not before: what images that the network fails for have shown is no plan for others

    def _keep_plan(self) -> None:
        plans = self.runner.conversion.plans
        plans.pop(self.key, None)  # the last is the one used last
        plans[self.key] = self.plan
        for key in list(plans)[:-_MOST_PLANS]:
            plans.pop(key, None)  # another thread may have been quicker

    def _note_batch_dependence(self, site: str) -> None:
        """Warn, once, of a site whose rows are not the images, as where only some images take a branch.

        The images that the plan is made with may take the same one.
        """
        if not self.plan.batch_dependent:
            self.plan = replace(self.plan, batch_dependent=True)
            warn_of_batch_dependence(site)

    def _look_at_one_image(self, x: Batch) -> None:
        with self.runner.trying_out():
            shares = shares_alone(self.runner, x, self.plan.fuse)
        if shares:
            self.plan = replace(self.plan, alone=True)
        else:
            self._stop_sharing(x)

    def _stop_sharing(self, x: Batch) -> None:
        """Stack whole passes from now on, if that is right, which passes that shared rows need not have shown."""
        self.plan = self._made(x, self.plan, sharing=False)

    def _split(self, piece: Piece, whole: bool) -> list[Piece]:
        """Smaller pieces of work: fewer images, or fewer samples of one, in as few pieces as the budget allows.

        The ``whole`` batch is kept of a network whose answers depend on it: in parts it would have others.
        """
        if piece.size > 1 and not whole:
            return piece.with_fewer_images(max(1, int(self.budget // self._cost(1, piece.samples))))
        start, shared = piece.stack.start, self._cost(piece.size, 0)
        most = max(1, int((self.budget - shared) // (self._cost(piece.size, 1) - shared)))
        parts = even_parts(piece.samples, min(most, piece.samples - 1))
        return [piece.with_samples(start + part.start, start + part.stop) for part in parts]


def _form(network: nn.Module) -> int:
    """A number that changes with what could make a plan outdated: modules, their switches and hooks, lost statistics.

    Switches are attributes such as ``training`` that hold a truth value or a text; numbers may count the calls.
    """
    return hash(
        tuple(
            (
                type(module),
                *((name, value) for name, value in vars(module).items() if isinstance(value, (bool, str))),
                len(module._forward_hooks),
                len(module._forward_pre_hooks),
                *(buffer is None for buffer in module._buffers.values()),
            )
            for module in network.modules()
        )
    )


def _state(network: nn.Module) -> tuple[int, int]:
    """Two hashes, to notice that a plan is outdated: of the names and kinds of attributes; of what they hold, too.

    They hold numbers, functions, settings in an object or a dict, and parameters, of which it is counted how often they
    were written to: before a first step of training, weights of zero hide what a block does.
    """
    kinds: list[Any] = []
    contents: list[Any] = []
    settings: dict[int, Any] = {}
    for module in network.modules():
        own = module.__dict__
        for name, value in own.items():
            if name in _INTERNAL:
                continue
            kind = type(value)
            kinds += name, kind
            if kind in _PLAIN:
                contents.append(value)
            elif kind in _FUNCTIONS:
                contents.append(id(value))
            elif not isinstance(value, (nn.Module, Tensor, type)):
                settings[id(value)] = value if kind is dict else getattr(value, "__dict__", None)
        contents += [one._version for one in own["_parameters"].values() if one is not None and not one.is_inference()]
    for entries in filter(None, settings.values()):
        contents += [one for one in entries.values() if type(one) in _PLAIN]
    return hash(tuple(kinds)), hash((*kinds, *contents))


def _default_budget(device: torch.device) -> float:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(GPU_BUDGET, GPU_SHARE * free)
    return CPU_BUDGET


_LACKING = (
    *("DefaultCPUAllocator", "allocate memory"),
    *("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
)
"""What torch says when memory is short, beside errors of their own class."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a pass failed because memory was short: of a GPU, which says it in several ways, or of the machine."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _LACKING)


def release_cached(device: torch.device) -> None:
    """Give memory back that torch keeps for the next tensors, which may be of other sizes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
