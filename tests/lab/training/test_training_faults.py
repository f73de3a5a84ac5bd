"""Files cut short and disks that are full: nothing wrong is read, and nothing finished is lost."""

import errno
import json
import os

import numpy as np
import pytest
import torch
from torch import nn

from rbue.errors import RbueError, RbueWarning
from rbue.files import DiskFull, safetensors_bytes
from rbue.lab.methods import parse
from rbue.lab.training import Batches, Job, Recipe, train, trainer
from rbue.lab.training import checkpoint as checkpoints
from rbue.lab.training.checkpoint import load_checkpoint, load_weights, read_tensors, save_weights
from rbue.lab.training.trainer import EpochLog, EpochReport, read_log


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def job(path, **more):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (24, 2, 2, 1)).astype(np.uint8), rng.integers(0, 2, 24)
    how = {"batch": 8, "padding": 0, "flip": False, "seed": 0, "device": torch.device("cpu")}
    batches = Batches(images, labels, [0.5], [0.25], **how)
    recipe = Recipe(epochs=6, batch=8, padding=0, flip=False)
    return Job(small(), parse("single"), batches, recipe, 0, path, **more)


def weights(network):
    return {name: value.clone() for name, value in network.state_dict().items()}


def same(found, expected):
    return all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.fixture
def eager(monkeypatch):
    """A checkpoint after every epoch, however short."""
    monkeypatch.setattr(trainer._Runner, "_is_time_to_save", lambda *_: True)


cuts = pytest.mark.parametrize("every", [31, pytest.param(1, marks=pytest.mark.slow)])


@cuts
def test_a_checkpoint_cut_off_at_any_byte_is_refused(tmp_path, every):
    path = tmp_path / "state.safetensors"
    train(job(path))
    whole = path.read_bytes()
    for length in (*range(0, len(whole), every), len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(RbueError, match=r"is not a readable checkpoint .*; remove it to start again"):
            read_tensors(path)
    path.write_bytes(whole + b"\0")  # or too long
    with pytest.raises(RbueError, match="is not a readable checkpoint"):
        read_tensors(path)
    network = small(1)
    before, optimiser = weights(network), torch.optim.SGD(network.parameters(), lr=1)
    path.write_bytes(whole[:-1])
    with pytest.raises(RbueError):
        load_checkpoint(path, network, optimiser)
    assert same(network.state_dict(), before)
    assert not optimiser.state


@cuts
def test_weights_cut_off_at_any_byte_are_refused_and_the_way_back_is_named(tmp_path, every):
    save_weights(tmp_path, small())
    path, network = tmp_path / "weights.safetensors", small(1)
    whole, before = path.read_bytes(), weights(network)
    for length in (*range(0, len(whole), every), len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(RbueError, match=rf"weights.safetensors cannot be read .*; remove {tmp_path} and train"):
            load_weights(tmp_path, network)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RbueError, match=r"weights.safetensors cannot be read \(.*checksum.*\); remove"):
        load_weights(tmp_path, network)
    assert same(network.state_dict(), before)
    (tmp_path / "state.safetensors").write_bytes(b"")
    with pytest.raises(
        RbueError, match=r"remove .*training.json, and `rbue train` .* takes them from state.safetensors"
    ):
        load_weights(tmp_path, network)
    path.unlink()
    with pytest.raises(RbueError, match=r"holds no weights .*; remove .*training.json, and `rbue train`"):
        load_weights(tmp_path, network)


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def full_at(monkeypatch):
    """Makes the disk full for some writes, counted from 1; gives a list of those that were tried."""

    def fill(*numbers):
        tried = []

        def fsync(file, usual=os.fsync):
            tried.append(len(tried) + 1)
            if tried[-1] in numbers:
                no_room()
            usual(file)

        monkeypatch.setattr(os, "fsync", fsync)
        return tried

    return fill


def test_training_goes_on_without_the_checkpoints_that_have_no_room(tmp_path, full_at, eager):
    whole = job(tmp_path / "whole")
    train(whole)
    path, kept = tmp_path / "state.safetensors", []
    tried = full_at(3, 4)
    cramped = job(path, report=lambda _: kept.append(read_tensors(path)[1]["epoch"] if path.exists() else 0))
    with pytest.warns(RbueWarning, match=r"a checkpoint is lost, and training goes on: .*No space left on device"):
        train(cramped)
    assert tried == [1, 2, 3, 4, 5, 6]
    assert kept[3] == kept[4] == 2  # that of before the disk was full
    assert same(cramped.network.state_dict(), whole.network.state_dict())
    assert read_tensors(path)[1]["epoch"] == 6
    assert [one.name for one in tmp_path.glob("state*")] == [path.name]


def test_the_last_checkpoint_is_waited_for_and_a_full_disk_loses_only_the_end(tmp_path, monkeypatch, full_at, eager):
    path = tmp_path / "state.safetensors"
    tried = full_at(*range(6, 1000))
    monkeypatch.setattr(checkpoints, "WAIT_FOR_ROOM", 0.01)
    with pytest.warns(RbueWarning, match="make room"), pytest.raises(DiskFull, match="No space left"):
        train(job(path))
    assert len(tried) > 6
    assert read_tensors(path)[1]["epoch"] == 5
    monkeypatch.undo()
    again, whole = job(path), job(tmp_path / "whole")
    train(again)
    train(whole)
    assert same(again.network.state_dict(), whole.network.state_dict())


def test_another_fault_than_a_full_disk_ends_training_at_once(tmp_path, monkeypatch, eager):
    def broken(_):
        raise OSError(errno.EIO, "Input/output error")

    epochs = []
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(RbueError, match="Input/output error"):
        train(job(tmp_path / "state", report=lambda epoch: epochs.append(epoch.epoch)))
    assert len(epochs) < 6


def epoch(number):
    return EpochReport(number, 1.0 / (number + 1), 0.5, 0.1, 2.0)


def test_epochs_for_which_the_log_had_no_room_are_in_it_later(tmp_path, monkeypatch):
    log, usual = EpochLog(tmp_path / "log.jsonl"), trainer.append_text
    log(epoch(0))

    def cut(path, text):
        usual(path, text[: len(text) // 2])  # what still went onto the disk
        raise DiskFull(f"{path} could not be written (No space left on device).")

    monkeypatch.setattr(trainer, "append_text", cut)
    with pytest.warns(RbueWarning, match="an epoch is not in the log yet: .*No space left"):
        log(epoch(1))
    assert [line["epoch"] for line in read_log(log.path)] == [0]
    monkeypatch.setattr(trainer, "append_text", usual)
    log(epoch(2))
    log(epoch(3))
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert lines == [epoch(number).as_json() for number in range(4)]
    monkeypatch.setattr(trainer, "append_text", cut)
    with pytest.warns(RbueWarning):
        log(epoch(4))
    log.close()
    assert [line["epoch"] for line in read_log(log.path)] == [0, 1, 2, 3, 4]


def test_tensorboard_without_room_is_given_up(tmp_path, monkeypatch):
    log = EpochLog(tmp_path / "log.jsonl", tmp_path / "tensorboard")
    monkeypatch.setattr(trainer, "find_spec", lambda _: True)
    monkeypatch.setattr(log, "_to_tensorboard", no_room)
    with pytest.warns(RbueWarning, match=r"tensorboard could not be written \(No space left.*TensorBoard sees no more"):
        log(epoch(0))
    log(epoch(1))
    assert len(read_log(log.path)) == 2


def test_tensorboard_writes_nothing_where_there_is_no_room_for_it(tmp_path, monkeypatch):
    log = EpochLog(tmp_path / "log.jsonl", tmp_path / "tensorboard")
    monkeypatch.setattr(trainer, "find_spec", lambda _: True)
    monkeypatch.setattr(trainer, "_has_room", lambda _: False)
    monkeypatch.setattr(log, "_to_tensorboard", lambda _: pytest.fail("it was written"))
    log(epoch(0))
    assert len(read_log(log.path)) == 1


def test_a_checksum_of_zeros_in_a_cut_file_is_no_way_around_it(tmp_path):
    """What a reader skips, the place of the checksum, is as long as that and no longer."""
    path = tmp_path / "file.safetensors"
    whole = safetensors_bytes({"a": torch.arange(64.0)}, {"epoch": 1})
    path.write_bytes(whole[:-4] + bytes(4))
    with pytest.raises(RbueError, match="damaged"):
        read_tensors(path)
