"""Creates and updates variables on parameter servers, in one piece or in several parts.

TensorFlow takes the servers in turn, so that all kernels are on one and all biases on another. Here
a variable goes to the server that holds the fewest bytes.

TensorFlow's ShardedVariable divides a variable by its rows. Keras takes every variable for a single
one, so that here its gradient is that of all parts, and its update one for each part, beside its
slots.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_optimizers, stand_ins, variable_adapter
from kerasdist.support.text import short_list
from kerasdist.training.hooks.divided_values import is_sharded, parts_of

# Optimizers whose update of one row depends on the others.
_OF_WHOLE_WEIGHTS = (keras.optimizers.Adafactor, keras.optimizers.Lamb, keras.optimizers.Muon)
_Fixed = tf.distribute.experimental.partitioners.FixedShardsPartitioner
_Gradient = tf.Tensor | tf.IndexedSlices | None


class ByteBalance:
    """Makes the variables of one strategy, each on the parameter server with the fewest bytes.

    Args:
        num_servers: Number of parameter servers.
    """

    def __init__(self, num_servers: int):
        self._num_bytes = [0] * num_servers

    def create(self, create_on: Callable, next_creator: Callable, **kwargs: Any) -> Any:
        """Makes a variable, whole or in parts; see `create`.

        Args:
            create_on: Called as create_on(server, in_parts, next_creator, **kwargs).
            next_creator: As TensorFlow hands it over.
            **kwargs: Likewise.
        """
        create_whole, create_parts = (
            functools.partial(self._create, create_on, in_parts) for in_parts in (False, True)
        )
        return create(create_whole, create_parts, next_creator, **kwargs)

    def _create(
        self, create_on: Callable, in_parts: bool, next_creator: Callable, **kwargs: Any
    ) -> Any:
        server = self._num_bytes.index(min(self._num_bytes))
        variable = create_on(server, in_parts, next_creator, **kwargs)
        for part in parts_of(variable):
            num_bytes = part.dtype.size * (part.shape.num_elements() or 0)
            self._num_bytes[server_of(part)] += num_bytes
        return variable


def server_of(part: tf.Variable) -> int:
    """Returns the index of the parameter server that a variable, or a part of one, is on."""
    return tf.DeviceSpec.from_string(part.device).task


def checked(partitioner: Callable) -> Any:
    """Returns a partitioner that complains where it asks for more parts than there are rows.

    Args:
        partitioner: One of `tf.distribute.experimental.partitioners`, or a function
            (shape, dtype) -> parts of each axis, such as [2, 1].
    """

    def partition(shape: tf.TensorShape, dtype: tf.DType) -> list[int]:
        # TensorFlow's own caps its wish at the rows that it is shown.
        shown = [2**40, *shape[1:]] if isinstance(partitioner, _Fixed) else shape
        num_parts = int(partitioner(shape=tf.TensorShape(shown), dtype=dtype)[0])
        if num_parts > shape[0]:
            raise ValueError(
                f"`variable_partitioner` asks for {num_parts} shards of a variable of shape "
                f"{tuple(shape)}, which has {shape[0]} rows. Ask for fewer, or use "
                "tf.distribute.experimental.partitioners.MinSizePartitioner, which leaves small "
                "variables whole."
            )
        return [num_parts] + [1] * (len(shape) - 1)

    return partition


def create(
    create_whole: Callable, create_parts: Callable, next_creator: Callable, **kwargs: Any
) -> Any:
    """Makes a variable of the strategy: weights in parts, slots like their weight, others whole.

    Args:
        create_whole: The strategy's function without a partitioner.
        create_parts: The same with the partitioner.
        next_creator: As TensorFlow hands it over.
        **kwargs: Likewise.
    """
    beside: Any = kwargs.get("colocate_with")
    if not is_sharded(beside):
        return (create_parts if kwargs.get("trainable") else create_whole)(next_creator, **kwargs)
    value = kwargs.pop("initial_value")
    value = tf.convert_to_tensor(value() if callable(value) else value, kwargs.get("dtype"))
    parts = [
        create_whole(next_creator, **kwargs | {"colocate_with": part, "initial_value": rows})
        for part, rows in zip(beside.variables, _divide(value, beside), strict=True)
    ]
    made: Any = variable_adapter.ShardedVariable(parts)
    made.lives_beside = beside  # See `update`.
    return made


def gradient(
    original: Callable, tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
) -> Any:
    """Replaces `tf.GradientTape.gradient`: that of a sharded variable is one of its parts."""
    values = []
    for source in tf.nest.flatten(sources):
        value = getattr(source, "value", source)
        values.append(value if is_sharded(value) else source)
    if not any(map(is_sharded, values)):
        return original(tape, target, sources, *args, **kwargs)
    parts = [parts_of(value) for value in values]
    found = iter(original(tape, target, list(itertools.chain(*parts)), *args, **kwargs))
    gradients = [
        joined([next(found) for _ in group], value)
        for group, value in zip(parts, values, strict=True)
    ]
    return tf.nest.pack_sequence_as(sources, gradients)


def check_optimizer(optimizer: keras.optimizers.Optimizer, variables: list) -> None:
    """Checks that an optimizer can update each part of sharded variables by itself.

    Raises:
        ValueError: It computes with the norm, or with products, of whole weights.
    """
    divided = [
        getattr(variable, "path", variable.name)
        for variable in variables
        if is_sharded(variable_adapter.value_of(variable))
    ]
    if divided and isinstance(optimizer, _OF_WHOLE_WEIGHTS):
        raise ValueError(
            f"{type(optimizer).__name__} updates a weight as a whole, and `variable_partitioner` "
            f"divides {short_list(divided, 3)}. Leave out "
            "`variable_partitioner`, or use another optimizer, such as Adam."
        )


def update(
    optimizer: keras.optimizers.Optimizer,
    variable: Any,
    function: Callable,
    args: Sequence = (),
    kwargs: dict | None = None,
) -> Any:
    """Runs an optimizer's update of a variable where it lives: for each part by itself.

    Args:
        optimizer: A Keras optimizer.
        variable: A variable of TensorFlow's on parameter servers.
        function: Called as function(variable, *args), with the gradient as first argument if any.
        args: Tensors and IndexedSlices; those with a row for each of the variable are divided.
        kwargs: More arguments.
    """
    if not is_sharded(variable):
        with tf.device(variable.device):
            return function(variable, *args, **(kwargs or {}))
    beside = ((slot, getattr(slot.value, "lives_beside", None)) for slot in optimizer.variables)
    slots = [slot for slot, weight in beside if weight is variable]
    keras_optimizers.know_parts(optimizer, variable)
    divided = [divided_argument(argument, variable) for argument in args]
    for index, part in enumerate(variable.variables):
        slots_of_part = [slot.value.variables[index] for slot in slots]
        with stand_ins.standing_in(slots, slots_of_part), tf.device(part.device):
            function(part, *(each[index] for each in divided), **(kwargs or {}))
    return None


def update_outside(
    original: Callable, variable: Any, function: Callable, args: Sequence, *settings: Any
) -> Any:
    """Replaces TensorFlow's update outside of a step, which knows no sharded variable."""
    if not is_sharded(variable):
        return original(variable, function, args, *settings)
    values = [
        tf.convert_to_tensor(each) if isinstance(each, keras.Variable) else each for each in args
    ]
    divided = [divided_argument(value, variable) for value in values]
    for index, part in enumerate(variable.variables):
        original(part, function, tuple(each[index] for each in divided), *settings)
    return None


def embed(layer: keras.layers.Embedding, inputs: tf.Tensor) -> tf.Tensor:
    """Returns rows of an embedding that only they, not the whole table, are sent for."""
    if inputs.dtype not in (tf.int32, tf.int64):
        inputs = tf.cast(inputs, tf.int32)
    parts = parts_of(layer.embeddings.value)
    table, *others = parts
    rows = tf.nn.embedding_lookup(parts, inputs) if others else table.sparse_read(inputs)
    return tf.cast(rows, layer.compute_dtype)


def divided_argument(argument: Any, variable: Any) -> list:
    """Returns what each part of a sharded variable has of an argument of its update."""
    if isinstance(argument, tf.IndexedSlices):
        return [_rows(argument, start, end) for start, end in _bounds(variable)]
    if tf.is_tensor(argument) and argument.shape == variable.shape:
        return _divide(argument, variable)
    return [argument] * len(variable.variables)


def _divide(value: tf.Tensor, variable: Any) -> list[tf.Tensor]:
    return tf.split(value, [int(part.shape[0]) for part in variable.variables])


def _bounds(variable: Any) -> Iterator[tuple[int, int]]:
    ends = itertools.accumulate((int(part.shape[0]) for part in variable.variables), initial=0)
    return itertools.pairwise(ends)


def _rows(slices: tf.IndexedSlices, start: int, end: int) -> tf.IndexedSlices:
    is_here = (slices.indices >= start) & (slices.indices < end)
    return tf.IndexedSlices(
        tf.boolean_mask(slices.values, is_here),
        tf.boolean_mask(slices.indices, is_here) - start,
        tf.constant([end - start, *slices.values.shape[1:]]),
    )


def joined(gradients: list[_Gradient], value: Any) -> _Gradient:
    """Returns the gradient of a variable from those of its parts."""
    if not is_sharded(value):
        return gradients[0]
    if all(gradient is None for gradient in gradients):
        return None
    slices = [each for each in gradients if isinstance(each, tf.IndexedSlices)]
    if len(slices) < len(gradients):
        return tf.concat(list(map(tf.convert_to_tensor, gradients)), axis=0)
    indices = [
        each.indices + tf.cast(start, each.indices.dtype)
        for each, (start, _) in zip(slices, _bounds(value), strict=True)
    ]
    return tf.IndexedSlices(
        tf.concat([each.values for each in slices], axis=0),
        tf.concat(indices, axis=0),
        tf.constant(value.shape.as_list()),
    )
