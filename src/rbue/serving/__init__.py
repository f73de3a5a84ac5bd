"""A trained network behind HTTP: predictions with uncertainty, whose bits do not depend on what else is asked.

``pip install 'rbue[serve]'`` brings what it needs. ``rbue serve`` is the command; in Python:

    from rbue.serving import OnnxEngine, Settings, serve

    serve(OnnxEngine("net.onnx"), Settings(token="..."), port=8000)

An ONNX file of :func:`rbue.export` is served without torch.
"""

from typing import TYPE_CHECKING

from rbue.errors import needing

with needing("serve", "rbue.serving"):
    from rbue.serving.app import create_app
    from rbue.serving.engines import Answers, Engine, Inputs, OnnxEngine, Sampling
    from rbue.serving.process import serve
    from rbue.serving.service import Conformal, Settings

if TYPE_CHECKING:
    from rbue.serving.networks import NetworkEngine

__all__ = [
    "Answers", "Conformal", "Engine", "Inputs", "NetworkEngine", "OnnxEngine", "Sampling", "Settings", "create_app",
    "serve",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name != "NetworkEngine":
        raise AttributeError(f"module 'rbue.serving' has no attribute {name!r}")
    from rbue.serving.networks import NetworkEngine  # only this one needs torch

    return NetworkEngine
