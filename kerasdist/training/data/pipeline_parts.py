"""Does again to other data what a dataset of the program was made by.

data = pipeline_parts.again([mapped], data)    # What `map` did to what `mapped` was made of.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kerasdist.private import dataset_adapter

# With the argument that each of them has, by the name that TensorFlow keeps it under.
_ARGUMENTS = {
    **{"cache": None, "prefetch": "buffer_size"},
    **{"repeat": "count", "skip": "count", "take": "count"},
}


def of_element(function: Callable) -> Callable:
    """Returns a function for `map` of one that takes an element in one piece."""

    @tf.autograph.experimental.do_not_convert
    def prepare(*element):
        return function(element)

    return prepare


def again(
    made: Sequence[tf.data.Dataset], data: tf.data.Dataset, *, call: Callable = of_element
) -> tf.data.Dataset:
    """Returns what other data becomes by the transformations that made datasets.

    Args:
        made: By `map`, of dense tensors, `batch`, `prefetch`, `cache`, `repeat`, `skip` or `take`;
            the first one first. Options, which are given to the last one for all, and assertions
            are left out.
        data: The other data.
        call: Returns a function for `map` of one that takes an element in one piece.
    """
    for each in made:
        data = _again(each, data, call)
    return data


def _again(made: tf.data.Dataset, data: tf.data.Dataset, call: Callable) -> tf.data.Dataset:
    name = dataset_adapter.transformation_of(made)
    if name in ("options", "assert_cardinality"):
        return data
    if name not in ("map", "batch"):
        argument = _ARGUMENTS[name]
        values = () if argument is None else (dataset_adapter.argument_of(made, argument),)
        return getattr(data, name)(*values)
    num_parallel = dataset_adapter.argument_of(made, "num_parallel_calls")
    parallel: dict[str, Any] = {"num_parallel_calls": num_parallel}
    if num_parallel is not None:
        parallel["deterministic"] = True
    if name == "map":
        return data.map(call(dataset_adapter.function_of(made)), **parallel)
    size = dataset_adapter.argument_of(made, "batch_size")
    is_cut_off = bool(dataset_adapter.argument_of(made, "drop_remainder"))
    return data.batch(size, drop_remainder=is_cut_off, **parallel)
