"""``rbue.tune``: random ReLUs for a network that was trained without them.

Such a network has never seen a dropped ReLU. Two things bring it back to its accuracy without labels or gradients. Few
sites, or a large ``q``, disturb it less. And BatchNorm statistics, moved by what the random ReLUs change in them, fit
what its layers see now. Which sites, which ``q`` and which temperature are best depends on the network, so they are
tried and compared on held-out images, beside the plain network.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode

from rbue.activations import DropActivation, DropReLU, Randomness
from rbue.augment import Augment
from rbue.batchnorm import STATISTICS, layers_that_vary, update_bn
from rbue.call_sites import Placement, convert, evaluating, innermost, revert, set_temperature, sites
from rbue.call_sites.batch import Batch
from rbue.call_sites.following import CONVERSION
from rbue.call_sites.inputs import batches_of, beside, labelled_batches, one_call
from rbue.call_sites.summary import LIKELY_MEANT
from rbue.call_sites.table import choose, in_columns
from rbue.call_sites.tracing import check_activation, find_sites
from rbue.errors import ConversionError, InvalidInput, warn, whole_number
from rbue.held_out import HeldOut
from rbue.sampling.collect import SampleProgress, refuse_infinite_images
from rbue.sampling.predicting import predict
from rbue.sampling.tasks import Task, task_of

__all__ = ["Candidate", "Tuned", "tune"]

PLAIN = "plain"
PLACEMENTS = ("last", "last block", "all")
_PLAIN_SITE = "last"
"""The plain network is converted with q = 1, which changes nothing; at the last site its samples cost least."""
_EXAMPLE = 32
"""Images that show which sites and layers there are."""
_LARGEST_BATCH = 256


@dataclass(frozen=True)
class Candidate:
    """One way to run the network, and how good it was on the validation images.

    Attributes:
        where: ``"plain"``, or where the random sites are.
        q: the probability that an activation is kept there; 1 for the plain network.
        sites: how many sites are random; 0 for the plain network.
        accuracy: share of the validation images whose label is right.
        nll: mean negative log-likelihood as it is.
        ece: expected calibration error as it is.
        temperature: the one that fits all validation images best, and half an image more with any label.
        scaled_nll: the NLL with a temperature, each image scaled by the one that fits the others (cross-validated).
        scaled_ece: the ECE of the same.
        allowed: whether its accuracy is close enough to that of the plain network.
        seconds: what trying it took.
        statistics: the BatchNorm statistics that it needs.
        losses: what ``scaled_nll`` is the mean of, a number an image; one with fewer labels than others counts less.
            Probabilities of 0 count as 1e-30, so that no image decides alone.
    """

    where: Placement
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


@dataclass(frozen=True, eq=False)
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
    _activation: Callable[[float], Randomness] = field(repr=False)
    _example: tuple[tuple, dict[str, Any]] = field(repr=False)
    _plain_statistics: dict[str, Tensor] = field(repr=False)
    _augmented: bool = field(repr=False)

    def use(self, candidate: Candidate) -> nn.Module:
        """Convert the network as another of the candidates says, such as ``tried[1]``, and return it."""
        if candidate not in self.tried:
            raise InvalidInput(f"candidate is {candidate!r}; give one of tuned.tried, such as tuned.tried[1].")
        self.revert()
        where = candidate.where if candidate.sites else _PLAIN_SITE
        _convert(self.network, self._activation(candidate.q), where, Batch(*self._example))
        innermost(self.network).load_state_dict(candidate.statistics, strict=False)
        set_temperature(self.network, candidate.temperature, self._augmented)
        return self.network

    def revert(self) -> nn.Module:
        """Give the network its plain activations and old BatchNorm statistics back; its outputs are the old ones."""
        _restore(innermost(self.network), self._plain_statistics)
        return self.network

    def __repr__(self) -> str:
        heads = ("", "where", "q", "sites", "accuracy", "NLL", "ECE", "T", "NLL with T", "ECE with T", "seconds")
        lines = in_columns([heads, *(self._row(one) for one in self.tried)])
        if not self.best.sites:
            lines.append(
                "The plain network with a temperature is best: random activations show no clear gain without training."
            )
        return "\n".join(lines)

    def _row(self, one: Candidate) -> tuple[str, ...]:
        mark = "best" if one is self.best else "" if one.allowed else "loses accuracy"
        q = "" if one.q == 1 else f"{one.q:g}"
        numbers = (f"{number:.4f}" for number in (one.nll, one.ece))
        scaled = (f"{number:.4f}" for number in (one.scaled_nll, one.scaled_ece))
        accuracy, temperature = f"{100 * one.accuracy:.2f} %", f"{one.temperature:.3f}"
        return mark, str(one.where), q, str(one.sites), accuracy, *numbers, temperature, *scaled, f"{one.seconds:.1f}"


def tune(
    model: nn.Module,
    validation: Any,
    unlabelled: Any = None,
    *,
    activation: Callable[[float], Randomness] | None = None,
    q: Sequence[float] | float = (0.98, 0.95, 0.9, 0.8),
    where: Sequence[Placement] | Placement = PLACEMENTS,
    samples: int = 20,
    folds: int = 5,
    max_accuracy_loss: float = 0.002,
    outputs: str | None = None,
    augment: Augment | Sequence[Augment] | None = None,
    ignore_index: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Tuned:
    """Choose random activations and a temperature for a trained plain network, in place.

    For each placement, ``q`` goes from the largest down for as long as the NLL falls. The statistics of BatchNorm
    layers behind a random site are moved by what the randomness changes in them, which inputs without labels show. A
    candidate costs ``samples`` passes over the validation images, and one over the unlabelled ones where it has such
    layers; what comes before its first random site runs once, so the last placements cost little more than a pass.

    Args:
        model: a trained network that is not converted.
        validation: images with labels that training has not seen: a pair ``(x, y)`` or a dict with ``labels``, or a
            loader or ``Dataset`` of these. ``x`` may have any form that :func:`rbue.predict` takes.
            Maps and texts may have another size in each batch.
        unlabelled: inputs for the BatchNorm statistics in random order, such as the training images without
            augmentation; the validation images by default.
        activation: makes the random activation of a ``q``; that of 1 has to be the plain one. Default: ``DropReLU`` if
            ReLUs are all that the network has, else ``DropActivation``.
        q: the probabilities to try, or one.
        where: the placements to try, or one: ``"last"``, ``"last block"`` (the smallest module around the last site
            that has several, or else the last quarter of them), ``"all"``, or a name, pattern, index or list of these
            as in :func:`rbue.convert`.
        samples: balanced samples for each candidate.
        folds: parts of the validation images, each scaled by the temperature that fits the others.
        max_accuracy_loss: how far below the plain network's accuracy a candidate may be; 0.002 are 0.2 points. Unless
            it is 0, one image is always allowed.
        outputs: ``"logits"``, the default, ``"probs"``, ``"binary"`` or ``"tokens"``, as in :func:`rbue.predict`.
        augment: what each sample does to its images first, as in :func:`rbue.predict`, which should get the same; the
            plain network then has ``samples`` passes too.
        ignore_index: a class number that says nothing, such as 255 on the borders of maps; what has it is left out.
        seed: 64-bit seed of the draws.
        progress: show a progress bar; needs rich.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> x = torch.randn(200, 2)
    >>> tuned = tune(net, (x, (x[:, 0] > 0).long()), where=["all"], q=[0.9])
    >>> [(one.where, one.q) for one in tuned.tried]
    [('plain', 1.0), ('all', 0.9)]
    """
    network, task = innermost(model), task_of(outputs)
    if CONVERSION in network.__dict__:
        raise InvalidInput(
            "tune is for a network that was trained plainly, and this one is converted; revert it first."
        )
    if not task.of_classes:
        raise InvalidInput(
            f"tune is for classes, and outputs={task.name!r} has none; give 'logits', 'probs', 'binary' or 'tokens'."
        )
    if not isinstance(max_accuracy_loss, Real) or not 0 <= max_accuracy_loss <= 1:
        raise InvalidInput(
            f"max_accuracy_loss is a part of the images and must lie in [0, 1], not {max_accuracy_loss!r}."
        )
    if activation is not None and not callable(activation):
        raise InvalidInput(f"activation must be a function of q, such as rbue.DropReLU, not {activation!r}.")
    batches = labelled_batches(validation, network, _LARGEST_BATCH)
    for x, _ in batches:
        refuse_infinite_images(x, torch.arange(len(x), device=x.device))
    example = batches[0][0][:_EXAMPLE].clone()  # a view would keep and store all images with what was found
    make = activation if activation is not None else _suiting(network, example)
    probabilities, wheres = _several(q), _several(where)
    for one in probabilities:
        check_activation(make(one))  # says what is wrong with a q, too
    if isinstance(unlabelled, Iterator):  # each candidate reads it
        unlabelled = [beside(one, network) for one in batches_of(unlabelled, network)]
    held_out = HeldOut([labels for _, labels in batches], folds, ignore_index)
    how = {"samples": whole_number(samples, "samples"), "seed": seed, "outputs": task.name, "augment": augment}
    search = _Search(network, [x for x, _ in batches], held_out, unlabelled, make, example, task, how)
    placements, falling = search.distinct(wheres), sorted(set(probabilities), reverse=True)
    try:
        with _as_written(network), _progress(progress, len(placements) * len(falling)) as advance:
            tried = [search.plain()]
            # One image more or less is chance, where 0.2 points are less than one.
            loss = max(max_accuracy_loss, 1.5 / len(held_out.image)) if max_accuracy_loss else 0.0
            lowest = tried[0].accuracy - loss
            for placement in placements:
                best = math.inf
                for done, probability in enumerate(falling, 1):
                    tried.append(search.candidate(placement, probability, lowest))
                    advance(1)
                    loss_now = float(tried[-1].losses.mean())  # finite where one image makes the NLL infinite
                    if loss_now > best:
                        advance(len(falling) - done)
                        break  # smaller ones disturb the network more
                    best = loss_now
    finally:
        search.restore()  # also where a candidate fails
    chosen = _simplest_of_the_best([one for one in tried if one.allowed])
    tuned = Tuned(model, chosen, tuple(tried), make, example.arguments, search.plain_statistics, augment is not None)
    tuned.use(chosen)
    if chosen.accuracy == 1:
        warn(
            f"all {held_out.images} validation images are right, so the temperature {chosen.temperature:.3g} is a "
            "guess; give images with mistakes among them, or predict with temperature=False."
        )
    if math.isinf(chosen.nll):
        warn(
            "some validation images give their true class probability 0, so the NLL is infinite; a temperature leaves "
            "them out, and candidates are compared as if it were 1e-30; look at them, and at the scale of the outputs."
        )
    return tuned


@dataclass(eq=False)
class _Search:
    """Candidates of one network on one set of validation images."""

    network: nn.Module
    batches: list[Batch]
    held_out: HeldOut
    unlabelled: Any
    make: Callable[[float], Randomness]
    example: Batch
    task: Task
    how: dict[str, Any]

    def __post_init__(self) -> None:
        self.sites = sites(self.network, self.example, self.make(0.9))
        self.estimated_plainly: dict[tuple[str, ...], dict[str, Tensor]] = {}
        stored = self.network.state_dict().items()
        self.plain_statistics = {name: one.clone() for name, one in stored if name.rpartition(".")[2] in STATISTICS}

    def plain(self) -> Candidate:
        """The network as it is; an activation that changes it even with ``q = 1`` is refused."""
        start = time.perf_counter()
        probs = [self._plain_probs(x) for x in self.batches]
        self.held_out.check(probs)
        expected = self._plain_probs(self.example)  # by itself, as a network may be batch-dependent
        _convert(self.network, self.make(1.0), _PLAIN_SITE, self.example)
        if not torch.allclose(self._plain_probs(self.example), expected, rtol=1e-2, atol=1e-3):
            raise InvalidInput(
                f"activation gives {self.make(1.0)!r} for q=1, which is not the plain network; give a function of the "
                "probability that an activation is kept, such as rbue.DropReLU."
            )
        if self.how["augment"] is not None:
            probs = self._drawn()
        return self._measured(PLAIN, 1.0, 0, probs, -math.inf, start, {})

    def _plain_probs(self, x: Batch) -> Tensor:
        # Transformers that torch fuses write 0 at padded places. Inside a function mode they compute what training did,
        # as random ones do; torch's own switch would be thrown for all threads.
        with torch.no_grad(), evaluating(self.network), BaseTorchFunctionMode():
            return self.task.sampled(self.task.read(x.clone().call(self.network))[None])[0]

    def candidate(self, where: Placement, q: float, lowest: float) -> Candidate:
        """One placement and one ``q``; ``lowest`` is the accuracy that it must reach."""
        start = time.perf_counter()
        self.restore()
        count = _convert(self.network, self.make(q), where, self.example)
        layers = layers_that_vary(self.network, self.example)
        statistics: dict[str, Tensor] = {}
        if layers:
            random = self._estimated(layers)
            if layers not in self.estimated_plainly:
                revert(self.network)
                self.estimated_plainly[layers] = self._estimated(layers)
                _convert(self.network, self.make(q), where, self.example)
            statistics = self._moved(random, self.estimated_plainly[layers])
            self.network.load_state_dict(statistics, strict=False)
        return self._measured(where, q, count, self._drawn(), lowest, start, statistics)

    def _drawn(self) -> list[Tensor]:
        sizes = [len(x) for x in self.batches]
        # Each batch by itself: its maps may have another size than those of the next.
        numbered = zip(self.batches, torch.arange(sum(sizes)).split(sizes), strict=True)
        return [predict(self.network, x, index=own, temperature=False, **self.how).probs for x, own in numbered]

    def _inputs(self) -> Iterator[Batch]:
        return iter(self.batches)

    def distinct(self, where: Sequence[Placement]) -> list[Placement]:
        """Placements that pick other sites each, few sites first; in a small network, a block may be one site."""
        picked: dict[frozenset, Placement] = {}
        for placement in where:
            picked.setdefault(choose(self.sites, placement, self.make(0.9).noun), placement)
        return [picked[chosen] for chosen in sorted(picked, key=len)]

    def restore(self) -> None:
        """Make the network the plain one again."""
        _restore(self.network, self.plain_statistics)

    def _moved(self, random: dict[str, Tensor], plain: dict[str, Tensor]) -> dict[str, Tensor]:
        """The network's own statistics, moved by what the randomness changes in them.

        Estimated from other images than those of training, or from the same without augmentation, all statistics are a
        little off, which costs more accuracy than random sites do. So they are estimated plainly too, once for a
        placement, and only the difference counts: ``mean + (random - plain)`` and ``var * random / plain``.
        """
        found = {}
        for name, now in random.items():
            old = self.plain_statistics[name]
            if name.endswith("running_mean"):
                found[name] = old + (now - plain[name])
            elif name.endswith("running_var"):
                found[name] = old * (now / plain[name].clamp(min=1e-12))
        return found

    def _estimated(self, layers: Collection[str]) -> dict[str, Tensor]:
        """Statistics of the network as it is, estimated in place."""
        inputs = self._inputs() if self.unlabelled is None else _on_device(self.unlabelled, self.network)
        changed = update_bn(self.network, inputs, seed=self.how["seed"], layers=layers)
        now = self.network.state_dict()
        return {name: now[name].clone() for name in changed}

    def _measured(
        self,
        where: Placement,
        q: float,
        count: int,
        probs: list[Tensor],
        lowest: float,
        start: float,
        statistics: dict[str, Tensor],
    ) -> Candidate:
        scores = self.held_out.scores(probs)
        allowed, seconds = scores["accuracy"] >= lowest, time.perf_counter() - start
        return Candidate(where, q, count, allowed=allowed, seconds=seconds, statistics=statistics, **scores)


def _simplest_of_the_best(allowed: list[Candidate]) -> Candidate:
    """The first candidate that the best one does not beat by more than a standard error, image by image.

    A small difference in the mean of a few hundred losses is chance, and simpler networks come first.
    """
    best = min(allowed, key=lambda one: float(one.losses.mean()))

    def is_beaten(one: Candidate) -> bool:
        difference = one.losses - best.losses
        return bool(difference.mean() > difference.std() / math.sqrt(len(difference)))

    return next(one for one in allowed if not is_beaten(one))


def _restore(network: nn.Module, statistics: dict[str, Tensor]) -> None:
    """Make a network the plain one again."""
    if CONVERSION in network.__dict__:
        revert(network)
    network.load_state_dict(statistics, strict=False)


@contextmanager
def _as_written(network: nn.Module) -> Iterator[None]:
    """Run a network whose ``compile()`` was called uncompiled: each candidate would be compiled anew."""
    compiled, network._compiled_call_impl = network._compiled_call_impl, None
    try:
        yield
    finally:
        network._compiled_call_impl = compiled


def _convert(model: nn.Module, activation: Randomness, where: Placement, example: Batch) -> int:
    """Make the sites of a placement random; how many they are."""
    chosen = choose(sites(model, example, activation), where, activation.noun)
    convert(model, activation, where=lambda site: (site.path, site.call) in chosen, example=example)
    return len(chosen)


def _several(given: Any) -> list[Any]:
    """What is to be tried, of which there may be one."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def _suiting(network: nn.Module, example: Batch) -> Callable[[float], Randomness]:
    """DropReLU for a network with ReLUs alone; it would leave the GELUs of a transformer plain."""
    try:
        _, others = find_sites(network, example, DropReLU())
    except ConversionError:
        return DropActivation
    return DropActivation if others.keys() & LIKELY_MEANT else DropReLU


def _on_device(x: Any, network: nn.Module) -> Batch | Iterator[Batch]:
    """Inputs of any form, where the network is."""
    whole = one_call(x, network)
    return beside(whole, network) if whole is not None else (beside(one, network) for one in batches_of(x, network))


@contextmanager
def _progress(shown: bool, total: int) -> Iterator[Callable[[int], None]]:
    """What advances a bar by some candidates."""
    if not shown:
        yield lambda _: None
        return
    with SampleProgress(total, 1, "tuning") as bar:
        yield bar.advance
