"""What every metric asks of its inputs, said once: one sentence, the offending value, and the way out."""

from __future__ import annotations

import torch
from torch import Tensor

from rbue.errors import InvalidInput

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def sum_tolerance(dtype: torch.dtype) -> float:
    """How far from 1 a distribution may sum.

    Rounding each probability to ``dtype`` moves the sum by at most one unit of rounding; a mean over many
    samples adds a little. float64 gets float32's tolerance, since most such values were float32 once.
    """
    return max(1e-4, 4 * torch.finfo(dtype).eps)


def probabilities(probs: Tensor, name: str = "probs") -> Tensor:
    """Check ``(B, C, ...)`` class probabilities and return them as ``(N, C)``, one row an image or pixel."""
    _floating(probs, name)
    if probs.ndim < 2:
        raise InvalidInput(f"{name} has shape {tuple(probs.shape)}; give (batch, classes, ...).")
    _distributions(probs, 1, name)
    return probs.movedim(1, -1).reshape(-1, probs.shape[1])


def sample_probabilities(samples: Tensor, *, least: int = 1, name: str = "samples") -> Tensor:
    """Check ``(S, B, C, ...)`` probabilities and return them as ``(S, N, C)``."""
    _floating(samples, name)
    if samples.ndim < 3:
        raise InvalidInput(f"{name} has shape {tuple(samples.shape)}; give (samples, batch, classes, ...).")
    if 0 < samples.shape[0] < least:
        raise InvalidInput(
            f"{name} has shape {tuple(samples.shape)}, that is {samples.shape[0]} sample; "
            f"comparing samples needs at least {least}."
        )
    _distributions(samples, 2, name)
    return samples.movedim(2, -1).reshape(samples.shape[0], -1, samples.shape[2])


def labels_of(labels: Tensor, outputs: Tensor, name: str = "probs", leave_out: str = "") -> Tensor:
    """Check integer class ``labels`` against ``(B, C, ...)`` outputs and return them as ``(N,)`` int64.

    ``leave_out`` says what to do about labels that are no class.
    """
    _tensor(labels, "labels")
    expected = (outputs.shape[0], *outputs.shape[2:])
    if tuple(labels.shape) != expected:
        ways = {
            tuple(outputs.shape[:-1]): "; classes that stand last are outputs='tokens' in rbue.predict and rbue.tune",
            tuple(outputs.shape): "; of one-hot labels give labels.argmax(1), and several labels an image are for "
            "rbue.predict(outputs='multilabel') alone",
            (*expected[:1], 1, *expected[1:]): "; give labels.squeeze(1)",
        }
        raise InvalidInput(
            f"labels has shape {tuple(labels.shape)}; {name} with {tuple(outputs.shape)} needs {expected}"
            f"{ways.get(tuple(labels.shape), '')}."
        )
    if labels.dtype not in _INTEGERS:
        raise InvalidInput(f"labels has dtype {labels.dtype}; give integers, e.g. labels.long().")
    _same_device(outputs, labels, name, "labels")
    classes, labels = outputs.shape[1], labels.long()
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        if not leave_out and outputs.ndim > 2:
            leave_out = f"leave pixels without a class out: {name}.movedim(1, -1)[labels != {wrong}]"
        left = leave_out and f"; {leave_out}"
        raise InvalidInput(f"labels holds {wrong}; for {classes} classes give 0 to {classes - 1}{left}.")
    return labels.reshape(-1)


def probabilities_and_labels(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Check both and return ``(N, C)`` probabilities with ``(N,)`` labels."""
    rows = probabilities(probs)
    return rows, labels_of(labels, probs)


def scores_and_flags(scores: Tensor, flags: Tensor, scores_name: str, flags_name: str) -> tuple[Tensor, Tensor]:
    """Check one real score and one yes/no flag an image and return both flat, the flags as bool.

    Infinite scores are welcome: only their order counts.
    """
    _floating(scores, scores_name)
    _tensor(flags, flags_name)
    if flags.shape != scores.shape:
        raise InvalidInput(
            f"{flags_name} has shape {tuple(flags.shape)} and {scores_name} {tuple(scores.shape)}; "
            "give one of each an image."
        )
    _not_empty(scores, scores_name)
    _same_device(scores, flags, scores_name, flags_name)
    _no_nan(scores, scores_name)
    if flags.dtype is not torch.bool:
        odd = flags[(flags != 0) & (flags != 1)]
        if odd.numel():
            raise InvalidInput(f"{flags_name} holds {odd[0].item()}; give booleans, or the numbers 0 and 1.")
    return scores.reshape(-1), flags.reshape(-1).bool()


def square_matrix(matrix: Tensor) -> Tensor:
    """Check an ``(S, S)`` matrix of pairwise values with at least one pair."""
    _tensor(matrix, "matrix")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] < 2:
        raise InvalidInput(f"matrix has shape {tuple(matrix.shape)}; give (S, S) with S of at least 2.")
    return matrix


def logits_of(logits: Tensor) -> Tensor:
    """Check ``(B, C, ...)`` logits and return them as ``(N, C)``; minus infinity rules a class out."""
    _floating(logits, "logits")
    if logits.ndim < 2:
        raise InvalidInput(f"logits has shape {tuple(logits.shape)}; give (batch, classes, ...).")
    _not_empty(logits, "logits")
    _no_nan(logits, "logits")
    rows = logits.movedim(1, -1).reshape(-1, logits.shape[1])
    best = rows.detach().amax(dim=1)
    if not bool(best.isfinite().all()):
        row = int((~best.isfinite()).nonzero()[0])
        raise InvalidInput(f"logits has {best[row].item()} as the largest value of row {row}; give one that is finite.")
    return rows


def finite_rows(values: Tensor, name: str = "x") -> Tensor:
    """Check a finite ``(..., K)`` tensor."""
    _floating(values, name)
    if values.ndim < 1:
        raise InvalidInput(f"{name} is the single number {values.item()}; give a dimension to sum over.")
    _not_empty(values, name)
    _finite(values, name)
    return values


def numbers(given: dict[str, Tensor]) -> list[Tensor]:
    """Check finite numbers of one shape, by their names, and return them flat in float64."""
    first_name, first = next(iter(given.items()))
    for name, values in given.items():
        _floating(values, name)
        if values.shape != first.shape:
            raise InvalidInput(
                f"{name} has shape {tuple(values.shape)} and {first_name} {tuple(first.shape)}; give equal ones."
            )
        _not_empty(values, name)
        _same_device(first, values, first_name, name)
        _finite(values, name)
    return [values.double().reshape(-1) for values in given.values()]


def _tensor(value: object, name: str) -> None:
    field = "probs" if hasattr(value, "probs") else "mean" if hasattr(value, "epistemic") else None
    if field is not None:
        raise InvalidInput(f"{name} is a {type(value).__name__}; give one of its tensors, e.g. prediction.{field}.")
    if not isinstance(value, Tensor):
        # Without numpy torch asks a pandas.Series for its entry 0, which a split may have taken away.
        way = f"torch.as_tensor(numpy.asarray({name}))"
        raise InvalidInput(f"{name} is a {type(value).__name__}; give a tensor, e.g. {way}.")
    if value.layout is not torch.strided:
        raise InvalidInput(f"{name} has layout {value.layout}; give a dense tensor, e.g. {name}.to_dense().")


def _floating(value: Tensor, name: str) -> None:
    _tensor(value, name)
    if value.dtype not in _FLOATS:
        raise InvalidInput(
            f"{name} has dtype {value.dtype}; give a floating dtype of at least 16 bits, e.g. {name}.float()."
        )


def _not_empty(value: Tensor, name: str) -> None:
    if value.numel() == 0:
        raise InvalidInput(f"{name} has shape {tuple(value.shape)}, that is nothing; give at least one image.")


def _same_device(first: Tensor, second: Tensor, first_name: str, second_name: str) -> None:
    if first.device != second.device:
        raise InvalidInput(f"{first_name} is on {first.device} and {second_name} on {second.device}; move one of them.")


def _no_nan(value: Tensor, name: str) -> None:
    wrong = value.isnan()
    if bool(wrong.any()):
        place = tuple(wrong.nonzero()[0].tolist())
        raise InvalidInput(f"{name} holds {int(wrong.sum())} NaN, the first at {place}; give real numbers.")


def _finite(value: Tensor, name: str) -> None:
    _no_nan(value, name)
    wrong = value.isinf()
    if bool(wrong.any()):
        place = tuple(wrong.nonzero()[0].tolist())
        raise InvalidInput(f"{name} holds {value[place].item()} at {place}; give finite values.")


def _distributions(probs: Tensor, class_dim: int, name: str) -> None:
    _not_empty(probs, name)
    probs = probs.detach()
    tolerance = sum_tolerance(probs.dtype)
    # One pass for the common case: NaN and infinity also fail the comparison below.
    low, high = (float(bound) for bound in torch.aminmax(probs))
    if not (low >= 0 and high <= 1 + tolerance):
        _finite(probs, name)
        wrong = low if low < 0 else high
        raise InvalidInput(
            f"{name} holds {wrong:.6g}, outside [0, 1]; give probabilities, e.g. logits.softmax({class_dim})."
        )
    sums = probs.sum(dim=class_dim)
    worst = sums.flatten()[(sums - 1).abs().argmax()].item()
    if abs(worst - 1) > tolerance:
        raise InvalidInput(
            f"{name} sums to {worst:.6g} over the classes (dimension {class_dim}) instead of 1; "
            f"give probabilities, e.g. logits.softmax({class_dim})."
        )
