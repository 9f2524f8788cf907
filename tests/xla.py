"""What XLA compiles of a training, by what its graphs hold; and a machine that seems to have a GPU.

xla.turn_on_auto(monkeypatch)          # As on a machine with a GPU.
xla.compiled_in(model)                 # The operations of each function that XLA compiles.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

_MUST_COMPILE = "_XlaMustCompile"


def turn_on_auto(monkeypatch) -> None:
    """Lets Keras see a GPU, so that `jit_compile="auto"` switches XLA on."""
    gpu = SimpleNamespace(name="/physical_device:GPU:0", device_type="GPU")
    listed = tf.config.list_physical_devices

    def list_devices(device_type: str | None = None) -> list:
        return listed(device_type) if device_type else [*listed(), gpu]

    monkeypatch.setattr(tf.config, "list_physical_devices", list_devices)


def compiled_in(model: Any) -> list[set[str]]:
    """Returns the types of the operations of each function that XLA compiles in steps of `fit`."""
    graphs = model.train_function._graphs._graphs.values()
    return [types for graph in graphs for types in _compiled_in(graph)]


def _compiled_in(function: Any) -> Iterator[set[str]]:
    for trace in function._list_all_concrete_functions():
        definition = trace.graph.as_graph_def()
        functions = {each.signature.name: each for each in definition.library.function}
        every = [definition.node, *(each.node_def for each in functions.values())]
        for node in (node for nodes in every for node in nodes):
            if node.attr[_MUST_COMPILE].b:
                yield {each.op for each in functions[node.attr["f"].func.name].node_def}
