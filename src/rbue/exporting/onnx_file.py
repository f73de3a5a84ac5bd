"""A traced program as an ONNX file, with random words in integer arithmetic that every runtime does alike.

ONNX has unsigned 32-bit words for all that the stream needs (``Mul`` and ``Add``, ``BitShift``, ``BitwiseXor`` from
opset 18 on), and unsigned arithmetic wraps around. Signed words would not do: ``BitShift`` refuses them, and their
overflow is undefined in the languages that runtimes are written in.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rbue.errors import RbueError
from rbue.random_stream import BITS_MULTIPLIERS, MIX_MULTIPLIERS

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


def onnx_bytes(
    program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str], note: Any
) -> bytes:
    """The file; its inputs are those named, then ``seed`` and ``offset``."""
    import onnx_ir

    with _quiet():
        found = torch.onnx.export(
            program,
            input_names=[*inputs, "seed", "offset"],
            output_names=outputs,
            opset_version=OPSET,
            custom_translation_table=_translations(),
            optimize=False,
            verbose=False,
        )
    assert found is not None
    model = found.model
    _simplify(model)
    _forget_code(model)
    _name_batch(model)
    model.metadata_props[NOTE] = json.dumps(note)
    model.producer_name = "rbue"
    try:
        return bytes(onnx_ir.to_proto(model).SerializeToString())
    except ValueError as error:
        raise RbueError("the network is larger than the 2 GB that one ONNX file holds; give format='pt2'.") from error


def _simplify(model: Any) -> None:
    """Fold constants and drop what is twice there or unused.

    The exporter's own optimiser also looks for patterns of nodes, in a time that grows with the square of their number:
    minutes for a network of a hundred layers. Runtimes do that when they load a file.
    """
    from onnx_ir.passes import common
    from onnxscript import optimizer

    optimizer.fold_constants(model)
    for simplify in (common.RemoveUnusedNodesPass(), common.CommonSubexpressionEliminationPass()):
        simplify(model)


def _forget_code(model: Any) -> None:
    """Take out what says where on this machine the code of each node lies."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()


def _name_batch(model: Any) -> None:
    """Call the number of images ``batch``; torch gives it a name like ``s95``."""
    given = str(model.graph.inputs[0].shape[0])
    values = [*model.graph.inputs, *(out for node in model.graph.all_nodes() for out in node.outputs)]
    for shape in filter(None, (value.shape for value in values)):
        for place, size in enumerate(shape):
            if not isinstance(size, int):
                shape[place] = re.sub(rf"\b{given}\b", "batch", str(size))


def _translations() -> dict[Callable, Callable]:
    """What becomes of the operators of :mod:`rbue.kernels.exported_words`."""
    from onnx import TensorProto, helper
    from onnxscript import opset18 as op

    def word(number: int) -> Any:
        return op.Constant(value=helper.make_tensor("", TensorProto.UINT32, (), [number]))

    def unsigned(words: Any) -> Any:
        return op.Cast(words, to=TensorProto.UINT32)  # whole numbers are cast by dropping their high bits

    def shifted(h: Any, by: int) -> Any:
        return op.BitwiseXor(h, op.BitShift(h, word(by), direction="RIGHT"))

    def absorb(state: Any, words: Any) -> Any:
        first, second = MIX_MULTIPLIERS
        h = op.Mul(shifted(op.BitwiseXor(unsigned(state), unsigned(words)), 16), word(first))
        h = shifted(op.Mul(shifted(h, 15), word(second)), 15)
        return op.Cast(h, to=TensorProto.INT64)

    def words(table: Any, k1: Any, k2: Any, turn: Any = None, mirrored: bool = False) -> Any:
        first, second = BITS_MULTIPLIERS
        h = op.Mul(op.BitwiseXor(unsigned(table), unsigned(k1)), word(first))
        h = op.Mul(op.BitwiseXor(shifted(h, 15), unsigned(k2)), word(second))
        if turn is not None:
            h = op.BitwiseXor(h, unsigned(turn)) if mirrored else op.Add(h, unsigned(turn))
        return op.Cast(h, to=TensorProto.INT32)

    return {torch.ops.rbue.absorb.default: absorb, torch.ops.rbue.words.default: words}


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter reports progress, what it leaves unoptimised and what torch will drop to people who work on it."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
