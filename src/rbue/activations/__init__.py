"""What can be random in a pass, one file a family: formula, moments, and the calls of torch that it replaces."""

from rbue.activations.base import Activation, Randomness
from rbue.activations.calls import SiteCall
from rbue.activations.drop_activation import DropActivation
from rbue.activations.dropout import Dropout
from rbue.activations.relu import DropReLU, RandomSlope, RReLU

__all__ = ["Activation", "DropActivation", "DropReLU", "Dropout", "RReLU", "RandomSlope", "Randomness", "SiteCall"]
