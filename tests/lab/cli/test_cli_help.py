"""Help: quick, because nothing that needs torch is imported for it, and right, because registries say the same."""

import inspect
import json
import os
import subprocess
import sys

from rbue.lab import active, corruptions
from rbue.lab.active import loop
from rbue.lab.cli import active as active_verb
from rbue.lab.cli import options, paper_extent, shift
from rbue.lab.cli.compare import PAPER_METHODS
from rbue.lab.methods import list_methods
from rbue.lab.paper import runner
from rbue.lab.training import engines

EVERY_HELP = """
import contextlib, io, json, sys
import typer.main
import rbue.__main__
from rbue.lab.cli import app

def paths(command, path=()):
    yield [*path]
    for name, inner in getattr(command, "commands", {}).items():
        yield from paths(inner, (*path, name))

def asked(*words):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            command.main([*words], prog_name="rbue")
        except SystemExit as end:
            assert not end.code, words
    return text.getvalue()

command = typer.main.get_command(app)
found = [*paths(command)]
for words in found:
    assert "Usage: rbue" in asked(*words, "--help")
assert asked("--version").strip() == rbue.__version__
print(json.dumps({"verbs": found, "heavy": sorted({"torch", "numpy", "matplotlib", "PIL"} & {*sys.modules})}))
"""

COMPLETION = """
import atexit, sys
atexit.register(lambda: print("torch" in sys.modules))
from rbue.__main__ import main
main()
"""


def test_no_help_imports_torch():
    """What is imported at a module's top would be waited for whenever help is asked."""
    done = subprocess.run([sys.executable, "-c", EVERY_HELP], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["heavy"] == []
    assert len(content["verbs"]) > 25
    assert ["paper", "run"] in content["verbs"]


def test_a_shell_completes_without_torch():
    asked = {"_RBUE_COMPLETE": "complete_bash", "COMP_WORDS": "rbue train --metho", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", COMPLETION], env={**os.environ, **asked}, text=True, capture_output=True
    )
    assert done.stdout.split() == ["--method", "False"], done.stderr


def test_lists_in_help_texts_are_those_of_the_registries():
    assert options.ENGINES.split(", ") == [*engines.ENGINES]
    assert active_verb.ACQUISITIONS.split(", ") == [*active.ACQUISITIONS]
    assert f"{loop.STEPS:,}" == active_verb.STEPS
    assert paper_extent.KINDS.split(", ") == [*runner.KINDS]
    assert {*PAPER_METHODS} <= {*list_methods()}
    parameters = inspect.signature(shift.shift, eval_str=True).parameters
    assert parameters["severities"].default == ",".join(map(str, corruptions.SEVERITIES))
    (option,) = parameters["corruptions"].annotation.__metadata__
    assert option.show_default == f"all {len(corruptions.CORRUPTIONS)}"
