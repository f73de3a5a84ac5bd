"""The command in this process, in a folder of its own."""

from __future__ import annotations

import functools
import json
import os
import sys

import numpy as np
import pytest
import typer.testing
from PIL import Image
from tiny_runs import TINY
from typer.testing import CliRunner

from rbue.lab import data
from rbue.lab.cli import app

# Once for all calls of this process: to build the verbs takes longer than most of them run.
typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture(autouse=True)
def _own_places(tmp_path, monkeypatch):
    """No test sees this machine's data or runs, nor changes the search path of modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RBUE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "180")
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def command():
    """Runs ``rbue`` with words and gives the outcome; any exception but an exit is a failure of the test."""

    def run(*words, code=0):
        result = CliRunner().invoke(app, [str(word) for word in words], prog_name="rbue")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def as_json(command):
    """Runs a command with ``--json`` and reads the whole of stdout as one document."""
    return lambda *words: json.loads(command(*words, "--json").stdout)


@pytest.fixture
def fails(command):
    """Runs a command that must fail with one sentence on stderr and nothing on stdout; gives the sentence."""

    def run(*words, code):
        result = command(*words, code=code)
        last = result.stderr.strip().splitlines()[-1]
        assert last.startswith("error: ")
        assert "error: " not in last[7:]
        assert result.stdout == ""
        return last

    return run


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory):
    """A runs folder with a tiny trained mc-droprelu."""
    root = tmp_path_factory.mktemp("session") / "runs"
    before = os.getcwd()
    words = ["train", "--method", "mc-droprelu:0.9", "--runs", str(root), *TINY, "--json"]
    result = CliRunner().invoke(app, words)
    assert os.getcwd() == before
    return json.loads(result.stdout)["run"]


@pytest.fixture
def digit(tmp_path):
    """An image file of a test digit."""
    path = tmp_path / "digit.png"
    Image.fromarray(np.asarray(data.load("digits", "test").images[0, :, :, 0])).save(path)
    return path
