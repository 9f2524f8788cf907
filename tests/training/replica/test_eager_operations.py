"""What is computed from a batch is known in steps without a graph, too."""

import pytest
import tensorflow as tf

from kerasdist.training.replica.eager_operations import EagerOperations, operation_of


@tf.function
def doubled(x):
    return 2 * x


def assigned(batch):
    state = tf.Variable([0, 0, 0])
    state.assign(batch)
    return tf.convert_to_tensor(state)


def printed(batch):
    tf.print("rows", batch[:0], output_stream="file:///dev/null")  # Gives nothing.
    return tf.add(tf.constant(1), 1)


COMPUTED = {
    "of the batch": (lambda batch: tf.argmax(tf.cast(batch, tf.float32)), True),
    "of a constant": (lambda batch: tf.range(3) + 1, False),
    "in a function": (doubled, True),
    "a random number": (lambda batch: tf.random.uniform([3]), True),
    "beside what is printed": (printed, False),
    "of a variable": (lambda batch: tf.convert_to_tensor(tf.Variable([1, 2])), False),
    "of a variable that the batch sets": (assigned, True),
}


@pytest.mark.parametrize(("compute", "is_of_batch"), COMPUTED.values(), ids=COMPUTED)
def test_what_is_computed_from_the_batch_is_known(compute, is_of_batch):
    operations, batch = EagerOperations(), tf.constant([1, 2, 3])
    operations.begin_at({"x": batch})

    with operations.watched():
        result = compute(batch)

    assert operations.is_of_batch(result) == is_of_batch
    assert not EagerOperations().is_of_batch(result)  # Nor is it of another step's.


def test_it_ends_where_all_replicas_have_the_same():
    operations, total = EagerOperations(), tf.constant([1, 2, 3])
    operations.begin_at(total)

    operations.end_at([total])

    assert not operations.is_of_batch(total)


def test_what_gave_integers_is_known():
    with EagerOperations().watched():
        rows = tf.reshape(tf.range(4), [2, 2])
        values = tf.cast(rows, tf.float32)

    assert operation_of(rows).type == "Reshape"
    assert operation_of(operation_of(rows).inputs[0]).type == "Range"
    assert operation_of(values) is None
    assert operation_of(tf.constant(1)) is None
