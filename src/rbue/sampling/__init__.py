"""Sampling: run the stochastic passes and turn them into a prediction."""

from rbue.sampling.adaptive import Adaptive
from rbue.sampling.predicting import predict

__all__ = ["Adaptive", "predict"]
