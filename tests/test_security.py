"""Calls that could run what a file says stand in no module, but for the few places listed here."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "rbue"

BUILTINS = {"eval", "exec", "compile", "__import__"}
NEVER = {
    "system", "popen", "mktemp", "extractall", "unpack_archive",
    "full_load", "unsafe_load", "Unpickler", "read_pickle", "run_path", "run_module",
}  # fmt: skip
"""Names of functions that are called nowhere, whatever they belong to."""

MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "telnetlib"}
"""Modules that are imported nowhere."""

ALLOWED = {
    ("lab/data/pickles.py", "pickle"): "its Unpickler finds inert stand-ins alone",
    ("lab/data/pickles.py", "Unpickler"): "the base class of that reader",
    ("lab/data/readers.py", "read_pickle"): "that reader",
    ("lab/own_code.py", "import_module"): "what the user names",
}
"""By file and name, why it is there."""

CONSTANT_PREFIX = ("rbue.", "torch.")


def name_of(node):
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def owner_of(node):
    return node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""


def keywords_of(call):
    return {one.arg: getattr(one.value, "value", one.value) for one in call.keywords}


def begins_with(node):
    """The constant beginning of a text that is put together."""
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
        if isinstance(node, ast.FormattedValue):
            return "rbue." if name_of(node.value) == "__name__" else ""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def complaint(call):
    """What is wrong with a call; None if nothing is."""
    name, owner, given = name_of(call.func), owner_of(call.func), keywords_of(call)
    if (name in NEVER and owner != "platform") or (isinstance(call.func, ast.Name) and name in BUILTINS):
        return name
    if owner == "torch" and name == "load" and given.get("weights_only") is not True:
        return "torch.load"
    if owner in ("np", "numpy") and name == "load" and given.get("allow_pickle") is not False:
        return "np.load"
    if owner == "Image" and name == "open" and "formats" not in given:
        return "Image.open"
    if name == "Environment" and given.get("autoescape") is not True:
        return "Environment"
    if given.get("shell") not in (None, False):
        return "shell"
    if name in ("import_module", "_import_module") and not begins_with(call.args[0]).startswith(CONSTANT_PREFIX):
        return "import_module"
    return None


def found_in(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            yield from (name for name in (one.split(".")[0] for one in names) if name in MODULES)
        if isinstance(node, ast.Call) and complaint(node) is not None:
            yield complaint(node)
        if isinstance(node, ast.ClassDef):
            yield from (name_of(base) for base in node.bases if name_of(base) in NEVER)


MENTIONED = re.compile(rf"\b({'|'.join(BUILTINS | NEVER | MODULES)}|load|Image|Environment|shell|import_module)\b")
"""To parse all files would take seconds."""


def test_nothing_that_a_file_says_is_run():
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        if MENTIONED.search(text := path.read_text(encoding="utf-8"))
        for name in found_in(text)
    }
    assert found - {*ALLOWED} - WHERE_NAMES_ARE_OURS == set()


WHERE_NAMES_ARE_OURS = {(file, "import_module") for file in ("_moved.py", "__init__.py", "lab/data/registry.py")}
"""Places that import a module whose name stands in a table beside it."""


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import pickle", "pickle"),
        ("from joblib import load", "joblib"),
        ("torch.load(f)", "torch.load"),
        ("torch.load(f, weights_only=False)", "torch.load"),
        ("np.load(f)", "np.load"),
        ("np.load(f, allow_pickle=True)", "np.load"),
        ("eval(text)", "eval"),
        ("archive.extractall(path)", "extractall"),
        ("subprocess.run(text, shell=True)", "shell"),
        ("Image.open(file)", "Image.open"),
        ("import_module(config.model)", "import_module"),
        ("import_module(f'{name}.x')", "import_module"),
        ("Environment(loader=x)", "Environment"),
        ("class A(pickle.Unpickler): pass", "Unpickler"),
    ],
)
def test_such_a_call_is_seen(code, name):
    assert name in found_in(code)


@pytest.mark.parametrize(
    "code", ["re.compile('a')", "np.load(f, allow_pickle=False)", "model.eval()", "torch.compile(f)"]
)
def test_others_are_not(code):
    assert not [*found_in(code)]
