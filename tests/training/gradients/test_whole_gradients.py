"""What a train_step makes of gradients is made of those of the whole batch, as on one device."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist import callbacks
from tests.cases import exhaustive, named
from tests.plain import check_as_plain, check_workers, outcome_of
from tests.strategies import on_three_replicas, on_two_replicas, on_workers

rng = np.random.default_rng(4)
X = rng.normal(size=(37, 6)).astype("float32")  # The last of batches of 12 has one example.
Y = (2 * X[:, :1] + rng.normal(size=(37, 1))).astype("float32")


class OwnStep(keras.Model):
    """A model whose train_step is a function of it and the data, which returns a loss or logs."""

    def __init__(self, step, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.step = step

    def loss_of(self, x, y):
        return tf.reduce_mean(tf.square(self(x, training=True) - y))

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        return loss, tape.gradient(loss, self.trainable_variables)

    def apply(self, gradients):
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))

    def train_step(self, data):
        logs = self.step(self, *data)
        return logs if isinstance(logs, dict) else {"error": logs}


def clips_to_norm(model, x, y):
    # Longer than the gradient of the first steps, which shows nothing before they are over.
    loss, gradients = model.gradients(x, y)
    limit = 2.0 / (1.0 + tf.cast(model.optimizer.iterations.value, tf.float32))
    model.apply(tf.clip_by_global_norm(gradients, limit)[0])
    return loss


def clips_to_value(model, x, y):
    loss, gradients = model.gradients(x, y)
    model.apply([tf.clip_by_value(each, -0.02, 0.02) for each in gradients])
    return loss


def clips_by_weight(model, x, y):
    """Adaptive gradient clipping, as that of networks without normalization."""
    loss, gradients = model.gradients(x, y)
    longest = [0.05 * tf.norm(each) for each in model.trainable_variables]
    model.apply([tf.clip_by_norm(*pair) for pair in zip(gradients, longest, strict=True)])
    return loss


def logs_norm(model, x, y):
    loss, gradients = model.gradients(x, y)
    model.apply(gradients)
    return {"error": loss, "norm": tf.linalg.global_norm(gradients)}


def projects(model, x, y):
    """Two tasks, of whose gradients none may work against the other one."""
    variables = model.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        outputs = model(x, training=True)
        losses = tf.reduce_mean(tf.square(outputs - y)), tf.reduce_mean(tf.abs(outputs + y))
    first, second = (tape.gradient(loss, variables) for loss in losses)

    def without(a, b):
        return a - tf.minimum(tf.reduce_sum(a * b), 0.0) * b / tf.reduce_sum(b * b)

    pairs = list(zip(first, second, strict=True))
    model.apply([without(a, b) + without(b, a) for a, b in pairs])
    return sum(losses)


def descends_by_signs(model, x, y):
    loss, gradients = model.gradients(x, y)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        variable.assign_sub(0.01 * tf.sign(gradient))
    return loss


def skips_large(model, x, y):
    loss, gradients = model.gradients(x, y)

    def update():
        model.apply(gradients)

    tf.cond(tf.linalg.global_norm(gradients) < 3.0, update, lambda: None)
    return loss


def clips_in_condition(model, x, y):
    loss, gradients = model.gradients(x, y)

    def update():
        model.apply([each * 0.1 / tf.norm(each) for each in gradients])

    tf.cond(tf.linalg.global_norm(gradients) < 3.0, update, lambda: None)
    return loss


def penalizes_gradients(model, x, y):
    with tf.GradientTape() as tape:
        loss, gradients = model.gradients(x, y)
        loss += 0.1 * sum(tf.reduce_sum(tf.square(each)) for each in gradients)
    model.apply(tape.gradient(loss, model.trainable_variables))
    return loss


def learns_to_learn(model, x, y):
    """A step on weights that are one step ahead (MAML)."""
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        loss, gradients = model.gradients(x, y)
        ahead = [each - 0.1 * slope for each, slope in zip(variables, gradients, strict=True)]
        outputs = tf.tanh(x @ ahead[0] + ahead[1]) @ ahead[2] + ahead[3]
        loss = tf.reduce_mean(tf.square(outputs - y))
    model.apply(tape.gradient(loss, variables))
    return loss


def clips_each_example(model, x, y):
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        losses = tf.reduce_mean(tf.square(model(x, training=True) - y), axis=-1)
    gradients = []
    for slopes in tape.jacobian(losses, variables):
        norms = tf.norm(tf.reshape(slopes, [tf.shape(x)[0], -1]), axis=1)
        shape = [-1, *[1] * (slopes.shape.rank - 1)]
        gradients.append(
            tf.reduce_mean(slopes * tf.reshape(tf.minimum(1.0, 0.5 / (norms + 1e-12)), shape), 0)
        )
    model.apply(gradients)
    return tf.reduce_mean(losses)


def clips_each_example_by_map(model, x, y, *, map_examples=tf.vectorized_map, **arguments):
    def of_one(pair):
        _, gradients = model.gradients(pair[0][None], pair[1][None])
        return tf.clip_by_global_norm(gradients, 0.5)[0]

    model.apply([tf.reduce_mean(each, 0) for each in map_examples(of_one, (x, y), **arguments)])
    return model.loss_of(x, y)


def clips_each_example_in_loop(model, x, y):
    types = [tf.float32] * len(model.trainable_variables)
    return clips_each_example_by_map(model, x, y, map_examples=tf.map_fn, fn_output_signature=types)


def weighs_tasks(model, x, y):
    """Two losses, weighed by the norms of their gradients."""
    kernel = model.trainable_variables[0]
    with tf.GradientTape(persistent=True) as tape:
        outputs = model(x, training=True)
        losses = tf.reduce_mean(tf.square(outputs - y)), tf.reduce_mean(tf.abs(outputs - y))
    norms = [tf.norm(tape.gradient(loss, kernel)) for loss in losses]
    gradients = [tape.gradient(loss, model.trainable_variables) for loss in losses]
    model.apply([a / norms[0] + b / norms[1] for a, b in zip(*gradients, strict=True)])
    return {"error": sum(losses), "ratio": norms[0] / norms[1]}


def keeps_in_attributes(model, x, y):
    """Reads in the end what it has noted in the model, which all replicas share."""
    model.noted, model.errors = {"loss": model.loss_of(x, y)}, model(x) - y
    _, gradients = model.gradients(x, y)
    model.apply(gradients)
    return {"error": model.noted["loss"], "mean": tf.reduce_mean(model.errors)}


def freezes_by_turns(model, x, y):
    """Two halves that learn one after the other, as those of adversaries do."""
    _, first, second = model.layers
    for trained, frozen in ((first, second), (second, first)):
        trained.trainable, frozen.trainable = True, False
        loss, gradients = model.gradients(x, y)
        model.apply(gradients)
    return loss


STEPS = {
    each.__name__: each
    for each in (
        clips_to_norm,
        clips_to_value,
        clips_by_weight,
        logs_norm,
        projects,
        descends_by_signs,
        skips_large,
        clips_in_condition,
        penalizes_gradients,
        learns_to_learn,
        clips_each_example,
        clips_each_example_by_map,
        clips_each_example_in_loop,
        weighs_tasks,
        keeps_in_attributes,
    )
}
# Nothing there is asked that the others do not ask.
LIKE_OTHERS = {
    "clips_to_value",
    "clips_by_weight",
    "clips_in_condition",
    "logs_norm",
    "clips_each_example",
    "clips_each_example_in_loop",
    "weighs_tasks",
}


def make(step, optimizer=None, **arguments):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, "tanh")(inputs)
    model = OwnStep(step, inputs, keras.layers.Dense(1)(hidden))
    model.compile(optimizer or keras.optimizers.Adam(0.05), **arguments)
    return model


def fit(model, **arguments):
    return model.fit(X, Y, batch_size=12, epochs=2, verbose=0, **arguments).history


@on_three_replicas
@pytest.mark.parametrize("step", named(STEPS, exhaustive=LIKE_OTHERS))
def test_as_on_one_device(strategy, step):
    check_as_plain(strategy, lambda: make(step), fit)


@on_three_replicas
def test_each_replica_has_its_own_settings_of_layers(strategy):
    def make_with_slots_of_both():
        model = make(freezes_by_turns)
        model.optimizer.build(model.trainable_variables)
        return model

    check_as_plain(strategy, make_with_slots_of_both, fit)


@on_two_replicas
@pytest.mark.parametrize(
    "step", [clips_to_norm, *exhaustive(skips_large)], ids=lambda each: each.__name__
)
def test_operation_by_operation(strategy, step):
    check_as_plain(strategy, lambda: make(step, run_eagerly=True), fit)


class Accumulates(OwnStep):
    """Keeps gradients in variables of its own and applies them in every second step."""

    def __init__(self, *args, **kwargs):
        super().__init__(accumulate, *args, **kwargs)
        self.number = tf.Variable(0, trainable=False)
        self.sums = [
            self.add_weight(shape=each.shape, initializer="zeros", trainable=False)
            for each in list(self.trainable_variables)
        ]


def accumulate(model, x, y):
    loss, gradients = model.gradients(x, y)
    model.number.assign_add(1)
    for total, gradient in zip(model.sums, gradients, strict=True):
        total.assign_add(gradient / 2)

    def update():
        model.apply(model.sums)
        for total in model.sums:
            total.assign(tf.zeros(total.shape))

    tf.cond(model.number % 2 == 0, update, lambda: None)
    return loss


def make_accumulating():
    inputs = keras.Input((6,))
    model = Accumulates(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.Adam(0.05))
    return model


@on_three_replicas
def test_a_program_may_keep_gradients_for_a_later_step(strategy):
    check_as_plain(strategy, make_accumulating, fit)


def scales(model, x, y, *, limit=None):
    with tf.GradientTape() as tape:
        loss = model.loss_of(x, y)
        scaled = model.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    model.apply(gradients if limit is None else tf.clip_by_global_norm(gradients, limit)[0])
    return loss


@on_two_replicas
@pytest.mark.parametrize("limit", [4.0, *exhaustive(None)])
def test_of_scaled_losses_too(strategy, limit):
    def make_scaled():
        inner = keras.optimizers.Adam(0.05)
        return make(
            lambda *args: scales(*args, limit=limit),
            keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0, dynamic_growth_steps=3),
        )

    check_as_plain(strategy, make_scaled, fit)


def make_embedding(step):
    """A model whose gradients are slices, which Adagrad squares one by one."""
    inputs = keras.Input((3,), dtype="int32")
    outputs = keras.layers.Flatten()(keras.layers.Embedding(40, 4)(inputs))
    model = OwnStep(step, inputs, keras.layers.Dense(1)(outputs))
    model.compile(keras.optimizers.Adagrad(0.5))
    return model


@on_three_replicas
def test_of_slices_too(strategy):
    tokens = np.random.default_rng(1).integers(0, 40, (37, 3))

    def run(model):
        return model.fit(tokens, Y, batch_size=12, epochs=2, verbose=0).history

    check_as_plain(strategy, lambda: make_embedding(clips_to_norm), run)


def adds_noise(model, x, y):
    loss, gradients = model.gradients(x, y)
    model.apply([each + tf.random.normal(each.shape) for each in gradients])
    return loss


@on_three_replicas
def test_noise_leaves_the_replicas_alike(strategy):
    with strategy.scope():
        model = make(adds_noise)

    fit(model)

    first, *others = strategy.experimental_local_results(model.trainable_variables[0].value)
    for other in others:
        np.testing.assert_array_equal(first.numpy(), other.numpy())


def applies(model, x, y):
    loss, gradients = model.gradients(x, y)
    model.apply(gradients)
    return loss


@on_two_replicas
def test_a_callback_that_looks_at_replicas_still_sees_them(strategy):
    x = X[:12].copy()
    x[11] = np.nan
    with strategy.scope():
        model = make(applies)

    with pytest.raises(FloatingPointError, match=r"is not finite on replica 1 of 2"):
        model.fit(x, Y[:12], batch_size=12, verbose=0, callbacks=[callbacks.StopOnNonFinite()])


def fit_on_workers(strategy):
    of_each_kind = (clips_to_norm, skips_large, penalizes_gradients)
    return [
        outcome_of(strategy.scope(), functools.partial(make, each), fit) for each in of_each_kind
    ]


@pytest.mark.exhaustive
@on_workers
def test_on_every_worker(workers):
    check_workers(workers, fit_on_workers)
