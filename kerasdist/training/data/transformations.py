"""Reads the transformations of a dataset from its graph.

Those that look at each example, or each file, alone give the same examples where every worker reads
some of the files. Others do not: `take(40)` would take 40 examples of each worker's files.
"""

import re
from typing import Any

import tensorflow as tf

_OPERATION = re.compile(r"(Experimental|Legacy)?(Parallel)?(?P<name>\w+)Dataset(V\d+)?")
_READERS = {"FixedLengthRecord", "TFRecord", "TextLine"}
# TensorFlow looks for readers in their functions alone, and in no function that those call.
_CALLERS = {"FlatMap", "Interleave"}
_BATCHES = {"Batch", "MapAndBatch", "PaddedBatch"}
# These neither count nor compare examples, so that they may stand on a part of the files. `shuffle`
# and `batch` change which examples meet.
_OF_A_PART = {
    *(*_READERS, *_CALLERS, *_BATCHES, "Cache", "Filter", "Map", "Options", "ParseExample"),
    *("Prefetch", "Shuffle", "TensorSlice", "Unbatch"),
}


class Transformations:
    """What a dataset does, from its last transformation to its source; of several the first one.

    Args:
        definition: Of the dataset.
    """

    def __init__(self, definition: tf.compat.v1.GraphDef):
        self._nodes = {node.name: node for node in definition.node}
        self._functions = {each.signature.name: each for each in definition.library.function}
        (last,) = (node for node in definition.node if node.op == "_Retval")
        self._chain = []
        while last.input:
            last = self._input(last, 0)
            if _name(last.op):
                self._chain.append(last)

    @property
    def read_files(self) -> bool:
        """Whether they read the files that the source names."""
        return any(self._reads(node) for node in self._chain)

    @property
    def of_whole_data(self) -> str | None:
        """The last one that needs all files, as a program calls it; or None."""
        return next(filter(None, map(self._of_whole_data, self._chain)), None)

    def _of_whole_data(self, node: Any) -> str | None:
        name = _name(node.op)
        called = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        if name not in _OF_A_PART:
            return called
        if name == "Cache" and self._constant(node, 1):
            return "cache(filename)"
        # The last examples are dropped of all together.
        if name in _BATCHES and self._constant(node, -1):
            return f"{called}(drop_remainder=True)"
        return None

    def _reads(self, node: Any) -> bool:
        """Whether an operation reads files, itself or for each of its elements."""
        if _name(node.op) not in _CALLERS:
            return _name(node.op) in _READERS
        function = self._functions[node.attr["f"].func.name]
        return any(map(self._reads, function.node_def))

    def _constant(self, node: Any, index: int):
        """Returns the value of an input; None for one that is no constant."""
        value = self._input(node, index)
        return tf.make_ndarray(value.attr["value"].tensor) if value.op == "Const" else None

    def _input(self, node: Any, index: int):
        return self._nodes[node.input[index].partition(":")[0]]


def _name(operation: str) -> str:
    """Returns "Interleave" of "ParallelInterleaveDatasetV4"; "" of what makes no dataset."""
    match = _OPERATION.fullmatch(operation)
    return match["name"] if match else ""


def has_variables(graph: tf.compat.v1.GraphDef) -> bool:
    """Whether functions of a dataset use a variable, or a table to which keys can be added.

    A copy has what it was when the copy was made: a callback that assigns to it would not reach the
    workers, and the state of a generator of random numbers would not come back from them.
    """
    return any(node.op == "VarHandleOp" or "Mutable" in node.op for node in graph.node)
