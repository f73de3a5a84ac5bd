"""Code that a file names is run only if the user has named it too."""

import json
import os
import sys

import pytest
from typer.testing import CliRunner

from rbue.errors import InvalidInput, RbueError
from rbue.lab import own_code
from rbue.lab.active.loop import ActiveConfig, read_active
from rbue.lab.cli.app import app
from rbue.lab.methods import parse
from rbue.lab.own_code import NotNamed, find_own, look_in, named_by, note_named, trust
from rbue.lab.paper.settings import Settings, last_settings
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.runs.loading import load_run

EVIL = "open('pwned', 'w').close()\nrun = lambda: None\n"


@pytest.fixture(autouse=True)
def stranger(tmp_path, monkeypatch):
    """A folder that someone else has filled: modules, and runs that name them; and a user who has named nothing."""
    for name in ("stranger_code", "strangers_method"):
        (tmp_path / f"{name}.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(own_code.TRUST, raising=False)
    for known in ("_named", "_trusted"):
        monkeypatch.setattr(own_code, known, set())
    monkeypatch.setattr(own_code, "_folder", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("stranger_code", "strangers_method"):
        sys.modules.pop(name, None)


def stranger_run(folder, **changed):
    """A run folder with these settings, as an honest one would be named."""
    content = {**RunConfig().as_json(), **changed}
    place = folder / "runs" / "digits" / "small_cnn" / "single-seed0-00000000"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(content))
    (place / "training.json").write_text(json.dumps({"seconds": 1.0}))
    return place


def rbue(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


NAMES = [
    {"model": "stranger_code:run"},
    {"method": "strangers_method:run"},
    {"method": "deep-ensemble:2[strangers_method:run]"},
    {"method": "deep-ensemble:2,strangers_method:run"},
]


@pytest.mark.parametrize("names", NAMES[::2], ids=lambda names: next(iter(names.values())))
@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "RUN"),
        ("report", "runs"),
        ("serve", "RUN"),
        ("predict", "RUN", "x.png"),
        ("runs", "list"),
        ("runs", "show", "RUN"),
        ("runs", "remove", "RUN", "--yes"),
    ],
    ids=" ".join,
)
def test_no_command_runs_what_a_run_folder_names(stranger, words, names):
    place = stranger_run(stranger, **names)
    result = rbue(*(place if word == "RUN" else word for word in words))
    assert not (stranger / "pwned").exists()
    assert place.exists()
    assert str(stranger) not in sys.path
    if words[0] != "report" and words[1:] != ("list",):
        assert result.exit_code == 1
        name = next(iter(names.values())).rpartition("[")[2].rpartition(",")[2].strip("]")
        assert f"add --trust {name} to the command" in result.stderr
        assert "config.json" in result.stderr
    if words == ("runs", "list"):
        assert result.exit_code == 0
        assert "asks for other code" in result.stdout


@pytest.mark.parametrize("names", NAMES, ids=lambda names: next(iter(names.values())))
def test_nor_does_python(stranger, names):
    place = stranger_run(stranger, **names)
    with pytest.raises(NotNamed, match="none is run because a file says so"):
        load_run(place)
    (place / "active.json").write_text(json.dumps({**ActiveConfig(RunConfig(), acquire="random").as_json(), **names}))
    with pytest.raises(NotNamed, match=r"active\.json asks for code"):
        read_active(RunFolder(place))
    if "method" in names:
        (stranger / "paper").mkdir()
        (stranger / "paper" / "settings.json").write_text(json.dumps({"methods": [names["method"]]}))
        with pytest.raises(NotNamed, match=r"settings\.json asks for code"):
            last_settings(stranger, Settings())
    assert not (stranger / "pwned").exists()


def test_a_function_that_is_here_already_is_not_called_either(stranger):
    with pytest.raises(NotNamed, match="'os:abort'"):
        load_run(stranger_run(stranger, model="os:abort"))


@pytest.mark.parametrize("where", ["trust", "option", "end of the line", "variable", "in this process"])
def test_the_user_may_name_it(stranger, monkeypatch, where):
    place, name = stranger_run(stranger, model="stranger_code:run"), "stranger_code:run"
    if where == "option":
        result = rbue("--trust", name, "runs", "show", place)
    elif where == "end of the line":
        result = rbue("runs", "show", place, f"--trust={name}")
    elif where == "variable":
        monkeypatch.setenv(own_code.TRUST, f"a:b, {name}")
        result = rbue("runs", "show", place)
    else:
        trust(name) if where == "trust" else find_own("stranger_code", "run", name)
        assert RunFolder(place).config().model == name
        return
    assert result.exit_code == 0
    assert name in result.stdout
    monkeypatch.delenv(own_code.TRUST, raising=False)


def test_only_what_was_named_is_trusted(stranger):
    trust(["stranger_code:run"])
    with named_by("config.json"):
        find_own("stranger_code", "run", "")
        for other in ("other", "__dict__"):
            with pytest.raises(NotNamed):
                find_own("stranger_code", other, "")
        with pytest.raises(NotNamed):
            parse("strangers_method:run")


def test_what_was_trained_with_is_known_to_later_processes_from_the_same_place(stranger, monkeypatch):
    find_own("stranger_code", "run", "")
    note_named()
    monkeypatch.setattr(own_code, "_named", set())
    with named_by("config.json"):
        find_own("stranger_code", "run", "")
    elsewhere = stranger / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "stranger_code.py").write_text(EVIL)
    sys.modules.pop("stranger_code")
    look_in(str(elsewhere))
    sys.path.remove(str(stranger))
    with named_by("config.json"), pytest.raises(NotNamed):
        find_own("stranger_code", "run", "")


OWN_NET = """
from torch import nn

def make(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 8), nn.ReLU(), nn.Linear(8, classes))
"""


def test_a_run_with_a_network_of_ones_own_is_known_to_later_commands(stranger, monkeypatch):
    (stranger / "stranger_code.py").write_text(OWN_NET)
    assert rbue("train", "--model", "stranger_code:make", "--epochs", 1).exit_code == 0
    monkeypatch.setattr(own_code, "_named", set())
    assert "asks for other code" not in rbue("runs", "list").output
    assert [file.read_text() for file in (stranger / "state").glob("**/*") if file.is_file()] == [
        "stranger_code:make\n"
    ]


def test_what_is_trusted_for_one_command_is_not_kept(stranger):
    trust("stranger_code:run")
    find_own("stranger_code", "run", "")  # as settings that were read are looked up once more
    find_own("strangers_method", "run", "")
    assert own_code.named() == ["stranger_code:run", "strangers_method:run"]
    note_named()
    assert [file.read_text() for file in (stranger / "state").glob("**/*") if file.is_file()] == [
        "strangers_method:run\n"
    ]


def test_nothing_is_kept_of_those_who_name_nothing_or_have_no_home(stranger, monkeypatch):
    note_named()
    assert not (stranger / "state").exists()
    find_own("stranger_code", "run", "")
    (stranger / "state").write_text("a file in the way")
    note_named()
    assert (stranger / "state").is_file()
    monkeypatch.setenv("XDG_STATE_HOME", os.devnull)
    note_named()


def test_a_module_in_the_folder_that_nobody_names_is_on_no_path(stranger):
    (stranger / "tensorboard.py").write_text(EVIL)
    rbue("runs", "list")
    assert str(stranger) not in sys.path
    find_own("stranger_code", "run", "")
    assert sys.path[-1] == str(stranger)


@pytest.mark.parametrize("name", ["a", "a:", ":b", "a b:c", 3])
def test_a_name_has_a_form(name):
    with pytest.raises(InvalidInput, match=r"package\.module:name"):
        trust([name])
    assert rbue("--trust", name, "runs", "list").exit_code == 2


def test_settings_that_cannot_be_used_name_their_file(stranger):
    place = stranger_run(stranger, seed=-1)
    with pytest.raises(RbueError, match=r"config\.json holds settings that cannot be used: .*-1"):
        RunFolder(place).config()
