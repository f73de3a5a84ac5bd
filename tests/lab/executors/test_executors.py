"""Tasks one after the other, as whoever gives them out decides, and in processes that die and fail.

Whole commands are in test_spread_commands.py, a real cluster is in test_ray_cluster.py.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch

from rbue.errors import InvalidInput, OutOfMemory, RbueError, RbueWarning, warn
from rbue.lab.executors import Executor, executor, in_order, process_pool, ray_cluster, tasks
from rbue.lab.executors.process_pool import ProcessExecutor
from rbue.lab.executors.ray_cluster import RayExecutor

CPU = torch.device("cpu")


def test_each_is_done_before_the_next_is_asked_for():
    seen = []
    items = in_order("abc", lambda one: seen.append(f"begin {one}"))
    for item, result, error in Executor(CPU).each(str.upper, items):
        seen.append(f"end {item}")
        assert (result, error) == (item.upper(), None)
    assert seen == ["begin a", "end a", "begin b", "end b", "begin c", "end c"]


def test_an_error_of_ours_is_an_outcome_and_any_other_ends_everything():
    def task(item):
        if item == 1:
            raise RbueError("one is odd.")
        return 1 // (item - 3)

    ended = Executor(CPU).each(task, in_order(range(5)))
    assert [str(next(ended).error) for _ in range(3)] == ["None", "one is odd.", "None"]
    with pytest.raises(ZeroDivisionError):
        next(ended)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"engine": "dask"}, "must be one of local, processes, ray, not 'dask'"),
        ({"engine": "local", "address": "auto"}, "--address is for --engine ray; add that"),
        ({"engine": "local", "cpus": 1}, "--cpus is for --engine processes or --engine ray; add that"),
        ({"engine": "local", "gpus": 1.0}, "--gpus is for --engine ray; add that"),
        ({"engine": "local", "workers": 2}, "--workers is for --engine processes; add that"),
        ({"engine": "ray", "workers": 2}, "--workers is for --engine processes; add that"),
        ({"engine": "processes", "address": "auto"}, "--address is for --engine ray; add that"),
        ({"engine": "processes", "gpus": 0.5}, "--gpus is for --engine ray; add that"),
        ({"engine": "ray", "forced": "cpu", "gpus": 1.0}, "contradict each other"),
    ],
)
def test_options_that_do_not_fit(words, sentence):
    with pytest.raises(InvalidInput, match=sentence), executor(device=lambda: CPU, **words):
        pass


def test_without_ray_a_sentence_says_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RbueError, match=r"pip install 'rbue\[ray\]'"), executor("ray", lambda: CPU):
        pass


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
def test_an_address_where_nobody_listens_is_said_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(RbueError, match=f"no Ray cluster at {address} to work with"):
            executor("ray", lambda: CPU, address=address).__enter__()


def test_of_rays_errors_the_first_line_is_said_without_what_a_terminal_obeys():
    error = RuntimeError("System error: no \x1b[2Jrbue.\ntraceback: many lines")
    assert ray_cluster._first_line(error) == r"System error: no \x1b[2Jrbue"
    assert ray_cluster._first_line(ValueError()) == "ValueError"


def test_a_task_computes_where_its_gpu_is_and_starts_no_more_processes_than_it_has_cores():
    assert (RayExecutor(1, 0.0).device.type, RayExecutor(4, 0.5).device.type) == ("cpu", "cuda")
    assert (RayExecutor(1, 0.0).helpers, RayExecutor(4, 0.0).helpers, Executor(CPU).helpers) == (0, 3, None)


@pytest.mark.parametrize(
    ("device", "asked", "found"),
    [
        ("cpu", {}, (16, 1)),
        ("cpu", {"cpus": 4}, (4, 4)),
        ("cpu", {"cpus": 32}, (1, 32)),
        ("cpu", {"workers": 3}, (3, 5)),
        ("cpu", {"workers": 32}, (32, 1)),
        ("cpu", {"workers": 2, "cpus": 1}, (2, 1)),
        ("cuda", {}, (8, 2)),  # of two GPUs
        ("cuda:1", {}, (4, 4)),
        ("cuda", {"cpus": 8}, (2, 8)),
        ("cuda", {"workers": 1}, (1, 16)),
    ],
)
def test_workers_and_their_threads_divide_the_cores(device, asked, found, monkeypatch):
    monkeypatch.setattr(process_pool, "usable_cores", lambda: 16)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    pool = ProcessExecutor(torch.device(device), **asked)
    assert (pool.workers, pool.threads) == found
    assert (pool.device, pool.helpers) == (torch.device(device.partition(":")[0]), found[1] - 1)


def test_workers_take_the_gpus_in_turn_and_a_new_one_that_of_the_dead(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    class Worker:
        def __init__(self, threads, gpu):
            self.gpu = gpu

    monkeypatch.setattr(process_pool, "_Worker", Worker)
    pool = ProcessExecutor(torch.device("cuda"), 5)
    assert [pool._start().gpu for _ in range(5)] == ["0", "1", "2", "0", "1"]
    del pool._started[1]
    assert pool._start().gpu == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,4,GPU-c")
    assert [ProcessExecutor(torch.device(name))._start().gpu for name in ("cuda", "cuda:1")] == ["GPU-a", "4"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert ProcessExecutor(torch.device("cuda"))._start().gpu is None  # sees what this process sees


def test_processes_of_torchrun_start_no_others(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidInput, match="--engine processes is for one process"), executor("processes", lambda: CPU):
        pass


class Odd(Exception):
    """Cannot be made again of its arguments."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


class OurOdd(RbueError):
    """The same of ours."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def try_it(item):
    """What a task can come to; workers find it by its name."""
    if item == "die as a parent" and os.fork() == 0:
        time.sleep(60)  # it holds all of its parent's files open
        os._exit(0)
    if item.startswith("die") and not (item == "die once" and Path("has died").exists()):
        Path("has died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "ours":
        warn("this is worth knowing.")
        raise InvalidInput("this was wrong.")
    if item == "a bug":
        raise KeyError("this is a bug")
    if item == "odd":
        raise Odd("one", "other")
    if item == "our odd":
        raise OurOdd("one", "other")
    if item == "no room":
        raise torch.OutOfMemoryError("CUDA out of memory")
    if item == "no room for us":
        raise OutOfMemory("choose a smaller --batch.")
    if item == "leave":
        sys.exit(3)
    if item == "cannot be sent":
        return lambda: None
    print(f"{item} was done")
    return Path.cwd(), torch.get_num_threads(), signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getpid()


def test_a_worker_does_many_tasks_is_replaced_when_it_dies_and_ends_with_an_error(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    items = in_order(["die once", "again", "ours", "a bug"])
    with executor("processes", lambda: CPU, workers=1, cpus=1) as pool:
        ended = pool.each(try_it, items)
        first, again = next(ended), next(ended)
        assert (first.item, again.item, first.result) == ("die once", "again", again.result)
        assert first.result[:3] == (tmp_path, 1, {signal.SIGINT})  # Ctrl-C is for the command
        with pytest.warns(RbueWarning, match="this is worth knowing"):
            error = next(ended).error
        assert (type(error), str(error)) == (InvalidInput, "this was wrong.")
        with pytest.raises(KeyError, match="this is a bug") as caught:
            next(ended)
        assert multiprocessing.active_children() == []
    assert 'raise KeyError("this is a bug")' in "".join(traceback.format_exception(caught.value))
    out, err = capfd.readouterr()
    assert (out, "again was done" in err) == ("", True)


@pytest.mark.slow
def test_what_else_tasks_in_processes_come_to(tmp_path, monkeypatch):
    """Deaths do not disturb others, and nothing hangs."""
    monkeypatch.chdir(tmp_path)
    for module in (tasks, process_pool):
        monkeypatch.setattr(module, "RETRIES", 1)
    with executor("processes", lambda: CPU, workers=2, cpus=1) as pool:
        ended = {one.item: one for one in pool.each(try_it, in_order(["die", "a", "b", "c"]))}
        assert "the process of this task ended 2 times (killed" in str(ended.pop("die").error)
        assert len({one.result[-1] for one in ended.values()}) == 1
        start = time.monotonic()
        (orphan,) = pool.each(try_it, in_order(["die as a parent"]))
        assert "ended 2 times" in str(orphan.error)
        assert time.monotonic() - start < 50
        odd, room = pool.each(try_it, in_order(["our odd", "no room for us"]))
        assert {str(one.error) for one in (odd, room)} == {
            "one and other",
            "there is not enough memory for 2 tasks at once; give fewer --workers.",
        }
        assert {type(odd.error), type(room.error)} == {RbueError, OutOfMemory}
        for item, kind, text in (
            ("cannot be sent", RuntimeError, "pickle"),
            ("odd", RuntimeError, "Odd: one and other"),
            ("no room", OutOfMemory, "for 2 tasks at once; give fewer --workers"),
            ("leave", RuntimeError, r"ended its process by sys.exit\(3\)"),
        ):
            with pytest.raises(kind, match=text):
                list(pool.each(try_it, in_order([item])))
        with pytest.raises(AttributeError, match="pickle"):
            list(pool.each(lambda item: None, in_order("a")))
        ended = pool.each(try_it, in_order(["a", "b", "c"]))
        next(ended)
        assert multiprocessing.active_children() != []
        ended.close()
        assert multiprocessing.active_children() == []
