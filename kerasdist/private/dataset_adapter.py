"""Datasets and iterators of TensorFlow: how they were made, and where they are.

A dataset says what its elements are, and not how it makes them; an iterator goes on elsewhere by
way of a file alone.

tests/private/test_dataset_adapter.py fails when one of these names moves. Written against
TensorFlow 2.20 and 2.21.
"""

import math
import re
import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute as tf_distribute
from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.distribute.coordinator import values as coordinator_values

# Operations of a `map` that TensorFlow counts among those with a state, or that have one for an
# input, and that give the same in whatever order they are called: they read what others set, check,
# print, or call functions, of which the operations are looked at as well.
_IN_ANY_ORDER = {
    *("Assert", "Case", "If", "LookupTableFindV2", "LookupTableSizeV2", "PrintV2"),
    *("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "StatefulPartitionedCall", "While"),
    *("PartitionedCall", "StatelessCase", "StatelessIf", "StatelessWhile", "Placeholder"),
}
# Of those with a state, the ones that change it outside of an iterator.
_CHANGE = re.compile("Stateful(?!Partitioned)|Rng|Assign|Resource(?!Gather)|.*(Queue|Insert)")
# Elements that AUTOTUNE may hold; bytes of a text, which may be an encoded image; and a length.
_MOST_PARALLEL, _BYTES_OF_TEXT, _LENGTH_OF_AXIS = 16, 1 << 14, 1 << 10
# The operations behind `tf.random` that keep a state, in the process or in a Generator.
_DRAW = re.compile("Random(?!.*(Dataset|Seed))|TruncatedNormal|Multinomial|Stateful|Rng")


def batch_size_of(dataset: Any) -> int | None:
    """Returns the number that a dataset batches by, its last one where there are several.

    None where it finds none: a dataset does not say what it is made of, but for its inputs.
    """
    while isinstance(dataset, tf.data.Dataset):
        size = tf.get_static_value(getattr(dataset, "_batch_size", None))
        inputs = dataset._inputs()
        if size is not None or len(inputs) != 1:
            return None if size is None else int(size)
        [dataset] = inputs
    return None


def num_shuffled(dataset: Any) -> int:
    """Returns how many elements the shuffles, and other buffers, of a dataset hold at most."""
    return sum(max(_size_of_buffer(each), 0) for each in _chain(dataset))


def num_bytes_held(dataset: Any, batch_size: int | None) -> int:
    """Returns how many bytes an iterator over a dataset holds at most, as far as its specs say.

    Args:
        dataset: The dataset.
        batch_size: Examples of a batch, where that is known.
    """
    total = 0
    for each in _chain(dataset):
        size = _size_of_buffer(each) or tf.get_static_value(
            getattr(each, "_num_parallel_calls", None)
        )
        if size:
            spec = each.element_spec
            num_bytes = sum(_num_bytes_of(leaf, batch_size) for leaf in tf.nest.flatten(spec))
            total += (int(size) if size > 0 else _MOST_PARALLEL) * num_bytes
    return total


def _size_of_buffer(dataset: tf.data.Dataset) -> int:
    """Returns how many elements one transformation holds: -1 for AUTOTUNE, 0 for none."""
    return int(tf.get_static_value(getattr(dataset, "_buffer_size", None)) or 0)


def _num_bytes_of(spec: Any, batch_size: int | None) -> int:
    """Returns the bytes of a tensor; where its spec leaves them open, more than most have."""
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        return _BYTES_OF_TEXT
    first = [batch_size if size is None else size for size in spec.shape[:1]]
    sizes = [_LENGTH_OF_AXIS if size is None else size for size in (*first, *spec.shape[1:])]
    each = _BYTES_OF_TEXT if spec.dtype.size == 0 or spec.dtype == tf.string else spec.dtype.size
    return math.prod(sizes) * each


def calls_python(dataset: Any) -> bool:
    """Whether Python makes elements of a dataset: a generator, a `py_function`."""
    return any("PyFunc" in operation.type for operation in _operations_of(dataset))


def service_jobs(dataset: Any) -> list[str]:
    """Returns the names of the jobs of tf.data services that give a dataset its elements.

    A dataset says so in no other way. A job that nobody shares has the name "".
    """
    sources = [each for each in _chain(dataset) if "DataServiceDataset" in type(each).__name__]
    return [tf.get_static_value(each._job_name).decode() for each in sources]


def draws(dataset: Any) -> bool:
    """Whether a function of a dataset draws numbers whose state lies outside of its iterators."""
    return any(
        operation.op_def.is_stateful and _DRAW.match(operation.type)
        for operation in _operations_of(dataset)
    )


def changes_state(dataset: Any) -> bool:
    """Whether a function of a dataset changes what later iterators find, such as a Generator.

    An operation of `tf.random` begins anew in each iterator.
    """
    return any(
        operation.op_def.is_stateful and _CHANGE.match(operation.type)
        for operation in _operations_of(dataset)
    )


def may_be_unordered(dataset: Any) -> bool:
    """Whether a part of a dataset, such as `map`, may have the argument `deterministic=False`.

    A parallel `interleave` does not keep what it was given: its graph says it.
    """
    return any(
        getattr(each, "_deterministic", None) == "false"
        or "ParallelInterleave" in type(each).__name__
        for each in _chain(dataset)
    ) or any(
        "Dataset" in operation.type
        and "deterministic" in operation.node_def.attr
        and operation.get_attr("deterministic") == b"false"
        for operation in _operations_of(dataset)
    )


def _operations_of(dataset: Any):
    """Yields the operations of the functions of a dataset, and of those that these call."""
    for each in _chain(dataset):
        for graph in _graphs_of(each):
            if graph is not None:  # A function of a SavedModel has none.
                yield from graph.get_operations()


def _graphs_of(dataset: tf.data.Dataset):
    """Yields the graphs of a transformation's functions, and of those that these call.

    None for a function without one.
    """
    left = [getattr(wrapper.function, "graph", None) for wrapper in dataset._functions()]
    seen = set()
    while left:  # Its GraphDef would have copies of all constants.
        graph = left.pop()
        yield graph
        if graph is None:
            continue
        for name, function in graph._functions.items():
            if name not in seen:
                seen.add(name)
                left.append(getattr(function, "graph", None))


def lineage_of(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns a dataset, what it was made of, and so on, to the first that has no one input."""
    lineage = [dataset]
    while len(inputs := lineage[-1]._inputs()) == 1:
        lineage.extend(inputs)
    return lineage


def inputs_of(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the datasets that a dataset was made of."""
    return list(dataset._inputs())


def zipped_as(zipped: Any, change: Callable) -> tf.data.Dataset:
    """Returns a `zip` of what `change` makes of each dataset that another one was made of."""
    return tf.data.Dataset.zip(tf.nest.map_structure(change, zipped._datasets))


def transformation_of(dataset: tf.data.Dataset) -> str:
    """Returns the name of what made a dataset: "map" of `map`, parallel or not; "padded_batch"."""
    if _is_numbering(dataset):
        return "range"
    name = re.sub("^_?(Parallel)?|Dataset$", "", type(dataset).__name__)
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _is_numbering(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset is the numbers of `enumerate`, which TensorFlow has rewritten."""
    if not isinstance(dataset, dataset_ops._VariantDataset):
        return False
    graph = definition_of(dataset) if dataset.element_spec == tf.TensorSpec([], tf.int64) else None
    made = {node.op for node in graph.node if "Dataset" in node.op} if graph else set()
    return bool(made) and made <= {"RangeDataset", "RewriteDataset"}


def has_map(dataset: tf.data.Dataset) -> bool:
    """Whether there is a `map` in what a dataset is made by, or within a function of that."""
    return any(transformation_of(each) == "map" or has_map_inside(each) for each in _chain(dataset))


def has_map_inside(dataset: tf.data.Dataset) -> bool:
    """Whether the function of a transformation has a `map`, as that of an `interleave` may have."""
    return any(
        re.match("(Parallel)?MapDataset", operation.type)
        for graph in _graphs_of(dataset)
        if graph is not None
        for operation in graph.get_operations()
    )


def transformations_of(dataset: Any) -> list[str]:
    """Returns the names of all that a dataset is made by, through all of its inputs."""
    return list(map(transformation_of, _chain(dataset)))


def argument_of(dataset: tf.data.Dataset, name: str) -> Any:
    """Returns an argument of the transformation that made a dataset; None for one not given."""
    value = tf.get_static_value(getattr(dataset, f"_{name}", None))
    return value.item() if hasattr(value, "item") else value


def function_of(mapped: tf.data.Dataset) -> Callable:
    """Returns the function of a `map` as it was traced, from an element to an element.

    Its elements are of dense tensors.
    """
    (wrapper,) = mapped._functions()
    traced, spec = wrapper.function, mapped.element_spec  # They keep no dataset alive.

    def function(element: Any):
        outputs = traced(*tf.nest.flatten(element))
        return tf.nest.pack_sequence_as(spec, tf.nest.flatten(outputs))

    return function


def graph_of(mapped: tf.data.Dataset) -> Any:
    """Returns the graph of the function of a `map`."""
    (wrapper,) = mapped._functions()
    return wrapper.function.graph


def is_draw(operation: str) -> bool:
    """Whether an operation, by its name, draws numbers and keeps a state of that."""
    return _DRAW.match(operation) is not None


def operation_of_state(mapped: tf.data.Dataset) -> str | None:
    """Returns an operation of a `map` that may depend on the elements before, or change a state.

    Such as "RandomUniform", "EagerPyFunc" or "AssignAddVariableOp"; None where there is none.
    """
    for graph in _graphs_of(mapped):
        if graph is None:
            return "SavedModel"
        for operation in graph.get_operations():
            has_state = operation.op_def.is_stateful or any(
                tensor.dtype == tf.resource for tensor in operation.inputs
            )
            if has_state and operation.type not in _IN_ANY_ORDER:
                return operation.type
    return None


def shuffled_as(shuffled: Any, data: Any) -> tf.data.Dataset:
    """Returns other data in the orders that a `shuffle` gives to its own, from its first order on.

    The public `shuffle` draws a seed of its own where a program has given none.
    """
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=data._variant_tensor,
        buffer_size=shuffled._buffer_size,
        seed=shuffled._seed,
        seed2=shuffled._seed2,
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        reshuffle_each_iteration=bool(shuffled._reshuffle_each_iteration),
        output_types=data._flat_types,
        output_shapes=data._flat_shapes,
    )
    return dataset_ops._VariantDataset(variant, data.element_spec)


def digest_of_texts(dataset: Any) -> int:
    """Returns a number that differs for other texts, such as paths, that a dataset was given."""
    tensors = [part for each in _chain(dataset) for part in getattr(each, "_tensors", ())]
    texts = (part.numpy() for part in tensors if part.dtype == tf.string)
    return zlib.crc32(b"\0".join(text for part in texts for text in np.ravel(part).tolist()))


def cache_files(dataset: Any) -> list[str]:
    """Returns the paths that a dataset was given for `cache`."""
    paths = (tf.get_static_value(getattr(each, "_filename", None)) for each in _chain(dataset))
    return [path.decode() for path in paths if path]


def _chain(dataset: Any):
    """Yields a dataset and those that it is made of; none for what is no dataset of tf.data."""
    seen, left = set(), [dataset]
    while left:  # Long chains and datasets that are in several places: each is looked at once.
        each = left.pop()
        if id(each) not in seen and isinstance(each, tf.data.Dataset):
            seen.add(id(each))
            yield each
            left.extend(each._inputs())


def portable_state(iterator: Any) -> bytes | None:
    """Returns what tf.data needs to make an iterator of a dataset of its kind go on here.

    None where that says not all: for Python generators and random operations, for a cache that is
    read, which another process has to fill, and for what is no iterator of tf.data alone.
    TensorFlow makes it public through files only.
    """
    if not isinstance(iterator, iterator_ops.OwnedIterator):
        return None
    try:
        state = _serialized_state(iterator, tf.data.experimental.ExternalStatePolicy.FAIL).numpy()
    except tf.errors.OpError:
        return None
    return None if b"::MemoryCache" in state else state


def set_portable_state(iterator: Any, begin: bytes | None, now: bytes | None = None) -> bool:
    """Gives an iterator a state of `portable_state`; returns False where it is of another dataset.

    TensorFlow takes what it finds of it, and looks for no difference.

    Args:
        iterator: A new one.
        begin: The state before the first element was read; None is of no dataset.
        now: A later state of the same iterator, to be given instead.
    """
    own = portable_state(iterator)
    if own is None or begin is None or _names_in(own) != _names_in(begin):
        return False
    try:
        _restore(iterator, begin if now is None else now)
    except tf.errors.OpError:
        return False
    return True


def has_less(now: bytes, begin: bytes) -> bool:
    """Whether a state has no more of some part of a pipeline of which an earlier one has it.

    That part has come to its end.
    """
    return not _names_in(begin) <= _names_in(now)


def is_of_windows(state: bytes) -> bool:
    """Whether a state of `portable_state` is of a dataset that has a `window`."""
    return any(b"::Window" in name for name in _names_in(state))


def _names_in(state: bytes) -> set[bytes]:
    """Returns what a state is of, such as Iterator::Root::BatchV2::Shuffle."""
    return set(re.findall(rb"Iterator::Root[\w:\[\]]*", state))


def batch_spec(element_spec: Any):
    """Returns the spec of one replica's batch, with an open batch axis, for any dataset's spec."""

    def leaf_spec(spec: Any):
        # Distributed datasets have one spec per replica, all alike but for the batch axis.
        spec = spec._component_specs[0] if hasattr(spec, "_value_specs") else spec
        shape = getattr(spec, "shape", None)
        if shape is None:
            return None
        if shape.rank is None:  # A `py_function` gives such, and a KerasTensor must know it.
            return tf.TensorSpec(None, spec.dtype)
        if shape.rank:
            shape = [None, *shape[1:]]
        return keras.KerasTensor(shape, dtype=spec.dtype.name)

    return tf.nest.map_structure(leaf_spec, element_spec)


def without_prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset read no further than asked: without the `prefetch` that it ends with."""
    if type(dataset).__name__ == "_PrefetchDataset":
        (dataset,) = dataset._inputs()
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def num_source_texts(dataset: tf.data.Dataset) -> int:
    """Returns how many texts, perhaps names of files, are the one source of a dataset; or 0.

    A dataset does not say what it is made of, but for its inputs.
    """
    while inputs := dataset._inputs():
        if len(inputs) > 1:
            return 0
        [dataset] = inputs
    spec = dataset.element_spec
    if not isinstance(spec, tf.TensorSpec) or spec.dtype != tf.string or spec.shape.rank != 0:
        return 0
    return max(int(dataset.cardinality()), 0)


def computed_batch_size(dataset: tf.data.Dataset) -> int | None:
    """Returns the size of a dataset's batches but for the last one, as TensorFlow computes it.

    It is what divides a batch between workers: None where batches may have any size.
    """
    size = int(tf_distribute.compute_batch_size(dataset))
    return size if size > 0 else None


def shard_by_file(dataset: tf.data.Dataset, num_shards: int, index: int):
    """Returns the part of a dataset that is in every `num_shards`-th of its files, or None.

    None where TensorFlow finds nothing that reads files.

    Args:
        dataset: Yields global batches of dense tensors, of a `computed_batch_size`.
        num_shards: Number of parts.
        index: Which part.

    Returns:
        Dataset of this part's share of each global batch.
    """
    batch_size = int(tf_distribute.compute_batch_size(dataset))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    try:
        shard = tf_distribute._AutoShardDataset(dataset.with_options(options), num_shards, index)
    except tf.errors.NotFoundError:
        return None
    return shard.rebatch((batch_size + num_shards - 1 - index) // num_shards)


def definition_of(dataset: tf.data.Dataset) -> tf.compat.v1.GraphDef | None:
    """Returns the GraphDef of a dataset; None of one that has none, as of `copy_to_device`."""
    try:
        graph = serialized_graph(dataset)
    except tf.errors.OpError:
        return None
    return tf.compat.v1.GraphDef.FromString(graph.numpy())


def serialized_graph(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns the GraphDef of a dataset, with all that is in it, as a scalar string.

    Raises:
        tf.errors.OpError: It has none.
    """
    return coordinator_values.serialize_dataset_to_graph(dataset)


def from_graph(graph: tf.Tensor, element_spec: Any) -> tf.data.Dataset:
    """Returns a copy of a dataset, on whichever task it is called.

    Args:
        graph: Of `serialized_graph`.
        element_spec: Of the dataset.
    """
    return coordinator_values.deserialize_dataset_from_graph(graph, element_spec)


def position_state(iterator: Any) -> tf.Tensor | None:
    """Returns the state of an iterator, random order included; None if unknown.

    What is outside of it, such as a Python generator, is left out. TensorFlow's checkpoints can
    write it to a file only.
    """
    try:
        return _serialized_state(iterator, tf.data.experimental.ExternalStatePolicy.IGNORE)
    except tf.errors.UnimplementedError:  # Some datasets, such as those of a data service.
        return None


def _serialized_state(iterator: Any, policy: tf.data.experimental.ExternalStatePolicy) -> tf.Tensor:
    state = tf.raw_ops.SerializeIterator(
        resource_handle=iterator._iterator_resource, external_state_policy=policy.value
    )
    return tf.io.serialize_tensor(state)


def iterator_over(dataset: tf.data.Dataset, state: tf.Tensor | None) -> tf.data.Iterator:
    """Returns an iterator that stands where another one over the same dataset stood."""
    iterator = iter(dataset)
    if state is not None:
        _restore(iterator, state)
    return iterator


def _restore(iterator: Any, state: tf.Tensor | bytes) -> None:
    content = tf.io.parse_tensor(state, tf.variant)
    tf.raw_ops.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=content)
