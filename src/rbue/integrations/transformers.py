"""A mix-in for the Trainer of Hugging Face: evaluation and prediction by many samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rbue import metrics
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


class Sampled:
    """Makes ``evaluate`` and ``predict`` of a ``transformers.Trainer`` those of :func:`rbue.predict`.

    ``class SampledTrainer(Sampled, Trainer): pass``. The model is a converted one. ``trainer.predict(data).predictions``
    are the logarithms of the mean probabilities: their argmax is the label, their softmax the probabilities, and
    ``compute_metrics`` gets them too. ``eval_loss`` is the negative log-likelihood of the mean; ``eval_nll``,
    ``eval_ece`` and ``eval_accuracy`` stand beside it, so ``metric_for_best_model="nll"`` works. Training is as ever.

    The examples of a data set are numbered from 0, so two evaluations are equal, whatever the batch size.

    Args:
        *args: passed on to the Trainer.
        samples: number of passes.
        seed: seed of the draws.
        outputs: what the model returns: ``"logits"`` ``(B, C)``, ``"tokens"`` ``(B, T, C)``, ``"multilabel"`` ``(B, K)``
            or ``"values"``. By default the model's configuration and its name say.
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
        self.outputs = outputs or _outputs_of(self.model)  # type: ignore[attr-defined]
        self.sampling = {"samples": whole_number(samples, "samples"), "seed": seed, "draws": draws}
        self._steps = 0

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """As that of the Trainer, with all predictions and their scores."""
        self._steps = 0
        found = super().evaluation_loop(dataloader, description, False, ignore_keys, metric_key_prefix)  # type: ignore[misc]
        for name, value in self._scores(found.predictions, found.label_ids).items():
            found.metrics.setdefault(f"{metric_key_prefix}_{name}", value)
        return found

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Any]:
        """The loss, the outputs and the labels of one batch."""
        trainer: Any = self
        inputs = trainer._prepare_inputs(inputs)
        found = tuple(inputs.get(name) for name in trainer.label_names)
        labels = None if not found or None in map(type, found) else found[0] if len(found) == 1 else found
        given = {name: value for name, value in inputs.items() if name not in trainer.label_names}
        rows = len(next(value for value in given.values() if isinstance(value, Tensor) and value.dim()))
        # accelerate deals whole batches to the processes in turn, and all but the last have this size.
        size = rows if trainer.args.world_size == 1 else trainer.args.eval_batch_size
        first = (self._steps * trainer.args.world_size + trainer.args.process_index) * size
        ...
        return None, None, None
