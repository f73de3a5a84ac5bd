"""Trainings of a second: a network of one convolution on images of noise, and every end of an epoch noted."""

from copy import deepcopy

import numpy as np
import torch
from torch import nn

from rbue.lab.methods import parse
from rbue.lab.training import Batches, Job, Recipe, train, trainer
from rbue.lab.training.step import TrainingStep
from rbue.sampling.collect import collect

CPU = torch.device("cpu")
RECIPE = Recipe(epochs=6, batch=16, learning_rate=0.1, padding=1, momentum=0.9)
X = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def network(seed=0, width=8):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 3))


def fresh(spec, seed=0):
    return parse(spec).prepare(network(seed), X[:2])


def batches(count=48):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 6, 6, 1), dtype=np.uint8)
    settings = {"batch": RECIPE.batch, "padding": 1, "flip": True, "seed": 0, "device": CPU}
    return Batches(images, rng.integers(0, 3, count), [0.5], [0.3], **settings)


def trained(spec, recipe=RECIPE, monkeypatch=None, **settings):
    """A trained network, and the state of it at the end of each epoch, before the method does anything with it."""
    ends = []

    class Noted(TrainingStep):
        def end_epoch(self, epoch):
            ends.append(deepcopy(self.network))
            super().end_epoch(epoch)

    if monkeypatch is not None:
        monkeypatch.setattr(trainer, "TrainingStep", Noted)
    found = fresh(spec)
    train(Job(found, parse(spec), batches(), recipe, 0, **settings), "plain")
    return found.eval(), ends


def samples(spec, trained_network, count, x=X, seed=5):
    """Sampled probabilities ``(count, B, classes)``."""
    stream = parse(spec).stream([trained_network.eval()], x, seed)
    numbers = torch.arange(len(x), dtype=torch.int32)
    return collect(stream, x, numbers, count, seed=seed, return_samples=True).samples
