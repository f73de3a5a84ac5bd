"""A mix-in for the Trainer of Hugging Face: evaluation and prediction by many samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rbue import metrics
from rbue.call_sites import innermost
from rbue.call_sites.following import plain_class
from rbue.call_sites.inputs import DECODER_INPUTS
from rbue.errors import InvalidInput, whole_number
from rbue.integrations.outputs import as_outputs
from rbue.sampling import predict

__all__ = ["Sampled"]

IGNORED = -100
"""The label of what has none, such as padding; torch and transformers agree on it."""


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    if scores.shape[:-1].numel() != labels.numel():
        raise InvalidInput(
            f"labels of shape {tuple(labels.shape)} do not fit scores {tuple(scores.shape)}, the classes last; "
            "give a label for each place, or data without labels."
        )
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

_GENERATING = "ForConditionalGeneration"
"""How encoder-decoders end, and models that predict the next token after an image or a sound."""

_MAPS = "ForSemanticSegmentation"
"""How models end that return maps, often smaller ones than their labels."""


class Sampled:
    """Makes ``evaluate`` and ``predict`` of a ``transformers.Trainer`` those of :func:`rbue.predict`.

    ``class SampledTrainer(Sampled, Trainer): pass``, with a converted model. ``trainer.predict(data).predictions`` are
    the logarithms of the mean probabilities: their argmax is the label, their softmax the probabilities, and
    ``compute_metrics`` gets them too. ``eval_loss`` is the negative log-likelihood of the mean; ``eval_nll``,
    ``eval_ece`` and ``eval_accuracy`` stand beside it, so ``metric_for_best_model="nll"`` works. Those of a causal
    language model are about the next token. An encoder-decoder reads its labels as the Trainer has it do. Of maps that
    are smaller than their labels ``eval_loss`` alone is told, the mean over batches. Detection and CTC with labels are
    refused. Training is as ever.

    The examples of a data set are numbered from 0, so two evaluations are equal, whatever the batch size.

    Args:
        *args: passed on to the Trainer.
        samples: number of passes.
        seed: seed of the draws.
        outputs: what the model returns, ``"logits"`` ``(B, C)``, ``"tokens"`` ``(B, T, C)``, ``"multilabel"``
            ``(B, K)`` or ``"values"``. By default the model's configuration, its name and the labels say which; what
            labels have said holds for later data without them. Give it for several labels and data that never has any.
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
        self._given_outputs = outputs
        self._outputs: str | None = None
        self._settings: dict[str, Any] = {"samples": whole_number(samples, "samples"), "seed": seed, "draws": draws}
        self._seen, self._shift, self._ignored = 0, 0, IGNORED

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
        given = {name: value for name, value in inputs.items() if name == "labels" or name not in trainer.label_names}
        rows = next(len(value) for value in given.values() if isinstance(value, Tensor) and value.dim())
        # accelerate deals whole batches to the processes in turn, so numbers do not depend on how many there are.
        first = self._seen * trainer.args.world_size + trainer.args.process_index * rows
        self._seen += rows
        network = innermost(model)
        name, config = plain_class(network).__name__, getattr(network, "config", None)
        if labels is not None:
            _check(network, labels, given)
        # Labels say more than the model does, and what they have said holds for data without them.
        known = self._outputs if labels is None else None
        self._outputs = self._given_outputs or known or _kind_of(network, labels)
        with torch.no_grad(), trainer.compute_loss_context_manager():
            index = torch.arange(first, first + rows)
            prediction = predict(model, given, index=index, outputs=self._outputs, **self._settings)
        scores = as_outputs(prediction)
        if self._given_outputs is None and self._outputs == "logits" and scores.dim() == 3:
            raise InvalidInput(
                f"{name} returned shape {tuple(scores.shape)}, and nothing says where the classes are; give "
                "outputs='tokens' if they come last, or outputs='logits' if they come second."
            )
        after_others = name.endswith(_GENERATING) and not getattr(config, "is_encoder_decoder", False)
        self._shift = int(name.endswith(_NEXT_TOKEN) or after_others)
        loss = None
        if labels is not None:
            fitting, truth = scores, labels
            if name.endswith(_MAPS):  # as the model does for its own loss
                ignored = getattr(config, "loss_ignore_index", IGNORED)  # UperNet calls it so
                self._ignored = getattr(config, "semantic_loss_ignore_index", ignored)
                fitting = F.interpolate(scores, labels.shape[-2:], mode="bilinear")
                truth = labels.masked_fill(labels == self._ignored, IGNORED)
            loss = _LOSSES[self._outputs](*_aligned(fitting, truth, self._outputs, self._shift))
        return (loss, None, None) if prediction_loss_only else (loss, scores, labels)

    def _scores(self, predictions: Any, labels: Any) -> dict[str, float]:
        """Those of classes, where the predictions are still what they were."""
        arrays = isinstance(predictions, np.ndarray) and isinstance(labels, np.ndarray)
        if self._outputs not in ("logits", "tokens") or not arrays or predictions.ndim != labels.ndim + 1:
            return {}
        scores, labels = torch.from_numpy(predictions), torch.from_numpy(labels)
        scores, labels = _aligned(scores, labels, self._outputs, self._shift)
        if scores.shape[:-1] != labels.shape:  # smaller maps, which would take much memory in the size of the labels
            return {}
        there = (labels != IGNORED) & (labels != self._ignored)
        probs, truth = scores[there].double().exp(), labels[there]
        if ((probs.sum(1) - 1).abs() > 0.01).any():  # preprocess_logits_for_metrics has made something else of them
            return {}
        probs /= probs.sum(1, keepdim=True)
        return {name: getattr(metrics, name)(probs, truth).item() for name in ("accuracy", "nll", "ece")}


def _aligned(scores: Tensor, labels: Tensor, outputs: str, shift: int) -> tuple[Tensor, Tensor]:
    """Scores with the classes last and the labels they are about, where labels come ``shift`` places later."""
    scores = scores.movedim(1, -1) if outputs == "logits" else scores
    return (scores[:, :-shift], labels[:, shift:]) if shift else (scores, labels)


def _check(network: nn.Module, labels: Any, given: dict[str, Any]) -> None:
    """Refuse labels without a loss, and those of which nobody makes the decoder's input."""
    name = plain_class(network).__name__
    if not isinstance(labels, Tensor) or name.endswith("ForCTC"):
        raise InvalidInput(
            f"the labels of {name} are not one for each place of what it returns, so Sampled has no loss for them; "
            "give data without labels, or use the plain Trainer."
        )
    decoding = name.endswith(_GENERATING) and getattr(getattr(network, "config", None), "is_encoder_decoder", False)
    if decoding and not hasattr(network, "prepare_decoder_input_ids_from_labels") and not given.keys() & DECODER_INPUTS:
        raise InvalidInput(
            f"{name} makes its decoder's input of the labels, which evaluation keeps from it; add 'decoder_input_ids' "
            "to the data, the labels one place later."
        )


def _kind_of(network: nn.Module, labels: Tensor | None) -> str:
    """What a model of transformers returns."""
    name = plain_class(network).__name__
    config = getattr(network, "config", None)
    known = {"regression": "values", "multi_label_classification": "multilabel"}
    problem = getattr(config, "problem_type", None)
    if problem in known:
        return known[problem]
    if getattr(config, "num_labels", None) == 1 and not name.endswith(_MAPS):
        return "values"
    if name.endswith(("ForTokenClassification", "ForMaskedLM", "ForCTC", _GENERATING, *_NEXT_TOKEN)):
        return "tokens"
    if labels is not None and labels.is_floating_point():
        return "multilabel"
    return "tokens" if labels is not None and labels.dim() == 2 and labels.shape[1] > 1 else "logits"
