"""The two random activations of the paper and dropout: what they are, and operators with several backends."""

from rbue.activations.definitions import Activation, Dropout, DropReLU, Randomness, RReLU
from rbue.activations.dropout import random_dropout
from rbue.activations.keys import keys_at, row_states, site_keys
from rbue.activations.operator import mean_relu, random_relu

__all__ = [
    "Activation",
    "DropReLU",
    "Dropout",
    "RReLU",
    "Randomness",
    "keys_at",
    "mean_relu",
    "random_dropout",
    "random_relu",
    "row_states",
    "site_keys",
]
