"""What a step reads and draws for the whole batch, its replicas read and draw once."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.plain import check_as_plain, check_workers
from tests.strategies import on_three_replicas, on_workers
from tests.warned import warned_by

RNG = np.random.default_rng(8)
# The last batch has two examples, for three replicas.
X = RNG.normal(size=(22, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
UNLABELED = RNG.normal(size=(40, 3)).astype("float32")
FIT = {"batch_size": 10, "epochs": 3, "shuffle": False, "verbose": 0}


class Own(keras.Model):
    """A model that is trained with more than its batch."""

    def __init__(self, **arguments):
        inputs = keras.Input((3,))
        super().__init__(inputs, layers.Dense(1)(layers.Dense(4, "tanh")(inputs)), **arguments)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True)) + self.more(x)
        self.update(tape.gradient(loss, self.trainable_variables))
        return {"loss": loss}

    def more(self, x):
        return 0.0

    def update(self, gradients):
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))


class SemiSupervised(Own):
    """A model that takes batches without labels from an iterator of its own."""

    def __init__(self, dataset, **arguments):
        super().__init__(**arguments)
        self.unlabeled = iter(dataset)

    def more(self, x):
        outputs = self(next(self.unlabeled), training=True)
        return 0.1 * tf.reduce_mean(tf.square(outputs - 1.0))

    def test_step(self, data):
        return {"distance": tf.reduce_mean(self(next(self.unlabeled)) - 1.0)}


class JoinsBatches(SemiSupervised):
    """A model that needs the batch as a whole beside that of its iterator."""

    def more(self, x):
        outputs = self(tf.concat([x, next(self.unlabeled)], axis=0), training=True)
        return tf.math.reduce_std(outputs)


def unlabeled():
    dataset = tf.data.Dataset.from_tensor_slices(UNLABELED).shuffle(40, seed=1)
    return dataset.batch(4).repeat()


def generated():
    """Returns data that lies in Python, where an iterator cannot be put back."""

    def rows():
        yield from UNLABELED

    signature = tf.TensorSpec([3], tf.float32)
    return tf.data.Dataset.from_generator(rows, output_signature=signature).batch(4).repeat()


class FlipsACoin(Own):
    """A model that updates its weights now and then."""

    def update(self, gradients):
        def update():
            super(FlipsACoin, self).update(gradients)
            return True

        tf.cond(tf.random.uniform(()) < 0.5, update, lambda: False)


class ReadsNowAndThen(SemiSupervised):
    """A model that reads further examples under a condition."""

    def more(self, x):
        rows = tf.cond(
            self.optimizer.iterations > 1,
            lambda: tf.stop_gradient(next(self.unlabeled)),
            lambda: tf.zeros([4, 3]),
        )
        return tf.reduce_mean(tf.square(self(rows, training=True)))


class DrawsAsItIsTraced(Own):
    """A model with a number of numpy's in its graph."""

    def more(self, x):
        return np.float32(np.random.uniform()) * tf.reduce_mean(tf.square(self(x)))


class Scales(Own):
    """A model that draws one number for a batch with Keras, and one with a generator."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.generator = tf.random.Generator.from_seed(3)

    def more(self, x):
        return keras.random.uniform(()) * tf.reduce_mean(tf.square(self(x, training=True)))


def compiled(make, **arguments):
    def make_compiled():
        model = make()
        model.compile(keras.optimizers.SGD(0.1), "mse", **arguments)
        return model

    return make_compiled


def fit(model):
    return model.fit(X, Y, **FIT).history


def fit_and_evaluate(model):
    return fit(model), model.evaluate(X, Y, batch_size=10, verbose=0)


@on_three_replicas
@pytest.mark.parametrize(
    ("make", "arguments", "run"),
    [
        (lambda: SemiSupervised(unlabeled()), {}, fit_and_evaluate),
        (lambda: SemiSupervised(unlabeled()), {"run_eagerly": True}, fit),
        (lambda: SemiSupervised(unlabeled()), {"steps_per_execution": 2}, fit),
        (FlipsACoin, {}, fit),
        (Scales, {}, fit),
        (DrawsAsItIsTraced, {}, fit),
    ],
    ids=[
        *("iterator", "iterator, eager", "iterator, several steps"),
        *("coin", "number of Keras", "number of numpy"),
    ],
)
def test_as_on_one_device_without_a_word(strategy, make, arguments, run):
    make = compiled(make, **arguments)
    assert warned_by(lambda: check_as_plain(strategy, make, run)) == []


@on_three_replicas
def test_a_step_that_needs_the_whole_batch_takes_one_element_for_all(strategy):
    make = compiled(lambda: JoinsBatches(unlabeled()))
    (text,) = warned_by(lambda: check_as_plain(strategy, make, fit))
    assert "each replica computes the whole batch" in text


@on_three_replicas
def test_an_iterator_that_is_read_under_a_condition_is_told(strategy):
    with strategy.scope():
        model = compiled(lambda: ReadsNowAndThen(unlabeled()))()
    texts = warned_by(lambda: fit(model))
    assert sum("inside of a condition or a loop" in text for text in texts) == 1


@on_three_replicas
def test_an_iterator_over_what_lies_in_python_is_not_read_by_the_check(strategy):
    def make_begun():
        model = SemiSupervised(generated())
        next(model.unlabeled)
        return model

    make = compiled(make_begun)
    (text,) = warned_by(lambda: check_as_plain(strategy, make, fit))
    assert "Could not check that 3 replicas give the gradient of one device" in text


class Drops(JoinsBatches):
    """A model with random numbers of every kind in a step that needs the whole batch."""

    def more(self, x):
        noise = keras.random.normal(tf.shape(x)) + tf.random.uniform(tf.shape(x))
        return super().more(x + 0.1 * noise)


@on_three_replicas
def test_replicas_that_have_the_whole_batch_draw_the_numbers_of_one_device(strategy):
    def make():
        model = Drops(unlabeled())
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    (text,) = warned_by(lambda: check_as_plain(strategy, make, fit))
    assert "each replica computes the whole batch" in text


def fit_over_workers(strategy):
    outcomes = []
    for make in (lambda: SemiSupervised(unlabeled()), FlipsACoin, lambda: Drops(unlabeled())):
        keras.utils.set_random_seed(4)
        with strategy.scope():
            model = compiled(make)()
        outcomes.append((fit(model), model.get_weights()))
    return outcomes


@on_workers
def test_as_on_one_device_over_workers(workers):
    check_workers(workers, fit_over_workers)
