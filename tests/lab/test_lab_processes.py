"""Who a process is, how several meet, and which of them speaks; without starting any."""

import threading
from dataclasses import dataclass, replace

import pytest
import torch
from torch import distributed
from typer.testing import CliRunner

from rbue.errors import InvalidInput, RbueError
from rbue.lab import data, processes
from rbue.lab.cli import app, output
from rbue.lab.executors import executor
from rbue.lab.processes import PeerLost, Rank, is_first, is_reported_elsewhere, joined, own_device
from rbue.lab.runs import measuring
from rbue.lab.runs.folders import RunConfig
from rbue.lab.runs.networks import fresh_network
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.training import train_run
from rbue.lab.shift.corrupted_sets import WORTH_HELPERS, helpers_for
from rbue.lab.shift.measuring import Group, Setting
from rbue.lab.shift.rows import Cell
from rbue.lab.training import recipe_for

CPU = torch.device("cpu")


@pytest.fixture
def second(monkeypatch):
    """Be the second of two processes."""
    numbers = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}
    for name, value in {**numbers, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(processes, "_LAST_WORDS", 0.0)


@pytest.mark.parametrize(("count", "world"), [(10, 3), (2, 3), (9, 1), (0, 2), (64, 8)])
def test_every_row_is_one_process_s_and_parts_are_even(count, world):
    parts = [Rank(index, world).rows(count) for index in range(world)]
    assert [row for part in parts for row in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(("images", "batch", "world"), [(10_000, 500, 2), (10_000, 500, 3), (355, 8000, 2), (7, 2, 9)])
def test_images_are_divided_by_whole_batches_where_that_is_fair(images, batch, world):
    parts = [measuring.own_part(Rank(index, world), images, batch) for index in range(world)]
    assert [image for part in parts for image in part] == list(range(images))
    assert max(map(len, parts)) <= 1.1 * images / world + 1
    whole = images >= world * batch
    assert all(part.start % batch == 0 for part in parts) is whole


def test_alone_there_is_nobody_to_wait_for():
    with joined(CPU) as rank:
        assert (rank, rank.of_all(3), rank.of_first(4)) == (Rank(), [3], 4)
    assert is_first()
    assert not is_reported_elsewhere(RbueError("no"))


def test_other_programs_may_set_the_same_variables(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "")
    assert is_first()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InvalidInput, match=r"WORLD_SIZE is 4, but RANK.* start the command by torchrun, or unset"):
        joined(CPU).__enter__()


def test_processes_meet_under_a_name_that_none_used_before(monkeypatch):
    """A process that is no more has said hello, and was answered, in the store that outlives it."""
    store = distributed.HashStore()
    store.set("rbue/hello 1", "of a dead process")
    store.set("rbue/answer to of a dead process", "an old name")
    monkeypatch.setattr(processes, "_store", store)
    found = {}

    def meet(index):
        found[index] = processes._fresh_store(Rank(index, 3))

    threads = [threading.Thread(target=meet, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 3
    found[0].set("address", "here")
    assert all(one.check(["address"]) and one.get("address") == b"here" for one in found.values())
    assert not distributed.PrefixStore("an old name", distributed.PrefixStore("rbue", store)).check(["address"])


@pytest.mark.parametrize("said_before", [False, True])
@pytest.mark.parametrize(
    ("error", "lost"),
    [(InvalidInput("a bad value."), False), (RuntimeError("[gloo/pair.cc] Connection closed by peer"), True)],
)
def test_one_process_reports_an_error(second, monkeypatch, error, lost, said_before):
    store = distributed.HashStore()
    if said_before:
        store.add("errors", 1)
    monkeypatch.setattr(processes, "_fresh_store", lambda rank: store)
    monkeypatch.setattr(processes, "_reports", False)
    monkeypatch.setattr(distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: None)
    with pytest.raises(PeerLost if lost or said_before else InvalidInput) as caught, joined(CPU):
        raise error
    assert is_reported_elsewhere(caught.value) is said_before
    assert isinstance(caught.value, InvalidInput) or "one of the 2 processes has ended" in str(caught.value)


def test_a_process_that_outlives_the_word_of_the_first_speaks_for_itself(second, monkeypatch):
    slept = []
    monkeypatch.setattr(processes.time, "sleep", slept.append)
    assert not is_reported_elsewhere(RbueError("only here"))
    monkeypatch.setenv("LOCAL_RANK", "0")  # the first of another machine
    assert not is_reported_elsewhere(RbueError("here"))
    assert len(slept) == 1


def test_only_the_first_process_shows_results_and_any_may_complain(second, capsys):
    output.say("a result")
    output.remark("a remark")
    output.print_json({"a": 1})
    output.table("title", ["a"], [["1"]])
    assert capsys.readouterr() == ("", "")
    output.complain("a fault.")
    assert "a fault." in capsys.readouterr().err


def test_each_process_has_a_gpu_of_its_own(second, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert own_device(torch.device("cuda")) == torch.device("cuda", 1)
    assert own_device(CPU) == CPU
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InvalidInput, match=r"2 processes for 1 GPUs; give torchrun --nproc-per-node 1"):
        own_device(torch.device("cuda"))


def test_helper_processes_share_a_machine(monkeypatch, second):
    monkeypatch.setattr("rbue.lab.shift.corrupted_sets.usable_cores", lambda: 16)
    assert helpers_for(WORTH_HELPERS) == 6


def test_synchronised_batchnorm_needs_gpus_and_old_ids_stay(tmp_path):
    plain, synchronised = (RunConfig(recipe=recipe_for("digits", sync_batchnorm=on)) for on in (False, True))
    assert "sync_batchnorm" not in plain.as_json()["recipe"]
    assert synchronised.as_json()["recipe"]["sync_batchnorm"] is True
    assert plain.id == RunConfig(recipe=recipe_for("digits")).id != synchronised.id
    assert RunConfig.from_json(synchronised.as_json()) == synchronised
    with pytest.raises(InvalidInput, match=r"sync_batchnorm needs GPUs.*for a cpu; leave it out\."):
        train_run(synchronised, tmp_path, CPU)
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True)
class Thread(Rank):
    """A rank that is a thread of this process."""

    said: list | None = None
    barrier: threading.Barrier | None = None

    def of_all(self, value):
        self.barrier.wait()
        self.said.append((self.index, value))
        self.barrier.wait()
        return [one for _, one in sorted(self.said, key=lambda pair: pair[0])]


@pytest.mark.parametrize("batch", [50, 8000], ids=["whole batches", "parts of one"])
def test_the_parts_of_processes_are_the_prediction_of_one(batch, monkeypatch):
    monkeypatch.setitem(measuring.BATCH_PIXELS, "cpu", batch * 64)
    images = data.load("digits", "test")
    images = replace(images, images=images.images[:300], labels=images.labels[:300])
    config, barrier, found = RunConfig(method="mc-droprelu:0.7"), threading.Barrier(3), {}
    networks = [[fresh_network(config, images, CPU).eval()] for _ in range(4)]

    def predict(index, rank, again):
        at = measuring.predict_images_at(config, networks[index], images, (1,), Passes(3, 5), CPU, 2, again)
        one = measuring.predict_images(
            config, networks[index], images, Passes(2, 5), CPU, return_samples=True, rank=rank
        )
        found[index] = [*at, one]

    predict(3, Rank(), Rank())
    said = [[], []]
    pairs = [[Thread(index, 3, one, barrier) for one in said] for index in range(3)]
    threads = [threading.Thread(target=predict, args=(index, *pairs[index])) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for together in (found[0], found[2]):
        for one, alone in zip(together, found[3], strict=True):
            exactly = {"rtol": 0, "atol": 0} if batch == 50 else {"rtol": 0, "atol": 1e-6}
            torch.testing.assert_close(one.probs, alone.probs, **exactly)
        torch.testing.assert_close(together[-1].samples, found[3][-1].samples, **exactly)


def test_damaged_sets_are_dealt_out(tmp_path, monkeypatch):
    monkeypatch.setattr(Group, "_plan", lambda self, config: None)
    cells = [Cell("fog", level) for level in range(1, 6)]
    groups = [Group([RunConfig()], tmp_path, CPU, cells, Setting(), "test", Rank(index, 2)) for index in range(2)]
    assert [[cell.severity for cell in group.own] for group in groups] == [[1, 3, 5], [2, 4]]


@pytest.mark.parametrize("words", [["predict", "x", "y"], ["paper", "run", "--all"]])
def test_what_is_for_one_process_says_so(words, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "is for one process, but torchrun has started 2; start it without." in " ".join(result.stderr.split())
    with pytest.raises(InvalidInput, match="--engine ray is for one process"), executor("ray", own_device):
        pass
