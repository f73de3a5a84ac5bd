"""``rbue predict -o NAME.parquet``: blocks, stopped and continued, are what one prediction of everything is."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rbue import files
from rbue.errors import RbueError
from rbue.files import read_safetensors, safetensors_bytes
from rbue.lab import data
from rbue.lab.runs import folders, measuring, scoring
from rbue.locks import locked

pq = pytest.importorskip("pyarrow.parquet")
pyarrow = pytest.importorskip("pyarrow")

COUNT = 11


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch):
    """Four images at once, so that a handful are several blocks."""
    monkeypatch.setitem(measuring.BATCH_PIXELS, "cpu", 4 * 64)


@pytest.fixture
def photos(tmp_path):
    """Eleven digits as files, the sixth of them damaged, and a file that is none."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, pixels in enumerate(np.asarray(data.load("digits", "test").images[:COUNT, :, :, 0])):
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    (folder / "05.png").write_bytes((folder / "05.png").read_bytes()[:60])
    (folder / "notes.txt").write_text("text")
    return Path("photos")


def rows_of(folder):
    return [row for part in sorted(Path(folder).glob("*.parquet")) for row in pq.read_table(part).to_pylist()]


def parts(folder):
    return {path.name: path.read_bytes() for path in Path(folder).glob("*.parquet")}


@pytest.fixture
def scored(trained_once, photos, command):
    """Runs the command on all photographs; one of them cannot be read."""
    return lambda *more, code=1: command(
        *("predict", trained_once, photos, "-o", "out.parquet", "--samples", 5, "--block", 3, "--device", "cpu", *more),
        code=code,
    )


def test_blocks_are_the_prediction_of_the_whole(trained_once, photos, command, scored):
    outcome = scored()
    assert outcome.stdout.splitlines()[-1] == "out.parquet"
    assert "10 of 11 images predicted, 10 of them now" in outcome.stdout
    assert "note: photos has 1 file that is no image, left out: notes.txt." in outcome.stderr
    *_, first, last = outcome.stderr.splitlines()
    assert "error: photos/05.png is not an image that can be read" in first
    assert last == "1 of 11 images could not be predicted; the column error says why of each."
    assert sorted(path.name for path in Path("out.parquet").iterdir()) == [
        "_listing.jsonl",
        "_manifest.json",
        *(f"part-{number:05d}.parquet" for number in range(3)),
    ]
    rows = rows_of("out.parquet")
    assert [row["index"] for row in rows] == list(range(COUNT))
    assert [row["image"] for row in rows] == [f"photos/{number:02d}.png" for number in range(COUNT)]
    wrong = rows.pop(5)
    assert "not an image that can be read" in wrong["error"]
    assert {wrong[name] for name in wrong if name not in ("index", "image", "error")} == {None}
    plain = json.loads(command("predict", trained_once, photos, "--samples", 5, "--json", code=1).stdout)["predictions"]
    for row, one in zip(rows, plain, strict=True):
        assert row["error"] is None
        assert row["class_name"] == data.load("digits", "test").classes[row["label"]] == one["label"]
        for name in ("image", "confidence", "entropy", "mutual_information", "samples"):
            assert row[name] == one[name], name


def test_what_is_there_is_kept_and_the_rest_is_done(scored):
    scored()
    before = parts("out.parquet")
    missing = Path("out.parquet/part-00001.parquet")
    missing.unlink()
    Path("out.parquet/part-00001.parquet.0.999999999.partial").write_bytes(b"half of it")
    kept = Path("out.parquet/part-00002.parquet").stat().st_mtime_ns
    assert "10 of 11 images predicted, 3 of them now" in scored().stdout
    assert parts("out.parquet") == before
    assert Path("out.parquet/part-00002.parquet").stat().st_mtime_ns == kept
    assert not list(Path("out.parquet").glob("*.partial"))
    document = json.loads(scored("--json").stdout)
    assert (document["images"], document["unreadable"], document["predicted_now"]) == (COUNT, 1, 0)


def test_a_damaged_part_is_noticed(scored):
    scored()
    before, damaged = parts("out.parquet"), Path("out.parquet/part-00001.parquet")
    whole, table = before[damaged.name], pq.read_table(damaged)
    number = whole.index(np.float32(table["confidence"][0].as_py()).tobytes())
    for place in (len(whole) - 20, number):  # in the footer too
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert "it does not have the checksum that it notes); remove it to have it made again." in scored().stderr
    assert not pq.read_table(damaged).equals(table)  # pyarrow reads another number, and no error
    damaged.unlink()
    assert "3 of them now" in scored().stdout
    assert parts("out.parquet") == before


def test_a_part_from_before_there_were_checksums_is_kept(scored):
    scored()
    part = Path("out.parquet/part-00001.parquet")
    pq.write_table(pq.read_table(part), part)
    assert "0 of them now" in scored().stdout


def test_a_command_that_was_killed_before_it_predicted_anything_can_be_given_again(scored):
    Path("out.parquet").mkdir()
    for name in (".lock", "_listing.jsonl", "_found.jsonl.partial", "_manifest.json.0.999999999.partial"):
        Path("out.parquet", name).write_bytes(b"half of it")
    assert "10 of 11 images predicted, 10 of them now" in scored().stdout
    assert not list(Path("out.parquet").glob("*.partial"))


def test_a_block_that_fails_does_not_stop_the_others(scored, monkeypatch):
    work = scoring.predict_block

    def failing(block, scoring):
        if block.number == 1:
            raise RbueError("the disk has a hole.")
        return work(block, scoring)

    monkeypatch.setattr(scoring, "predict_block", failing)
    outcome = scored()
    last = outcome.stderr.splitlines()[-1]
    assert "1 block of " in last
    assert last.endswith("could not be predicted (the disk has a hole); the same command tries again.")
    assert sorted(parts("out.parquet")) == ["part-00000.parquet", "part-00002.parquet"]
    monkeypatch.setattr(scoring, "predict_block", work)
    assert "3 of them now" in scored().stdout


@pytest.mark.filterwarnings("default::rbue.errors.RbueWarning")
def test_a_full_disk_ends_the_command(scored, monkeypatch):
    """Ten minutes later, which are none here; what else is predicted would be lost as well."""
    begun = []

    def write(path, content, usual=files._write_whole):
        if path.name == "part-00001.parquet":
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(path, content)

    def watched(block, scoring, work=scoring.predict_block):
        begun.append(block.number)
        return work(block, scoring)

    with monkeypatch.context() as full:
        full.setattr(files, "_write_whole", write)
        full.setattr(scoring, "predict_block", watched)
        full.setattr(scoring, "WAIT_FOR_ROOM", 0.01)
        *_, warned, said = scored().stderr.splitlines()
    assert "make room: it is tried again" in warned
    assert "part-00001.parquet could not be written (No space left on device)" in said
    assert begun == [0, 1]
    assert sorted(parts("out.parquet")) == ["part-00000.parquet"]
    assert "6 of them now" in scored().stdout


@pytest.mark.parametrize("content", ["[1]", "3", '{"settings": [], "listing": {}}', '{"settings": {}, "listing": {}}'])
def test_a_damaged_manifest_is_refused(trained_once, photos, fails, content):
    Path("out.parquet").mkdir()
    manifest = Path("out.parquet/_manifest.json")
    manifest.write_text(content)
    sentence = fails("predict", trained_once, photos, "-o", "out.parquet", code=1)
    assert sentence.endswith("_manifest.json has another form; give another -o.")
    manifest.write_text(content[:-1] + "\0")
    assert fails("predict", trained_once, photos, "-o", "out.parquet", code=1).endswith("; give another -o.")


def test_a_command_that_came_to_nothing_leaves_alone_what_another_has_begun(trained_once, photos, fails, monkeypatch):
    """The other has the lock as soon as this one has given it up."""
    beginning, others = scoring._begin, ExitStack()

    @contextmanager
    def followed(path, wait, usual=locked):
        try:
            with usual(path, wait):
                yield
        finally:
            others.enter_context(usual(path))
            Path("new/out.parquet/_listing.jsonl").write_text("the other's")

    def failing(*given):
        beginning(*given)
        Path("new/out.parquet/_manifest.json").unlink()
        raise RbueError("it is too late.")

    words = ("predict", trained_once, photos, "-o", "new/out.parquet")
    monkeypatch.setattr(scoring, "_begin", failing)
    fails(*words, code=1)
    assert not Path("new").exists()
    monkeypatch.setattr(folders, "locked", followed)
    with others:
        fails(*words, code=1)
        assert sorted(path.name for path in Path("new/out.parquet").iterdir()) == [".lock", "_listing.jsonl"]


def test_a_folder_goes_on_only_with_what_it_was_begun_with(trained_once, photos, scored, fails):
    scored()
    before = parts("out.parquet")
    words = ("predict", trained_once, photos, "-o", "out.parquet", "--device", "cpu", "--block", 3)
    assert "begun with samples 5 and not 6" in fails(*words, "--samples", 6, code=2)
    assert "begun with seed 0 and not 1" in fails(*words, "--samples", 5, "--seed", 1, code=2)
    shutil.copy(photos / "00.png", photos / "11.png")
    assert "another list of images (11 then, 12 now)" in fails(*words, "--samples", 5, code=2)
    with locked(Path("out.parquet/.lock")):
        assert "is in use by process" in fails(*words, "--samples", 5, code=1)
    assert parts("out.parquet") == before
    (photos / "11.png").unlink()
    weights = Path(trained_once, "weights.safetensors")
    content, leftover = weights.read_bytes(), weights.with_name(f"{weights.name}.0.999999999.partial")
    tensors, note = read_safetensors(weights)
    try:
        weights.write_bytes(safetensors_bytes({name: value + 1 for name, value in tensors.items()}, note))
        assert "begun with other weights; give the same" in fails(*words, "--samples", 5, code=2)
        weights.write_bytes(content + b" ")
        assert "weights.safetensors cannot be read" in fails(*words, "--samples", 5, code=1)
        weights.write_bytes(content)
        leftover.write_bytes(b"half of it")
        assert "0 of them now" in scored().stdout
    finally:
        weights.write_bytes(content)
        leftover.unlink(missing_ok=True)
    assert parts("out.parquet") == before


def test_places_where_nothing_can_be_written(trained_once, photos, fails):
    words = ("predict", trained_once, photos, "--samples", 5, "-o")
    Path("mine.parquet").mkdir()
    Path("mine.parquet/important.txt").write_text("mine")
    assert "not a folder that `rbue predict` began" in fails(*words, "mine.parquet", code=2)
    assert "lies in photos, a folder of images" in fails(*words, "photos/out.parquet", code=2)
    assert "must end in .csv or .parquet" in fails(*words, "out.xls", code=2)
    Path("empty").mkdir()
    assert "there is no image in empty" in fails("predict", trained_once, "empty", "-o", "new.parquet", code=2)
    assert not Path("new.parquet").exists()
    assert "give -o NAME.parquet" in fails("predict", trained_once, "some.parquet", code=2)
    assert "give -o NAME.parquet" in fails("predict", trained_once, photos, "--engine", "ray", code=2)
    assert "--workers: the answers go to" in fails("predict", trained_once, photos, "--workers", 2, code=2)
    for more in (("--block", 7), ("--column", "x"), ("--cpus", 3), ("--gpus", 1), ("--address", "auto")):
        sentence = fails("predict", trained_once, photos, *more, "-o", "out.csv", code=2)
        assert f"{more[0]}: the answers go to a folder of Parquet files; give -o NAME.parquet." in sentence


def test_rows_of_parquet_files_are_images_too(trained_once, photos, command, scored):
    scored()
    contents = [path.read_bytes() for path in sorted(photos.glob("*.png"))]
    for name, some in (("a", contents[:6]), ("b", contents[6:])):
        pq.write_table(pyarrow.table({"image": some}), f"{name}.parquet")
    words = ("--samples", 5, "--block", 3, "--device", "cpu")
    command("predict", trained_once, "a.parquet", "b.parquet", "-o", "rows.parquet", *words, code=1)
    names = [f"a.parquet#{row}" for row in range(6)] + [f"b.parquet#{row}" for row in range(5)]
    rows = rows_of("rows.parquet")
    assert [row.pop("image") for row in rows] == names
    for row, other in zip(rows, rows_of("out.parquet"), strict=True):
        del other["image"]
        assert (row.pop("error") is None) == (other.pop("error") is None)
        assert row == other


def test_without_pyarrow_a_sentence_says_what_brings_it(trained_once, photos, fails, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    sentence = fails("predict", trained_once, photos, "-o", "out.parquet", code=1)
    assert "pip install 'rbue[parquet]'" in sentence
    assert not Path("out.parquet").exists()
