"""``rbue.tune``: random ReLUs for a network that was trained without them.

Such a network has never seen a dropped ReLU. Two things bring it back to its accuracy without labels or gradients. Few
sites, or a large ``q``, disturb it less. And BatchNorm statistics, estimated again with the random ReLUs on, fit what
its layers see now. Which sites, which ``q`` and which temperature are best depends on the network, so they are tried
and compared on held-out images, beside the plain network.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from rbue import metrics
from rbue.activations import Activation, DropActivation, DropReLU
from rbue.batchnorm import BATCH_NORMS, update_bn
from rbue.calibration import Temperature, cross_fitted
from rbue.call_sites import Site, SiteTable, convert, evaluating, innermost, revert, set_temperature, sites
from rbue.call_sites.following import CONVERSION
from rbue.call_sites.inputs import Batch, batches_of, beside, one_call
from rbue.call_sites.table import choose
from rbue.errors import ConversionError, InvalidInput, RbueWarning, whole_number
from rbue.sampling.collect import SampleProgress
from rbue.sampling.passes import class_scores
from rbue.sampling.predicting import predict

__all__ = ["Candidate", "Tuned", "tune"]

PLAIN, NEW_STATISTICS = "plain", "plain, new statistics"
PLACEMENTS = ("last", "last block", "all")
_EXAMPLE = 32
"""Images that show which sites and layers there are."""
_DATASET_BATCH = 128


@dataclass(frozen=True)
class Candidate:
    """One way to run the network, and how good it was on the validation images.

    Attributes:
        where: ``"plain"``; ``"plain, new statistics"``, with BatchNorm statistics estimated again too, which shows what
            they do alone; or where the random sites are.
        q: the probability that an activation is kept there; 1 for the plain network.
        sites: how many sites are random.
        accuracy: share of the validation images whose label is right.
        nll: mean negative log-likelihood as it is.
        ece: expected calibration error as it is.
        temperature: the one that fits all validation images best.
        scaled_nll: the NLL with a temperature, each image scaled by the one that fits the others (cross-validated).
        scaled_ece: the ECE of the same.
        allowed: whether its accuracy is close enough to that of the plain network.
        seconds: what trying it took.
        statistics: the BatchNorm statistics that were estimated for it.
        losses: what ``scaled_nll`` is the mean of.
    """

    where: str
    q: float
    sites: int
    accuracy: float
    nll: float
    ece: float
    temperature: float
    scaled_nll: float
    scaled_ece: float
    allowed: bool
    seconds: float
    statistics: dict[str, Tensor] = field(repr=False, compare=False)
    losses: Tensor = field(repr=False, compare=False)


@dataclass(frozen=True)
class Tuned:
    """What :func:`tune` found; printed, it is a table.

    Attributes:
        network: the network, converted as ``best`` says, with its temperature: give it to :func:`rbue.predict`.
        best: the first candidate whose cross-validated NLL is within one standard error of the least, among those whose
            accuracy is close enough. It may be the plain network with a temperature: then random activations do not
            help this network without training, or too few images were there to show it.
        tried: all candidates: the plain network first, and few random sites before many.
    """

    network: nn.Module
    best: Candidate
    tried: tuple[Candidate, ...]
    _activation: Callable[[float], Activation] = field(repr=False)
    _example: Any = field(repr=False)
    _plain_statistics: dict[str, Tensor] = field(repr=False)

    def use(self, candidate: Candidate) -> nn.Module:
        """Convert the network as another of the candidates says, and return it."""
        self.revert()
        _convert(self.network, self._activation(candidate.q), candidate.where, self._example)
        self.network.load_state_dict(candidate.statistics, strict=False)
        set_temperature(self.network, candidate.temperature)
        return self.network

    def revert(self) -> nn.Module:
        """Give the network its plain activations and old BatchNorm statistics back; its outputs are the old ones."""
        if CONVERSION in innermost(self.network).__dict__:
            revert(self.network)
        self.network.load_state_dict(self._plain_statistics, strict=False)
        return self.network

    def __repr__(self) -> str:
        heads = ("", "where", "q", "sites", "accuracy", "NLL", "ECE", "T", "NLL with T", "ECE with T", "seconds")
        rows = [heads, *(self._row(one) for one in self.tried)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        if self.best.where in (PLAIN, NEW_STATISTICS):
            lines.append("The plain network with a temperature is best: random activations would have to be trained.")
        return "\n".join(lines)

    def _row(self, one: Candidate) -> tuple[str, ...]:
        mark = "best" if one is self.best else "" if one.allowed else "loses accuracy"
        q = "" if one.q == 1 else f"{one.q:g}"
        numbers = (f"{number:.4f}" for number in (one.nll, one.ece))
        scaled = (f"{number:.4f}" for number in (one.scaled_nll, one.scaled_ece))
        accuracy, temperature = f"{100 * one.accuracy:.2f} %", f"{one.temperature:.3f}"
        return mark, one.where, q, str(one.sites), accuracy, *numbers, temperature, *scaled, f"{one.seconds:.1f}"


def tune(
    model: nn.Module,
    validation: Any,
    unlabelled: Any = None,
    *,
    activation: Callable[[float], Activation] | None = None,
    q: Sequence[float] = (0.98, 0.95, 0.9, 0.8),
    where: Sequence[str] = PLACEMENTS,
    samples: int = 20,
    folds: int = 5,
    max_accuracy_loss: float = 0.002,
    seed: int = 0,
    progress: bool = False,
) -> Tuned:
    """Choose random activations and a temperature for a trained plain network, in place.

    For each placement, ``q`` goes from the largest down for as long as the NLL falls. BatchNorm layers behind a random
    site get their statistics estimated again under it, from inputs without labels. A candidate costs ``samples`` passes
    over the validation images, and one over the unlabelled ones where it has such layers; what comes before its first
    random site runs once, so the last placements cost little more than a pass.

    Args:
        model: a trained network that is not converted.
        validation: images with labels that training has not seen: a pair ``(x, y)``, or a loader or ``Dataset`` of such
            pairs, or of dicts with ``labels``. ``x`` may have any form that :func:`rbue.predict` takes.
        unlabelled: inputs for the BatchNorm statistics, such as the training images without augmentation; the
            validation images by default.
        activation: makes the random activation of a ``q``. Default: ``DropReLU`` if the network has a ReLU, else
            ``DropActivation``.
        q: the probabilities to try.
        where: the placements to try: ``"last"``, ``"last block"`` (the smallest module around the last site that has
            several, or else the last quarter of them), ``"all"``, or a name or pattern as in :func:`rbue.convert`.
        samples: balanced samples for each candidate.
        folds: parts of the validation images, each scaled by the temperature that fits the others.
        max_accuracy_loss: how far below the plain network's accuracy a candidate may be; 0.002 are 0.2 points.
        seed: 64-bit seed of the draws.
        progress: show a progress bar; needs rich.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> x = torch.randn(200, 2)
    >>> tuned = tune(net, (x, (x[:, 0] > 0).long()), where=["all"], q=[0.9])
    >>> [(one.where, one.q) for one in tuned.tried]
    [('plain', 1.0), ('all', 0.9)]
    """
    if CONVERSION in innermost(model).__dict__:
        raise InvalidInput(
            "tune is for a network that was trained plainly, and this one is converted; revert it first."
        )
    if not 0 <= max_accuracy_loss <= 1:
        raise InvalidInput(
            f"max_accuracy_loss is a part of the images and must lie in [0, 1], not {max_accuracy_loss}."
        )
    batches = _labelled(validation, model)
    example = batches[0][0][:_EXAMPLE]
    make = activation if activation is not None else _suiting(model, example)
    search = _Search(model, batches, unlabelled, make, example, whole_number(samples, "samples"), folds, seed)
    plain = search.plain()
    tried, lowest = [plain], plain.accuracy - max_accuracy_loss
    try:
        if search.plain_statistics:
            tried.append(search.candidate(NEW_STATISTICS, 1.0, lowest))
        with _progress(progress, len(where) * len(q)) as advance:
            for placement in search.distinct(where):
                best = math.inf
                for probability in sorted(set(q), reverse=True):
                    tried.append(search.candidate(placement, probability, lowest))
                    advance()
                    if tried[-1].scaled_nll > best:
                        break  # smaller ones disturb the network more
                    best = tried[-1].scaled_nll
    finally:
        search.restore()  # also where a candidate fails
    chosen = _simplest_of_the_best([one for one in tried if one.allowed])
    tuned = Tuned(model, chosen, tuple(tried), make, example, search.plain_statistics)
    tuned.use(chosen)
    return tuned


class _Search:
    """Candidates of one network on one set of validation images."""

    def __init__(
        self,
        model: nn.Module,
        batches: list[tuple[Batch, Tensor]],
        unlabelled: Any,
        make: Callable[[float], Activation],
        example: Batch,
        samples: int,
        folds: int,
        seed: int,
    ) -> None:
        self.model, self.batches, self.unlabelled = model, batches, unlabelled
        self.make, self.example, self.samples, self.folds, self.seed = make, example, samples, folds, seed
        self.labels = torch.cat([labels for _, labels in batches])
        self.sites = sites(model, example, make(0.9))
        self.plain_statistics = {
            name: value.clone() for name, value in model.state_dict().items() if _is_statistic(name)
        }

    def plain(self) -> Candidate:
        """The network as it is."""
        start = time.perf_counter()
        with torch.no_grad(), evaluating(innermost(self.model)):
            logits = [class_scores(x.clone().call(self.model)).float() for x, _ in self.batches]
        return self._measured(PLAIN, 1.0, 0, torch.cat(logits).softmax(1), -math.inf, start, {})

    def candidate(self, where: str, q: float, lowest: float) -> Candidate:
        """One placement and one ``q``; ``lowest`` is the accuracy that it must reach."""
        start = time.perf_counter()
        self.restore()
        count = _convert(self.model, self.make(q), where, self.example)
        statistics = self._estimated(q)
        samples = self.samples if q < 1 else 1
        probs = predict(self.model, _inputs(self.batches), samples, self.seed, temperature=False).probs
        return self._measured(where, q, count if q < 1 else 0, probs, lowest, start, statistics)

    def distinct(self, where: Sequence[str]) -> list[str]:
        """The placements that pick other sites than those before them; in a small network, a block may be one site."""
        picked = {_picked(self.sites, placement): placement for placement in reversed(where)}
        return [placement for placement in where if placement in picked.values()]

    def restore(self) -> None:
        """Make the network the plain one again."""
        if CONVERSION in innermost(self.model).__dict__:
            revert(self.model)
        self.model.load_state_dict(self.plain_statistics, strict=False)

    def _estimated(self, q: float) -> dict[str, Tensor]:
        """Estimate the statistics of the layers that see something random; those before are right as they are."""
        layers = None if q == 1 else _layers_that_vary(self.model, self.example)
        if layers == []:
            return {}
        inputs = _inputs(self.batches) if self.unlabelled is None else _on_device(self.unlabelled, self.model)
        before = update_bn(self.model, inputs, seed=self.seed, layers=layers)
        now = self.model.state_dict()
        return {name: now[name].clone() for name in before}

    def _measured(
        self,
        where: str,
        q: float,
        count: int,
        probs: Tensor,
        lowest: float,
        start: float,
        statistics: dict[str, Tensor],
    ) -> Candidate:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RbueWarning)  # a fold without a mistake has no best temperature; all have
            temperature = Temperature.fit(probs, self.labels).value
            scaled = cross_fitted(probs, self.labels, self.folds).probs
        accuracy = float(metrics.accuracy(probs, self.labels))
        scores = [float(score(one, self.labels)) for one in (probs, scaled) for score in (metrics.nll, metrics.ece)]
        nll, ece, scaled_nll, scaled_ece = scores
        losses = -scaled.double().gather(1, self.labels[:, None]).clamp(min=1e-30).log().squeeze(1)
        seconds = time.perf_counter() - start
        return Candidate(
            where, q, count, accuracy, nll, ece, temperature, scaled_nll, scaled_ece, accuracy >= lowest, seconds,
            statistics, losses,
        )  # fmt: skip


def _simplest_of_the_best(allowed: list[Candidate]) -> Candidate:
    """The first candidate that the best one does not beat by more than a standard error, image by image.

    A small difference in the mean of a few hundred losses is chance, and simpler networks come first.
    """
    best = min(allowed, key=lambda one: one.scaled_nll)

    def is_beaten(one: Candidate) -> bool:
        difference = one.losses - best.losses
        return bool(difference.mean() > difference.std() / math.sqrt(len(difference)))

    return next(one for one in allowed if not is_beaten(one))


def _convert(model: nn.Module, activation: Activation, where: str, example: Batch) -> int:
    """Make the sites of a placement random; how many they are."""
    chosen = _picked(sites(model, example, activation), where)
    convert(model, activation, where=lambda site: (site.path, site.call) in chosen, example=example)
    return len(chosen)


def _picked(table: SiteTable, where: str) -> frozenset[tuple[str, int]]:
    """The sites of a placement, by path and call."""
    if where == "last block":
        return frozenset((site.path, site.call) for site in _last_block(table))
    # One site that draws nothing: all that comes before it runs once, however many samples are asked for.
    return choose(table, "last" if where in (PLAIN, NEW_STATISTICS) else where)


def _last_block(table: SiteTable) -> Sequence[Site]:
    """The sites in the smallest module around the last one that has several, but not all; else the last quarter."""
    parts = table[-1].path.split(".")
    for length in range(len(parts), 0, -1):
        path = ".".join(parts[:length])
        inside = [site for site in table if site.path == path or site.path.startswith(f"{path}.")]
        if 1 < len(inside) <= len(table) / 2:
            return inside
    return table[-max(1, len(table) // 4) :]


def _layers_that_vary(model: nn.Module, example: Batch) -> list[str]:
    """The names of the BatchNorm layers whose inputs differ between two samples."""
    seen: dict[str, list[Tensor]] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, path=path: seen.setdefault(path, []).append(args[0].clone()))
        for path, layer in model.named_modules()
        if isinstance(layer, BATCH_NORMS) and layer.running_mean is not None
    ]
    try:
        with torch.no_grad(), evaluating(innermost(model)):
            for _ in range(2):
                example.clone().call(innermost(model))
    finally:
        for hook in hooks:
            hook.remove()
    return [path for path, found in seen.items() if not torch.equal(*_halves(found))]


def _halves(found: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What a layer, which may be called several times, saw in each of two passes."""
    middle = len(found) // 2
    first, second = (torch.cat([one.flatten() for one in part]) for part in (found[:middle], found[middle:]))
    return first, second


def _suiting(model: nn.Module, example: Batch) -> Callable[[float], Activation]:
    """DropReLU for a network with ReLUs, DropActivation for others."""
    try:
        sites(model, example, DropReLU())
    except ConversionError:
        return DropActivation
    return DropReLU


def _labelled(validation: Any, model: nn.Module) -> list[tuple[Batch, Tensor]]:
    """The batches of inputs and their labels, where the network is."""
    network = innermost(model)
    pair = isinstance(validation, (tuple, list)) and len(validation) == 2 and _are_labels(validation[1])
    if isinstance(validation, Dataset):
        validation = DataLoader(validation, batch_size=_DATASET_BATCH)
    batches = []
    for batch in [validation] if pair else validation:
        if isinstance(batch, Mapping):
            batch = batch, next((batch[name] for name in ("labels", "label") if name in batch), None)
        if not (isinstance(batch, (tuple, list)) and len(batch) == 2 and _are_labels(batch[1])):
            raise InvalidInput(
                f"validation must be a pair (x, y) of inputs and class numbers, or a loader of such pairs, but holds "
                f"{type(batch).__name__}."
            )
        inputs = one_call(batch[0], network)
        if inputs is None:
            raise InvalidInput(f"the inputs of validation must be tensors, not {type(batch[0]).__name__}.")
        inputs = beside(inputs, network)
        inputs.check(network)
        labels = torch.as_tensor(batch[1]).to(inputs.device)
        if len(inputs) != len(labels):
            raise InvalidInput(f"validation has {len(inputs)} images but {len(labels)} labels.")
        batches.append((inputs, labels))
    if not batches:
        raise InvalidInput("the loader gave no batch; there is nothing to tune with.")
    return batches


def _are_labels(y: Any) -> bool:
    return isinstance(y, (Tensor, np.ndarray)) and y.ndim == 1 and "int" in str(y.dtype)


def _inputs(batches: list[tuple[Batch, Tensor]]) -> Iterator[Batch]:
    return (x for x, _ in batches)


def _on_device(x: Any, model: nn.Module) -> Batch | Iterator[Batch]:
    """Inputs of any form, where the network is."""
    network = innermost(model)
    whole = one_call(x, network)
    return beside(whole, network) if whole is not None else (beside(one, network) for one in batches_of(x, network))


def _is_statistic(name: str) -> bool:
    return name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")


@contextmanager
def _progress(shown: bool, total: int) -> Iterator[Callable[[], None]]:
    """What advances a bar by a candidate."""
    if not shown:
        yield lambda: None
        return
    with SampleProgress(total, 1, "tuning") as bar:
        yield lambda: bar.advance(1)
