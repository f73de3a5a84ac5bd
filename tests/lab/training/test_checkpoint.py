"""Weights in one file or in shards; logs that survive a stop."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from rbue.errors import InvalidInput, RbueError
from rbue.files import safetensors_bytes, write_bytes
from rbue.lab.training import checkpoint
from rbue.lab.training.checkpoint import CheckpointWriter, load_checkpoint, load_weights, save_weights, snapshot
from rbue.lab.training.trainer import EpochLog, EpochReport, read_log


def network(seed, width=256):
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(12)), nn.BatchNorm1d(width))


def write(path, network, optimiser, progress):
    writer = CheckpointWriter(path)
    writer.start(snapshot(network, optimiser), progress)
    writer.close()


@pytest.mark.parametrize("shard_mib", [None, 1, 100])
def test_weights_come_back_bit_for_bit(tmp_path, shard_mib):
    saved, loaded = network(0), network(1)
    save_weights(tmp_path, saved, shard_mib)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert (len(files) > 1) == (shard_mib == 1)
    assert all(path.stat().st_size < (1 << 20) + 4096 for path in tmp_path.glob("*-of-*.safetensors"))
    load_weights(tmp_path, loaded)
    for name, value in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


@pytest.mark.parametrize(("earlier", "now"), [(None, 1), (1, None), (1, 2)])
def test_weights_in_another_form_take_the_place_of_the_earlier_ones(tmp_path, earlier, now):
    (tmp_path / "state.safetensors").touch()
    save_weights(tmp_path, network(0, 600), earlier)
    save_weights(tmp_path, network(1, 600), now)
    loaded = network(2, 600)
    load_weights(tmp_path, loaded)
    assert torch.equal(loaded.state_dict()["0.weight"], network(1, 600).state_dict()["0.weight"])
    kept = {path.name for path in tmp_path.iterdir()}
    save_weights(tmp_path / "new", network(1, 600), now)
    assert kept == {path.name for path in (tmp_path / "new").iterdir()} | {"state.safetensors"}


def test_a_missing_shard_or_another_network_is_said(tmp_path):
    save_weights(tmp_path, network(0), 1)
    with pytest.raises(RbueError, match="another network"):
        load_weights(tmp_path, network(0, 128))
    next(tmp_path.glob("*-of-*.safetensors")).unlink()
    with pytest.raises(RbueError, match="cannot be read"):
        load_weights(tmp_path, network(0))
    with pytest.raises(RbueError, match="holds no weights"):
        load_weights(tmp_path / "nothing", network(0))
    with pytest.raises(InvalidInput, match="at least 1 MiB, not 0"):
        save_weights(tmp_path, network(0), 0)


def report(epoch, loss=1.0):
    return EpochReport(epoch, loss, 0.5, 0.1, 2.0)


def test_an_epoch_run_again_replaces_its_line(tmp_path):
    path = tmp_path / "log.jsonl"
    log = EpochLog(path)
    for epoch in range(4):
        log(report(epoch))
    again = EpochLog(path)
    again(report(2, loss=7.0))
    again(report(3, loss=8.0))
    assert [(line["epoch"], line["loss"]) for line in read_log(path)] == [(0, 1.0), (1, 1.0), (2, 7.0), (3, 8.0)]


def test_a_line_cut_off_by_a_stop_is_no_obstacle(tmp_path):
    path = tmp_path / "log.jsonl"
    log = EpochLog(path)
    log(report(0))
    with path.open("a") as file:
        file.write('{"epoch": 1, "lo')
    EpochLog(path)(report(1, loss=3.0))
    assert [line["loss"] for line in read_log(path)] == [1.0, 3.0]
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("damaged", [b"[1]", b"{}", b'{"epoch": "1"}', b'{"epoch": 1, "a": "\xff"}', b"\0" * 30])
def test_a_line_that_is_no_epoch_is_no_obstacle_either(tmp_path, damaged):
    path = tmp_path / "log.jsonl"
    log = EpochLog(path)
    log(report(0))
    path.write_bytes(path.read_bytes() + damaged + b"\n")
    log(report(5))
    assert [line["epoch"] for line in read_log(path)] == [0]
    EpochLog(path)(report(1, loss=3.0))
    assert [line["loss"] for line in read_log(path)] == [1.0, 3.0]
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [0, 1]


def test_tensorboard_gets_every_epoch_once(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for epochs in (range(3), range(2, 4)):
        log = EpochLog(tmp_path / "log.jsonl", tmp_path / "tensorboard")
        for epoch in epochs:
            log(report(epoch, loss=float(epoch)))
        log.close()
        time.sleep(1.01)  # files are read by name: their second, then a count, of which "10" comes before "9"
    found = events.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [event.value for event in found.Scalars("train/loss")] == [0.0, 1.0, 2.0, 3.0]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight


def test_tied_weights_are_kept(tmp_path):
    torch.manual_seed(0)
    network, other = Tied(), Tied()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    save_weights(tmp_path, network)
    load_weights(tmp_path, other)
    write(tmp_path / "state", network, optimiser, {"epoch": 3})
    assert load_checkpoint(tmp_path / "state", other, optimiser) == {"epoch": 3}
    assert other.second.weight is other.first.weight
    assert all(value.equal(other.state_dict()[name]) for name, value in network.state_dict().items())


def test_threads_that_write_one_file_leave_one_of_their_contents(tmp_path):
    contents = [bytes([number]) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            list(pool.map(lambda content: write_bytes(tmp_path / "file", content), contents))
            assert (tmp_path / "file").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_thread_that_begins_while_another_writes_keeps_its_file(tmp_path):
    failures = []

    def write_once():
        try:
            write_bytes(tmp_path / "file", bytes(200_000))
        except RbueError as error:
            failures.append(error)

    for _ in range(20):
        threads = [threading.Thread(target=write_once) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_checkpoint_that_cannot_be_written_is_reported_by_the_next_call(tmp_path):
    (tmp_path / "file").write_text("in the way")
    writer = CheckpointWriter(tmp_path / "file" / "state")
    writer.start({"tensor": torch.zeros(3)}, {"epoch": 1})
    with pytest.raises(RbueError, match="could not be written"):
        writer.finish()
    writer.finish()


class Mixed(nn.Module):
    """Tensors of several types and shapes, some of them the only one of their type, one without elements."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.short = nn.Parameter(torch.randn(5, dtype=torch.float16))
        self.register_buffer("nothing", torch.zeros(0, 7))


@pytest.mark.parametrize("largest_piece", [1, 100, 1 << 20])
def test_a_checkpoint_is_of_the_moment_it_was_taken(tmp_path, monkeypatch, largest_piece):
    monkeypatch.setattr(checkpoint, "_LARGEST_PIECE", largest_piece)
    torch.manual_seed(0)
    network = Mixed()
    optimiser = torch.optim.SGD(network.parameters(), lr=1, momentum=0.9)
    sum(parameter.float().square().sum() for parameter in network.parameters()).backward()
    optimiser.step()
    momentum = {parameter: optimiser.state[parameter]["momentum_buffer"] for parameter in network.parameters()}
    before = {name: value.clone() for name, value in network.state_dict().items()}
    momentum_before = [value.clone() for value in momentum.values()]
    taken = snapshot(network, optimiser)
    with torch.no_grad():
        for value in (*network.state_dict().values(), *momentum.values()):
            value.add_(1)
    writer = CheckpointWriter(tmp_path / "state")
    writer.start(taken, {"epoch": 1})
    writer.finish()
    load_checkpoint(tmp_path / "state", network, optimiser)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(
        torch.equal(optimiser.state[parameter]["momentum_buffer"], value)
        for parameter, value in zip(momentum, momentum_before, strict=True)
    )


def test_no_piece_that_is_copied_at_once_is_too_large(monkeypatch):
    monkeypatch.setattr(checkpoint, "_LARGEST_PIECE", 100)
    sizes = {"a": 10, "b": 10, "c": 6, "d": 60, "e": 1}
    tensors = {name: torch.zeros(size) for name, size in sizes.items()} | {"whole": torch.zeros(3, dtype=torch.int64)}
    assert checkpoint._pieces(tensors) == [["a", "b"], ["c"], ["d"], ["e"], ["whole"]]


def test_a_log_that_cannot_grow_is_one_clear_sentence(tmp_path):
    log = EpochLog(tmp_path / "log.jsonl")
    log(report(0))
    (tmp_path / "log.jsonl").unlink()
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(RbueError, match=r"log\.jsonl could not be written \(Is a directory\)"):
        log(report(1))


def test_of_two_lines_for_an_epoch_the_last_one_counts(tmp_path):
    first, second = (EpochLog(tmp_path / "log.jsonl") for _ in range(2))
    for epoch in range(3):
        first(report(epoch))
        second(report(epoch, loss=2.0))
    assert [(line["epoch"], line["loss"]) for line in read_log(tmp_path / "log.jsonl")] == [(0, 2), (1, 2), (2, 2)]


def test_what_a_killed_process_left_goes_even_if_it_had_our_number(tmp_path):
    path = tmp_path / "file"
    path.with_name(f"file.123.{os.getpid()}.partial").write_text("")
    write_bytes(path, b"content")
    assert list(tmp_path.iterdir()) == [path]


def test_what_another_thread_is_writing_stays(tmp_path, monkeypatch):
    path, waiting, go_on = tmp_path / "file", threading.Event(), threading.Event()

    def first_one_waits(_):
        if not waiting.is_set():
            waiting.set()
            go_on.wait(10)

    monkeypatch.setattr("os.fsync", first_one_waits)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(write_bytes, path, b"first to begin")
        waiting.wait(10)
        write_bytes(path, b"first to end")
        assert path.read_bytes() == b"first to end"
        go_on.set()
        slow.result()
    assert path.read_bytes() == b"first to begin"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_says_whether_it_writes_and_how_long_it_took(tmp_path, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr("rbue.lab.training.checkpoint.write_bytes", lambda *_: go_on.wait(10))
    writer = CheckpointWriter(tmp_path / "state")
    assert not writer.is_writing
    writer.start({"tensor": torch.zeros(3)}, {})
    assert writer.is_writing
    go_on.set()
    writer.close()
    assert not writer.is_writing
    assert writer.seconds > 0


def test_an_interruption_leaves_nothing_half_written(tmp_path, monkeypatch):
    path = tmp_path / "notes"
    write_bytes(path, b"old")

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["notes"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    "index",
    [
        [],
        {},
        {"weight_map": {}},
        {"weight_map": ["a"]},
        {"weight_map": {"0.weight": 3}},
        {"weight_map": {"0.weight": "../weights-00001-of-00002.safetensors"}},
        {"weight_map": {"0.weight": "/tmp/weights-00001-of-00002.safetensors"}},
    ],
    ids=str,
)
def test_an_index_names_files_beside_it(tmp_path, index):
    (tmp_path / "weights.index.json").write_text(json.dumps(index))
    with pytest.raises(RbueError, match=r"weights\.index\.json names no files beside it"):
        load_weights(tmp_path, network(0, 2))


@pytest.mark.parametrize(
    ("note", "words"),
    [
        ({}, "does not note an epoch"),
        ({"epoch": -1}, "does not note an epoch"),
        ({"epoch": True}, "does not note an epoch"),
        ({"epoch": 1, "seconds": "x"}, "notes no progress"),
        ({"epoch": 1, "settings": []}, "notes no progress"),
    ],
)
def test_a_checkpoint_notes_its_progress(tmp_path, note, words):
    write_bytes(tmp_path / "state", safetensors_bytes({}, note))
    with pytest.raises(RbueError, match=f"state is not a readable checkpoint .*{words}"):
        checkpoint.read_tensors(tmp_path / "state")


@pytest.mark.parametrize("kind", ["momentum", "average"])
def test_momentum_and_average_have_the_shapes_of_the_network(tmp_path, kind):
    one = nn.Linear(2, 2)
    optimiser, average = torch.optim.SGD(one.parameters(), 0.1), {"weight": torch.zeros(2, 2)}
    tensors = {f"weights.{name}": value.detach() for name, value in one.state_dict().items()}
    content = safetensors_bytes({**tensors, f"{kind}.weight": torch.zeros(1)}, {"epoch": 1})  # it could be expanded
    write_bytes(tmp_path / "state", content)
    with pytest.raises(RbueError, match=f"state holds the training of another network: '{kind}.weight' has another"):
        load_checkpoint(tmp_path / "state", one, optimiser, average=average)
