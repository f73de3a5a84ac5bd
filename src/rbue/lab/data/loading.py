"""Give a named split as an :class:`ImageSet`."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from rbue.lab.data import folder, store
from rbue.lab.data.images import OFFICIAL, ImageSet, checksums
from rbue.lab.data.incoming import Incoming, as_image_set
from rbue.lab.data.locations import search_path
from rbue.lab.data.problems import DataError
from rbue.lab.data.registry import FOLDER_PREFIX, DataSet, check_split, get
from rbue.lab.data.standard import find_in_root


def load(name: str, split: str = "train", root: str | os.PathLike[str] | None = None) -> ImageSet:
    """A split of a data set.

    Looks through the search path (:mod:`rbue.lab.data.locations`) for the decoded set that ``fetch``, ``import_`` and
    ``unpack`` write, then for the publisher's standard files, which are decoded and checked anew each time. Of a
    decoded set only sizes and types are checked here; :func:`rbue.lab.data.check` recomputes its checksums.

    Args:
        name: A registered name (:func:`rbue.lab.data.names`), or ``folder:PATH``.
        split: ``train`` or ``test``.
        root: Look only here.

    Returns:
        The images, labels and what is known about them.

    Raises:
        InvalidInput: No such set or split.
        DataError: The set is not on this machine (the message says how to get it), or is damaged.
    """
    if name.startswith(FOLDER_PREFIX):
        return folder.load_folder(name, split)
    dataset = get(name)
    check_split(name, split, dataset.splits)
    if dataset.embedded is not None:
        return _embedded(dataset, split)
    found = _locate(dataset, root)
    if split not in found:
        where = next(iter(found.values()))
        place = where.folder if isinstance(where, store.Stored) else where.origin
        raise DataError(
            f"{place} holds {name} without its split {split!r}; remove it, then run `rbue data fetch {name}` or "
            f"`rbue data import {name} DIR` with all files."
        )
    where = found[split]
    return store.open_split(where, dataset, split) if isinstance(where, store.Stored) else where.collect()


def splits_here(name: str, root: str | os.PathLike[str] | None = None) -> list[str]:
    """The splits of a set that :func:`load` would find on this machine.

    Raises:
        DataError: None.
    """
    if name.startswith(FOLDER_PREFIX):
        return folder.splits_of(name)
    dataset = get(name)
    found = dataset.splits if dataset.embedded is not None else _locate(dataset, root)
    return [split for split in dataset.splits if split in found]


def recorded(name: str, root: str | os.PathLike[str] | None = None) -> store.Stored | None:
    """The decoded set that :func:`load` would open, with what was recorded when it was stored."""
    if name.startswith(FOLDER_PREFIX) or get(name).embedded is not None:
        return None
    where = next(iter(_locate(get(name), root).values()))
    return where if isinstance(where, store.Stored) else None


def _locate(dataset: DataSet, root: str | os.PathLike[str] | None) -> Mapping[str, store.Stored | Incoming]:
    """The first place on the search path that has the set, decoded or as standard files, and its splits there."""
    for place in search_path(root):
        stored = store.find(place, dataset.name)
        if stored is not None and stored.splits:
            return dict.fromkeys(stored.splits, stored)
        incoming = find_in_root(dataset, place)
        if incoming:
            return {one.split: one for one in incoming}
    raise missing(dataset.name, root)


def missing(name: str, root: str | os.PathLike[str] | None) -> DataError:
    """The error for a set that is nowhere to be found."""
    places = ", ".join(str(place) for place in search_path(root))
    return DataError(
        f"{name} is not on this machine (looked in {places}); run `rbue data fetch {name}`, or "
        f"`rbue data import {name} DIR` with its files, or set RBUE_DATA to where it is."
    )


def _embedded(dataset: DataSet, split: str) -> ImageSet:
    assert dataset.embedded is not None
    images, labels = dataset.embedded(split)
    integers = labels.astype(np.int64)
    origin = Incoming(dataset, split, (), f"the installed package ({dataset.title})")
    origin.verify(checksums(images, integers, len(dataset.classes)))
    return as_image_set(dataset, split, OFFICIAL, images, integers)
