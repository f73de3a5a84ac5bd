"""The commands on a real Ray: equal to the last bit, also when a worker or the command itself is killed on the way.

Run by ``make test-ray``. The cluster has two cores, and all processes one thread.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from whole_commands import (
    begin,
    essence,
    grid_that_is_interrupted_and_loses_a_worker,
    no_more,
    processes_here,
    rbue,
    wait_for,
    without_times,
)

from rbue.errors import InvalidInput, RbueError, RbueWarning, warn
from rbue.lab.executors import executor, in_order, ray_cluster, tasks

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The address of a cluster with two cores, as an administrator would have started it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        "--head",
        f"--port={port}",
        "--num-cpus=2",
        "--include-dashboard=false",
        "--block",
        "--disable-usage-stats",
    ]
    words += ["--node-ip-address=127.0.0.1", f"--object-store-memory={100 << 20}"]
    cache = str(tmp_path_factory.mktemp("cache"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": cache}
    log = (tmp_path_factory.mktemp("ray") / "log").open("wb")
    start = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", *words]
    process = subprocess.Popen(start, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def workers():
    """Processes of Ray that are doing a task of this test, in its folder."""
    return processes_here(b"ray::rbue")


def test_a_grid_that_is_interrupted_and_loses_a_worker_is_the_local_one(cluster):
    own, there = ("--engine", "ray"), ("--engine", "ray", "--address", cluster)
    err = grid_that_is_interrupted_and_loses_a_worker(own, there, workers, lambda: no_more(workers))
    assert "of 2: train colour-digits-few vgg13" in err
    assert "epoch 20/20" in err


def test_a_comparison_and_damaged_images_on_a_cluster_that_is_there(cluster, tmp_path):
    words = ("--data", "colour-digits-few", "--methods", "single,mc-droprelu:0.9,deep-ensemble:2", "--epochs", "1")
    words += ("--width", "0.25", "--samples", "4", "--json")
    there = ("--engine", "ray", "--address", cluster)
    tables = [json.loads(rbue("compare", *words, "--runs", name, *more)) for name, more in
              (("near", ("--device", "cpu")), ("far", there))]  # fmt: skip
    for table in tables:
        for row in table["methods"]:
            del row["run"]
    assert without_times(tables[0]) == without_times(tables[1])
    for name, more in (("near", ("--device", "cpu")), ("far", there)):
        some = sorted(map(str, Path(name).glob("*/*/*-seed0-*")))
        assert len(some) == 3
        rbue("shift", *some, "--corruptions", "fog,contrast,shot_noise", "--severities", "1,5", "--samples", 3, *more)
    near, far = essence("near"), essence("far")
    assert near.keys() == far.keys()
    assert sum("shift.json" in name for name in near) == 4
    assert [name for name in near if near[name] != far[name]] == []


@pytest.fixture
def digits_run():
    out = rbue("train", "--method", "mc-droprelu:0.9", "--epochs", 1, "--width", 0.25, "--device", "cpu", "--json")
    return json.loads(out)["run"]


def test_a_killed_worker_and_a_killed_command_lose_no_row_and_write_none_twice(cluster, digits_run):
    count = 60_000  # 8,000 in a block
    pixels = np.random.RandomState(0).randint(0, 256, (count, 64), dtype=np.uint8)
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(pixels.ravel()), 64)
    pq.write_table(pyarrow.table({"image": column}), "images.parquet")
    words = ("predict", digits_run, "images.parquet", "--samples", 10, "-o")
    rbue(*words, "local.parquet", "--device", "cpu")
    parts = Path("far.parquet")

    def done():
        return len(list(parts.glob("part-*.parquet")))

    there = ("--engine", "ray", "--address", cluster)
    process = begin(*words, parts, *there)
    wait_for(lambda: done() >= 1 and workers(), process)
    os.kill(workers()[0], signal.SIGKILL)
    wait_for(lambda: done() >= 3, process)
    process.kill()
    process.communicate()
    before = done()
    assert 3 <= before < 8
    out = rbue(*words, parts, *there, "--json")
    outcome = json.loads(out)
    assert (outcome["images"], outcome["unreadable"]) == (count, 0)
    assert outcome["predicted_now"] <= count - 8000 * before
    files = sorted(path.name for path in parts.iterdir())
    assert files == sorted(path.name for path in Path("local.parquet").iterdir())
    for path in Path("local.parquet").glob("part-*"):
        assert path.read_bytes() == (parts / path.name).read_bytes()
    index = pq.read_table(parts, columns=["index"]).column(0).to_numpy()
    assert np.array_equal(np.sort(index), np.arange(count))


def deadly_tasks():
    """Functions that are sent along: a worker of a cluster does not find this file."""

    def die_at_first(item):
        if not Path(f"{item} has died").exists():
            Path(f"{item} has died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Path.cwd()

    def die_always(item):
        os.kill(os.getpid(), signal.SIGKILL)

    def complain(item):
        warn("this is worth knowing.")
        raise InvalidInput("this was wrong.") if item == "ours" else KeyError("this is a bug")

    return die_at_first, die_always, complain


def test_what_tasks_come_to(cluster, tmp_path, monkeypatch):
    """Deaths, errors and warnings; tasks find the folder that the command was given in."""
    die_at_first, die_always, complain = deadly_tasks()
    monkeypatch.setattr(ray_cluster, "RETRIES", 1)
    monkeypatch.setattr(tasks, "RETRIES", 1)
    with pytest.raises(InvalidInput, match="1 cores and 1 GPUs"), executor("ray", cpu, address=cluster, gpus=1.0):
        pass
    with executor("ray", cpu, address=cluster) as there:
        ended = list(there.each(die_at_first, in_order("ab")))
        assert sorted(ended) == [("a", tmp_path, None), ("b", tmp_path, None)]
        ((_, _, error),) = there.each(die_always, in_order("a"))
        assert "the process of this task ended 2 times" in str(error)
        with pytest.warns(RbueWarning, match="this is worth knowing"):
            ((_, _, error),) = there.each(complain, in_order(["ours"]))
        assert isinstance(error, InvalidInput)
        assert str(error) == "this was wrong."
        with pytest.raises(KeyError, match="this is a bug"):
            list(there.each(complain, in_order(["other"])))
        with pytest.raises(RbueError, match="No module named 'test_ray_cluster'"):
            list(there.each(cpu, in_order("a")))  # sent by its name only


def cpu():
    return torch.device("cpu")
