"""One pass of a converted network: some samples of some images, stacked along the batch (samples first)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from rbue import random_stream
from rbue.augment import Augmentation
from rbue.call_sites import Draw, conversion_of, drawing, innermost
from rbue.call_sites.batch import Batch, as_batch
from rbue.call_sites.untouched import keeping_attributes
from rbue.errors import RbueError
from rbue.sampling.shared_prefix import SampledPass
from rbue.sampling.watching import HostReads, LiveRows
from rbue.torch_internals import compiled_network, uncompiled_call

Reader = Callable[[Any], Tensor]
"""Makes one tensor ``(rows, ...)`` of what a network returns."""


class PassRunner:
    """Runs passes of one network with one seed.

    Attributes:
        model: what is called for a pass.
        compiled: whether that is compiled code.
        network: the converted network in it, as it is written.
        conversion: its conversion.
        balanced: whether its draws are.
        read: makes one tensor ``(rows, ...)`` of what the network returns.
        trying: whether passes are only looked at: what they keep in attributes of the network is not for later ones.
        keeps: the modules in which passes were seen to keep tensors. Those with the rows of a pass are not for later
            ones.
    """

    def __init__(self, model: nn.Module, seed: int, device: torch.device, draws: str, read: Reader) -> None:
        self.model: Callable[..., Any]
        self.model, self.compiled = _in_this_thread(model)
        self.read, self.trying, self.keeps = read, False, frozenset[str]()
        self.network = innermost(model)
        self.conversion = conversion_of(self.network)
        self.balanced = draws == "balanced"
        state = random_stream.seed_state(seed, device)
        self.state = random_stream.balanced_state(state) if self.balanced else state

    def leave_compiled_code(self) -> None:
        """Run the network as it is written from now on."""
        if self.compiled:
            self.model, self.compiled = uncompiled_call(self.network), False

    def run(self, x: Tensor | Batch, samples: Tensor, images: Tensor, share: bool, **options: Any) -> Tensor:
        """The outputs ``(s, b, ...)`` of ``s`` samples and ``b`` images with these numbers; ``x`` is ``(b, ...)``.

        ``share`` runs what comes before the first random site once for all samples; ``fuse`` lets it fuse calls,
        ``live`` notes the memory it holds. ``seen`` is given the rows of each random site, ``reads`` follows their
        results. ``model`` is called in the place of the usual one. ``augment`` changes each row before that; there is
        nothing to share then, but calls are fused.
        """
        x = as_batch(x)
        if not self.trying and not self.keeps:
            return self._stacked_or_doubled(x, samples, images, share, **options)
        paths, rows = (None, None) if self.trying else (self.keeps, {len(x), len(x) * len(samples)})
        with keeping_attributes(self.network, paths, rows) as changed:
            out = self._stacked_or_doubled(x, samples, images, share, **options)
        if self.trying:
            self.keeps |= changed
        return out

    def _stacked_or_doubled(self, x: Batch, samples: Tensor, images: Tensor, share: bool, **options: Any) -> Tensor:
        try:
            return self._stacked(x, samples, images, share, **options)
        except Exception:
            if len(x) * len(samples) > 1:
                raise
            with suppress(Exception):  # a squeeze() takes a batch of one for none; beside a copy it is one
                return self._stacked(x.repeat(2), samples, images.repeat(2), share, **options)[:, :1]
            raise

    @contextmanager
    def trying_out(self) -> Iterator[None]:
        """Passes inside are only looked at."""
        self.trying = True
        try:
            yield
        finally:
            self.trying = False

    def _stacked(
        self,
        x: Batch,
        samples: Tensor,
        images: Tensor,
        share: bool,
        model: Callable[..., Any] | None = None,
        fuse: bool = True,
        live: LiveRows | None = None,
        seen: list[int] | None = None,
        reads: HostReads | None = None,
        augment: Augmentation | None = None,
    ) -> Tensor:
        stack, batch = len(samples), len(x)
        repeat = stack if share and augment is None else 1
        # The network gets rows of its own: one that works in place must not change the caller's tensor.
        rows = x.clone() if repeat > 1 else x.repeat(stack)
        watched = seen is not None or reads is not None
        hook = SampledPass(len(rows), repeat, share and fuse, live, seen, reads) if share or watched else None
        # The numbers of the stack * batch rows that come out, samples first; one sample needs its number once.
        row_samples = samples if stack == 1 else samples.repeat_interleave(batch)
        draw = Draw(self.state, row_samples, images.repeat(stack), hook, self.balanced)
        if augment is not None:
            rows = rows.with_first(augment(rows.first, draw.samples, draw.images))
        with drawing(self.network, draw), torch.no_grad(), nullcontext() if reads is None else reads:
            out = self.read(rows.call(self.model if model is None else model))
        out = out.to(x.device)  # where images are counted; a function of the user's may have moved it
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
        if out.numel() == 0:
            raise RbueError(f"the network returned an output of shape {tuple(out.shape)}, which has no class scores.")
        if out.shape[0] != stack * batch:
            raise RbueError(
                f"the network returned {out.shape[0]} rows for {stack * batch} inputs; rbue needs one row for each, "
                f"and counts them by the first tensor given, {tuple(rows.first.shape)}; give a list of images stacked."
            )
        if augment is not None:
            augment.refuse_maps(rows.first, out)
        return out.unflatten(0, (stack, batch))


def class_scores(output: Any) -> Tensor:
    """The tensor of class scores in a network's output: itself, its ``.logits``, or its ``"logits"``/``"out"``."""
    for name in ("logits", "out"):
        if isinstance(output, dict) and name in output:
            output = output[name]
        elif not isinstance(output, Tensor) and hasattr(output, name):
            output = getattr(output, name)
    if not isinstance(output, Tensor):
        pick = next(iter(output), "logits") if isinstance(output, dict) else 0
        raise RbueError(
            f"the network returned {type(output).__name__}; rbue needs a tensor, or an object or dict with 'logits' or "
            "'out'; wrap the network in a module that returns the scores, or let a hook pick them: "
            f"net.register_forward_hook(lambda net, x, out: out[{pick!r}]); for numbers, give outputs= a function that "
            "does."
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
        inner = compiled_network(model)
        if inner is not None:
            compiled, model = True, inner
        elif innermost(model) is not model:
            model = model.module  # type: ignore[assignment]
            found, compiled = model, False
        else:
            return found, compiled
