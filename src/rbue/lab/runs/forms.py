"""What the JSON files of a run hold: the type of every field that something here reads.

A field that stands in a form may be missing, unless it is marked, and there may be others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Form = Any
"""A test of a value; a list with the form of its items; or a dict of forms, with that of all others under ``EACH``
and the names that must be there under ``NEEDED``."""

EACH, NEEDED = "*", "!"


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return _whole(value) or isinstance(value, float)


def _seconds(value: Any) -> bool:
    return _number(value) and 0 <= value < math.inf


def _text(value: object) -> bool:
    return isinstance(value, str)


def _or_none(form: Form) -> Callable[[Any], bool]:
    return lambda value: value is None or not misfit(value, form)


_IMAGES = {
    "name": _text,
    "split": _text,
    "variant": _text,
    "count": _whole,
    "shape": [_whole],
    "classes": _whole,
    "mean": [_number],
    "std": [_number],
    "holdout": _or_none({}),
    "sha256": {EACH: _text},
}
_ENVIRONMENT = {"rbue": _text, "commit": _or_none(_text), "torch": _text, "gpu": _or_none(_text), "cpu": _text}
_SCORES = dict.fromkeys(("accuracy", "ece", "nll", "brier", "samples"), _number)
_MAYBE = ("entropy", "mutual_information", "aurc", "mean_jsd", "max_jsd", "mean_dis", "max_dis", "parameters", "seed")
_RESULT = {
    **_SCORES,
    **dict.fromkeys(_MAYBE, _or_none(_number)),
    "training_seconds": _or_none(_seconds),
    "prediction_seconds": _seconds,
    "stored_bytes": _whole,
    "jsd": _or_none([[_or_none(_number)]]),
    "dis": _or_none([[_or_none(_number)]]),
    "by_samples": [{**_SCORES, NEEDED: ("samples", "accuracy", "ece")}],
    "draws": _text,
    "device": _text,
    "stream_version": _whole,
    "data": _IMAGES,
    "environment": _or_none(_ENVIRONMENT),
    "probs_sha256": _text,
}
_CALIBRATED = {
    NEEDED: ("before", "after", "temperatures"),
    "before": {NEEDED: ("ece", "nll"), EACH: _number},
    "after": {NEEDED: ("ece", "nll"), EACH: _number},
    "bounds": [_number],
    "temperatures": [_number],
    "samples": _whole,
    "seed": _or_none(_whole),
    "stream_version": _whole,
    "probs": {EACH: _text},
    "data": _IMAGES,
    "environment": _or_none(_ENVIRONMENT),
}
_OUTSIDE = {
    **_RESULT,
    "k": _whole,
    "training_data": _or_none(_IMAGES),
    "sets": {
        EACH: {
            "scores": {EACH: {EACH: _number}},
            "entropies": _or_none({EACH: [_number]}),
            "images": _whole,
            "left_out": [_text],
            "data": _IMAGES,
        }
    },
}
FORMS: Mapping[str, Form] = {
    "environment": _ENVIRONMENT,
    "training": {
        "epochs": _whole,
        "seconds": _seconds,
        "loss": _number,
        "accuracy": _number,
        "engine": _text,
        "side_by_side": _whole,
        "workers": _whole,
        "device": _text,
        "parameters": _or_none(_whole),
        "peak_bytes": _or_none(_whole),
        "data": _IMAGES,
        "class_names": [_text],
    },
    "results": {EACH: _RESULT},
    "validation": {EACH: _RESULT},
    "calibration": {EACH: _CALIBRATED},
    "ood": {EACH: _OUTSIDE},
    "rounds": {
        "first": [_whole],
        "data": _IMAGES,
        "test_data": _IMAGES,
        "rounds": [
            {
                **_RESULT,
                NEEDED: ("labels", "picked", "seconds", "samples", "accuracy", "ece", "nll", "brier"),
                "labels": _whole,
                "picked": _or_none([_whole]),
                "seconds": {EACH: _seconds},
            }
        ],
    },
}
MANIFEST: Form = {
    NEEDED: ("settings", "listing"),
    "settings": {},
    "listing": {NEEDED: ("images", "sha256"), "images": _whole, "sha256": _text},
}
"""What the answers of many images were begun with (:mod:`rbue.lab.runs.scoring`)."""


def misfit(value: Any, form: Form, place: str = "") -> str:
    """Where a value differs from its form, such as ``samples=100,seed=0.accuracy``; empty if nowhere.

    >>> misfit({"a": [1, "b"]}, {"a": [_whole]})
    'a.1'
    """
    if callable(form):
        return "" if form(value) else place or "its beginning"
    if isinstance(form, list):
        if not isinstance(value, list):
            return place or "its beginning"
        return next(filter(None, (misfit(one, form[0], _below(place, at)) for at, one in enumerate(value))), "")
    if not isinstance(value, dict):
        return place or "its beginning"
    for name in form.get(NEEDED, ()):
        if name not in value:
            return _below(place, name)
    forms = {name: one for name, one in form.items() if name != NEEDED}  # a file may have a field of that name
    inside = ((name, one, forms.get(name, forms.get(EACH))) for name, one in value.items())
    return next(
        filter(None, (misfit(one, its, _below(place, name)) for name, one, its in inside if its is not None)), ""
    )


def _below(place: str, name: object) -> str:
    return f"{place}.{name}".lstrip(".")
