"""Plant twenty bugs and more, one at a time, in a copy of the source tree, and see whether the tests notice.

    python tools/mutants.py              all of them; exit code 1 if a bug survives or its place is not found
    python tools/mutants.py -k momentum  those whose name contains a text
    python tools/mutants.py --jobs 2     two at a time

Each bug is a text that stands exactly once in a file, what replaces it, and the quick tests that are to fail for it.
The same tests have to pass without any bug first, so that a failure means something.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED, LINKED = ("src", "tests", "pyproject.toml"), ("results",)
"""What the tests need: the rest they only read."""

TIMEOUT = 280
"""Seconds for the tests of one bug; a bug that makes them hang is noticed too."""

PASSED, FAILED = 0, 1
"""Exit codes of pytest. Any other says that no test has run."""


class NotPlanted(Exception):
    """The text to replace is not where it should be."""


@dataclass(frozen=True)
class Mutant:
    """One bug.

    Attributes:
        name: what goes wrong, in a few words.
        file: where, below ``src/rbue``.
        old: the right code, as it stands exactly once in the file.
        new: the wrong code.
        tests: what pytest is to run, below ``tests``.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, content: str) -> str:
        """The content of the file with the bug in it."""
        found = content.count(self.old)
        if found != 1:
            raise NotPlanted(f"{self.name}: src/rbue/{self.file} has its text {found} times instead of once")
        return content.replace(self.old, self.new)


def _mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, file, old, new, tests)


# fmt: off
MUTANTS: tuple[Mutant, ...] = (
    # The random stream and the activations
    _mutant("stream constant", "random_stream.py",
        "BITS_MULTIPLIERS = (0x9E3779B1, 0x85EBCA77)", "BITS_MULTIPLIERS = (0x9E3779B1, 0x85EBCA6B)",
        "test_random_stream.py::TestBits"),
    _mutant("kept and dropped ReLUs swapped", "activations/relu.py",
        "(words >= random_stream.threshold(1 - self.q))", "(words >= random_stream.threshold(self.q))",
        "activations/test_moments.py"),
    _mutant("cap ignored in backward", "activations/relu.py",
        "blocked = blocked | (out >= cap)", "blocked = blocked | (out > cap)",
        "activations/test_gradients.py"),
    _mutant("no gradient for the weight of a PReLU", "kernels/dispatch.py",
        "_Redrawn.apply(activation, call, keys, x, *call.operands)",
        "_Redrawn.apply(activation, call, keys, x, *(one.detach() for one in call.operands))",
        "activations/test_drop_activation.py::test_gradients"),
    # Call sites
    _mutant("one site number for all calls of a module", "call_sites/table.py",
        "return (word + call * 0x9E3779B9) & 0xFFFFFFFF", "return word & 0xFFFFFFFF",
        "call_sites/test_numbering.py"),
    _mutant("revert leaves the class", "call_sites/following.py",
        "                _set_class(module, plain_class(module))", "                pass",
        "call_sites/test_nested_networks.py::test_reverting_one_leaves_the_other", "call_sites/test_styles.py"),
    # Sampling
    _mutant("images of a loader numbered from its last batch", "sampling/predicting.py",
        "start += len(batch)", "start = len(batch)",
        "sampling/test_predict.py::test_samples_do_not_depend_on_batch_size_or_memory"),
    _mutant("samples stacked last", "sampling/passes.py",
        "samples.repeat_interleave(batch)", "samples.repeat(batch)",
        "sampling/test_predict.py::test_samples_are_those_of_a_loop"),
    _mutant("BatchNorm in training mode while sampling", "sampling/predicting.py",
        "evaluating(network), bar as report:", "bar as report:",
        "sampling/test_predict.py::test_batchnorm_and_dropout_are_in_evaluation_mode_while_sampling"),
    _mutant("shared features repeated in the wrong order", "sampling/keeping.py",
        "repeat_rows(features, len(scores) // len(features))",
        "features.repeat_interleave(len(scores) // len(features), 0)",
        "sampling/test_keeping.py::test_the_means_of_plain_passes"),
    _mutant("shared rows repeated in the wrong order", "kernels/layout.py",
        "out.unflatten(0, (times, x.shape[0])).copy_(x)",
        "out.unflatten(0, (x.shape[0], times)).copy_(x.unsqueeze(1))",  # the sampler sees it and shares nothing
        "sampling/test_predict.py::test_sharing_the_prefix_holds_at_every_site_and_channels_last"),
    _mutant("only the first input has rows", "call_sites/batch.py",
        "x.dim() > 0 and x.size(0) == first.size(0)", "x is first",
        "sampling/test_inputs.py::test_every_form_gives_the_samples_of_a_loop"),
    _mutant("noise of the data left out of the variance", "prediction.py",
        "self.epistemic if self.aleatoric is None else self.epistemic + self.aleatoric", "self.epistemic",
        "sampling/test_tasks.py::test_gaussian_is_a_mixture_of_normal_distributions"),
    _mutant("running variance merged wrongly", "prediction.py",
        "shift**2 * (old * new / total)", "shift**2 * (new / total)",
        "test_prediction.py"),
    _mutant("adaptive stop forgets that it looks several times", "sampling/adaptive.py",
        "1 - (1 - self.confidence) / looks / 2", "1 - (1 - self.confidence) / 2",
        "sampling/test_adaptive.py::test_an_answer_has_settled_where_the_stated_inequalities_hold"),
    # Metrics
    _mutant("a confidence on an edge goes to the bin above", "metrics/calibration_error.py",
        "inner_edges.to(confidence.dtype), right=False)", "inner_edges.to(confidence.dtype), right=True)",
        "metrics/test_calibration_error.py"),
    # The laboratory
    _mutant("momentum lost in a checkpoint", "lab/training/checkpoint.py",
        "torch.empty_like(parameter).copy_(momentum)", "torch.zeros_like(parameter)",
        "lab/training/test_checkpoint.py"),
    _mutant("a setting left out of the id of a run", "lab/runs/folders.py",
        "json.dumps(self.as_json(), sort_keys=True)",
        'json.dumps({**self.as_json(), "holdout_seed": 0}, sort_keys=True)',
        "lab/runs/test_run_folders.py::test_every_setting_has_a_folder_of_its_own"),
    _mutant("two processes have one lock", "locks.py",
        "LOCK_EX | fcntl.LOCK_NB", "LOCK_SH | fcntl.LOCK_NB",
        "test_locks.py"),
    _mutant("a flipped byte goes unnoticed", "files.py",
        "if content[place:end] != found.hexdigest().encode():", "if not content:",
        "test_files.py"),
    _mutant("the coarse label of CIFAR-100 for the fine one", "lab/data/readers.py",
        "given.dataset), rows[:, label_at]", "given.dataset), rows[:, 0]",
        "lab/data/test_data_readers.py"),
    _mutant("members of an ensemble skip samples", "lab/methods/deep_ensemble.py",
        "samples[places] // self.members", "samples[places]",
        "lab/methods/test_methods.py"),
    _mutant("an ensemble in one network gives its first members", "lab/methods/members.py",
        "outputs_of(networks[0], x)[:, numbers]", "outputs_of(networks[0], x)[:, : len(numbers)]",
        "lab/methods/test_members.py::test_a_sample_does_not_depend_on_those_drawn_with_it"),
    _mutant("an ensemble draws its own way", "lab/methods/deep_ensemble.py",
        "(seed + number) % (1 << 64), draws)", "(seed + number) % (1 << 64))",
        "lab/methods/test_methods.py::test_members_draw_as_the_ensemble_is_asked_to_and_seeds_go_round"),
    _mutant("augmented answers taken for plain ones", "lab/runs/measuring.py",
        'else "augment" in last', "else False",
        "lab/runs/test_run_measuring.py::test_augmented_answers_of_a_member_are_not_taken_for_those_of_its_plain_pass"),
    _mutant("rows of another confidence taken for these", "lab/shift/rows.py",
        "{rule.tolerance:g},{rule.confidence:g},", "{rule.tolerance:g},",
        "lab/shift/test_shift.py::test_every_way_to_draw_has_facts_of_its_own"),
    _mutant("a mean over corruptions for the median", "lab/paper/results.py",
        "return median(found.values()) if", "return sum(found.values()) / len(found) if",
        "lab/paper/test_paper_results.py::"
        "test_a_corruption_has_the_mean_of_its_repetitions_and_a_severity_the_median_of_its_corruptions"),
    _mutant("a higher ECE counts as better", "lab/paper/claims.py",
        'BETTER = {"accuracy": ">", "ece": "<"}', 'BETTER = {"accuracy": ">", "ece": ">"}',
        "lab/paper/test_paper_claims.py::test_verdicts_on_the_papers_tables"),
)
# fmt: on


def copy_tree(folder: Path) -> None:
    """What the tests need, without what they leave behind."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(source, folder / name)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)


def run_tests(folder: Path, tests: Iterable[str]) -> int:
    """The exit code of pytest for some quick tests of a copy, at the first failure."""
    paths = [str(folder / "tests" / test) for test in tests]
    options = ["-q", "-x", "-m", "not slow and not gpu", "-p", "no:xdist"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *options, *paths]
    try:
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT).returncode
    except subprocess.TimeoutExpired:
        return FAILED


def judge(mutant: Mutant) -> str:
    """What became of a bug: ``caught``, ``SURVIVED``, or what kept it from being tried."""
    with tempfile.TemporaryDirectory(prefix="rbue-mutant-") as name:
        folder = Path(name)
        copy_tree(folder)
        file = folder / "src" / "rbue" / mutant.file
        file.write_text(mutant.planted(file.read_text(encoding="utf-8")), encoding="utf-8")
        code = run_tests(folder, mutant.tests)
    return {PASSED: "SURVIVED", FAILED: "caught"}.get(code, f"NOT TRIED, as pytest ended with {code}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the bugs that were asked for; 0 if all of them are caught, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", dest="part", default="", help="only bugs whose name contains this text")
    parser.add_argument("--jobs", type=int, default=1, help="how many to try at a time")
    given = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if given.part in mutant.name]
    try:
        for mutant in chosen:
            mutant.planted((ROOT / "src" / "rbue" / mutant.file).read_text(encoding="utf-8"))
    except NotPlanted as error:
        print(error)
        return 1
    with tempfile.TemporaryDirectory(prefix="rbue-mutant-") as name:
        copy_tree(Path(name))
        code = run_tests(Path(name), dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    if code != PASSED:
        print(f"without any bug pytest ends with {code}; mend that first.")
        return 1
    start, verdicts = time.perf_counter(), []
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, verdict in zip(chosen, pool.map(judge, chosen), strict=True):
            print(f"{time.perf_counter() - start:5.0f} s  {verdict:8}  {mutant.name}", flush=True)
            verdicts.append(verdict)
    caught = verdicts.count("caught")
    print(f"{caught} of {len(chosen)} caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
