"""Find a set's standard files below a folder and open them as splits on their way in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rbue.lab.data.incoming import Incoming
from rbue.lab.data.problems import DataError
from rbue.lab.data.registry import DataSet, Layout
from rbue.lab.data.sources import ArchiveSource, FolderSource, Source, md5_of


def find_in_root(dataset: DataSet, root: Path) -> list[Incoming]:
    """Standard files in ``ROOT/NAME``, or in ``ROOT`` inside a folder or archive with the publisher's name."""
    return _first_whole(dataset, [*_candidates(dataset, root / dataset.name, True), *_candidates(dataset, root, False)])


def find_in_folder(dataset: DataSet, folder: Path) -> list[Incoming]:
    """Standard files in a folder or archive that the user points at.

    Raises:
        DataError: No known files there.
    """
    if not folder.exists():
        raise DataError(f"there is no {folder}; give the folder or archive that holds the files of {dataset.name}.")
    if folder.is_file():
        candidates: Iterator[tuple[Layout, Path]] = ((layout, folder) for layout in dataset.layouts)
    else:
        candidates = _candidates(dataset, folder, True)
    found = _first_whole(dataset, candidates)
    if not found:
        wanted = "; or ".join(
            f"{layout.name} ({', '.join(layout.archives) or ', '.join(next(iter(layout.files.values())))})"
            for layout in dataset.layouts
        )
        raise DataError(f"{folder} holds no files of {dataset.name}; expected are {wanted}.")
    return found


def _candidates(dataset: DataSet, base: Path, bare: bool) -> Iterator[tuple[Layout, Path]]:
    for layout in dataset.layouts:
        for place in (*([base] if bare else []), *(base / folder for folder in layout.folders)):
            if place.is_dir():
                yield layout, place
        for archive in layout.archives:
            if (base / archive).is_file():
                yield layout, base / archive


def _first_whole(
    dataset: DataSet, candidates: Iterator[tuple[Layout, Path]] | list[tuple[Layout, Path]]
) -> list[Incoming]:
    complaint: DataError | None = None
    for layout, place in candidates:
        source: Source
        if place.is_file():
            archive = ArchiveSource(place)
            archive.below(next(iter(layout.files.values()))[0])
            source = archive
        else:
            source = FolderSource(place)
        try:
            splits = _splits_in(layout, source)
        except DataError as error:
            complaint = complaint or error
            continue
        if splits:
            return [_open(dataset, layout, source, split) for split in splits]
    if complaint is not None:
        raise complaint
    return []


def _splits_in(layout: Layout, source: Source) -> list[str]:
    """The splits whose files are all there; a split with only some of its files is an error."""
    found = []
    for split, files in layout.files.items():
        missing = [file for file in files if not source.has(file)]
        if not missing:
            found.append(split)
        elif len(missing) < len(files):
            present = next(file for file in files if file not in missing)
            raise DataError(f"{source.place(present)} is there but {missing[0]} is missing; get the whole set.")
    if found:
        for file in layout.shared:
            if not source.has(file):
                raise DataError(f"{source.place(file)} is missing, which the {layout.name} need; get the whole set.")
    return found


def _open(dataset: DataSet, layout: Layout, source: Source, split: str) -> Incoming:
    published = dataset.published(split, layout.variant)
    evidence = "" if published.images else _publishers_md5(dataset, layout, source, split)
    return Incoming(
        dataset=dataset,
        split=split,
        chunks=layout.read(source, dataset, split, published.count),
        origin=f"{source.path} ({layout.name})",
        variant=layout.variant,
        evidence=evidence,
    )


def _publishers_md5(dataset: DataSet, layout: Layout, source: Source, split: str) -> str:
    """Where the decoded arrays have no published checksum, compare the files with the publisher's MD5."""
    known = {download.file: download.md5 for download in dataset.downloads}
    files = [source.path] if source.path.is_file() else [source.path / file for file in layout.files[split]]
    if not all(file.name in known for file in files):
        return ""
    for file in files:
        found = md5_of(file)
        if found != known[file.name]:
            raise DataError(
                f"{file} has the MD5 {found} instead of the publisher's {known[file.name]}; "
                "it is truncated or another file; get it again."
            )
    return "publisher's MD5 of the files"
