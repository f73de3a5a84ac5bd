"""help, models, methods, sites, env, data and runs."""

from __future__ import annotations

import ast
import errno
import html
import importlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.cells import cell_len
from tiny_runs import TINY

import rbue
from rbue._version import __version__
from rbue.lab import demo
from rbue.lab.cli import output
from rbue.lab.cli.app import main
from rbue.lab.cli.compare import PAPER_METHODS
from rbue.lab.data import names, registry
from rbue.lab.data.images import checksums
from rbue.lab.methods import list_methods
from rbue.lab.models import list_models
from rbue.lab.report.run_report import report_on
from rbue.lab.runs.folders import RunConfig, RunFolder
from rbue.lab.training import recipe_for

VERBS = ("train", "evaluate", "compare", "calibrate", "predict", "shift", "ood", "report", "models", "methods")
VERBS += ("sites", "env")
GROUPS = {
    "data": ("list", "fetch", "import", "check"),
    "runs": ("list", "show", "remove"),
    "paper": ("list", "plan", "run", "report", "claims"),
}


def test_help_lists_every_verb(command):
    shown = command("--help").stdout
    assert all(f" {verb} " in shown for verb in (*VERBS, *GROUPS, "demo", "corrupt"))


@pytest.mark.parametrize("words", [(v,) for v in VERBS] + [(g, v) for g, verbs in GROUPS.items() for v in verbs])
def test_every_help_has_an_example(words, command):
    shown = command(*words, "--help").stdout
    assert f"Example: rbue {words[0]}" in shown
    assert (words[0] in GROUPS and len(words) == 1) or "--json" in shown


def test_usage_errors(command):
    command("trian", code=2)
    command("train", "--epochs", "many", code=2)
    command("sites", code=2)


def test_models(command, as_json):
    rows = {row["name"]: row for row in as_json("models")["models"]}
    assert set(rows) == set(list_models())
    assert [rows[name]["parameters"] for name in ("vgg13", "resnet18", "densenet121")] == [9416010, 11173962, 6956298]
    assert rows["resnet18"]["sites"] == 17


def test_methods(command, as_json):
    rows = {row["name"]: row for row in as_json("methods")["methods"]}
    assert list(rows) == list_methods()
    assert rows["mc-droprelu"]["settings"] == {"q": 0.9, "where": "all", "mask": "element", "of": ""}
    assert all(row["about"] for row in rows.values())
    shown = command("methods").stdout
    assert "q=0.9, where=all" in shown
    assert "[of]" in shown
    assert "of=" not in shown
    assert "``" not in shown


def test_sites(command, as_json, fails):
    rows = as_json("sites", "resnet18")["sites"]
    assert len(rows) == 17
    assert rows[0]["shape"] == [64, 32, 32]
    assert "3 ReLU call sites of small_cnn" in command("sites", "small_cnn", "--shape", "1,8,8").stdout
    Path("own.py").write_text(
        "from torch import nn\n\n\ndef make(classes, channels, width):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))\n"
    )
    assert "1 ReLU call site of own:make" in command("sites", "own:make", "--shape", "1,8,8").stdout
    assert "--shape" in fails("sites", "small_cnn", "--shape", "big", code=2)
    assert "did you mean 'vgg13'" in fails("sites", "vgg31", code=2)


def test_demo(command, as_json, monkeypatch, tmp_path):
    """With less to train and to damage; the page, here without its figures, opens with the sentences that are shown."""
    small = {"DATA": "colour-digits-few", "EPOCHS": 1, "SAMPLES": 2, "CORRUPTIONS": ("contrast",), "SEVERITIES": (1,)}
    for name, value in small.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr("rbue.lab.report.run_report.report_on", partial(report_on, pictures=False))
    lines = command("demo", "--runs", tmp_path / "runs").stdout.splitlines()
    assert Path(lines[-1]) == tmp_path / "runs" / "comparison.html"
    said = [line for line in lines[-8:-1] if line]
    assert len(said) == 3
    text = html.unescape(re.sub("<.*?>", "", Path(lines[-1]).read_text())).replace("\u00a0", " ")
    top = text[: text.index("Comparison")]
    assert all(sentence.replace("`", "") in " ".join(top.split()) for sentence in said)
    table = "\n".join(lines[:-8])
    assert all(method in table for method in demo.METHODS)
    assert all(heading in table for heading in ("accuracy, clean", "accuracy, damaged", "NLL, clean", "NLL, damaged"))
    again = as_json("demo", "--runs", tmp_path / "runs")
    assert again["sentences"] == said
    assert len(again["runs"]) == 6
    assert {one.partition(":")[0] for one in demo.METHODS} == {*PAPER_METHODS}


def test_env(command, as_json):
    content = as_json("env")
    assert {"rbue", "torch", "kernels", "cpu", "device", "data_search_path"} <= set(content)
    assert "kernels" in command("env").stdout


def test_data_list_and_check(command, as_json, fails):
    rows = {row["name"]: row for row in as_json("data", "list")["data"]}
    assert set(rows) == set(names())
    assert rows["digits"]["here"] == ["train", "test"]
    assert rows["cifar10"]["here"] == []
    assert "50,000" in command("data", "list").stdout
    content = as_json("data", "check", "digits")
    assert content["ok"]
    assert len(content["checks"]) == 4
    assert "right (registry)" in command("data", "check", "digits").stdout
    assert "is not on this machine" in fails("data", "check", "svhn", code=1)
    assert "did you mean 'cifar10'" in fails("data", "fetch", "cifr10", code=2)
    assert "nothing to fetch" in fails("data", "fetch", "digits", code=2)


@pytest.fixture
def little_cifar(monkeypatch, tmp_path):
    """CIFAR-10 with 20 + 10 images, as the publisher's binary files."""
    known = registry.get("cifar10")
    random = np.random.RandomState(0)
    folder = tmp_path / "files"
    folder.mkdir()
    splits = {}
    for split, files in (("train", [f"data_batch_{i}.bin" for i in range(1, 6)]), ("test", ["test_batch.bin"])):
        count = 4 * len(files) if split == "train" else 10
        images = random.randint(0, 256, (count, 32, 32, 3)).astype(np.uint8)
        labels = random.randint(0, 10, count)
        sums = checksums(images, labels, 10)
        splits[split] = {"official": registry.Published(count, sums.images, sums.labels)}
        rows = np.hstack([labels[:, None].astype(np.uint8), images.transpose(0, 3, 1, 2).reshape(count, -1)])
        for name, part in zip(files, np.split(rows, len(files)), strict=True):
            (folder / name).write_bytes(part.tobytes())
    monkeypatch.setitem(registry._SETS, "cifar10", replace(known, splits=splits))
    return folder


def test_data_travels(little_cifar, command, as_json, fails):
    assert as_json("data", "import", "cifar10", little_cifar, "--root", "here")["folder"] == "here/cifar10"
    again = command("data", "fetch", "cifar10", "--root", "here")
    assert again.stdout.strip() == "here/cifar10"
    imported = command("data", "import", "cifar10", little_cifar, "--root", "there")
    assert "cifar10 train: 20 of 20" in imported.stderr
    for path in Path("here/cifar10").glob("*.npy"):
        assert path.read_bytes() == Path("there/cifar10", path.name).read_bytes()
    (array,) = [path for path in Path("there/cifar10").glob("*.npy") if "train" in path.name and "image" in path.name]
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)
    result = command("data", "check", "cifar10", "--root", "there", code=1)
    assert "WRONG" in result.stdout
    assert "error: cifar10 is not what it should be" in result.stderr


def test_runs(trained_once, command, as_json, fails, tmp_path):
    shutil.copytree(Path(trained_once).parents[2], tmp_path / "runs")
    (row,) = [row for row in as_json("runs", "list")["runs"] if row["method"] == "mc-droprelu:0.9"]
    assert row["state"] in ("trained", "measured")
    assert row["id"] in command("runs", "list").stdout
    shown = command("runs", "show", row["id"]).stdout
    assert "mc-droprelu:0.9" in shown
    assert "weight decay" in shown
    assert as_json("runs", "show", row["run"])["training"]["epochs"] == 1
    (Path(row["run"]) / "results.json").unlink(missing_ok=True)  # of another test with the same run
    command("evaluate", row["id"], "--samples", "5")
    shown = command("runs", "show", row["id"]).stdout
    assert "{" not in shown, "tables inside the results are laid out"
    assert "with fewer samples" in shown
    assert len(re.findall(r"^(?:  jsd|  dis)? +(?:[01]\.\d{4} *){4}$", shown, re.M)) == 8, "JSD and DIS, a row a line"
    assert "add --yes" in fails("runs", "remove", row["id"], code=2)
    assert Path(row["run"]).is_dir()
    assert as_json("runs", "remove", row["id"], "--yes")["removed"] == row["run"]
    assert list(Path("runs").rglob("*")) == []
    assert "there are no runs" in command("runs", "list").stderr


@pytest.mark.parametrize(("columns", "left_out"), [(100, ""), (80, "model, data"), (60, "model, data, seed, state")])
def test_runs_leave_columns_out_rather_than_breaking_a_method(trained_once, command, monkeypatch, columns, left_out):
    root = Path(trained_once).parents[2]
    long = "deep-ensemble:2[mc-droprelu:0.95,last]"
    config = RunConfig(method=long, recipe=recipe_for("digits", epochs=1))
    RunFolder.of(config, Path("runs")).open(config, {})
    shutil.copytree(root, "runs", dirs_exist_ok=True)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = command("runs", "list").stdout.splitlines()
    for method in (long, "mc-droprelu:0.9"):
        assert sum(f" {method} " in line for line in lines) == 1
    said = [line for line in lines if "no room" in line]
    assert said == ([f"no room for {left_out}; --json has everything"] if left_out else [])
    assert any("2 networks" in line for line in lines) == ("state" not in left_out)


def test_runs_without_weights_are_marked(command, as_json):
    for method in ("single", "deep-ensemble:2"):
        run = as_json("train", "--method", method, *TINY)["run"]
        command("evaluate", run)
    assert [row["weights"] for row in as_json("runs", "list")["runs"]] == [True, True, True]
    assert "no weights" not in command("runs", "list").stdout
    (member,) = Path("runs").glob("digits/*/single-seed1-*")
    for path in member.glob("*.safetensors"):
        path.unlink()
    rows = {row["method"] + str(row["seed"]): row for row in as_json("runs", "list")["runs"]}
    assert {name: row["weights"] for name, row in rows.items()} == {
        "deep-ensemble:20": False,
        "single0": True,
        "single1": False,
    }
    assert (rows["deep-ensemble:20"]["state"], rows["single1"]["state"]) == ("measured", "trained")
    shown = command("runs", "list").stdout
    assert shown.count("no weights") == 2
    assert "trained, no weights" in command("runs", "show", member).stdout
    (ensemble,) = Path("runs").glob("digits/*/deep-ensemble-2-seed0-*")
    said = command("runs", "remove", member, code=2).stderr
    assert f"{member.name} trained networks of {ensemble.name}, which cannot be measured again without it" in said
    assert as_json("runs", "remove", ensemble, "--yes")["networks_of"] == []
    assert "trained networks" not in command("runs", "remove", member, code=2).stderr


def test_runs_that_are_none(fails, as_json):
    Path("file").write_text("no folder")
    for words in (["runs", "list"], ["runs", "show", "abc"], ["runs", "list", "--json"]):
        assert "file is a file; give the folder that holds the runs" in fails(*words, "--runs", "file", code=2)
    assert as_json("runs", "list", "--runs", "nowhere") == {"runs": []}
    assert "there is no run 'abc'" in fails("runs", "show", "abc", code=2)
    project = Path("project")
    project.mkdir()
    (project / "config.json").write_text("{}")
    fails("runs", "remove", project, "--yes", code=1)
    assert (project / "config.json").exists()
    (row,) = as_json("runs", "list", "--runs", "project")["runs"]
    assert row["state"] == "cannot be read"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results", "{"),
        ("results", "[1]"),
        ("results", '{"samples=4,seed=0": {}}'),
        ("training", "{"),
        ("training", "[]"),
        ("training", "{}"),
        ("validation", "{"),
        ("validation", '{"samples=4,seed=0": {}}'),
    ],
)
def test_a_damaged_file_hides_only_what_it_holds(trained_once, command, as_json, tmp_path, name, content):
    root = shutil.copytree(Path(trained_once).parents[2], tmp_path / "runs")
    (run,) = root.glob("digits/small_cnn/mc-droprelu*")
    (run / f"{name}.json").write_text(content)
    (row,) = [row for row in as_json("runs", "list")["runs"] if row["id"] == run.name.rpartition("-")[2]]
    assert (row["data"], row["model"], row["method"], row["seed"]) == ("digits", "small_cnn", "mc-droprelu:0.9", 0)
    assert row["state"] == f"{name}.json cannot be read"
    assert row["accuracy"] is None
    assert "mc-droprelu:0.9" in command("runs", "list").stdout


def test_a_damaged_log_hides_only_what_follows(trained_once, as_json, tmp_path):
    root = shutil.copytree(Path(trained_once).parents[2], tmp_path / "runs")
    (run,) = root.glob("digits/small_cnn/mc-droprelu*")
    (run / "results.json").unlink(missing_ok=True)
    (run / "training.json").unlink()
    (run / "log.jsonl").write_bytes((run / "log.jsonl").read_bytes() + b"\xff\xfe\n")
    (row,) = [row for row in as_json("runs", "list")["runs"] if row["id"] == run.name.rpartition("-")[2]]
    assert row["state"] == "epoch 1 of 1"


def test_json_has_no_nan():
    text = output.as_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": Path("x")})
    assert json.loads(text) == {"a": None, "b": [None, 1.5], "c": "x"}


def test_as_a_module(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "rbue.__main__", raising=False)
    monkeypatch.setattr(sys, "argv", ["rbue", "--version"])
    runpy.run_module("rbue", run_name="__main__")
    assert capsys.readouterr().out == f"{__version__}\n"


def test_a_stop_while_torch_is_loaded_is_one_line(monkeypatch, capsys):
    def stop(name, *_):
        if name == "rbue.lab.cli":
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "rbue.lab.cli")
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=stop), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        importlib.import_module("rbue.__main__").main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "rbue: stopped.\n"


def test_the_command_loads_nothing_heavy_that_it_does_not_need():
    """What takes a second to load is imported where it is used; the demonstration is a verb's only import."""
    heavy = {"matplotlib", "scipy", "sklearn", "skimage", "pandas", "tensorboard"}
    folder = Path(rbue.__file__).parent
    for path in set(folder.rglob("*.py")) - {folder / "lab" / "demo.py"}:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            named = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in named} & heavy, path


def test_names_send_nothing_to_the_terminal(trained_once, command, fails, as_json, digit, tmp_path):
    """A file or folder may be called anything."""
    wild = "a\x1b[2J\x9b1m\u202e[bold]b\nc"
    seen = "a\\x1b[2J\\x9b1m\\u202e[bold]b\\nc"
    image = shutil.copy(digit, tmp_path / f"{wild}.png")
    root = shutil.copytree(Path(trained_once).parents[2], tmp_path / wild)
    run = root / Path(trained_once).relative_to(Path(trained_once).parents[2])
    results = [
        command("predict", trained_once, image),
        command("runs", "list", "--runs", root),
        command("runs", "show", run),
        command("evaluate", run, "--samples", 4),
    ]
    for result in results:
        assert seen in result.stdout
    lines = [fails("runs", "show", wild, code=2), fails("runs", "remove", run, code=2)]
    lines += [fails("predict", trained_once, tmp_path / f"{wild}.jpg", code=2)]
    assert all("a\\x1b[2J" in line for line in lines)
    for text in (*(result.output for result in results), *lines):
        assert not set(text) & set("\x1b\x9b\u202e")
    text = command("predict", trained_once, image, "--json").stdout
    assert not set(text) & set("\x1b\x9b\u202e")
    assert json.loads(text)["predictions"][0]["image"] == str(image)


@pytest.mark.parametrize("words", [["train"], ["calibrate"], ["paper", "run"]])
def test_paragraphs_of_help_fill_the_lines(words, command, monkeypatch):
    """A line ends early only where its paragraph ends or the next word would not fit."""
    monkeypatch.setenv("COLUMNS", "80")
    text = command(*words, "--help").stdout.partition("╭")[0]
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        assert all(len(a) + 1 + len(b.split()[0]) > 78 for a, b in pairwise(lines)), lines


def test_a_terminal_that_lacks_a_character_shows_the_rest(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "argv", ["rbue", "env"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    terminal.seek(0)
    assert "torch" in terminal.read()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_output_without_room_is_one_sentence(form, monkeypatch, capsys):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    monkeypatch.setattr(sys, "argv", ["rbue", "methods", *form])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "error: the output: No space left on device.\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no disk that is always full")
@pytest.mark.parametrize("words", [["--help"], ["methods", "--json"], ["--version"]])
def test_a_full_disk_is_one_sentence_whatever_is_written(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rbue", *words],
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # Python writes once more when it ends
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (1, "error: the output: No space left on device.\n")


def test_a_table_leaves_columns_out_rather_than_breaking_words(monkeypatch, capsys):
    headings, row = ("run", "accuracy", "seconds", "acquisition"), ("single", "93.5 %", "12.5 s", "random-entropy")
    for columns, left_out in ((60, ""), (40, "seconds"), (30, "seconds, acquisition")):
        monkeypatch.setenv("COLUMNS", str(columns))
        output.table("", headings, [row], right=("seconds",), less_important=("seconds", "acquisition"))
        shown = capsys.readouterr().out
        for heading, cell in zip(headings, row, strict=True):
            assert (cell in shown) == (heading in shown.splitlines()[1]) == (heading not in left_out)
        assert (f"no room for {left_out};" in shown) if left_out else ("no room" not in shown)


@pytest.mark.parametrize("say", [output.say, output.remark, output.complain])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "file"])
def test_a_terminal_breaks_sentences_between_words_and_nothing_else_does(say, terminal, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setenv("TERM", "xterm")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
    said = "no  data: tiny-imagenet lacks (`rbue data fetch tiny-imagenet`), nor in '/my data/sets' [or] \u753b\u50cf"
    say(said)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", "".join(capsys.readouterr())).splitlines()
    text = " ".join(lines).removeprefix("error: ")
    assert text == said
    assert (len(lines) > 1) == terminal
    assert not terminal or all(cell_len(line) <= 24 or line == "(`rbue data fetch tiny-imagenet`)," for line in lines)
    assert not terminal or any("'/my data/sets'" in line for line in lines)


def test_a_pipe_in_color_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    output.remark("word " * 100)
    assert len(capsys.readouterr().err.splitlines()) == 1


def _train(name):
    config = SimpleNamespace(id=0, method=name, seed=0, recipe=SimpleNamespace(epochs=1))
    with output.training_progress() as report:
        report(config, SimpleNamespace(epoch=0, loss=1.0, accuracy=0.5, seconds=1.0, side_by_side=1))


def _count(name):
    with output.data_progress() as report:
        report(name, 1, 1)


def _work(name):
    with output.working(name):
        pass


@pytest.mark.parametrize(
    "show",
    [
        output.say,
        output.remark,
        output.complain,
        lambda name: output.say(Path(name)),
        lambda name: output.table(name, (name,), [(name,)]),
        lambda name: output.methods_table(name, ("ECE",), [(name, [("0.1",)])], ()),
        lambda name: output.facts([(name, name)]),
        _train,
        _count,
        _work,
    ],
)
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "file"])
def test_names_between_colons_stay_words(show, terminal, monkeypatch, capsys):
    """As the folder of ``folder:dog:16``, and the class of ``mym:Boom:3``; rich takes them for pictures."""
    monkeypatch.setenv("TERM", "xterm")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
    name = "folder:dog:16[b]"
    show(name)
    shown = "".join(capsys.readouterr())
    assert name in shown
    assert not set(shown) & set("\N{DOG FACE}\N{DOG}")


def test_a_terminal_gets_a_path_whole(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    path = Path("runs of a long afternoon", "comparison of all methods.html")
    output.say(path)
    assert capsys.readouterr().out == f"{path}\n"
