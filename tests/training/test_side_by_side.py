"""Networks trained side by side end in the weights of training alone, whatever they draw."""

import pytest
import torch

from rbue.experiment import train_runs
from rbue.networks import load_networks
from rbue.runs import RunConfig, RunFolder
from rbue.training import recipe_for

CPU = torch.device("cpu")
NETWORKS = """
from torch import nn
from torch.nn import functional as F

def plain(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))

class Dropped(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = plain(classes)

    def forward(self, x):
        return self.layers(F.dropout(x, 0.5, self.training))
"""


def trained(model, root, together):
    recipe = recipe_for("digits", epochs=2, batch=128)
    configs = [RunConfig(model=model, method="single", seed=seed, recipe=recipe) for seed in (0, 1)]
    train_runs(configs, root, CPU, together=together)
    weights = [load_networks(config, root, CPU)[0].state_dict() for config in configs]
    return weights, {RunFolder.of(config, root).read("training")["side_by_side"] for config in configs}


@pytest.mark.parametrize(("name", "side_by_side"), [("plain", 2), ("Dropped", 1)])
def test_weights_are_those_of_training_alone(name, side_by_side, tmp_path, monkeypatch):
    (tmp_path / "networks_beside.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    alone, _ = trained(f"networks_beside:{name}", tmp_path / "alone", 1)
    beside, count = trained(f"networks_beside:{name}", tmp_path / "beside", 2)
    assert count == {side_by_side}
    for one, other in zip(alone, beside, strict=True):
        assert all(torch.equal(value, other[key]) for key, value in one.items())
