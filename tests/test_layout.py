"""Imports go in one direction, the one that CONTRIBUTING.md states."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "rbue"
APART = {"__init__", "__main__", "_version"}


def stated():
    """The ordered modules of the library and of the laboratory."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    library, laboratory = re.search(r"it in this list:(.*?)\.\s+Never.*?own order is:(.*?)\.", text, re.DOTALL).groups()
    return re.findall(r"`(\w+)`", library), re.findall(r"`(\w+)`", laboratory)


def imported(path):
    """The dotted names below ``rbue`` that the files of a module import, wherever in the file."""
    for file in path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rbue":
                yield from (f"{node.module}.{alias.name}".split(".")[1:] for alias in node.names)


@pytest.mark.parametrize("folder", [PACKAGE, PACKAGE / "lab"], ids=["library", "laboratory"])
def test_every_module_has_its_place(folder):
    there = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(stated()[folder != PACKAGE]) == sorted(there - APART - {"lab"})


def test_the_library_imports_only_what_stands_before():
    library, _ = stated()
    for place, module in enumerate(library):
        found = {name for name, *_ in imported(PACKAGE / module)} - {*library[: place + 1]} - APART
        assert not found, f"{module} imports {found}"


def test_the_laboratory_imports_the_library_and_what_stands_before():
    library, laboratory = stated()
    for place, module in enumerate(laboratory):
        names = list(imported(PACKAGE / "lab" / module))
        found = {more[0] for name, *more in names if name == "lab"} - {*laboratory[: place + 1]}
        found |= {name for name, *_ in names if name != "lab"} - {*library} - APART
        assert not found, f"{module} imports {found}"
