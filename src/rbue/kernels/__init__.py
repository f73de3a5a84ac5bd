"""How random activations run fast: keys, element hashes, C, Triton and compiled forms, and the choice among them."""

from rbue.kernels.dispatch import random_activation, random_dropout, random_relu, site_function
from rbue.kernels.keys import keys_at, site_keys

__all__ = ["keys_at", "random_activation", "random_dropout", "random_relu", "site_function", "site_keys"]
