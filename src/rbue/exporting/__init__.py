"""A converted network as one file that needs neither rbue nor, as ONNX, torch."""

from rbue.exporting.export import export

__all__ = ["export"]
