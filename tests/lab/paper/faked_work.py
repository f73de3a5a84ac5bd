"""Training and measuring that take no time but a fake clock's, and leave the files real ones would."""

from __future__ import annotations

import json

import torch

from rbue.lab.corruptions import CORRUPTIONS
from rbue.lab.environment import facts
from rbue.lab.paper import runner
from rbue.lab.paper.runner import Place
from rbue.lab.runs.folders import RunFolder, training_seconds


class FakeWork:
    """Stands in for `rbue.lab.runs.training` and `rbue.lab.shift`, and counts what is done."""

    def __init__(self, monkeypatch, seconds=60.0):
        self.now, self.seconds = 0.0, seconds
        self.engines = set()
        self.trained, self.measured, self.shifted, self.groups, self.calibrated = [], [], [], [], []
        monkeypatch.setattr(runner, "train_runs", self.train_runs)
        monkeypatch.setattr(runner, "evaluate_run", self.evaluate_run)
        monkeypatch.setattr(runner, "calibrate_run", self.calibrate_run)
        monkeypatch.setattr(runner, "data_is_here", lambda name: True)
        monkeypatch.setattr(runner, "shift_run", self.shift_run)
        monkeypatch.setattr(runner, "write_illustration", lambda *_, **__: None)

    def clock(self):
        return self.now

    def train_runs(self, configs, root, device, report=None, engine="auto", together=1):
        assert len(configs) <= together
        self.engines.add(engine)
        self.now += self.seconds
        self.groups.append(list(configs))
        for config in configs:
            self.trained.append(config)
            folder = RunFolder.of(config, root)
            folder.open(config, facts())
            place = {"device": device.type, "side_by_side": len(configs), "workers": 1}
            epoch = {"epoch": 0, "seconds": 0.9 * self.seconds}  # the rest of the time it is compiled
            folder.log.write_text(json.dumps(epoch))
            folder.write("training", {"seconds": self.seconds, "parameters": 10 * len(config.members()), **place})

    def evaluate_run(self, config, root, device, samples=100, seed=0):
        self.measured.append(config)
        folder = RunFolder.of(config, root)
        folder.open(config, {})
        result = {
            "accuracy": 0.9 + 0.01 * config.seed,
            "ece": 0.05,
            "nll": 0.3,
            "brier": 0.1,
            "parameters": 10 * len(config.members()),
            "training_seconds": training_seconds(config, root) or 60.0,
            "samples": samples,
            "seed": seed,
            "by_samples": [{"samples": 1, "accuracy": 0.8, "ece": 0.07}],
            "data": {"name": config.data, "count": 1000, "sha256": {"images": "abcdef0123"}},
            "environment": {"rbue": "9.9", "torch": "2.0", "commit": "c0ffee1", "cpu": "Fake CPU", "stream_version": 1},
            "mean_jsd": 0.01,
            "jsd": [[0.0, 0.01], [0.01, 0.0]],
            "dis": [[0.0, 0.02], [0.02, 0.0]],
        }
        folder.write("results", {f"samples={samples},seed={seed}": result})
        return result

    def calibrate_run(self, config, root):
        self.calibrated.append(config)
        folder = RunFolder.of(config, root)
        ((key, result),) = folder.read("results").items()
        before = {name: result[name] for name in ("accuracy", "ece", "nll", "brier")}
        entry = {
            "before": before,
            "after": {**before, "ece": 0.0123, "nll": 0.2345, "brier": 0.0987 + 0.002 * config.seed},
            "temperatures": [1.25 + config.seed, 1.5 + config.seed],
            **{name: result[name] for name in ("samples", "seed", "data")},
            "environment": {**result["environment"], "cpu": "Fitting CPU"},
        }
        folder.write("calibration", {key: entry})
        return key, entry

    def shift_run(self, config, root, device, *, severities, samples, seed=0, **_):
        self.shifted.append(config)
        rows = [
            {
                "corruption": name,
                "severity": severity,
                "samples_asked": None if config.parsed.limit else samples,
                "seed": None if config.parsed.limit else seed,
                "accuracy": 0.8 - 0.1 * severity,
                "ece": 0.01 * severity * place,
                "variant": "faked",
                "labels_sha256": "faked",
            }
            for severity in severities
            for place, name in enumerate(CORRUPTIONS)
        ]
        RunFolder.of(config, root).write("shift", {"rows": rows, "environments": {}})
        return rows


def place(root):
    return Place(root, torch.device("cpu"))
