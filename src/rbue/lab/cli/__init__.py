"""The command ``rbue``: a thin layer that parses, calls the library and shows what came back."""

from rbue.lab.cli.app import app, main

__all__ = ["app", "main"]
