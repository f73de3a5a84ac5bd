"""The two random activations of the paper: what they are, and one operator with several backends."""

from rbue.activations.definitions import Activation, DropReLU, RReLU
from rbue.activations.keys import row_states, site_keys
from rbue.activations.operator import mean_relu, random_relu

__all__ = ["Activation", "DropReLU", "RReLU", "mean_relu", "random_relu", "row_states", "site_keys"]
