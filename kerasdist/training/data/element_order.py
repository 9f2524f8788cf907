"""Gives elements the one order that all workers who read the same data must have.

`tf.data` may give elements in the order in which they are ready: where `deterministic=False` is
among the options of a dataset, or an argument of a `map` or an `interleave`, as
tensorflow-datasets makes them for `shuffle_files=True` without a seed. Workers that read the same
data and take their parts of each batch would then count some examples twice, and others never.
"""

import tensorflow as tf

from kerasdist.private import dataset_adapter
from kerasdist.training.data.transformations import has_variables

_ARGUMENT = "deterministic"


def in_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset that gives its elements in one order, the same in each process.

    Raises:
        ValueError: The dataset asks for another one where it cannot be changed.
    """
    may_change = dataset_adapter.may_be_unordered(dataset)
    definition = dataset_adapter.definition_of(dataset) if may_change else None
    if definition and put_in_order(definition):
        if has_variables(definition):
            raise ValueError(
                "The dataset has a `map` or an `interleave` with `deterministic=False`, so that "
                "several workers would read its examples in different orders, and it uses a "
                "variable or a table. Give `deterministic=True` there; with tensorflow-datasets, "
                "give `shuffle_files` a `shuffle_seed` in the `ReadConfig`."
            )
        graph = tf.convert_to_tensor(definition.SerializeToString())
        return with_order_option(dataset_adapter.from_graph(graph, dataset.element_spec))
    is_free = dataset.options().deterministic is False
    return with_order_option(dataset) if is_free else dataset


def with_order_option(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset whose options ask for one order, whatever those inside say."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def put_in_order(definition: tf.compat.v1.GraphDef) -> bool:
    """Changes arguments `deterministic=False` in the graph of a dataset; returns if there were."""
    functions = [function.node_def for function in definition.library.function]
    found = [
        node.attr[_ARGUMENT]
        for nodes in (definition.node, *functions)
        for node in nodes
        if _ARGUMENT in node.attr and node.attr[_ARGUMENT].s == b"false"
    ]
    for argument in found:
        argument.s = b"true"
    return bool(found)


def shuffle_apart(definition: tf.compat.v1.GraphDef) -> bool:
    """Lets shuffles in the graph of a copied dataset draw as the original, and not with it.

    Each pass of either would be another one for both: the original would lose its first order.

    Returns:
        Whether there are any.
    """
    found = [node for node in definition.node if node.op == "ShuffleDatasetV3"]
    for node in found:
        *inputs, _ = node.input  # The last one is a resource: what both draw from.
        node.op, node.input[:] = "ShuffleDataset", inputs
    return bool(found)
