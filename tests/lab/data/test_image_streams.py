"""Images of files, folders and Parquet files, one at a time and from anywhere in the middle."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rbue.errors import InvalidInput, RbueError
from rbue.lab.data import ImageSet
from rbue.lab.data.image_files import files_below
from rbue.lab.data.image_streams import ListingPlace, block_places, read_listed, write_listing

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PIXELS = np.random.RandomState(0).randint(0, 256, (23, 4, 5, 3), dtype=np.uint8)
LIKE = ImageSet(PIXELS[:0], np.empty(0, np.int64), ("a", "b"), "made-up", "test", (0.5,) * 3, (0.2,) * 3)


def png(pixels):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def column(kind, pixels=PIXELS):
    flat = [one.ravel() for one in pixels]
    return {
        "encoded": lambda: pyarrow.array([png(one) for one in pixels]),
        "large": lambda: pyarrow.array([png(one) for one in pixels], pyarrow.large_binary()),
        "struct": lambda: pyarrow.array([{"bytes": png(one), "path": "x.png"} for one in pixels]),
        "list": lambda: pyarrow.array(flat, pyarrow.list_(pyarrow.uint8())),
        "fixed list": lambda: pyarrow.array(flat, pyarrow.list_(pyarrow.uint8(), 60)),
        "fixed binary": lambda: pyarrow.array([one.tobytes() for one in flat], pyarrow.binary(60)),
    }[kind]()


def images(listing, start=0, stop=10**6, place=None):
    return list(read_listed(listing, place or ListingPlace(), start, stop, LIKE))


@pytest.mark.parametrize("kind", ["encoded", "large", "struct", "list", "fixed list", "fixed binary"])
@pytest.mark.parametrize("group", [1000, 3])
def test_every_kind_of_column_gives_the_same_pixels(kind, group, tmp_path):
    pq.write_table(pyarrow.table({"img": column(kind), "id": range(23)}), tmp_path / "a.parquet", row_group_size=group)
    listing = write_listing([tmp_path / "a.parquet"], tmp_path / "listing")
    found = images(tmp_path / "listing")
    assert listing.images == len(found) == 23
    assert all(np.array_equal(one.pixels, pixels) for one, pixels in zip(found, PIXELS, strict=True))
    assert found[7].name == f"{tmp_path / 'a.parquet'}#7"


@pytest.mark.parametrize("block", [1, 2, 5, 7, 100])
def test_blocks_put_together_are_the_whole(block, tmp_path):
    """Two Parquet files, one of several row groups, with image files before, between and after them."""
    pq.write_table(pyarrow.table({"image": column("encoded", PIXELS[1:12])}), tmp_path / "b.parquet", row_group_size=4)
    pq.write_table(pyarrow.table({"image": column("list", PIXELS[13:21])}), tmp_path / "d.parquet")
    for name, number in (("a.png", 0), ("c.png", 12), ("e/f.png", 21), ("g.png", 22)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(PIXELS[number]))
    assert write_listing([tmp_path], tmp_path / ".listing").images == 23
    places = list(block_places(tmp_path / ".listing", block))
    assert len(places) == -(-23 // block)
    parts = [
        images(tmp_path / ".listing", start, min(23, start + block), place)
        for start, place in zip(range(0, 23, block), places, strict=True)
    ]
    found = [one for part in parts for one in part]
    assert all(np.array_equal(one.pixels, pixels) for one, pixels in zip(found, PIXELS, strict=True))
    backwards = images(tmp_path / ".listing", 3, 9)  # behind what was read last
    assert [one.name for one in backwards] == [one.name for one in found[3:9]]


def test_what_is_wrong_with_a_row_is_said_of_it_alone(tmp_path):
    good = png(PIXELS[0])
    rows = [good, None, b"not an image", good[:50], png(PIXELS[0][:, :4]), good]
    pq.write_table(pyarrow.table({"image": pyarrow.array(rows, pyarrow.binary())}), tmp_path / "a.parquet")
    pq.write_table(pyarrow.table({"image": [[1, 2], None, [1, None] * 30]}, schema=_bytes()), tmp_path / "b.parquet")
    struct = pyarrow.array([None, {"bytes": None, "path": "x"}, {"bytes": good, "path": None}])
    pq.write_table(pyarrow.table({"image": struct}), tmp_path / "c.parquet")
    write_listing([tmp_path / f"{name}.parquet" for name in "abc"], tmp_path / "listing")
    found = images(tmp_path / "listing")
    assert [one.pixels is not None for one in found] == [True, *[False] * 4, True, *[False] * 5, True]
    sentences = [(one.error or "").removeprefix(f"{tmp_path}/") for one in found]
    assert sentences[1] == "a.parquet#1 holds no image."
    assert sentences[2] == "a.parquet#2 is not an image that can be read (unknown format)."
    assert sentences[4].startswith("a.parquet#4 has 4x4 pixels, but the images of made-up have 5x4")
    assert sentences[6] == "b.parquet#0 has 2 pixel values, but the images of made-up have 4x5x3."
    assert sentences[8] == "b.parquet#2 lacks the values of some pixels."
    assert [sentences[place] for place in (7, 9, 10)] == [
        f"{name} holds no image." for name in ("b.parquet#1", "c.parquet#0", "c.parquet#1")
    ]


def _bytes():
    return pyarrow.schema([("image", pyarrow.list_(pyarrow.uint8()))])


def test_the_column_is_found_or_named(tmp_path):
    both = pyarrow.table({"left": column("encoded"), "right": column("struct"), "name": ["x"] * 23})
    path = tmp_path / "a.parquet"
    pq.write_table(both, path)
    with pytest.raises(InvalidInput, match="2 columns that can hold images; name one with --column: left, right"):
        write_listing([path], tmp_path / "listing")
    write_listing([path], tmp_path / "listing", "right")
    assert json.loads((tmp_path / "listing").read_text())[1:3] == [23, "right"]
    with pytest.raises(InvalidInput, match=r"no column 'name' of images .*uint8\); it has left .*, name \(string\)"):
        write_listing([path], tmp_path / "other", "name")
    pq.write_table(both.rename_columns(["left", "image", "name"]), path)
    write_listing([path], tmp_path / "listing")
    assert json.loads((tmp_path / "listing").read_text())[2] == "image"
    pq.write_table(pyarrow.table({"px": [[0.5, 1.0]]}), path)
    with pytest.raises(InvalidInput, match=r"no column of images .*; it has px \(list<\w+: double>\)\.$"):
        write_listing([path], tmp_path / "other")
    assert not [one for one in tmp_path.iterdir() if one.name.startswith("other")]


def test_nothing_that_a_terminal_obeys_comes_out_of_a_file(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pq.write_table(pyarrow.table({"\x1b[2Jname": ["text"]}), path)
    with pytest.raises(InvalidInput, match=r"it has \\x1b\[2Jname \(string\)\.$"):
        write_listing([path], tmp_path / "listing")

    def refused(*_, **__):
        raise OSError("a bad\n \x1b[2Jpage")

    monkeypatch.setattr(pq, "ParquetFile", refused)
    with pytest.raises(InvalidInput, match=r"can be read \(a bad \\x1b\[2Jpage\)\.$"):
        write_listing([path], tmp_path / "listing")


def test_files_that_are_not_there_or_no_parquet_or_another_one_by_now(tmp_path):
    path = tmp_path / "a.parquet"
    with pytest.raises(InvalidInput, match="there is no file"):
        write_listing([path], tmp_path / "listing")
    path.write_text("PAR1, perhaps")
    with pytest.raises(InvalidInput, match="not a Parquet file that can be read"):
        write_listing([path], tmp_path / "listing")
    with pytest.raises(InvalidInput, match="there is no image in"):
        write_listing([_folder(tmp_path / "empty")], tmp_path / "listing")
    pq.write_table(pyarrow.table({"image": column("encoded")}), path)
    write_listing([path], tmp_path / "listing")
    pq.write_table(pyarrow.table({"image": column("encoded")[1:]}), path)
    with pytest.raises(RbueError, match="has changed since it was listed"):
        images(tmp_path / "listing")


def test_a_list_for_which_there_is_no_room_is_named(tmp_path, monkeypatch):
    Image.new("L", (4, 4)).save(tmp_path / "one.png")

    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RbueError, match=r"list\.jsonl could not be written \(No space left on device\)\.$"):
        write_listing([tmp_path / "one.png"], tmp_path / "list.jsonl")
    assert not list(tmp_path.glob("list*"))


def test_what_is_named_twice_is_listed_once_in_the_order_of_sorted_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("a-b/x.png", "a/x.png", "a/y.PNG", "a.png", "b/.hidden.png", "b/deep/z", "note.txt", "b/m.txt")
    for name in names:
        _folder(Path("in", name).parent)
        Path("in", name).write_bytes(png(PIXELS[0]) if "txt" not in name else b"text")
    Path("in/link").symlink_to("a")
    Path("in/loop").symlink_to("loop")
    wanted = sorted(path for path in Path("in").rglob("*") if path.is_file() and ".hidden" not in path.name)
    assert [path for path in files_below(Path("in")) if path.name != "loop"] == wanted
    listing = write_listing([Path("in/b/deep"), Path("in/a.png"), Path("in"), Path("in/a/x.png")], Path("listing"))
    listed = [json.loads(line)[0] for line in Path("listing").read_text().splitlines()]
    assert listed == ["in/b/deep/z", "in/a.png", "in/a/x.png", "in/a/y.PNG", "in/a-b/x.png"]
    assert listing.images == 5
    assert listing.left_out == {Path("in"): 3}
    again = [Path("in/b"), Path("in/link/x.png"), Path("in/b/.hidden.png"), Path("in/none.png")]
    assert write_listing([Path("in"), *again], Path("listing")).images == 5 + 3


def _folder(path):
    path.mkdir(parents=True, exist_ok=True)
    return path
