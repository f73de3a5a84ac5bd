"""All samples of a converted network as one module that can be traced: images and a seed in, a prediction out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rbue.activations import Randomness
from rbue.call_sites import Draw, drawing
from rbue.call_sites.batch import Batch
from rbue.call_sites.draws import with_tensors
from rbue.call_sites.interception import Scope, SiteHandler, SiteMode
from rbue.kernels import exported_words, random_relu
from rbue.kernels.layout import repeat_rows
from rbue.prediction import entropy
from rbue.sampling.shared_prefix import SampledPass, SharingMode
from rbue.sampling.tasks import Task
from rbue.torch_internals import is_known_equal, uncompiled_call

OUTPUTS = ("probs", "entropy", "mutual_information")
"""What the graph returns, in this order."""

_NOW = "_rbue_now"


class SampledNetwork(nn.Module):
    """Mean probabilities, their entropy and the mutual information of the first ``samples`` samples of each image.

    Called with the tensors of ``example`` that have rows, in their order; its other arguments are constants. ``seed``
    is that of :func:`rbue.predict` and ``offset`` the number of the first image, both of one integer.

    Args:
        network: the converted network.
        example: how it is called.
        samples: how many samples, which are stacked along the batch.
        balanced: whether draws are balanced.
        task: what the outputs mean.
        temperature: what the mean is scaled by.
        share: whether what comes before the first random site may run once for all samples.
        elements: of the largest row of a random site.
        as_operators: see :mod:`rbue.kernels.exported_words`.
    """

    def __init__(
        self,
        network: nn.Module,
        example: Batch,
        samples: int,
        balanced: bool,
        task: Task,
        temperature: float,
        share: bool,
        elements: int,
        as_operators: bool,
    ) -> None:
        super().__init__()
        self.network = network
        self.example, self.samples, self.balanced, self.task = example, samples, balanced, task
        self.temperature, self.share, self.elements, self.as_operators = temperature, share, elements, as_operators

    def forward(self, *tensors: Tensor, seed: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs named in :data:`OUTPUTS`: ``(B, C, ...)``, ``(B, ...)``, ``(B, ...)``."""
        given = iter(tensors)
        batch = self.example.map(lambda _: next(given))
        images = tensors[0].shape[0]
        out = self._scores(batch, images, seed, offset)
        probs = self.task.sampled(out.unflatten(0, (self.samples, images))).double()  # (S, B, C, ...)
        # As in predict: statistics in float64, results in float32.
        mean = probs.mean(0).float()
        spread = entropy(mean.double()) - torch.special.entr(probs).sum(2).mean(0)
        if self.temperature != 1:
            mean = torch.softmax(mean.double().log() / self.temperature, 1).float()
        return mean, entropy(mean.double()).float(), spread.clamp(min=0).float()

    def _scores(self, batch: Batch, images: int, seed: Tensor, offset: Tensor) -> Tensor:
        """What the network returns for all samples, ``(S * B, ...)``, samples first."""
        device = seed.device
        numbers = torch.arange(images, device=device) + offset
        samples = torch.arange(self.samples, device=device)
        hook = TracedPass(images, self.samples) if self.share and self.samples > 1 else None
        rows = batch.map(lambda x: x.clone() if hook is not None else repeat_rows(x, self.samples))
        with exported_words.exporting(self.elements, device, self.as_operators) as words:
            draw = Draw(
                words.seed_state(seed, self.balanced),
                samples.unsqueeze(1).expand(self.samples, images).flatten(),
                repeat_rows(numbers, self.samples),
                hook,
                self.balanced,
            )
            with drawing(self.network, draw):
                return self.task.read(_now(rows.call(uncompiled_call(self.network))))


class TracedPass(SampledPass):
    """A pass whose graph is being made: no call waits for another, and no tensor changes its shape."""

    def __init__(self, images: int, repeat: int) -> None:
        super().__init__(images, repeat, fuse=False)
        self.relu = self._relu

    def mode(self, scope: Scope, activation: Randomness, handler: SiteHandler, inputs: Any) -> SiteMode:
        """The mode in which the network runs on ``inputs``."""
        return _TracedSharing(scope, activation, handler, self, inputs)

    def _relu(
        self, x: Tensor, activation: Any, keys: Tensor, *, repeat: int, cap: float | None, inplace: bool
    ) -> Tensor:
        if repeat == 1:
            return random_relu(x, activation, keys, cap=cap, inplace=inplace)
        out = random_relu(x, activation, keys, repeat=repeat, cap=cap)
        if inplace:
            setattr(x, _NOW, out)
        return out


class _TracedSharing(SharingMode):
    """A tensor of a graph cannot be given more rows, so a new one takes its place wherever its old name is used."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, _now(args), _now(kwargs or {}))

    def _sampled(self, x: Tensor) -> bool | None:
        """Of a tensor that the network makes by itself, such as a mask of attention, the size is enough.

        The batch size is a symbol here, which no weight and no constant has among its sizes.
        """
        found = super()._sampled(x)
        if found is not None or not x.dim() or not isinstance(x.shape[0], torch.SymInt):
            return found
        for sampled in (False, True):
            if is_known_equal(x.shape[0], self._rows(sampled)):
                return sampled
        return None

    def _sampled_in_place(self, x: Tensor) -> Tensor:
        out = repeat_rows(x, self.repeat)
        self._mark(out, True)
        setattr(x, _NOW, out)
        return out


def _now(value: Any) -> Any:
    """Arguments with what has taken the place of their tensors."""
    return with_tensors(lambda x: getattr(x, _NOW, x), value)
