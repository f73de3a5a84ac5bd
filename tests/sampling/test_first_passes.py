"""The passes that a plan is made with are few and small: no kernels are compiled that only they would use."""

import threading
from contextlib import suppress

import pytest
import torch

import rbue
from rbue.activations import triton_support
from rbue.lab.models.resnet18 import ResNet18
from rbue.sampling.passes import PassRunner


def converted(device="cpu"):
    torch.manual_seed(0)
    x = torch.randn(3, 3, 32, 32, device=device)
    return rbue.convert(ResNet18(width=0.25).to(device).eval(), rbue.DropReLU(0.9), example=x), x


def test_a_thread_that_goes_by_the_formula_is_given_no_kernels(monkeypatch):
    module = object()
    monkeypatch.setattr(triton_support, "_module", lambda name: module)
    ask = [triton_support.triton_kernels, triton_support.triton_fused]
    elsewhere = []
    with suppress(ZeroDivisionError), triton_support.by_formula():
        with triton_support.by_formula():
            pass
        assert [one() for one in ask] == [None, None]
        thread = threading.Thread(target=lambda: elsewhere.extend(one() for one in ask))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert elsewhere == [one() for one in ask] == [module, module]


def test_what_is_run_to_make_a_plan_goes_by_the_formula_until_rows_are_shared(monkeypatch):
    network, x = converted()
    passes, run = [], PassRunner.run

    def noted(self, x, samples, images, share, **options):
        passes.append((share, len(x) * len(samples), triton_support._this_thread.goes_by_formula))
        return run(self, x, samples, images, share, **options)

    monkeypatch.setattr(PassRunner, "run", noted)
    rbue.predict(network, x, samples=5)
    assert passes[-1] == (True, 15, False)
    assert {(share, formula) for share, _, formula in passes} == {(False, True), (True, False)}
    assert max(rows for share, rows, _ in passes[:-1]) <= 8


def test_a_compiled_network_keeps_its_tables_from_the_first_passes(monkeypatch):
    network, x = converted()
    seen, run = set(), PassRunner.run

    def noted(self, *arguments, **options):
        seen.add(triton_support._this_thread.goes_by_formula)
        return run(self, *arguments, **options)

    monkeypatch.setattr(PassRunner, "run", noted)
    rbue.predict(torch.compile(network, backend="eager"), x, samples=2)
    assert seen == {False}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_are_used_only_as_the_later_passes_use_them(monkeypatch):
    kernels = triton_support.triton_kernels()
    repeats, forward = set(), kernels.forward

    def noted(x, activation, keys, layout, cap, inplace):
        repeats.add(layout.repeat)
        return forward(x, activation, keys, layout, cap, inplace)

    monkeypatch.setattr(kernels, "forward", noted)
    network, x = converted("cuda")
    with torch.autocast("cuda", torch.float16):
        rbue.predict(network, x, samples=5)
    assert repeats <= {2, 5}
