"""What breaks under a run: folders removed or read-only, files cut short, memory that is short, a full disk."""

import errno
import os
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from torch import nn

import rbue
from rbue import files
from rbue.errors import OutOfMemory, RbueError, RbueWarning
from rbue.files import DiskFull
from rbue.lab import data
from rbue.lab.methods import base
from rbue.lab.runs import folders, measuring, training
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.measuring import evaluate_run, predict_images
from rbue.lab.runs.networks import load_networks
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.training import train_run
from rbue.lab.training import checkpoint, recipe_for, trainer

CPU = torch.device("cpu")


def config(method="single", epochs=1):
    return RunConfig(method=method, width=0.25, recipe=recipe_for("digits", epochs=epochs, batch=128))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained plain network and its root; not to be changed."""
    root = tmp_path_factory.mktemp("faults")
    train_run(config(), root, CPU)
    return root


@pytest.fixture
def root(trained, tmp_path):
    """The same, to be changed."""
    return shutil.copytree(trained, tmp_path / "runs")


def test_a_folder_removed_under_a_training_is_noticed_and_not_made_again(tmp_path):
    run = config(epochs=4)
    path, seen = RunFolder.of(run, tmp_path).path, []

    def report(_, epoch):
        seen.append(epoch.epoch)
        if epoch.epoch == 1:
            shutil.rmtree(path)

    with pytest.raises(RbueError, match=rf"{path.name} was removed while this process was writing there; nothing more"):
        train_run(run, tmp_path, CPU, report)
    assert seen == [0, 1]
    left = [one.name for one in path.iterdir()] if path.exists() else []
    assert {name.partition(".safetensors")[0] for name in left} <= {"state"}  # what was being written just then


def test_damaged_weights_come_back_from_the_checkpoint(root):
    folder = RunFolder.of(config(), root)
    weights = folder.path / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RbueError, match=r"weights.safetensors cannot be read .*; remove .*training.json, and `rbue tr"):
        evaluate_run(config(), root, CPU, samples=1)
    assert not (folder.path / "results.json").exists()
    (folder.path / "training.json").unlink()
    train_run(config(), root, CPU, lambda *_: pytest.fail("an epoch was run"))
    assert weights.read_bytes() == whole
    assert folder.read("training")["epochs"] == 1


@pytest.mark.parametrize("name", ["results", "training", "shift"])
def test_measurements_cut_off_at_any_byte_are_not_read(tmp_path, name):
    folder = RunFolder(tmp_path)
    folder.write(name, {"seconds": 1.0, "rows": [{"accuracy": 0.123456}], "environments": {}})
    path = tmp_path / f"{name}.json"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(
            RbueError, match=rf"{name}.json (cannot be read|has another form).*; remove it to have it m"
        ):
            folder.read(name)


def test_a_folder_that_cannot_be_written_is_known_before_the_work(root, monkeypatch):
    def refused(path, flags, *more, usual=os.open):
        if str(path).endswith(".lock"):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return usual(path, flags, *more)

    monkeypatch.setattr(files.os, "open", refused)
    monkeypatch.setattr(measuring, "predict_images_at", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(RbueError, match=r"could not be written \(Read-only file system\); nothing was changed"):
        evaluate_run(config(), root, CPU, samples=1)


def test_a_run_that_is_being_trained_is_not_waited_for(tmp_path):
    folder = RunFolder.of(RunConfig(), tmp_path)
    with folder.locked(), pytest.raises(RbueError, match="holds no finished training"):  # a warning would be an error
        evaluate_run(RunConfig(), tmp_path, torch.device("cpu"), samples=1)


def test_a_result_is_kept_when_there_is_room_again(root, monkeypatch):
    expected = evaluate_run(config(), shutil.copytree(root, root.parent / "other"), CPU, samples=1)
    failures = []

    def fsync(file, usual=os.fsync):
        if len(failures) < 4:
            failures.append(file)
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(file)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(files, "PAUSE", 0.0)
    with pytest.warns(RbueWarning, match="probs.npy could not be written .*make room"):
        found = evaluate_run(config(), root, CPU, samples=1)
    names = ("accuracy", "ece", "nll", "probs_sha256")
    assert [found[name] for name in names] == [expected[name] for name in names]
    assert RunFolder.of(config(), root).read("results")["samples=1,seed=0"]["nll"] == expected["nll"]


class Cramped(nn.Module):
    """A network for which memory is short with more than so many images."""

    def __init__(self, network, most, error):
        super().__init__()
        self.network, self.most, self.error, self.sizes = network, most, error, []

    def forward(self, x):
        self.sizes.append(len(x))
        if len(x) > self.most:
            raise self.error
        return self.network(x)


LACKS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    MemoryError(),
]


@pytest.mark.parametrize("error", LACKS)
def test_passes_are_halved_until_they_fit(trained, error):
    (network,), images = load_networks(config(), trained, CPU), data.load("digits", "test")
    expected = predict_images(config(), [network], images, Passes(1), CPU)
    cramped = Cramped(network, 50, error)
    found = predict_images(config(), [cramped], images, Passes(1), CPU)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-6)
    assert cramped.sizes[:4] == [355, 177, 88, 44]
    assert len(found.probs) == 355


def test_what_does_not_fit_at_all_is_one_sentence(trained):
    (network,), images = load_networks(config(), trained, CPU), data.load("digits", "test")
    with pytest.raises(OutOfMemory, match=r"^this machine has not enough memory for this; a pass with one image does"):
        predict_images(config(), [Cramped(network, 0, LACKS[0])], images, Passes(1), CPU)
    with pytest.raises(ZeroDivisionError):
        base.outputs_of(Cramped(network, 0, ZeroDivisionError()), torch.zeros(4, 1, 8, 8))


def test_a_training_for_which_memory_is_short_is_one_sentence(tmp_path, monkeypatch):
    def lacks(*_):
        raise LACKS[0]

    monkeypatch.setattr(training, "train_together", lacks)
    with pytest.raises(OutOfMemory, match="has not enough memory for this; choose a smaller --batch or --width"):
        train_run(config(), tmp_path, CPU)
    assert not (RunFolder.of(config(), tmp_path).path / ".lock").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB; it takes the right to mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", place], capture_output=True)
    if made.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.slow
def test_a_disk_that_is_really_full(small_disk, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "find_spec", lambda _: None)  # TensorBoard's files have the size they have
    for module in (folders, checkpoint):
        monkeypatch.setattr(module, "WAIT_FOR_ROOM", 0.1)
    monkeypatch.setattr(trainer._Runner, "_is_time_to_save", lambda *_: True)
    run, root = config("mc-droprelu:0.9", epochs=6), small_disk / "runs"
    ballast = small_disk / "ballast"

    def fill(_, epoch):
        if epoch.epoch == 2:
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024))

    with pytest.warns(RbueWarning, match="No space left"), pytest.raises(DiskFull):
        train_run(run, root, CPU, fill)
    folder = RunFolder.of(run, root)
    assert folder.read("training") is None
    assert 1 <= checkpoint.read_tensors(folder.state)[1]["epoch"] <= 3
    assert not list(folder.path.glob("*.partial"))
    ballast.unlink()
    train_run(run, root, CPU)
    train_run(run, tmp_path / "whole", CPU)
    whole = RunFolder.of(run, tmp_path / "whole")
    assert (folder.path / "weights.safetensors").read_bytes() == (whole.path / "weights.safetensors").read_bytes()
    assert [line["epoch"] for line in trainer.read_log(folder.log)] == list(range(6))


@pytest.mark.slow
def test_a_folder_that_is_really_read_only(small_disk, trained):
    shutil.copytree(trained, small_disk / "runs")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(RbueError, match=r"could not be written \(Read-only file system\); nothing was changed"):
        evaluate_run(config(), small_disk / "runs", CPU, samples=1)
    with pytest.raises(RbueError, match="Read-only file system"):
        train_run(config("mc-rrelu"), small_disk / "runs", CPU)
    networks, images = load_networks(config(), small_disk / "runs", CPU), data.load("digits", "test")
    assert len(predict_images(config(), networks, images, Passes(1), CPU).probs) == 355


SHORT_OF_MEMORY = """
import resource, sys, torch, rbue
torch.set_num_threads(1)
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 1),
                              torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32 * 64 * 64, 5)).eval()
x = torch.randn(20, 3, 64, 64)
rbue.convert(network, rbue.DropReLU(0.9), example=x[:2])
expected = rbue.predict(network, x, samples=16).probs
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + (80 << 20),) * 2)
found = rbue.predict(network, x, samples=16, memory=1 << 40).probs  # a whole pass would take 168 MB a tensor
torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
print("the same")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_memory_that_is_really_short():
    found = subprocess.run([sys.executable, "-c", SHORT_OF_MEMORY], capture_output=True, text=True)
    assert found.stdout == "the same\n", found.stderr


@pytest.fixture
def little_memory():
    """A GPU with 600 MB for this process beyond what it has."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (600 << 20)) / total)
    yield torch.device("cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.gpu
def test_a_gpu_whose_memory_is_really_short(little_memory):
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(5),
    ]
    network, x = nn.Sequential(*layers).to(little_memory).eval(), torch.randn(256, 3, 32, 32, device=little_memory)
    with torch.no_grad():
        plain = torch.cat([network(rows) for rows in x.split(8)])
    with pytest.raises(torch.OutOfMemoryError):
        network(x.repeat(8, 1, 1, 1))
    torch.testing.assert_close(base.outputs_of(network, x.repeat(8, 1, 1, 1)), plain.repeat(8, 1), rtol=0, atol=1e-4)
    rbue.convert(network, rbue.DropReLU(0.9), example=x[:2])
    expected = rbue.predict(network, x, samples=8, memory=1 << 20).probs
    found = rbue.predict(network, x, samples=8, memory=1 << 50).probs  # a whole pass would take 537 MB a tensor
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
