"""The stream in ONNX operators, run one by one in onnxruntime: bit for bit that of torch."""

import numpy as np
import pytest
import torch

from rbue.kernels import exported_words

onnxscript = pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


def words_of(count, seed):
    return torch.randint(0, 1 << 32, (count,), generator=torch.Generator().manual_seed(seed))


def in_onnx(operator, *given, **settings):
    from rbue.exporting.onnx_file import _translations

    arrays = [None if one is None else onnxscript.tensor.Tensor(one.numpy()) for one in given]
    return torch.from_numpy(np.asarray(_translations()[operator](*arrays, **settings).value))


def test_absorbing_a_word():
    state, word = words_of(1000, 0), words_of(1000, 1)
    found = in_onnx(torch.ops.rbue.absorb.default, state, word)
    assert torch.equal(found, exported_words.absorb_operator(state, word))


@pytest.mark.parametrize(("turned", "mirrored"), [(False, False), (True, False), (True, True)])
def test_words_of_elements(turned, mirrored):
    table, k1, k2 = words_of(200, 0), words_of(5, 1)[:, None], words_of(5, 2)[:, None]
    turn = words_of(5, 3)[:, None] if turned else None
    found = in_onnx(torch.ops.rbue.words.default, table, k1, k2, turn, mirrored=mirrored)
    assert found.dtype == torch.int32
    assert torch.equal(found, exported_words.words_operator(table, k1, k2, turn, mirrored))
