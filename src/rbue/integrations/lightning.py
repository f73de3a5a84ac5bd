"""A Lightning callback: validation, test and prediction by many samples."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from rbue import metrics as rbue_metrics
from rbue.call_sites import conversion_of, innermost
from rbue.call_sites.batch import Batch
from rbue.call_sites.draws import STEP
from rbue.call_sites.following import CONVERSION
from rbue.call_sites.inputs import batches_of
from rbue.errors import ConversionError, InvalidInput, RbueError, a_kind, warn, whole_number
from rbue.integrations.outputs import as_outputs
from rbue.metrics._checks import labels_of
from rbue.prediction import AnyPrediction, Prediction
from rbue.sampling import predict

try:
    from lightning.pytorch import Callback, LightningModule
except ImportError:
    try:  # the same code under its older name
        from pytorch_lightning import Callback, LightningModule
    except ImportError as error:
        raise RbueError("rbue.integrations.lightning needs lightning; run pip install 'rbue[lightning]'.") from error
from torchmetrics import MetricCollection  # which Lightning needs itself

__all__ = ["Sampling"]

_LEAVE_OUT = (
    "to leave out what has no class, add metrics= to Sampling, such as torchmetrics.MetricCollection([torchmetrics."
    "classification.MulticlassAccuracy(num_classes=..., ignore_index=...)])"
)


class Sampling(Callback):
    """Evaluate a converted network by :func:`rbue.predict` wherever Lightning evaluates it.

    In your own ``validation_step``, ``test_step`` and ``predict_step``, a call of the network returns what all samples
    say (:func:`rbue.integrations.as_outputs`): the loss and the metrics there are those of the mean. Besides,
    ``val_nll``, ``val_ece``, ``val_accuracy``, ``val_brier`` and ``val_aurc`` are logged at the end of an epoch, and
    ``test_nll`` and so on. ``ModelCheckpoint(monitor="val_nll")`` finds them. Without a ``predict_step`` of your own,
    ``trainer.predict`` returns a :class:`rbue.Prediction` for each batch.

    The images of a loader are numbered from 0, so two evaluations are equal, whatever the batch size. Training goes on
    with the random bits that it would have had without them.

    A batch is what :func:`rbue.predict` takes of a loader: a tuple with the targets last, or a dict with ``labels``.
    With ``outputs="binary"`` targets may be those of a binary cross entropy, floats ``(B, 1)``.
    Further loaders add their number to the names: ``val_nll_1``.

    Args:
        samples: number of passes.
        seed: seed of the draws.
        network: path of the converted network in the module, such as ``"net"``. It need not be given if there is one,
            and all parameters are in it.
        metrics: a ``torchmetrics.MetricCollection`` in place of :func:`rbue.metrics.collection`. It gets the mean
            probabilities, or the mean of numbers, and the targets.
        names: what a logged score is called.
        **settings: passed on to :func:`rbue.predict`, such as ``draws``, ``outputs`` or ``adaptive``.
    """

    _busy = False  # of all of them: a pass of one is not to be sampled by another

    def __init__(
        self,
        samples: int = 30,
        seed: int = 0,
        *,
        network: str | None = None,
        metrics: Any = None,
        names: str = "{stage}_{metric}",
        **settings: Any,
    ) -> None:
        known = set(inspect.signature(predict).parameters) - {"model", "x", "index"}
        if settings.keys() - known:
            wrong = ", ".join(map(repr, sorted(settings.keys() - known)))
            raise InvalidInput(f"rbue.predict has no setting {wrong}; it has {', '.join(sorted(known))}.")
        self.settings = {"samples": whole_number(samples, "samples"), "seed": seed, **settings}
        self.network = network
        self._usual = metrics is None
        if not (metrics is None or isinstance(metrics, MetricCollection)):
            raise InvalidInput(f"metrics is {a_kind(metrics)}; give torchmetrics.MetricCollection({{'name': metric}}).")
        self.metrics = rbue_metrics.collection() if metrics is None else metrics
        self.names = names
        try:
            unlike = len({names.format(stage="val", metric=one) for one in self.metrics}) == len(self.metrics)
        except (LookupError, ValueError):
            unlike = False
        if not unlike:
            raise InvalidInput(
                f"names is {names!r}; give a text with {{metric}} in it, such as '{{stage}}/{{metric}}'."
            )
        self._at_end: list[Callable[[], object]] = []

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Sample from here on."""
        self._finish()
        self._trainer = trainer
        self._net = self._find(pl_module)
        self._seen: dict[int, int] = {}  # images of each loader before this batch
        self._scores: dict[int, Any] = {}
        self._warned = False
        inner = innermost(self._net)
        calls = inner.get_buffer(STEP).clone()  # an evaluation is not to change what training draws
        self._at_end.append(lambda: inner.get_buffer(STEP).copy_(calls))
        # A wrapped module that is converted itself is called once more around a step, with the step's arguments.
        if inner is not pl_module or trainer.strategy.model is pl_module:
            self._at_end.append(inner.register_forward_hook(self._in_place_of_one_pass, with_kwargs=True).remove)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Go on with the numbers of this loader's images."""
        self._loader = dataloader_idx
        self._seen.setdefault(dataloader_idx, 0)
        self._calls: list[AnyPrediction] = []

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Take the batch into the scores."""
        prediction, targets = self._of_batch(batch), _targets(batch)
        if isinstance(prediction, Prediction) and prediction.outputs == "binary":
            targets = _class_numbers(targets, prediction.probs)
        if self._usual:
            if not isinstance(prediction, Prediction):
                raise InvalidInput(
                    "the usual scores are of class probabilities, which this network does not give; add "
                    "metrics=torchmetrics.MetricCollection(...) with your own to Sampling."
                )
            labels_of(targets, prediction.probs, leave_out=_LEAVE_OUT)
        if dataloader_idx not in self._scores:
            self._scores[dataloader_idx] = self.metrics.clone().to(pl_module.device)
            self._scores[dataloader_idx].reset()
        self._scores[dataloader_idx].update(getattr(prediction, prediction._main), targets)
        self._seen[dataloader_idx] += len(prediction)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the scores."""
        stage = "test" if trainer.testing else "val"
        for loader, scores in self._scores.items():
            for metric, value in scores.compute().items():
                name = self.names.format(stage=stage, metric=metric) + (f"_{loader}" if loader else "")
                pl_module.log(name, value, sync_dist=True)  # equal on all ranks already: it only keeps Lightning calm

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the network as it was."""
        self._finish()

    on_test_start = on_validation_start
    on_test_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end
    on_test_epoch_end = on_validation_epoch_end
    on_test_end = on_validation_end

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Sample from here on; a module without a ``predict_step`` of its own gets one."""
        self.on_validation_start(trainer, pl_module)
        if type(pl_module).predict_step is LightningModule.predict_step:

            def predict_step(batch: Any, batch_idx: int, dataloader_idx: int = 0) -> AnyPrediction:
                self._calls.append(self._of_batch(batch))
                return self._calls[0]

            pl_module.predict_step = predict_step
            self._at_end.append(lambda: pl_module.__dict__.pop("predict_step", None))

    on_predict_batch_start = on_validation_batch_start

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Count the images."""
        self._seen[dataloader_idx] += len(self._calls[0]) if self._calls else len(self._inputs(batch))

    on_predict_end = on_validation_end

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the network as it was."""
        self._finish()

    def _finish(self) -> None:
        while self._at_end:
            self._at_end.pop()()

    def _find(self, pl_module: nn.Module) -> nn.Module:
        """The converted network, in its compiled form if it has one."""
        name = type(pl_module).__name__
        if self.network is not None:
            try:
                given = pl_module.get_submodule(self.network)
            except AttributeError as error:
                raise InvalidInput(f"network is {self.network!r}, but {name} has no module of this name.") from error
            conversion_of(innermost(given))
            return given
        paths: list[str] = []
        for path, module in pl_module.named_modules():
            inside = any(path.startswith(f"{outer}.") or not outer for outer in paths)
            if CONVERSION in module.__dict__ and not inside:
                paths.append(path)
        if len(paths) != 1:
            if paths:
                raise InvalidInput(f"{name} holds several converted networks; give network={paths[0]!r} or another.")
            raise ConversionError(
                f"{name} holds no converted network; call rbue.convert(net, rbue.DropReLU(q=0.9), example=x) on it."
            )
        path = paths[0].removesuffix("_orig_mod").removesuffix(".")
        network = pl_module.get_submodule(path)
        own = set(network.parameters())
        other = next((path for path, parameter in pl_module.named_parameters() if parameter not in own), None)
        if other is not None:  # a head after a converted backbone: its features are no scores
            raise InvalidInput(
                f"{name} has parameters outside its converted network {path!r}, such as {other!r}; convert the whole "
                f"module, or give Sampling(network={path!r}) if that network alone predicts."
            )
        return network

    @torch.compiler.disable  # in a graph, the numbers of the pass that it was traced with would stand for all
    def _in_place_of_one_pass(self, network: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        """The hook of the network's calls in a step: what all samples say, where one pass returned scores."""
        if Sampling._busy:
            return None
        name = next((one for one in ("logits", "out") if _has(output, one)), None)
        scores = output if isinstance(output, Tensor) else None if name is None else _entry(output, name)
        read = self.settings.get("outputs")
        if not isinstance(scores, Tensor) or (callable(read) and name is not None and read(output) is not scores):
            self._warn(f"the network returns {a_kind(output)}, so your steps' own numbers are those of one")
            return None
        prediction = self._predict(Batch(args, kwargs))
        self._calls.append(prediction)
        found = as_outputs(prediction)
        if found.numel() != scores.numel():
            self._warn("the network returns more than a prediction has, so your steps' own numbers are those of one")
            return None
        found = found.reshape(scores.shape)
        if name is None:
            return found
        if _has(output, "loss"):
            self._warn("your steps get the logits of all samples, but the loss that the network returns is that of one")
        with suppress(Exception):
            return _with_entry(output, name, found)
        self._warn(f"the scores in {a_kind(output)} cannot be replaced, so your steps' own numbers are those of one")
        return None

    def _warn(self, what: str) -> None:
        """Say, once an evaluation, what is not of all samples."""
        if not self._warned:
            self._warned = True
            warn(f"{what} random pass; val_nll, and what else Sampling logs, is of all samples.")

    def _of_batch(self, batch: Any) -> AnyPrediction:
        """What the step's only call of the network said, or else what the batch gives."""
        return self._calls[0] if len(self._calls) == 1 else self._predict(self._inputs(batch))

    def _inputs(self, batch: Any) -> Batch:
        inner = innermost(self._net)
        return next(batches_of([batch], inner, conversion_of(inner).inputs))

    def _predict(self, inputs: Batch) -> AnyPrediction:
        # Images are dealt to processes in turn, as DistributedSampler does, so their number does not depend on how many
        # processes there are.
        place = torch.arange(self._seen[self._loader], self._seen[self._loader] + len(inputs))
        index = self._trainer.global_rank + self._trainer.world_size * place
        Sampling._busy = True
        try:
            with self._trainer.precision_plugin.forward_context():
                return predict(self._net, inputs, index=index, **self.settings)
        finally:
            Sampling._busy = False


def _with_entry(output: Any, name: str, value: Tensor) -> Any:
    """A copy of what a network returned with another value in one place."""
    if hasattr(output, "_replace"):  # a named tuple
        return output._replace(**{name: value})
    replaced = copy.copy(output)
    if isinstance(replaced, Mapping):
        replaced[name] = value  # type: ignore[index]
    else:
        setattr(replaced, name, value)
    return replaced


def _has(output: Any, name: str) -> bool:
    return _entry(output, name) is not None


def _entry(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def _class_numbers(targets: Tensor, probs: Tensor) -> Tensor:
    """The targets of a binary cross entropy, floats in the shape of one logit, as those of two classes."""
    if targets.dim() == probs.dim() and targets.shape[1] == 1:
        targets = targets.squeeze(1)
    numbers = targets.long()
    return numbers if torch.equal(numbers.to(targets.dtype), targets) else targets  # half a label is no class


def _targets(batch: Any) -> Tensor:
    """The last entry of a tuple, or what a dict calls labels."""
    found = None
    if isinstance(batch, Mapping):
        found = next((batch[name] for name in ("labels", "label") if name in batch), None)
    elif isinstance(batch, (tuple, list)) and len(batch) > 1:
        found = batch[-1]
    if not isinstance(found, Tensor):
        raise InvalidInput(
            f"a batch of {type(batch).__name__} has no targets to score; give tuples with the targets last, or dicts "
            "with 'labels'."
        )
    return found
