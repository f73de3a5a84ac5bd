"""A traced program as an ONNX file, with random words in integer arithmetic that every runtime does alike.

ONNX has unsigned 32-bit words for all that the stream needs (``Mul`` and ``Add``, ``BitShift``, ``BitwiseXor`` from
opset 18 on), and unsigned arithmetic wraps around. Signed words would not do: ``BitShift`` refuses them, and their
overflow is undefined in the languages that runtimes are written in.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rbue import random_stream
from rbue.errors import RbueError

OPSET = 18
"""The first with bitwise operators."""

NOTE = "rbue"
"""The metadata entry of what the file is, in JSON."""


def check_installed() -> None:
    """Refuse an export that lacks the packages it needs."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise RbueError(
            f"format='onnx' needs onnx and onnxscript ({error.name} is missing); pip install 'rbue[export]', or give "
            "format='pt2'."
        ) from error


def onnx_bytes(program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str], note: Any) -> bytes:
    """The file; its inputs are those named, then ``seed`` and ``offset``."""
    import onnx_ir

    with _quiet():
        found = torch.onnx.export(
            program,
            input_names=[*inputs, "seed", "offset"],
            output_names=outputs,
            opset_version=OPSET,
            custom_translation_table=_translations(),
            verbose=False,
        )
    assert found is not None
    model = found.model
    _forget_code(model)
    model.metadata_props[NOTE] = json.dumps(note)
    model.producer_name = "rbue"
    try:
        return bytes(onnx_ir.to_proto(model).SerializeToString())
    except ValueError as error:
        raise RbueError("the network is larger than the 2 GB that one ONNX file holds; give format='pt2'.") from error


def _forget_code(model: Any) -> None:
    """Take out what says where on this machine the code of each node lies."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()


def _translations() -> Mapping[Callable, Callable]:
    """What becomes of :func:`rbue.kernels.exported_words.words`."""
    from onnxscript import opset18 as op

    unsigned, signed = 12, 6  # of onnx.TensorProto.DataType
    one, other = (_constant(number) for number in random_stream.BITS_MULTIPLIERS)

    def words(table: Any, k1: Any, k2: Any, turn: Any = None, mirrored: bool = False) -> Any:
        # ONNX casts whole numbers by dropping their high bits, so a word keeps its bits.
        h = op.Mul(op.BitwiseXor(op.Cast(table, to=unsigned), op.Cast(k1, to=unsigned)), one(op))
        h = op.BitwiseXor(h, op.BitShift(h, _constant(15)(op), direction="RIGHT"))
        h = op.Mul(op.BitwiseXor(h, op.Cast(k2, to=unsigned)), other(op))
        if turn is not None:
            turn = op.Cast(turn, to=unsigned)
            h = op.BitwiseXor(h, turn) if mirrored else op.Add(h, turn)
        return op.Cast(h, to=signed)

    return {torch.ops.rbue.words.default: words}


def _constant(number: int) -> Callable[[Any], Any]:
    """A word, as a constant of a graph."""

    def make(op: Any) -> Any:
        import onnx

        return op.Constant(value=onnx.helper.make_tensor("", onnx.TensorProto.UINT32, (), [number]))

    return make


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter reports its progress, and what it leaves unoptimised, to people who work on it."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
