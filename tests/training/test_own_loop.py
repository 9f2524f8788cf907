"""A training loop of one's own under `strategy.run` gives the weights of one device."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.support import memory
from tests.plain import check_numbers, check_workers
from tests.strategies import on_three_replicas, on_workers

# Over three replicas: uneven batches, and some that leave a replica empty.
SIZES = (10, 2, 10, 2)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(sum(SIZES), 4)).astype("float32")
Y = RNG.normal(size=(sum(SIZES), 1)).astype("float32")
IDS = RNG.integers(0, 5, size=(sum(SIZES), 2))


def batches_of(*columns):
    ends = np.cumsum(SIZES)
    return [
        [tf.constant(each[end - size : end]) for each in columns]
        for size, end in zip(SIZES, ends, strict=True)
    ]


def divided(strategy, batch):
    """Returns the parts of a batch: what each replica is given, as by a distributed dataset."""
    size = len(batch[0])
    count = -(-size // strategy.num_replicas_in_sync)

    def part(context):
        start = min(context.replica_id_in_sync_group * count, size)
        return tuple(each[start : start + count] for each in batch)

    return strategy.experimental_distribute_values_from_function(part)


def train(strategy, make_model, make_optimizer, columns=(X, Y), *, step=None, is_eager=False):
    """Returns the weights after a loop in the manner of TensorFlow's tutorials."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model, optimizer = make_model(), make_optimizer()
        loss_object = keras.losses.MeanSquaredError(reduction="none")
        accuracy = keras.metrics.MeanAbsoluteError()

    def loss_of(x, y, size):
        predictions = model(x, training=True)
        loss = tf.nn.compute_average_loss(loss_object(y, predictions), global_batch_size=size)
        if model.losses:
            loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        accuracy.update_state(y, predictions)
        return loss

    def default_step(x, y, size):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y, size)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    replica_step = functools.partial(step, model, optimizer, loss_of) if step else default_step

    def run(batch, size):
        loss = strategy.run(lambda batch: replica_step(*batch, size), args=(batch,))
        return strategy.reduce("SUM", loss, axis=None)

    run = run if is_eager else tf.function(run)
    losses = []
    for batch in batches_of(*columns):
        losses.append(float(run(divided(strategy, batch), len(batch[0]))))
    averages = [] if not optimizer.use_ema else averages_of(optimizer)
    return {
        "losses": losses,
        "weights": model.get_weights(),
        "mean error": float(accuracy.result()),
        "averages": averages,
        "iterations": int(optimizer.iterations.numpy()),
    }


def averages_of(optimizer):
    return [each.numpy() for each in optimizer.variables if "average" in each.path]


def check(strategy, *args, **kwargs):
    truth = train(tf.distribute.get_strategy(), *args, **kwargs)
    check_numbers(train(strategy, *args, **kwargs), truth)


def dense():
    layers = [keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential(layers)


OPTIMIZERS = {
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.2),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.2),
    "clipvalue": lambda: keras.optimizers.Adam(0.01, clipvalue=0.1),
    "use_ema": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
    "weight_decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.2),
    "accumulation": lambda: keras.optimizers.SGD(0.1, 0.9, gradient_accumulation_steps=2),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, global_clipnorm=0.2), initial_scale=8.0, dynamic_growth_steps=2
    ),
    "loss_scale_factor": lambda: keras.optimizers.SGD(0.1, clipnorm=0.2, loss_scale_factor=16.0),
}


@on_three_replicas
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_gets_the_gradient_of_the_global_batch(strategy, name):
    check(strategy, dense, OPTIMIZERS[name])


def normalized():
    return keras.Sequential(
        [
            *(keras.Input((4,)), keras.layers.Dense(3, use_bias=False)),
            keras.layers.BatchNormalization(synchronized=True, momentum=0.8),
            keras.layers.Dense(1),
        ]
    )


class Added(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * tf.reduce_mean(self.kernel**2))
        return x @ self.kernel

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 1))


def with_added_losses():
    regularizer = keras.regularizers.L2(0.1)
    layers = [keras.layers.Dense(3, use_bias=False, kernel_regularizer=regularizer)]
    layers.append(keras.layers.BatchNormalization(synchronized=True))  # Replicas take turns here.
    return keras.Sequential([keras.Input((4,)), *layers, Added()])


def embedded():
    layers = [keras.layers.Embedding(5, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((2,), dtype="int64"), *layers])


def clipped():
    return keras.optimizers.Adam(0.01, global_clipnorm=0.2)


@on_three_replicas
@pytest.mark.parametrize("make_model", [normalized, with_added_losses])
def test_the_statistics_and_losses_of_layers_are_those_of_one_device(strategy, make_model):
    check(strategy, make_model, clipped)


@on_three_replicas
def test_gradients_of_few_rows_are_clipped_after_the_sum(strategy):
    check(strategy, embedded, clipped, (IDS, Y))


@on_three_replicas
def test_an_optimizer_may_be_made_outside_of_the_scope(strategy):
    outside = [clipped(), clipped()]
    outcomes = [
        train(each, dense, outside.pop) for each in (strategy, tf.distribute.get_strategy())
    ]
    check_numbers(*outcomes)


@on_three_replicas
def test_an_eager_loop_gives_the_same(strategy):
    check(strategy, dense, OPTIMIZERS["loss_scale"], is_eager=True)


def gradients_of(model, loss_of, *batch):
    with tf.GradientTape() as tape:
        loss = loss_of(*batch)
    return loss, tape.gradient(loss, model.trainable_variables)


def apply_all_reduced(model, optimizer, loss_of, *batch):
    loss, gradients = gradients_of(model, loss_of, *batch)
    gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
    gradients, _ = tf.clip_by_global_norm(gradients, 0.2)
    gradients = [each + 0.1 * weight for each, weight in zip(gradients, model.weights, strict=True)]
    optimizer.apply(gradients, model.trainable_variables)
    return loss


@on_three_replicas
@pytest.mark.parametrize("is_eager", [False, True])
def test_gradients_that_the_loop_has_summed_are_not_summed_again(
    strategy, is_eager, monkeypatch, capsys
):
    monkeypatch.setattr(memory.PROCESS, "said", set())

    def momentum():
        return keras.optimizers.SGD(0.1, momentum=0.9)

    check(strategy, dense, momentum, step=apply_all_reduced, is_eager=is_eager)

    assert "Gradients: the loop has all-reduced them" in "".join(capsys.readouterr())


def apply_in_tf_function(model, optimizer, loss_of, *batch):
    @tf.function
    def step(*batch):
        loss, gradients = gradients_of(model, loss_of, *batch)
        optimizer.build(model.trainable_variables)
        optimizer.apply(gradients)
        return loss

    return step(*batch)


@on_three_replicas
def test_a_step_may_call_a_tf_function(strategy):
    check(strategy, normalized, clipped, step=apply_in_tf_function)


@on_three_replicas
def test_the_step_may_be_a_tf_function(strategy):
    with strategy.scope():
        weight = keras.Variable([3.0])
        optimizer = keras.optimizers.SGD(1.0, global_clipnorm=0.2)

    @tf.function
    def step(gradient):
        if gradient > 0:  # AutoGraph's.
            gradient = gradient + 1.0
        optimizer.apply([gradient[tf.newaxis]], [weight])
        return gradient

    gradients = strategy.run(step, args=(tf.constant(2.0),))

    assert float(strategy.reduce("SUM", gradients, axis=None)) == 9.0
    np.testing.assert_allclose(weight.numpy(), [2.8])


@on_three_replicas
def test_two_optimizers_take_turns(strategy):
    def step(model, optimizer, loss_of, *batch):
        head = keras.optimizers.SGD(0.1, clipnorm=0.1) if not head_of else head_of[0]
        head_of[:] = [head]
        loss, gradients = gradients_of(model, loss_of, *batch)
        optimizer.apply(gradients[:2], model.trainable_variables[:2])
        loss, gradients = gradients_of(model, loss_of, *batch)
        head.apply(gradients[2:], model.trainable_variables[2:])
        return loss

    outcomes = []
    for each in (strategy, tf.distribute.get_strategy()):
        head_of: list = []
        outcomes.append(train(each, dense, clipped, step=step))
    check_numbers(*outcomes)


@on_three_replicas
@pytest.mark.parametrize("is_eager", [False, True])
def test_each_replica_drops_units_of_its_own(strategy, is_eager):
    def drop():
        keras.utils.set_random_seed(3)
        with strategy.scope():
            dropout = keras.layers.Dropout(0.5)
        run = functools.partial(strategy.run, lambda: dropout(tf.ones([64]), training=True))
        return strategy.experimental_local_results((run if is_eager else tf.function(run))())

    masks = {bytes(each.numpy()) for each in drop()}

    keras.utils.set_random_seed(3)
    alone = keras.layers.Dropout(0.5)(tf.ones([64]), training=True)
    assert len(masks) == 3
    assert bytes(alone.numpy()) in masks


@on_three_replicas
def test_a_replica_without_examples_leaves_statistics_as_they_are(strategy):
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
    values = np.array([[2], [4]], "float32")

    @tf.function(reduce_retracing=True)
    def run(values):
        strategy.run(lambda x: layer(x, training=True), args=(values,))

    def part(context):  # Two, none, none.
        return tf.constant(values[: 2 * (context.replica_id_in_sync_group == 0)])

    run(strategy.experimental_distribute_values_from_function(part))

    means = strategy.experimental_local_results(layer.moving_mean.value)
    assert [float(each[0]) for each in means] == [1.5, 0, 0]


def train_several(strategy):
    return [
        train(strategy, normalized, clipped),
        train(strategy, embedded, OPTIMIZERS["loss_scale"], (IDS, Y)),
        train(strategy, dense, OPTIMIZERS["accumulation"], step=apply_all_reduced),
    ]


@on_workers
def test_workers_give_the_same(workers):
    check_workers(workers, train_several)
