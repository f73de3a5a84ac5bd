"""The commands in several processes: equal to the last bit, also when a worker or the command is killed on the way."""

from __future__ import annotations

import json
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
from whole_commands import (
    GRID,
    METHODS,
    begin,
    essence,
    finish,
    grid_that_is_interrupted_and_loses_a_worker,
    in_training,
    no_more,
    processes_here,
    rbue,
    wait_for,
    without_times,
)

from rbue.errors import RbueWarning
from rbue.files import read_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPREAD = ("--engine", "processes", "--workers", "2", "--cpus", "1")


def workers():
    """Processes that were started for tasks of this test, in its folder."""
    return processes_here(b"spawn_main")


def test_a_grid_that_is_interrupted_and_loses_a_worker_is_the_local_one():
    err = grid_that_is_interrupted_and_loses_a_worker(SPREAD, SPREAD, workers, lambda: workers() == [])
    assert "colour-digits-few vgg13 single seed 0: epoch 20/20" in err
    assert "\nmeasure under corruptions colour-digits-few vgg13 single seed 0: " in err
    assert workers() == []


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_a_command_that_is_killed(end):
    process = begin("paper", "run", *GRID, *METHODS, "--device", "cpu", "--runs", "far", *SPREAD)
    wait_for(lambda: in_training("far", workers), process)
    process.send_signal(end)
    assert process.wait() == -end
    assert no_more(workers, seconds=3)
    finish(process, code=-end)


def test_a_comparison_damaged_images_and_many_predictions():
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    words = ("--data", "colour-digits-few", "--methods", "single,mc-droprelu:0.9,deep-ensemble:2", "--epochs", "1")
    words += ("--width", "0.25", "--samples", "4", "--device", "cpu", "--json")
    places = (("near", ()), ("far", SPREAD))
    tables = [json.loads(rbue("compare", *words, "--runs", name, *more)) for name, more in places]
    for table, (name, _), count in zip(tables, places, (1, 2), strict=True):
        assert {read_json(path)["workers"] for path in Path(name).rglob("training.json")} == {count}
        assert all(("prediction_seconds" in row) == (count == 1) for row in table["methods"])
        for row in table["methods"]:
            del row["run"]
    assert without_times(tables[0]) == without_times(tables[1])
    pixels = np.random.RandomState(0).randint(0, 256, (9000, 16 * 16 * 3), dtype=np.uint8)
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(pixels.ravel()), 16 * 16 * 3)
    parquet.write_table(pyarrow.table({"image": column}), "images.parquet")
    for name, more in places:
        some = sorted(map(str, Path(name).glob("*/*/*-seed0-*")))
        assert len(some) == 3
        more = ("--samples", 3, "--device", "cpu", *more)
        rbue("shift", *some, "--corruptions", "fog,contrast", "--severities", "1,5", *more)
        rbue("predict", some[-1], "images.parquet", "-o", f"{name}.parquet", *more)
    near, far = essence("near"), essence("far")
    assert near.keys() == far.keys()
    assert sum("shift.json" in name for name in near) == 4
    assert [name for name in near if near[name] != far[name]] == []
    for name, more in places:  # snow is not there, and cannot be measured any more
        for weights in Path(name).rglob("weights*"):
            weights.unlink()
        some = sorted(map(str, Path(name).glob("*/*/*-seed0-*")))
        more = ("--severities", "1,5", "--samples", 3, "--device", "cpu", *more)
        with warnings.catch_warnings():
            warnings.simplefilter("always", RbueWarning)  # told as lines: what there is is used
            rbue("shift", *some, "--corruptions", "fog,snow", *more)
    parts = sorted(Path("near.parquet").glob("part-*"))
    assert len(parts) > 1
    assert all(part.read_bytes() == Path("far.parquet", part.name).read_bytes() for part in parts)


def test_rounds_of_active_learning():
    words = ("active", "--method", "mc-droprelu:0.9,deep-ensemble:2", "--acquire", "random,bald", "--seeds", "2")
    words += ("--rounds", "1", "--steps", "3", "--samples", "2", "--pool", "50", "--width", "0.25", "--device", "cpu")
    near, far = (
        json.loads(rbue(*words, "--runs", name, *more, "--json"))["runs"]
        for name, more in (("near", ()), ("far", SPREAD))
    )
    assert len(near) == len(far) == 8
    for one, other in zip(near, far, strict=True):
        assert one["config"] == other["config"]
        assert [{**rounds, "seconds": 0} for rounds in one["rounds"]] == [
            {**rounds, "seconds": 0} for rounds in other["rounds"]
        ]
    assert rbue(*words, "--runs", "far", "--json") == rbue(*words, "--runs", "far", *SPREAD, "--json")  # found done
