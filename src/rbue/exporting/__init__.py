"""A converted network as one file that needs neither rbue nor, as ONNX, torch."""

from rbue.exporting.exporter import export

__all__ = ["export"]
