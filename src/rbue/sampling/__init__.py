"""Sampling: run the stochastic passes and turn them into a prediction."""

from rbue.sampling.adaptive import Adaptive
from rbue.sampling.predicting import predict, warm_up

__all__ = ["Adaptive", "predict", "warm_up"]
