"""Training: recipes, batches, checkpoints and the loop."""

from rbue.training.batches import Batches, Normalise
from rbue.training.recipe import RECIPES, Recipe, recipe_for
from rbue.training.trainer import EpochReport, TrainingSummary, train

__all__ = ["RECIPES", "Batches", "EpochReport", "Normalise", "Recipe", "TrainingSummary", "recipe_for", "train"]
