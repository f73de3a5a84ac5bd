"""The tool that damages files: inputs that come again, and an oracle that sees what it should."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from rbue.errors import RbueError

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
pytest.importorskip("starlette")


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mutations, targets, fuzz = (loaded(name) for name in ("fuzz_mutations", "fuzz_targets", "fuzz"))
QUICK = ("CIFAR binary", "CIFAR pickle", "idx", "sheets", "archive", "stored set", "probabilities", "image file")


def folders(tmp_path, target):
    base, folder = tmp_path / "base", tmp_path / "work"
    base.mkdir()
    target.build(base)
    fuzz._renew(folder, base)
    return base, folder


@pytest.mark.parametrize("name", QUICK)
def test_a_few_inputs_of_the_quick_targets(tmp_path, name):
    target = targets.targets()[name]
    base, folder = folders(tmp_path, target)
    for number in range(6):
        outcome, detail = fuzz.judge(target, 3, number, base, folder)
        assert outcome in fuzz.GOOD, detail
        fuzz._renew(folder, base)


def test_an_input_follows_from_its_numbers(tmp_path):
    target = targets.targets()["CIFAR pickle"]
    base, _ = folders(tmp_path, target)
    made = [[target.damaged(Random(f"0/{number}"), base) for number in range(20)] for _ in range(2)]
    assert made[0] == made[1]
    assert len({data for _, _, data in made[0]}) > 10


def raising(error):
    def read(folder, file, random):
        if (folder / "file").read_bytes() != b"whole":
            raise error
        return 1

    return read


@pytest.mark.parametrize(
    ("read", "outcome"),
    [
        (raising(RbueError("file is damaged.")), "refused"),
        (raising(RbueError("it is damaged.")), "bad message"),
        (raising(RbueError("")), "bad message"),
        (raising(RbueError("file is\nbad.")), "bad message"),
        (raising(RbueError("file is bad")), "bad message"),
        (raising(RbueError("file" + "x" * 3000 + ".")), "bad message"),
        (raising(KeyError("file.")), "wrong exception"),
        (raising(SystemExit(3)), "wrong exception"),
        (lambda *_: 1, "same"),
        (lambda *_: 2, "valid"),
        (lambda *_: 0, "wrong answer"),
    ],
)
def test_the_oracle(tmp_path, read, outcome):
    target = targets.Target("made up", lambda folder: (folder / "file").write_bytes(b"whole"), ("file",), read)
    base, folder = folders(tmp_path, target)
    target.expected[Path("file")] = 1
    assert fuzz.judge(target, 0, 0, base, folder)[0] == outcome


@pytest.mark.parametrize(
    ("code", "outcome"),
    [("os.abort()", "crash"), ("time.sleep(99)", "hang"), ("open('../x', 'w').close()", "wrote elsewhere")],
)
@pytest.mark.slow
def test_what_only_another_process_can_see(tmp_path, monkeypatch, code, outcome):
    """A target that does it at every second input."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        f"import os, sys, time\nsys.path[:0] = {[str(ROOT / 'src'), str(ROOT / 'tools')]!r}\n"
        "import fuzz, fuzz_targets\n"
        "def read(folder, file, random):\n"
        f"    if (folder / 'file').read_bytes() != b'whole':\n        {code}\n    return 1\n"
        "made = fuzz_targets.Target('made', lambda f: (f / 'file').write_bytes(b'whole'), ('file',), read)\n"
        "fuzz_targets.targets = lambda: {'made': made}\n"
        "say = lambda one: os.write(1, ('\\x01' + fuzz.json.dumps(one) + '\\n').encode())\n"
        "fuzz.work('made', *map(int, sys.argv[3:6]), fuzz.Path(sys.argv[6]), say)\n"
    )
    monkeypatch.setattr(fuzz, "__file__", str(worker))
    monkeypatch.setattr(fuzz, "SECONDS", 10.0)
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    outcomes, failures, _ = fuzz.fuzz("made", 0, 2, place)
    assert outcomes[outcome] == len(failures) > 0


@pytest.mark.slow
def test_two_hundred_inputs_of_all_targets(tmp_path):
    words = [sys.executable, str(ROOT / "tools" / "fuzz.py"), "--inputs", "200", "--seed", "7", "-o", tmp_path / "out"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out").read_text())
    assert found["inputs"] >= 200
    assert found["failures"] == []


def test_the_stored_campaign_is_whole():
    found = json.loads((ROOT / "results" / "fuzzing.json").read_text())
    assert found["inputs"] >= 10_000
    assert found["failures"] == []
    assert [*found["targets"]] == [*targets.targets()]
    for one in found["targets"].values():
        assert sum(one.get(name, 0) for name in fuzz.GOOD) == one["inputs"]
