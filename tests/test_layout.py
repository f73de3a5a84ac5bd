"""Imports go in one direction, the one that CONTRIBUTING.md states."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "rbue"
APART = {"__init__", "__main__", "_version"}


def stated():
    """The ordered list of modules, and the set of those beside it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    ordered, beside = re.search(r"in this list:(.*?)\. Beside them stand(.*?), which", text, re.DOTALL).groups()
    return re.findall(r"`(\w+)`", ordered), set(re.findall(r"`(\w+)`", beside))


def imported(module):
    """The modules below ``rbue`` that the files of one import, wherever in the file."""
    path = PACKAGE / module
    for file in path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "rbue":
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rbue."):
                yield node.module.split(".")[1]


def test_every_module_has_its_place():
    ordered, beside = stated()
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted([*ordered, *beside]) == sorted(there - APART)


def test_modules_import_only_what_stands_before_or_beside_them():
    ordered, beside = stated()
    allowed = {module: {*ordered[:place], *beside} for place, module in enumerate(ordered)}
    allowed |= {module: {"errors", *beside} for module in beside}
    found = {module: set(imported(module)) - allowed[module] - APART - {module} for module in allowed}
    assert {module: names for module, names in found.items() if names} == {}
