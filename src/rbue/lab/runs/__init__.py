"""Runs: train the networks of a method on a data set, keep them in a folder, and measure them.

>>> from rbue.lab.runs import RunConfig
>>> RunConfig(data="digits", model="small_cnn", method="deep-ensemble:2").members()[1].seed
1
"""

from rbue.lab.runs.folders import RunConfig, RunFolder, find_runs, other_stream, result_key
from rbue.lab.runs.measuring import evaluate_run, predict_images
from rbue.lab.runs.networks import NoWeights, load_networks
from rbue.lab.runs.passes import Passes
from rbue.lab.runs.temperatures import calibrate_run
from rbue.lab.runs.training import train_run, train_runs

__all__ = [
    "NoWeights", "Passes", "RunConfig", "RunFolder", "calibrate_run", "evaluate_run", "find_runs", "load_networks",
    "other_stream", "predict_images", "result_key", "train_run", "train_runs",
]  # fmt: skip
