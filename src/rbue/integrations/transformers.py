"""A mix-in for the Trainer of Hugging Face: evaluation and prediction by many samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rbue import metrics
from rbue.call_sites import innermost
from rbue.call_sites.following import plain_class
from rbue.errors import InvalidInput, whole_number
from rbue.integrations.outputs import as_outputs
from rbue.sampling import predict

__all__ = ["Sampled"]

IGNORED = -100
"""The label of what has none, such as padding; torch and transformers agree on it."""


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logits": _cross_entropy,
    "tokens": _cross_entropy,
    "multilabel": lambda scores, labels: F.binary_cross_entropy_with_logits(scores, labels.float()),
    "values": lambda scores, labels: F.mse_loss(scores.flatten(), labels.float().flatten()),
}
"""The usual loss of each kind of outputs, of a prediction in the form of outputs."""

_NEXT_TOKEN = ("ForCausalLM", "LMHeadModel")
"""How models end whose label at a place is what they predict before it."""


class Sampled:
    """Makes ``evaluate`` and ``predict`` of a ``transformers.Trainer`` those of :func:`rbue.predict`.

    ``class SampledTrainer(Sampled, Trainer): pass``, with a converted model. ``trainer.predict(data).predictions`` are
    the logarithms of the mean probabilities: their argmax is the label, their softmax the probabilities, and
    ``compute_metrics`` gets them too. ``eval_loss`` is the negative log-likelihood of the mean; ``eval_nll``,
    ``eval_ece`` and ``eval_accuracy`` stand beside it, so ``metric_for_best_model="nll"`` works. Those of a causal
    language model are about the next token. Training is as ever.

    The examples of a data set are numbered from 0, so two evaluations are equal, whatever the batch size.

    Args:
        *args: passed on to the Trainer.
        samples: number of passes.
        seed: seed of the draws.
        outputs: what the model returns, ``"logits"`` ``(B, C)``, ``"tokens"`` ``(B, T, C)``, ``"multilabel"``
            ``(B, K)`` or ``"values"``. By default the model's configuration, its name and the labels say which.
        draws: ``"balanced"`` or ``"independent"``.
        **kwargs: passed on to the Trainer.
    """

    def __init__(
        self,
        *args: Any,
        samples: int = 30,
        seed: int = 0,
        outputs: str | None = None,
        draws: str = "balanced",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if outputs is not None and outputs not in _LOSSES:
            raise InvalidInput(f"outputs must be one of {', '.join(map(repr, _LOSSES))}, not {outputs!r}.")
        self._given_outputs = self._outputs = outputs
        self._settings: dict[str, Any] = {"samples": whole_number(samples, "samples"), "seed": seed, "draws": draws}
        self._seen, self._shift = 0, 0

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """That of the Trainer, with the scores of all predictions."""
        self._seen = 0
        loop = super().evaluation_loop  # type: ignore[misc]
        found = loop(dataloader, description, False, ignore_keys, metric_key_prefix)
        for name, value in self._scores(found.predictions, found.label_ids).items():
            found.metrics.setdefault(f"{metric_key_prefix}_{name}", value)
            if name == "nll":  # the mean over batches depends on their size
                found.metrics[f"{metric_key_prefix}_loss"] = value
        return found

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Any]:
        """The loss, the outputs and the labels of one batch."""
        trainer: Any = self
        inputs = trainer._prepare_inputs(inputs)
        found = [inputs.get(name) for name in trainer.label_names]
        labels = found[0] if len(found) == 1 else None
        given = {name: value for name, value in inputs.items() if name not in trainer.label_names}
        rows = next(len(value) for value in given.values() if isinstance(value, Tensor) and value.dim())
        # accelerate deals whole batches to the processes in turn, so numbers do not depend on how many there are.
        first = self._seen * trainer.args.world_size + trainer.args.process_index * rows
        self._seen += rows
        self._outputs = self._given_outputs or _kind_of(model, labels)
        with torch.no_grad(), trainer.compute_loss_context_manager():
            index = torch.arange(first, first + rows)
            prediction = predict(model, given, index=index, outputs=self._outputs, **self._settings)
        scores = as_outputs(prediction)
        self._shift = int(plain_class(innermost(model)).__name__.endswith(_NEXT_TOKEN))
        loss = None if labels is None else _LOSSES[self._outputs](*_aligned(scores, labels, self._shift))
        return (loss, None, None) if prediction_loss_only else (loss, scores, labels)

    def _scores(self, predictions: Any, labels: Any) -> dict[str, float]:
        """Those of classes, where the predictions are still what they were."""
        arrays = isinstance(predictions, np.ndarray) and isinstance(labels, np.ndarray)
        if self._outputs not in ("logits", "tokens") or not arrays or predictions.ndim != labels.ndim + 1:
            return {}
        predictions, labels = _aligned(predictions, labels, self._shift)
        there = labels != IGNORED
        probs, truth = torch.from_numpy(predictions[there]).double().exp(), torch.from_numpy(labels[there])
        if ((probs.sum(1) - 1).abs() > 0.01).any():  # preprocess_logits_for_metrics has made something else of them
            return {}
        probs /= probs.sum(1, keepdim=True)
        return {name: getattr(metrics, name)(probs, truth).item() for name in ("accuracy", "nll", "ece")}


def _aligned(scores: Any, labels: Any, shift: int) -> tuple[Any, Any]:
    """Scores and the labels they are about, where labels come ``shift`` places later."""
    return (scores[:, : scores.shape[1] - shift], labels[:, shift:]) if shift else (scores, labels)


def _kind_of(model: Any, labels: Tensor | None) -> str:
    """What a model of transformers returns."""
    network = innermost(model)
    config = getattr(network, "config", None)
    known = {"regression": "values", "multi_label_classification": "multilabel"}
    problem = getattr(config, "problem_type", None)
    if problem in known:
        return known[problem]
    if getattr(config, "num_labels", None) == 1:
        return "values"
    if plain_class(network).__name__.endswith(("ForTokenClassification", "ForMaskedLM", *_NEXT_TOKEN)):
        return "tokens"
    if labels is not None and labels.is_floating_point():
        return "multilabel"
    return "tokens" if labels is not None and labels.dim() == 2 and labels.shape[1] > 1 else "logits"
