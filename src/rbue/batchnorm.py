"""BatchNorm statistics, estimated again for weights that no training step has seen, with the random ReLUs on."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from rbue import random_stream
from rbue.call_sites import Draw, conversion_of, drawing, evaluating, innermost
from rbue.call_sites.batch import Batch, even_parts
from rbue.call_sites.following import CONVERSION
from rbue.call_sites.inputs import batches_of, one_call
from rbue.errors import InvalidInput, whole_number
from rbue.torch_internals import uncompiled_call

__all__ = ["update_bn"]

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def update_bn(
    model: nn.Module, x: Any, batch_size: int = 128, seed: int = 0, layers: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Estimate the BatchNorm statistics of a network again, in place, with its random sites on.

    Averaged weights (SWA, EMA) have seen no batch, and a new ``q`` moves what the layers see; so the running statistics
    do not fit them. This is ``torch.optim.swa_utils.update_bn`` for networks with random sites. Only BatchNorm is in
    training mode: ``nn.Dropout`` and the like are off, as in :func:`rbue.predict`. The images are numbered on from
    batch to batch, and draw what one call after ``rbue.seed(model, seed)`` would draw for all of them, whatever the
    mode of the network; its own stream stays where it was.

    With ``n_b`` values a channel in batch ``b``, of mean ``m_b`` and unbiased variance ``v_b``, the statistics become
    ``Σ n_b m_b / Σ n_b`` and ``Σ n_b v_b / Σ n_b``. So give the images in random order: what differs between batches is
    not in them, and layers further on see what each batch's own statistics normalised. They do not depend on what they
    were. Momentum and training flags are afterwards what they were; so are the statistics of layers that no pass
    reached, and all of them after an error.

    Args:
        model: a network, converted or not; torch's ``AveragedModel`` or another wrapper around it is fine.
        x: training inputs in random order, in any form that :func:`rbue.predict` takes.
        batch_size: the most images in one pass; a loader's batches are taken as they come, but one image alone joins
            the batch before it.
        seed: 64-bit seed of the draws.
        layers: the names of the BatchNorm layers whose statistics are estimated; all of them by default. The others
            keep theirs and use them.

    Returns:
        The statistics from before, by their names in the state dict: ``model.load_state_dict(before, strict=False)``
        undoes it. Empty for a network without any, for which ``x`` is not looked at.

    >>> from rbue import DropReLU, convert
    >>> net = convert(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(2)), DropReLU(q=0.5))
    >>> before = update_bn(net, torch.tensor([[1.0, 5.0], [3.0, 9.0]]))
    >>> net[1].running_mean, net[1].running_var
    (tensor([2., 7.]), tensor([2., 8.]))
    >>> _ = net.load_state_dict(before, strict=False)
    >>> net[1].running_mean
    tensor([0., 0.])
    """
    size, state = whole_number(batch_size, "batch_size"), random_stream.check_seed(seed)
    network = innermost(model.module if isinstance(model, AveragedModel) else model)
    # By the names of the wrapper, whose own load_state_dict is to take them back.
    normed = [(path, one) for path, one in model.named_modules() if isinstance(one, _LAYERS)]
    wanted = {path: one for path, one in normed if one.running_mean is not None and (layers is None or path in layers)}
    unknown = sorted(set(layers or ()) - {path for path, _ in normed})
    if unknown:
        raise InvalidInput(f"layers names {unknown[0]!r}, but the network has no BatchNorm layer there.")
    if not wanted:
        return {}
    before = {path: {name: value.clone() for name, value in _statistics(one)} for path, one in wanted.items()}
    seen: dict[nn.Module, int] = dict.fromkeys(wanted.values(), 0)
    reached: list[nn.Module] = []
    try:
        with torch.no_grad(), evaluating(network), _cumulative(seen):
            _pass_all(network, _pieces(x, size, network), state)
        for path, layer in wanted.items():
            if not all(bool(value.isfinite().all()) for _, value in _statistics(layer)):
                raise InvalidInput(
                    f"the statistics of BatchNorm at {path or '(root)'} came out as NaN or infinity, so they stay as "
                    "they were; clean the input."
                )
        reached = [layer for layer, values in seen.items() if values]
    finally:
        for path, layer in wanted.items():
            if layer not in reached:
                for name, value in _statistics(layer):
                    value.copy_(before[path][name])
    return {f"{path}.{name}".lstrip("."): value for path, kept in before.items() for name, value in kept.items()}


def layers_that_vary(network: nn.Module, example: Batch) -> tuple[str, ...]:
    """The names of the BatchNorm layers whose inputs differ between two samples."""
    seen: dict[str, list[Tensor]] = {}

    def note(path: str, layer: nn.Module, args: tuple) -> None:
        seen.setdefault(path, []).append(args[0].clone())

    with ExitStack() as hooks, torch.no_grad(), evaluating(network):
        for path, layer in network.named_modules():
            if isinstance(layer, _LAYERS):
                hooks.enter_context(layer.register_forward_pre_hook(partial(note, path)))
        for _ in range(2):
            example.clone().call(network)
    # A layer may be called several times in a pass: the first half of what it saw is that of the first one.
    halves = {path: (found[: len(found) // 2], found[len(found) // 2 :]) for path, found in seen.items()}
    return tuple(path for path, (first, second) in halves.items() if not all(map(torch.equal, first, second)))


def _statistics(layer: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in layer.named_buffers(recurse=False) if name in STATISTICS]


def _pieces(x: Any, size: int, network: nn.Module) -> Iterator[Batch]:
    """The batches. BatchNorm could not normalise a last one of one row: it joins the one before it.

    Those of a tensor are of almost one size.
    """
    inputs = conversion_of(network).inputs if CONVERSION in network.__dict__ else 1
    whole = one_call(x, network, inputs)
    if whole is not None:
        whole.check(network)
        yield from (whole[part] for part in even_parts(len(whole), size))
        return
    held: Batch | None = None
    for batch in batches_of(x, network, inputs):
        batch.check(network)
        if held is not None and len(held) > 1 == len(batch) and batch.form == held.form:
            yield held.joined(batch)
            held = None
            continue
        if held is not None:
            yield held
        held = batch
    if held is not None:
        yield held


@contextmanager
def _cumulative(seen: dict[nn.Module, int]) -> Iterator[None]:
    """Layers in training mode whose running statistics become the mean over the passes inside, by values a channel.

    ``running += momentum * (batch - running)`` is such a mean if the momentum is the batch's part of all values so far.
    (``momentum=None`` would give each batch the same weight, and make a GPU wait at every layer.)
    """
    momenta = {layer: layer.momentum for layer in seen}

    def weigh(layer: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        given: Tensor = args[0] if args else kwargs["input"]
        values = given.numel() // given.shape[1]
        seen[layer] += values
        layer.momentum = values / max(seen[layer], 1)

    try:
        with ExitStack() as hooks:
            for layer in seen:
                hooks.enter_context(layer.register_forward_pre_hook(weigh, with_kwargs=True))
                layer.reset_running_stats()  # type: ignore[operator]
                layer.training = True
            yield
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum


def _pass_all(network: nn.Module, batches: Iterator[Batch], seed: int) -> None:
    start = 0
    for batch in batches:
        with _drawing(network, seed, start, batch):
            try:
                batch.clone().call(uncompiled_call(network))  # with rows that it may change
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise InvalidInput(
                    f"BatchNorm cannot normalise a batch of shape {tuple(batch.first.shape)}; give more images at "
                    "once, and the loader drop_last=True."
                ) from error
        start += len(batch)
    if not start:
        raise InvalidInput("the loader gave no batch; there is nothing to estimate statistics from.")


def _drawing(network: nn.Module, seed: int, start: int, batch: Batch) -> AbstractContextManager[None]:
    """A converted network draws its first call of a seed, for images ``start`` onwards; the call is not counted."""
    if CONVERSION not in network.__dict__:
        return nullcontext()
    images = torch.arange(start, start + len(batch), dtype=torch.int32, device=batch.device)
    draw = Draw(random_stream.seed_state(seed, batch.device), torch.zeros_like(images[:1]), images)
    return drawing(network, draw)
