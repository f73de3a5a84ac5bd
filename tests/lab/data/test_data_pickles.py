"""Pickles: plain data is read, anything else is refused before it runs."""

from __future__ import annotations

import os
import pickle

import data_files as files
import numpy as np
import pytest

from rbue.lab import data
from rbue.lab.data.pickles import read_pickle


class _Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(protocol, shrink, tmp_path, nothing_left):
    folder = files.cifar10_python(tmp_path / "in", shrink("cifar10"))
    content = {b"data": _Malicious(tmp_path / "owned"), b"labels": [0]}
    (folder / "data_batch_2").write_bytes(pickle.dumps(content, protocol))
    with pytest.raises(data.DataError, match=r"data_batch_2 asks for posix.system.*nothing in it was run"):
        data.import_("cifar10", folder, tmp_path / "root")
    assert not (tmp_path / "owned").exists()
    nothing_left(tmp_path / "root")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({b"data": np.zeros(3)}), "asks for numpy.*|type 'f8'"),
        (pickle.dumps({b"data": np.array([{}], dtype=object)}, 2), "type 'O8'"),
        (pickle.dumps({b"data": 1.5}), "holds a float"),
        (pickle.dumps({b"data": {1, 2}}), "holds a set"),
        (pickle.dumps([1]), "holds a list instead of a dictionary"),
        (pickle.dumps({b"data": eval}), "asks for builtins.eval"),
        (b"\x80\x02cnumpy\ndtype\n}U\x08__call__K\x01sb.", "gives state to something that has none"),
        (
            b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\x05\x85cnumpy\ndtype\nU\x02u1\x85R\x89U\x01xtb.",
            "agree",
        ),
        (b"\x80\x02cnumpy\nfromfile\n.", "asks for numpy.fromfile"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00zlib\x86R.", "Latin-1"),
        (b"\x80\x04\x95", "not a whole pickle"),
        (b"", "not a whole pickle"),
        (b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".", "nested too deeply|instead of a dict"),
    ],
)
def test_only_plain_data_leaves_a_pickle(content, message):
    with pytest.raises(data.DataError, match=message):
        read_pickle(content, "FILE")


def test_pickles_of_python_3_are_read_too():
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for protocol in (2, 3):
        got = read_pickle(pickle.dumps({"data": array, "labels": [1, 2], b"raw": b"\xff\0"}, protocol), "FILE")
        assert np.array_equal(got["data"] if "data" in got else got[b"data"], array)
        assert got[b"raw"] == b"\xff\0"


def laughs(levels: int) -> bytes:
    """Lists of a hundred times the list before: few bytes that are a hundred to that power of things."""
    lists = b"](" + b"K\x00" * 100 + b"eq\x00"
    for level in range(1, levels):
        lists += b"0](" + (b"h" + bytes([level - 1])) * 100 + b"eq" + bytes([level])
    return b"\x80\x02}U\x04data" + lists + b"s."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (laughs(7), "holds more than half a million things"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "numbers something 2147483647 among 9 bytes"),
        (b"\x80\x02}p-5\n.", "batch (is not a whole pickle|numbers something -5)"),
        (b"\x80\x02]q\x00h\x00a.", "is nested too deeply"),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fabc.", "is not a whole pickle"),
    ],
    ids=["laughs", "memo", "negative memo", "itself", "length"],
)
def test_a_small_file_does_not_ask_for_all_of_the_memory_or_time(content, words):
    with pytest.raises(data.DataError, match=words):
        read_pickle(content, "batch")
