"""Replicas, threads and processes: each draws masks of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from style_networks import SharedReluResNet, images, mlp, rows, run
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import rbue
from rbue.call_sites import draws
from rbue.torch_internals import uncompiled


def test_data_parallel_is_seen_through() -> None:
    network = mlp()
    wrapped = nn.DataParallel(network)
    plain = run(wrapped, rows())
    keys = list(wrapped.state_dict())
    assert len(rbue.sites(wrapped, rows())) == 2
    assert rbue.convert(wrapped, rbue.DropReLU(0.5), example=rows()) is wrapped
    assert list(wrapped.state_dict()) == keys
    rbue.seed(wrapped, 1)
    first = run(wrapped, rows())
    assert not torch.equal(run(wrapped, rows()), first)
    rbue.seed(network, 1)
    assert torch.equal(run(network, rows()), first)
    with rbue.mode(wrapped, "plain"):
        assert torch.equal(run(wrapped, rows()), plain)
    assert rbue.revert(wrapped) is wrapped
    assert torch.equal(run(wrapped, rows()), plain)


def replica_of(module: nn.Module) -> nn.Module:
    """What torch.nn.parallel.replicate makes of a network on each device."""
    replica = module._replicate_for_data_parallel()
    for name, child in module.named_children():
        replica._modules[name] = replica_of(child)
    for name, parameter in module._parameters.items():
        setattr(replica, name, parameter)
    return replica


def test_replicas_in_threads_have_all_the_sites() -> None:
    network = rbue.convert(SharedReluResNet().eval(), rbue.DropReLU(0.5), example=images())
    rbue.seed(network, 1)
    expected = run(network, images())
    rbue.seed(network, 1)
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(run(replica_of(network), images())))
    thread.start()
    thread.join()
    assert torch.equal(found[0], expected)
    assert not torch.equal(run(network, images()), expected)  # the first replica shares the counter, as BatchNorm's


def test_replicas_number_their_rows_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = replica_of(rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows()))
    monkeypatch.setattr(draws, "_rows", lambda rows, device: torch.arange(rows, dtype=torch.int32))
    first, third = (draws.direct_draw(replica, 4, torch.device("cuda", index)).images for index in (0, 2))
    assert first.tolist() == [0, 1, 2, 3]
    assert not set(third.tolist()) & set(range(1 << 20))


def test_calls_in_threads_have_numbers_of_their_own() -> None:
    network = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows())
    x = rows()
    with ThreadPoolExecutor(8) as pool:
        outs = list(pool.map(lambda _: run(network, x), range(1000)))
    assert len({tuple(out.flatten().tolist()) for out in outs}) == 1000


@pytest.fixture
def single_process(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("single_process")
@pytest.mark.parametrize("before", [True, False], ids=["converted first", "wrapped first"])
def test_distributed_data_parallel_in_one_process(before: bool) -> None:
    network = mlp()
    if before:
        rbue.convert(network, rbue.DropReLU(0.5), example=rows())
    wrapped = DistributedDataParallel(network)
    if not before:
        assert rbue.convert(wrapped, rbue.DropReLU(0.5), example=rows()) is wrapped
    rbue.seed(wrapped, 1)
    out = wrapped(rows())
    out.sum().backward()
    assert all(p.grad is not None for p in wrapped.parameters())
    assert not torch.equal(wrapped(rows()), out)
    rbue.seed(network, 1)
    assert torch.equal(network(rows()), out)
    rbue.revert(wrapped)
    assert torch.equal(network(rows()), mlp()(rows()))


def _worker(rank: int, folder: str, before: bool) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    network = mlp()
    if before:
        rbue.convert(network, rbue.DropReLU(0.5), example=rows())
    wrapped = DistributedDataParallel(network)
    if not before:
        rbue.convert(wrapped, rbue.DropReLU(0.5), example=rows())
    rbue.seed(wrapped, 9)
    half = rows(8)[4 * rank : 4 * rank + 4]
    outs = [wrapped(half) for _ in range(2)]
    outs[-1].sum().backward()
    same = wrapped(rows())
    torch.save(([*outs, same], [p.grad for p in wrapped.parameters()]), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["converted first", "wrapped first"])
def test_two_processes_draw_together_what_one_draws_alone(tmp_path: Path, before: bool) -> None:
    torch.multiprocessing.spawn(_worker, (str(tmp_path), before), nprocs=2)
    (one, grads), (two, other_grads) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    network = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows())
    rbue.seed(network, 9)
    for halves in zip(one[:2], two[:2], strict=True):
        assert torch.allclose(torch.cat(halves), network(rows(8)), atol=1e-6)
    assert not torch.equal(one[2], two[2])  # the same rows, other masks
    assert all(torch.equal(a, b) for a, b in zip(grads, other_grads, strict=True))


def test_finding_sites_does_not_disturb_a_network_that_another_thread_runs() -> None:
    network, x = rbue.convert(mlp(), rbue.DropReLU(0.5), example=rows()), rows()
    expected, listed, found = rbue.predict(network, x, samples=5).probs, rbue.sites(network, x), []

    def predict_elsewhere(*_: object) -> None:
        hook.remove()
        with ThreadPoolExecutor(1) as pool:
            found.append(pool.submit(rbue.predict, network, x, samples=5).result().probs)

    hook = network[0].register_forward_pre_hook(predict_elsewhere)
    assert rbue.sites(network, x) == listed
    assert torch.equal(found[0], expected)


class OwnCall(nn.Sequential):
    """Code of its own around a call, which no thread may run compiled while it is looked at."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x)


def test_finding_sites_and_running_uncompiled_code_never_wait_for_each_other() -> None:
    compiled = OwnCall(*mlp())
    compiled.compile(backend="eager")
    found: list[rbue.SiteTable] = []

    def list_inside() -> None:
        with uncompiled():
            other.start()
            other.join(0.2)  # until it waits
            found.append(rbue.sites(mlp(), rows()))

    one = threading.Thread(target=list_inside, daemon=True)
    other = threading.Thread(target=lambda: found.append(rbue.sites(compiled, rows())), daemon=True)
    one.start()
    one.join(5)
    other.join(5)
    assert [len(table) for table in found] == [2, 2]
