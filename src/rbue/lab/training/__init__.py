"""Training: recipes, batches, checkpoints and the loop."""

from rbue.lab.training.batches import Batches, Normalise
from rbue.lab.training.recipe import NAMED, RECIPES, Recipe, recipe_for
from rbue.lab.training.trainer import Diverged, EpochReport, Job, TrainingSummary, train, train_together

__all__ = [
    "NAMED", "RECIPES", "Batches", "Diverged", "EpochReport", "Job", "Normalise", "Recipe", "TrainingSummary",
    "recipe_for", "train", "train_together",
]  # fmt: skip
