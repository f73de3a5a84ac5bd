"""Rounds of active learning with made-up numbers, so that what is compared is known."""

from __future__ import annotations

from pathlib import Path

from rbue.lab.active import ActiveConfig
from rbue.lab.active.curves import ActiveRun
from rbue.lab.runs import RunConfig
from rbue.lab.runs.folders import RunFolder

ENVIRONMENT = {"rbue": "0.2.0", "torch": "2.13.0", "python": "3.11", "cpu": "a processor", "threads": 1}


def run(accuracies, method="mc-droprelu:0.95", acquire="bald", seed=0, **settings):
    """A run with these accuracies at 20, 30, 40 … labels."""
    config = ActiveConfig(RunConfig(method=method, seed=seed), acquire, **settings)
    rounds = [
        {
            "round": number,
            "labels": config.labels(number),
            "accuracy": accuracy,
            "nll": 1.2 - accuracy,
            "ece": 0.3 * (1 - accuracy),
            "train_accuracy": 0.9 + 0.1 * accuracy,
            "samples": 20,
            "seconds": {"training": 2.0, "measuring": 0.5, "acquiring": 0.25},
            "picked": None,
        }
        for number, accuracy in enumerate(accuracies)
    ]
    return ActiveRun(RunFolder(config.folder(Path("runs")).path), config, rounds, ENVIRONMENT)


def three_methods():
    """Random, entropy and BALD of three methods, with two seeds each; BALD is best, and one seed is under way."""
    runs = []
    for place, method in enumerate(("mc-droprelu:0.95", "mc-dropout:0.2", "deep-ensemble:4")):
        for gain, acquire in enumerate(("random", "entropy", "bald")):
            for seed in (0, 1):
                start = 0.6 + 0.02 * place + 0.01 * seed
                values = [start + (0.06 + 0.01 * gain) * number for number in range(4)]
                runs.append(run(values, method, acquire, seed))
    return [*runs, run([0.6, 0.7], "mc-dropout:0.2", "bald", seed=2)]
