"""Temperature scaling: one number that makes confidence match accuracy without changing any decision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from rbue.errors import InvalidInput, warn, whole_number
from rbue.metrics import _checks

__all__ = ["CrossFitted", "Temperature", "cross_fit", "cross_fitted"]

Inputs = Literal["probs", "logits"]


class Predicted(Protocol):
    """Probabilities with those that no temperature has changed, as a ``Prediction`` has."""

    @property
    def probs(self) -> Tensor:
        """As they are."""

    @property
    def unscaled_probs(self) -> Tensor | None:
        """As they were; None if they are."""


@dataclass(frozen=True)
class Temperature:
    """Divide log-probabilities (or logits) by one temperature and normalise again: ``softmax(z / T)``.

    For stochastic networks ``z`` is the log of the mean probabilities, so the samples are averaged first.
    A probability of 0 stays 0, and the order of the classes never changes.

    Attributes:
        value: The temperature ``T``; above 1 it lowers the confidence, below 1 it raises it.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]])
        >>> temperature = Temperature.fit(probs, torch.tensor([0, 0, 1, 1]))
        >>> round(temperature.value, 3)
        2.0
        >>> temperature(probs)[0]
        tensor([0.7500, 0.2500])
    """

    value: float

    LOWEST: ClassVar[float] = 1e-2
    """The least temperature ``fit`` returns."""
    HIGHEST: ClassVar[float] = 1e2
    """The greatest temperature ``fit`` returns."""

    def __post_init__(self) -> None:
        """Refuse what is not a temperature."""
        if isinstance(self.value, bool) or not isinstance(self.value, Real):
            raise InvalidInput(f"value is {self.value!r}; give the temperature as a number above 0.")
        if not (math.isfinite(self.value) and self.value > 0):
            raise InvalidInput(f"value is {self.value}; give a finite temperature above 0.")

    @classmethod
    def fit(
        cls, values: Tensor | Predicted, labels: Tensor, inputs: Inputs = "probs", prior: float = 0.0
    ) -> Temperature:
        """Find the temperature with the least mean negative log-likelihood on held-out data.

        ``NLL(β) = mean[ln Σ_c exp(β z_c) - β z_y]`` is convex in ``β = 1/T``, so its derivative
        ``mean[E_β[z] - z_y]`` has at most one sign change; a safeguarded Newton iteration in ``ln β`` and in
        float64 finds it.

        Without a sign change between ``LOWEST`` and ``HIGHEST`` the nearer bound is returned, with a
        warning: ``LOWEST`` where sharper is always better (every image right), ``HIGHEST`` where flatter is
        (predictions no better than chance). Where no temperature changes the NLL (every prediction uniform),
        1 is returned, with a warning. Images whose true class has probability 0 have an infinite NLL at every
        temperature; they are left out, with a warning.

        Args:
            values: Probabilities or logits, ``(B, C)`` or ``(B, C, ...)``, or a ``Prediction``, whose probabilities are
                taken as they were before any temperature.
            labels: Class numbers, ``(B,)`` or ``(B, ...)``.
            inputs: Whether ``values`` are "probs" or "logits".
            prior: How many images with any label to add, each as sure as the given ones are on average. A half keeps a
                few hundred images that are all right from asking for the lower bound, under which a mistake in new
                images costs everything; among thousands it hardly counts.
        """
        if isinstance(prior, bool) or not isinstance(prior, Real) or not 0 <= prior < math.inf:
            raise InvalidInput(f"prior is {prior!r}; give a number of images, at least 0.")
        values = _unscaled(values, inputs)
        scores = _log_scores(values, inputs).detach()
        labels = _checks.labels_of(labels, values, inputs)
        possible = ~scores.gather(1, labels[:, None]).squeeze(1).isneginf()
        if not bool(possible.any()):
            raise InvalidInput(
                f"all {len(labels)} images give their true class probability 0; no temperature can help."
            )
        if not bool(possible.all()):
            left_out = int((~possible).sum())
            _warn(f"{left_out} of {len(labels)} images give their true class probability 0 and are left out.")
            scores, labels = scores[possible], labels[possible]
        ruled_out = scores.isneginf()
        if bool((scores.amax(dim=1) == scores.masked_fill(ruled_out, math.inf).amin(dim=1)).all()):
            _warn(
                "every prediction is uniform over the classes it does not rule out, so that no temperature changes the "
                "NLL: 1.0 is kept."
            )
            return cls(1.0)

        # Measured from the true class, whose own term is then exactly 0, no rounding can hide the sign of the
        # slope. 0·(-inf) is NaN: a ruled-out class has weight 0 at every temperature and must add nothing.
        margins = scores - scores.gather(1, labels[:, None])
        finite = margins.masked_fill(ruled_out, 0.0)
        any_class = finite.sum(dim=1) / (~ruled_out).sum(dim=1)
        added = prior / len(labels)

        def slope_and_curvature(log_beta: float) -> tuple[float, float]:
            """Derivative of the NLL by ``β``, and the derivative of that by ``ln β``."""
            beta = math.exp(log_beta)
            weights = (margins * beta).softmax(dim=1)
            mean = (weights * finite).sum(dim=1)
            variance = (weights * (finite - mean[:, None]).square()).sum(dim=1)
            slope = mean.mean() + added * (mean - any_class).mean()
            return slope.item(), (1 + added) * beta * variance.mean().item()

        low, high = -math.log(cls.HIGHEST), -math.log(cls.LOWEST)
        if slope_and_curvature(high)[0] <= 0:
            _warn(f"a lower temperature is always better here; {cls.LOWEST}, the lower bound, is used.")
            return cls(cls.LOWEST)
        if slope_and_curvature(low)[0] >= 0:
            _warn(f"a higher temperature is always better here; {cls.HIGHEST}, the upper bound, is used.")
            return cls(cls.HIGHEST)

        log_beta = 0.0
        for _ in range(200):
            slope, curvature = slope_and_curvature(log_beta)
            low, high = (log_beta, high) if slope < 0 else (low, log_beta)
            newton = log_beta - slope / curvature if curvature > 0 else math.inf
            # Where the slope is flat a Newton step leaves the bracket; its middle is then the better guess.
            following = newton if low <= newton <= high else (low + high) / 2
            step, log_beta = abs(following - log_beta), following
            if step < 1e-12:
                break
        return cls(math.exp(-log_beta))

    def __call__(self, values: Tensor, inputs: Inputs = "probs") -> Tensor:
        """Return calibrated probabilities of the shape and dtype of ``values``.

        Args:
            values: Probabilities or logits, ``(B, C)`` or ``(B, C, ...)``.
            inputs: Whether ``values`` are "probs" or "logits".
        """
        scores = _log_scores(values, inputs)
        # The greatest becomes 0, which stays 0 at any temperature; divided by a tiny one, all could become infinite.
        rows = ((scores - scores.amax(dim=1, keepdim=True)) / self.value).softmax(dim=1)
        shape = (values.shape[0], *values.shape[2:], values.shape[1])
        return rows.reshape(shape).movedim(-1, 1).to(values.dtype)


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """Probabilities that were each calibrated without their own label.

    Attributes:
        probs: Calibrated probabilities of the shape and dtype they had before.
        temperatures: One a fold: the one applied to its images, fitted on all others.
        fold: ``(B,)`` the fold of each image.
    """

    probs: Tensor
    temperatures: tuple[float, ...]
    fold: Tensor


def cross_fit(probs: Tensor | Predicted, labels: Tensor, folds: int = 2, seed: int = 0) -> Tensor:
    """Calibrate every image with a temperature fitted on the other folds, when there is no held-out set.

    Args:
        probs: Class probabilities ``(B, C)`` or ``(B, C, ...)``, or a ``Prediction``, as :meth:`Temperature.fit` takes.
        labels: Class numbers ``(B,)`` or ``(B, ...)``.
        folds: Into how many parts the images are dealt at random; from 2 to ``B``.
        seed: Decides which image goes to which fold.

    Returns:
        Calibrated probabilities of the shape and dtype of ``probs``.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.8, 0.2]]).repeat(10, 1)
        >>> cross_fit(probs, torch.tensor([0, 0, 1, 1]).repeat(10)).shape
        torch.Size([40, 2])
    """
    return cross_fitted(probs, labels, folds, seed).probs


def cross_fitted(
    probs: Tensor | Predicted,
    labels: Tensor,
    folds: int = 2,
    seed: int = 0,
    prior: float = 0.0,
    groups: Tensor | None = None,
) -> CrossFitted:
    """``cross_fit`` with the temperatures and the folds beside the probabilities.

    Image ``i`` of fold ``k`` becomes ``softmax(ln p_i / T_k)``, where ``T_k`` has the least NLL on the images of all
    other folds. The order of the classes stays, so the accuracy does, up to ties that rounding to the dtype of
    ``probs`` can make: give float64 to rule them out.

    Args:
        probs: Class probabilities ``(B, C)`` or ``(B, C, ...)``, or a ``Prediction``, as :meth:`Temperature.fit` takes.
        labels: Class numbers ``(B,)`` or ``(B, ...)``.
        folds: Into how many parts the images are dealt at random; from 2 to ``B``, or to the number of groups.
        seed: Decides which image goes to which fold.
        prior: That of :meth:`Temperature.fit`.
        groups: ``(B,)`` numbers; what has the same one goes to the same fold, such as the pixels of an image.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1]]).repeat(40, 1)
        >>> found = cross_fitted(probs, torch.tensor([0, 0, 0, 1]).repeat(10))
        >>> len(found.temperatures), found.fold.bincount().tolist()
        (2, [20, 20])
    """
    probs = _unscaled(probs)
    _checks.probabilities_and_labels(probs, labels)
    images, what, numbers = probs.shape[0], "image", None
    if groups is not None:
        if not isinstance(groups, Tensor) or groups.shape != (images,):
            given = tuple(groups.shape) if isinstance(groups, Tensor) else type(groups).__name__
            raise InvalidInput(f"groups must be a tensor with one number for each of {images} images, not {given}.")
        found, numbers = groups.to(probs.device).unique(return_inverse=True)
        images, what = len(found), "group"
    if images < 2:
        raise InvalidInput(f"probs has shape {tuple(probs.shape)}, that is {images} {what}; give at least 2.")
    whole_number(folds, "folds", least=2, most=images)
    generator = torch.Generator("cpu").manual_seed(whole_number(seed, "seed", least=0))
    fold = (torch.randperm(images, generator=generator, device="cpu") % folds).to(probs.device)
    fold = fold if numbers is None else fold[numbers]
    calibrated, temperatures = torch.empty_like(probs), []
    for k in range(folds):
        inside = fold == k
        temperature = Temperature.fit(probs[~inside], labels[~inside], prior=prior)
        calibrated[inside] = temperature(probs[inside])
        temperatures.append(temperature.value)
    return CrossFitted(calibrated, tuple(temperatures), fold)


def _unscaled(values: Tensor | Predicted, inputs: str = "probs") -> Tensor:
    """Those of a prediction as no temperature has changed them."""
    if isinstance(values, Tensor) or not hasattr(values, "unscaled_probs"):  # the checks refuse other things
        return values  # type: ignore[return-value]
    if inputs != "probs":
        raise InvalidInput(f"values is a {type(values).__name__}, which has probabilities; leave out inputs=.")
    return values.probs if values.unscaled_probs is None else values.unscaled_probs


def _log_scores(values: Tensor, inputs: str) -> Tensor:
    if inputs == "probs":
        return _checks.probabilities(values).double().log()
    if inputs == "logits":
        return _checks.logits_of(values).double()
    raise InvalidInput(f'inputs is {inputs!r}; give "probs" or "logits".')


def _warn(message: str) -> None:
    warn(f"Temperature.fit: {message}")
