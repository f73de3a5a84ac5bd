"""Which rows of a pass are which sample of which image, and the keys that follow from it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from rbue import random_stream
from rbue.kernels import site_keys
from rbue.torch_internals import is_exporting, writing

if TYPE_CHECKING:
    from rbue.activations import Randomness
    from rbue.call_sites.interception import Scope, SiteHandler, SiteMode

SEED, STEP = "_rbue_seed", "_rbue_step"
"""Non-persistent buffers of a converted network: seed lanes, and calls so far. Site numbers are none: they belong to
the conversion, and what averages buffers (``AveragedModel(use_buffers=True)``) must not change them."""


class PassHook(Protocol):
    """What a sampler does in a pass besides numbering its rows, as :class:`rbue.sampling.shared_prefix.SampledPass`."""

    def mode(self, scope: Scope, activation: Randomness, handler: SiteHandler, inputs: Any) -> SiteMode:
        """The mode in which the network runs on ``inputs``."""

    def before_site(self, x: Tensor) -> int:
        """How many samples each row of ``x``, the input of a random site, is still to become; mostly 1."""

    def relu(
        self, x: Tensor, activation: Any, keys: Tensor, *, repeat: int, cap: float | None, inplace: bool
    ) -> Tensor:
        """The random activation of a site, as :func:`rbue.kernels.random_relu`."""

    def after_site(self, out: Any) -> None:
        """What a random site has made."""

    def finish(self) -> None:
        """The network's forward has returned."""


@dataclass(frozen=True)
class Draw:
    """The numbers of the rows of one pass.

    Attributes:
        state: seed lanes, ``int32`` of shape ``(2,)``.
        samples: sample number of each row, shape ``(rows,)`` or ``(1,)``.
        images: image number of each row, shape ``(rows,)``.
        hook: what else a sampler does in this pass.
        balanced: whether samples share their words in cycles; the state is then that of balanced draws.
    """

    state: Tensor
    samples: Tensor
    images: Tensor
    hook: PassHook | None = None
    balanced: bool = False

    @property
    def rows(self) -> int:
        """How many rows the pass has, after its first random site at the latest."""
        return self.images.shape[0]

    def site_keys(self, numbers: Tensor, activation: Randomness) -> Tensor:
        """The keys of each row at each of the numbered sites, ``(2, sites, rows)``; a third lane has balanced turns."""
        if not self.balanced:
            return site_keys(self.state, self.samples, self.images, numbers)
        cycles, turns = random_stream.turns(self.samples, activation.cycle)
        keys = site_keys(self.state, cycles, self.images, numbers)
        return torch.cat([keys, turns.expand_as(keys[:1])])

    def renumbered(self, rows: int) -> Draw:
        """The one sample of a pass for ``rows`` rows that are not the images of the batch.

        Their numbers begin at a place that the first image decides, so that ranks, replicas and batches of a loader
        draw apart here too; image 0 begins at 0.
        """
        start = random_stream.mix(random_stream.working_words(self.images[:1]))
        numbers = random_stream.to_int32(start + _rows(rows, self.images.device))
        return replace(self, images=numbers)


def _rows(rows: int, device: torch.device) -> Tensor:
    return torch.arange(rows, dtype=torch.int32, device=device)


_counting = threading.Lock()
"""Held while a call takes its number, as another thread would draw the same bits for the same one."""


def direct_draw(network: nn.Module, rows: int, device: torch.device) -> Draw:
    """The draw of a plain call: the sample number counts calls, the image number counts rows.

    Processes of a distributed run, and replicas of ``DataParallel``, number their rows apart. With equal shares of a
    batch the masks of a distributed run are those of one process with the whole batch.
    """
    with nullcontext() if torch.compiler.is_compiling() else _counting:
        sample = _snapshot(network.get_buffer(STEP)).reshape(1)
        count(network)
    images = _rows(rows, device)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        images = images + torch.distributed.get_rank() * rows
    if getattr(network, "_is_replica", False):
        images = images + ((device.index or 0) << 24)
    state = _snapshot(network.get_buffer(SEED))
    # A network without parameters does not know where its inputs will be.
    return Draw(state.to(images.device), sample.to(images.device), images)


def standing_draw(network: nn.Module, images: Tensor) -> Draw:
    """The draw of the next plain call, for rows with these numbers; it stands until that call is counted."""
    return Draw(network.get_buffer(SEED), network.get_buffer(STEP).reshape(1), images)


def _snapshot(buffer: Tensor) -> Tensor:
    """What a buffer holds now, for this call's backward too.

    A compiled graph keeps little for its backward and computes the rest again, from the buffers if it can; by then
    the next call has changed them. An operator of our own is opaque to it, so its result is kept.
    """
    if torch.compiler.is_compiling() and not is_exporting() and torch.is_grad_enabled():
        return _kept_copy(buffer)
    return buffer.clone()


@torch.library.custom_op("rbue::kept_copy", mutates_args=())
def _kept_copy(buffer: Tensor) -> Tensor:
    return buffer.clone()


@_kept_copy.register_fake
def _(buffer: Tensor) -> Tensor:
    return torch.empty_like(buffer)


def count(network: nn.Module) -> None:
    """Count a plain call."""
    step = network.get_buffer(STEP)
    with writing(step):
        step.add_(1)


def attach_buffers(network: nn.Module, seed: int) -> None:
    """Give a network its stream state."""
    for name, value in _fresh_buffers(seed, device_of(network)).items():
        # Not register_buffer: a network that passes unknown attributes on to a converted one inside has that one's.
        network._buffers[name] = value
        network._non_persistent_buffers_set.add(name)


def device_of(network: nn.Module) -> torch.device:
    """The device of its first parameter or buffer."""
    return next(iter(network.parameters()), next(iter(network.buffers()), torch.empty(0))).device


def _fresh_buffers(seed: int, device: torch.device) -> dict[str, Tensor]:
    step = torch.zeros((), dtype=torch.int32, device=device)
    return {SEED: random_stream.seed_state(seed, device), STEP: step}


def site_words(numbers: list[int], device: torch.device | str) -> Tensor:
    """Site numbers as ``int32`` words, ``(sites,)``."""
    return torch.tensor([random_stream.signed32(n) for n in numbers], dtype=torch.int32, device=device)


def carry_over(network: nn.Module, before: dict[str, Tensor | None], seed: int) -> None:
    """Give moved buffers what they held ``before``: ``to_empty`` leaves them without, and no state dict has them.

    What was on the meta device begins anew.
    """
    for name in (SEED, STEP):
        old, new = before[name], network.get_buffer(name)
        assert old is not None
        if new is not old:
            new.copy_(_fresh_buffers(seed, new.device)[name] if old.is_meta else old)


def leave_meta(network: nn.Module, device: torch.device, seed: int) -> None:
    """Begin anew on a device that only the weights have come to, as with ``load_state_dict(assign=True)``."""
    if network.get_buffer(SEED).is_meta:
        with torch.inference_mode(False):  # they count calls outside it too
            network._buffers.update(_fresh_buffers(seed, device))


def detach_buffers(network: nn.Module) -> None:
    """Undo :func:`attach_buffers`."""
    for name in (SEED, STEP):
        delattr(network, name)


def set_seed(network: nn.Module, seed: int) -> None:
    """Restart the stream of plain calls in place, so that captured graphs see it too."""
    state, step = network.get_buffer(SEED), network.get_buffer(STEP)
    with writing(state):
        state.copy_(random_stream.seed_state(seed, state.device))
        step.zero_()


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in nested arguments."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ():
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list, dict)):  # asked here, as this is done at every call of a pass
            found += tensors_in(item)
    return found


def with_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Nested arguments with every tensor in them changed."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: with_tensors(function, item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(with_tensors(function, item) for item in value)
    return value


def first_tensor(values: Any) -> Tensor | None:
    """The first tensor with a batch dimension in nested arguments."""
    return next((x for x in tensors_in(values) if x.dim()), None)


class _Running:
    """What a thread's sampler and checkpointed blocks hand to the networks that they run."""

    def __init__(self) -> None:
        # Not a subclass of threading.local: torch.compile reads and writes the wrong attributes of one.
        self._local = threading.local()

    @property
    def draws(self) -> Any:
        """``(token, Draw)`` of a sampler."""
        return getattr(self._local, "draws", None)

    @draws.setter
    def draws(self, value: Any) -> None:
        self._local.draws = value

    @property
    def memories(self) -> tuple:
        """What checkpointed blocks remember: see :mod:`rbue.call_sites.checkpointing`."""
        return getattr(self._local, "memories", ())

    @memories.setter
    def memories(self, value: tuple) -> None:
        self._local.memories = value


running = _Running()
