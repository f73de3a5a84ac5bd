"""What contributors are told: recipes that work as written, templates and hooks that can be read."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rbue.lab.cli import app
from rbue.lab.data import registry
from rbue.lab.methods import base

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = ["Add a method", "Add an activation", "Add a data set"]


def recipe(title):
    """The files of a recipe and the command lines that follow them."""
    section = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    files = dict(re.findall(r"^`([\w/]+\.py)`:\n\n```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE))
    fences = re.findall(r"^```(\w*)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    lines = [line for language, block in fences if not language for line in block.splitlines()]
    return files, [shlex.split(line) for line in lines]


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Puts files where a recipe says, without touching the sources: packages look into a second folder too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(base, "_methods", dict(base._methods))
    monkeypatch.setattr(registry, "_SETS", {name: registry.get(name) for name in registry.names()})
    modules = set(sys.modules)

    def put(files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            parts = Path(name).with_suffix("").parts
            if parts[0] == "src":
                assert (ROOT / name).parent.is_dir(), name
                assert not (ROOT / name).exists(), f"{name} is there by now; choose another example"
                package = importlib.import_module(".".join(parts[1:-1]))
                monkeypatch.setattr(package, "__path__", [*package.__path__, str(path.parent)])
        importlib.invalidate_caches()
        return [".".join(Path(name).with_suffix("").parts[1:]) for name in files if name.startswith("src/")]

    yield put
    for name in {*sys.modules} - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_works_as_it_is_written(title, house):
    files, commands = recipe(title)
    assert files
    assert [words[1] for words in commands if words[1] != "data"] == ["train", "evaluate"]
    for module in house(files):
        importlib.import_module(module)  # its package does so for what lies beside it
    for program, *words in commands:
        assert program == "rbue"
        result = CliRunner().invoke(app, words, prog_name="rbue")
        assert result.exit_code == 0, (words, result.output)
    accuracy = re.search(r"accuracy\s+([\d.]+) %", result.output)
    assert float(accuracy[1]) > 0
    assert "runs/" in result.output.splitlines()[-1]


def test_a_method_and_a_data_set_are_found_by_lying_there(house):
    """What the recipes promise, and what their test does by hand."""
    methods, sets = (importlib.import_module(name) for name in ("rbue.lab.methods", "rbue.lab.data.sets"))
    assert {"single", "svi", "swag"} <= {Path(one).stem for one in Path(methods.__file__).parent.glob("*.py")}
    house(recipe("Add a data set")[0])
    assert "few-digits" not in registry.names()
    registry._discover.cache_clear()
    assert "few-digits" in registry.names()
    assert Path(sets.__path__[-1]).name == "sets"


def test_recipes_are_in_the_style_of_the_house(tmp_path):
    """As ruff sees them, which is asked once."""
    import subprocess

    for title in RECIPES:
        for name, content in recipe(title)[0].items():
            if name.startswith("src/"):
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
    ruff = [sys.executable, "-m", "ruff"]
    for words in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run(
            [*ruff, *words, "--config", ROOT / "pyproject.toml", tmp_path], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "file", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda file: file.stem
)
def test_issue_forms_can_be_read(file):
    content = yaml.safe_load(file.read_text())
    if file.stem == "config":
        assert content == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= content.keys()
    ids = [field["id"] for field in content["body"]]
    assert len(ids) == len(set(ids)) > 2
    for field in content["body"]:
        assert field["type"] in ("textarea", "checkboxes", "input", "dropdown", "markdown")
        assert field["attributes"]["label"]
        assert field["type"] != "checkboxes" or field["attributes"]["options"]


def test_hooks_are_local_and_are_what_make_lint_runs():
    content = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repo,) = content["repos"]
    assert repo["repo"] == "local"
    assert all(hook["language"] == "system" and hook["id"] and hook["name"] for hook in repo["hooks"])
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    wanted = [line.strip().removeprefix("$(BIN)/").removesuffix(" .") for line in lint.splitlines()[1:]]
    assert [hook["entry"].removesuffix(" --force-exclude") for hook in repo["hooks"]] == wanted


def test_the_map_names_folders_that_are_there():
    table = TEXT.partition("\n## The house\n")[2].partition("\n\n`rbue` is")[0]
    names = [
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`([\w/]+/)`", row.split("|")[1])
    ]
    assert len(names) > 10
    for name in names:
        assert (ROOT / name).is_dir() or (ROOT / "src" / "rbue" / name).is_dir(), name
