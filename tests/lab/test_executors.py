"""Tasks one after the other, as whoever gives them out decides; a real cluster is in test_ray_cluster.py."""

from __future__ import annotations

import importlib.util
import socket
import sys

import pytest
import torch

from rbue.errors import InvalidInput, RbueError
from rbue.lab import executors
from rbue.lab.executors import Executor, RayExecutor, executor, in_order

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
        ({"engine": "dask"}, "must be local or ray, not 'dask'"),
        ({"engine": "local", "address": "auto"}, "add --engine ray"),
        ({"engine": "local", "cpus": 1}, "add --engine ray"),
        ({"engine": "local", "gpus": 1.0}, "add --engine ray"),
        ({"engine": "ray", "forced": "cpu", "gpus": 1.0}, "contradict each other"),
    ],
)
def test_options_that_do_not_fit(words, sentence):
    with pytest.raises(InvalidInput, match=sentence), executor(device=lambda: CPU, **words):
        pass


def test_without_ray_a_sentence_says_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RbueError, match=r"pip install rbue\[ray\]"), executor("ray", lambda: CPU):
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
    assert executors._first_line(error) == r"System error: no \x1b[2Jrbue"
    assert executors._first_line(ValueError()) == "ValueError"


def test_a_task_computes_where_its_gpu_is_and_starts_no_more_processes_than_it_has_cores():
    assert (RayExecutor(1, 0.0).device.type, RayExecutor(4, 0.5).device.type) == ("cpu", "cuda")
    assert (RayExecutor(1, 0.0).helpers, RayExecutor(4, 0.0).helpers, Executor(CPU).helpers) == (0, 3, None)
