"""Folders that appear whole or not at all, also when a process is killed on the way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rbue.lab.data.registry import DataError
from rbue.lab.data.staging import clear_leftovers, staged


def fill(target, content, fail=False):
    with staged(target) as made:
        (made / "file").write_text(content)
        if fail:
            raise RuntimeError


def left_by_a_kill_between_the_renames(target):
    old = target.with_name(f".{target.name}.x1.old")
    old.mkdir()
    target.rename(old / target.name)
    return old


def test_a_folder_is_replaced_whole(tmp_path):
    fill(tmp_path / "set", "first")
    fill(tmp_path / "set", "second")
    assert (tmp_path / "set" / "file").read_text() == "second"
    assert not list(tmp_path.glob(".set.*"))


def test_a_failure_leaves_what_was_there(tmp_path):
    fill(tmp_path / "set", "first")
    with pytest.raises(RuntimeError):
        fill(tmp_path / "set", "half", fail=True)
    assert (tmp_path / "set" / "file").read_text() == "first"


def test_what_was_there_is_moved_away_and_comes_back_if_the_new_cannot_take_its_place(tmp_path, monkeypatch):
    fill(tmp_path / "set", "first")
    rename = Path.rename

    def refuse_the_new(self, target):
        if self.suffix == ".partial":
            assert list(tmp_path.glob(".set.*.old/set/file"))  # a process killed here loses nothing
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new)
    with pytest.raises(DataError):
        fill(tmp_path / "set", "second")
    assert (tmp_path / "set" / "file").read_text() == "first"
    assert not list(tmp_path.glob(".set.*"))


def test_what_a_killed_process_moved_away_comes_back(tmp_path):
    fill(tmp_path / "set", "first")
    left_by_a_kill_between_the_renames(tmp_path / "set")
    with pytest.raises(RuntimeError):
        fill(tmp_path / "set", "half", fail=True)
    assert (tmp_path / "set" / "file").read_text() == "first"


def test_only_old_leftovers_are_cleared(tmp_path):
    names = (".set.a.partial", ".set.b.old", ".other.c.partial", "set.partial")
    for name in names[:2]:
        (tmp_path / name).mkdir()
    for name in names[2:]:
        (tmp_path / name).write_text("")
    clear_leftovers(tmp_path, ".set.")
    assert all((tmp_path / name).exists() for name in names)
    yesterday = time.time() - 100_000
    for name in names:
        os.utime(tmp_path / name, (yesterday, yesterday))
    clear_leftovers(tmp_path, ".set.")
    assert [(tmp_path / name).exists() for name in names] == [False, False, True, True]
    clear_leftovers(tmp_path)
    assert [(tmp_path / name).exists() for name in names] == [False, False, False, True]
