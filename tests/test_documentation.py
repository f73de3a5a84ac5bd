"""README and docs: Python blocks run as written, generated parts are current, sentences are short."""

import difflib
import hashlib
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from rbue import Prediction, Site, functional, random_stream

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/your-own-model.md",
    "docs/decisions.md",
    "docs/how-it-works.md",
    "docs/comparing.md",
    "docs/one-training.md",
    "docs/shift.md",
    "docs/paper.md",
]
TUTORIALS = {
    path.stem: str(path.relative_to(ROOT))
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    if path.stem != "index"
}


def run_blocks(page, wanted=lambda block: True):
    """The names that the Python blocks of a page define, run in order."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert any(map(wanted, blocks))
    namespace = {"__name__": "documentation"}
    torch.manual_seed(0)  # weights that look like probabilities by chance would be warned of
    for block in filter(wanted, blocks):
        exec(compile(block, page, "exec"), namespace)
    return namespace


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run_in_order(page):
    run_blocks(page)


@pytest.mark.slow
def test_exported_files_run_as_written(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    run_blocks("docs/export.md")


@pytest.mark.slow
def test_integrations_run_as_written(tmp_path, monkeypatch):
    for package in ("lightning", "transformers", "accelerate", "sklearn", "torchmetrics"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = run_blocks("docs/integrations.md")
    assert all(isinstance(one, Prediction) for one in names["predictions"])
    assert {"eval_loss", "eval_nll", "eval_ece", "eval_accuracy"} <= names["scores"].keys()
    assert set(names["metrics"].compute()) == {f"val_{name}" for name in ("accuracy", "nll", "ece", "brier", "aurc")}


def test_a_network_is_served_as_written():
    assert run_blocks("docs/serving.md")["app"].routes


@pytest.fixture(scope="module")
def tutorials():
    """What runs the tutorials and fills in what they print."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        return runpy.run_path(str(ROOT / "docs" / "executed_pages.py"), run_name="executed_pages")


def without_numbers(text):
    return re.sub(r"-?\d+(\.\d+)?", "#", text).split()


@pytest.mark.parametrize(
    ("name", "less"),
    [
        # `make docs` runs all of them in full at each build
        pytest.param("regression", ("steps=500", "steps=50"), id="regression, less trained"),
        *(pytest.param(name, ("", ""), id=name, marks=pytest.mark.slow) for name in TUTORIALS),
    ],
)
def test_a_tutorial_prints_what_it_shows(tutorials, name, less):
    """But for its numbers, which depend on the machine, and single rows of a table; a page asserts what it claims."""
    text = (ROOT / TUTORIALS[name]).read_text()
    assert less[0] in text
    shown = [block[2] or "" for block in tutorials["BLOCK"].finditer(text)]
    names, printed = tutorials["run"](text.replace(*less), name)
    assert any(shown)
    for one, other in zip(shown, printed, strict=True):
        assert bool(one) == bool(other), other
        match = difflib.SequenceMatcher(None, without_numbers(one), without_numbers(other), autojunk=False)
        assert match.ratio() > 0.8, f"run docs/executed_pages.py {name}: it prints {other}"
    assert tutorials["PICTURES"][name](names).axes  # its picture can be drawn


def test_every_tutorial_has_a_picture_and_a_card(tutorials):
    assert tutorials["PICTURES"].keys() == TUTORIALS.keys()
    gallery = (ROOT / "docs" / "tutorials" / "index.md").read_text()
    assert all(f"]({name}.md)" in gallery and f"tutorial-{name}.webp" in gallery for name in TUTORIALS)


def test_a_block_that_raises_names_its_line(tutorials):
    with pytest.raises(ZeroDivisionError) as error:
        tutorials["run"]("A\n\n```python\nx = 1\nx / 0\n```\n", "page")
    assert error.traceback[-1].lineno + 1 == 5


def test_what_a_tutorial_prints_is_written_into_it(tutorials):
    text = "A\n\n```python\nprint(1)\n```\n\n```text\nold\n```\n\n```python\nx = 2\n```\n\nZ\n"
    expected = "A\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\nx = 2\n```\n\nZ\n"
    assert tutorials["with_output"](text, ["1\n", ""]) == expected
    assert tutorials["with_output"](expected, ["1\n", ""]) == expected


@pytest.mark.parametrize("page", TUTORIALS.values())
def test_a_tutorial_has_a_small_picture_and_says_when_not_to_trust_it(page):
    text = (ROOT / page).read_text()
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert (ROOT / page).parent.joinpath(picture).stat().st_size < 60_000
    assert "\n## When not to trust it\n" in text


@pytest.fixture(scope="module")
def written_stream():
    """The stream as docs/how-it-works.md writes it, in NumPy alone."""
    return run_blocks("docs/how-it-works.md", lambda block: "rbue" not in block)


@pytest.mark.parametrize("shape", [(5,), (3, 17), (4, 3, 5, 6)], ids=str)
@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3, 2**64 - 1])
def test_the_stream_on_the_page_is_the_librarys(written_stream, shape, seed):
    numbers = {"seed": seed, "sample": 3, "site": written_stream["site_number"]("layer1.0.relu", 1)}
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    images = torch.arange(shape[0]) * 977 - 5
    for image in (None, images):
        mine = numbers | {"image": None if image is None else image.numpy()}
        for q in (0.5, 0.9, 0.95, 1.0):
            expected = functional.drop_relu(x, q, image=image, **numbers).numpy()
            assert (written_stream["drop_relu"](x.numpy(), q, **mine) == expected).all()
        expected = functional.rrelu(x, 0.2, 0.7, image=image, **numbers).numpy()
        assert (written_stream["rrelu"](x.numpy(), 0.2, 0.7, **mine) == expected).all()


def test_the_constants_on_the_page_are_the_librarys(written_stream):
    assert written_stream["LANES"] == random_stream.LANE_START
    for probability in (0.0, 1e-9, 0.05, 0.1, 0.5, 2 / 3, 1 - 2**-32, 1.0):
        assert written_stream["threshold"](probability) == random_stream.threshold(probability)
    for call, path in enumerate(("", "1", "layer4.1.relu")):
        assert written_stream["site_number"](path, call) == Site(0, path, call, "F.relu", ()).number


EVERYWHERE = ("*.md", "docs/**/*.md", "benchmarks/*.md")
MARKDOWN = [str(path.relative_to(ROOT)) for pattern in EVERYWHERE for path in sorted(ROOT.glob(pattern))]


@pytest.mark.parametrize("page", MARKDOWN)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def sentences(text):
    """The sentences of a page's prose: without code, tables, headings and comments; a link or code is one word."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"^(\||#).*$", "\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n(?=- )", text):
        yield from re.split(r"(?<=[.!?])[)*\]]*\s+(?=[^a-z])", " ".join(paragraph.split()))


def test_sentences_are_told_apart():
    text = "# Title\n\nOne `x. y` and [a link](to.md). (Two.) Three\nlines?\n\n| a |\n|---|\n\n- four\n- five at 0.5.\n"
    found = [one for one in sentences(text) if one]
    assert found == ["One code and [a link].", "(Two.", "Three lines?", "- four", "- five at 0.5."]


SHORT_SENTENCES = (
    *("index", "when-not-to-use-it", "choosing-q", "results", "decisions", "export", "serving", "integrations"),
)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in SHORT_SENTENCES), *TUTORIALS.values()])
def test_no_sentence_has_more_than_30_words(page):
    long = [one for one in sentences((ROOT / page).read_text()) if len(re.findall(r"\w[^\s]*", one)) > 30]
    assert not long


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


SCRIPTS = ["docs/build_results.py", "benchmarks/readme_table.py", "benchmarks/goals.py"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_generated_pages_are_current(script, monkeypatch, capsys):
    """In this process, as each imports torch."""
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    monkeypatch.setattr(sys, "path", [str((ROOT / script).parent), *sys.path])
    code = None
    try:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    except SystemExit as end:
        code = end.code
    assert not code, f"run {script} with python: {code} {capsys.readouterr().out}"


def test_corrupted_sets_are_those_of_the_papers_passes(tmp_path, monkeypatch):
    """A run may also have been measured with augmented passes, or with another number of them."""
    from rbue.lab.runs.folders import RunFolder

    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    tables = runpy.run_path(str(ROOT / "docs" / "result_tables.py"))
    run = tables["Study"]("cifar10", "resnet18").config("mc-rrelu")
    row = {"corruption": "fog", "severity": 1, "seed": 0, "accuracy": 0.5, "variant": "", "labels_sha256": ""}
    ways = [{"samples_asked": 20, "ece": 0.1}, {"samples_asked": 10, "ece": 0.2}]
    ways += [{"samples_asked": 20, "ece": 0.3, name: how} for name, how in (("augment", "flip"), ("draws", "balanced"))]
    RunFolder.of(run, tmp_path).write("shift", {"rows": [{**row, **way} for way in ways], "environments": {}})
    assert tables["_corrupted_sets"](run, tmp_path)["fog", 1]["ece"] == 0.1


def test_the_papers_ece_has_the_digits_that_it_prints():
    text = (ROOT / "docs" / "results.md").read_text()
    rows = re.findall(r"^\| `[^|]+` \| [\d.]+ \([^|]+\) \| [\d.]+ \(([\d.]+), [^|]+\|", text, re.M)
    assert rows
    assert all(re.fullmatch(r"0\.\d\d", ece) for ece in rows), rows


def test_every_calibrated_run_is_shown_apart_from_the_papers_rows():
    readme = (ROOT / "README.md").read_text().partition("<!-- results -->")[2].partition("<!-- /results -->")[0]
    rows = (ROOT / "docs" / "results.md").read_text().partition("## After temperature scaling")[2].splitlines()
    measured = sorted((ROOT / "results" / "runs").rglob("results.json"))
    in_full = [
        file
        for file in measured
        if "samples=100,seed=0" in json.loads(file.read_text())
        and "average" not in json.loads(file.with_name("config.json").read_text())["recipe"]
    ]
    assert in_full
    for file in (found.with_name("calibration.json") for found in in_full):
        entry = json.loads(file.read_text())["samples=100,seed=0"]
        config = json.loads(file.with_name("config.json").read_text())
        scaled = f"{entry['before']['ece']:.3f} → {entry['after']['ece']:.3f}"
        assert scaled not in readme
        shown = any(line.startswith(f"| `{config['method']}` |") and scaled in line for line in rows)
        whole = config["recipe"]["epochs"] == 200
        assert shown or config["seed"] > 0 or not whole  # a row is the run with seed 0, trained as long as the paper's
        assert entry["before"]["accuracy"] == entry["after"]["accuracy"]
        if config["data"] != "tiny-imagenet":  # 4 MB each: not kept, as the page says
            assert hashlib.sha256(file.with_name("probs.npy").read_bytes()).hexdigest() == entry["probs"]["sha256"]


def test_the_temperatures_of_the_search_are_those_that_were_fitted():
    text = (ROOT / "docs" / "one-training-search.md").read_text()
    said = re.search(r"from 150 epochs on, without mixup, the held-out images ask for ([\d.]+) to ([\d.]+)\.", text)
    assert said
    found = [
        scores["temperature"]
        for trial in json.loads((ROOT / "results" / "search.json").read_text())
        if trial["config"]["recipe"]["epochs"] >= 150 and not trial["config"]["recipe"].get("mixup")
        for scores in trial["held_out"].values()
        if "temperature" in scores
    ]
    assert said.groups() == (f"{min(found):.2f}", f"{max(found):.2f}")


def test_the_page_of_the_paper_says_what_is_run_and_what_was_measured(tmp_path):
    from rbue.lab.data import registry
    from rbue.lab.paper.budget import budget_file, read_budget
    from rbue.lab.paper.experiments import RELATED
    from rbue.lab.paper.settings import FULL, QUICK, Settings

    text = " ".join((ROOT / "docs" / "paper.md").read_text().split())
    assert f"| samples | {FULL.samples} of clean images, {FULL.shift_samples} of corrupted ones |" in text
    height, width, _ = registry.get(QUICK.data).shape
    assert QUICK.width == 1 / 8
    assert f"an eighth of the width, images of {height}x{width} pixels" in text
    left_out = [one for one in RELATED if not Settings(quick=True).repetitions("cifar10", "resnet18", one)]
    assert len(left_out) == 4
    assert "Four methods of the related work are left out of it" in text
    file = budget_file(tmp_path)
    file.parent.mkdir(parents=True)
    file.write_text(re.search(r"```json (.*?) ```", text)[1])
    epoch, training = read_budget(tmp_path)
    assert epoch.why == read_budget(ROOT / "results" / "runs")[0].why
    (single,) = (ROOT / "results" / "runs" / "cifar10" / "densenet121").glob("single-seed0-*/training.json")
    minutes = json.loads(single.read_text())["seconds"] / 60
    assert training.why == f"one training takes {minutes:.0f} minutes on an H200"


def test_every_kept_run_of_active_learning_can_be_read():
    from rbue.lab.active.curves import read_runs
    from rbue.lab.active.loop import find_active

    runs, trouble = read_runs(find_active(ROOT / "results" / "runs" / "active"))
    assert runs
    assert not trouble


def test_every_public_name_is_in_the_api_reference():
    import rbue

    text = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    for name in rbue.__all__:
        shown = re.search(rf"auto\w+:: (rbue\.)?{name}\b", text)
        assert shown or name == "__version__", name
