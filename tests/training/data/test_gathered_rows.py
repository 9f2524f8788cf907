"""Some rows of every worker, by which the first step is looked at where each reads its own data."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.data.gathered_rows import gathered_rows
from tests.cluster import record_files
from tests.strategies import on_workers, run_on_workers
from tests.warned import warned_by

pytestmark = pytest.mark.processes


def mean(losses, x):
    return tf.reduce_mean(losses)


def masked_mean(losses, x):
    mask = tf.cast(x[:, 0] > 0, losses.dtype)
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)


class OwnStep(keras.Model):
    def __init__(self, *args, reduce):
        super().__init__(*args)
        self.reduce = reduce

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.reduce(tf.reduce_mean(tf.square(self(x) - y), axis=-1), x)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}

    def test_step(self, data):
        x, y = data
        return {"loss": self.reduce(tf.reduce_mean(tf.square(self(x) - y), axis=-1), x)}


def warned(strategy, reduce, data) -> list[list[str]]:
    """Returns how the warnings of `evaluate` and of `fit` begin."""
    keras.utils.set_random_seed(0)  # With other weights the two losses may be alike by chance.
    with strategy.scope():
        inputs = keras.Input((6,))
        model = OwnStep(inputs, keras.layers.Dense(1)(inputs), reduce=reduce)
        model.compile("sgd", steps_per_execution=2)
    of_evaluate = warned_by(lambda: model.evaluate(data, verbose=0))
    of_fit = warned_by(lambda: model.fit(data, shuffle=False, verbose=0))
    return [[text.split(" is not ")[0] for text in texts] for texts in (of_evaluate, of_fit)]


def rows_of(strategy) -> list:
    """Returns what each kind of data gives: two rows of worker 0, and three of worker 1."""
    index = strategy.deployment.cluster.worker_index
    numbers = tf.range(2 + index) + 10 * index
    floats = tf.cast(numbers, tf.bfloat16)[:, tf.newaxis]
    batch = {"numbers": numbers, "nothing": None, "floats": floats, "bools": numbers > 10}
    sent = gathered_rows(batch, strategy, 2 + index, 9)
    fewer = gathered_rows(numbers, strategy, 2 + index, 1)
    of_one = gathered_rows(numbers, strategy, 3 * index, 9)
    strings, other_width = tf.strings.as_string(numbers), tf.ones((2, 3 + index))
    large = tf.constant([2**53 + index, 0])  # Worker 1's is no float64.
    not_sent = [gathered_rows(each, strategy, 2, 9) for each in (strings, other_width, large)]
    as_lists = tf.nest.map_structure(
        lambda leaf: leaf if leaf is None else np.asarray(leaf).tolist(), sent
    )
    return [as_lists, sent["floats"].dtype.name, fewer.numpy(), of_one.numpy(), *not_sent]


def on_a_worker(paths, strategy):
    by_file = record_files.read(paths).batch(8)

    def of_worker(context):
        shard = by_file.unbatch().shard(context.num_input_pipelines, context.input_pipeline_id)
        return shard.batch(context.get_per_replica_batch_size(8))

    distributed = strategy.experimental_distribute_dataset(by_file)
    of_a_mean = warned(strategy, mean, by_file)
    of_masked = [warned(strategy, masked_mean, data) for data in (by_file, distributed, of_worker)]
    return of_a_mean, of_masked, rows_of(strategy)


@on_workers
def test_the_first_step_of_own_data_is_looked_at(tmp_path, workers):
    run = functools.partial(on_a_worker, record_files.write(tmp_path))

    num_replicas = 4 if "clones" in workers else 2
    named = [["What `evaluate` gives as 'loss'"], [f"The gradient over {num_replicas} replicas"]]
    for of_a_mean, of_masked, rows in run_on_workers(run, workers):
        assert of_a_mean == [[], []]
        assert of_masked == [named, named, named]
        sent, dtype, fewer, of_one, *not_sent = rows
        numbers = [0, 1, 10, 11, 12]
        assert sent == {
            "numbers": numbers,
            "nothing": None,
            "floats": [[float(number)] for number in numbers],
            "bools": [False, False, False, True, True],
        }
        assert (dtype, fewer.tolist(), of_one.tolist()) == ("bfloat16", [0, 10], [10, 11, 12])
        assert not_sent == [None] * 3
