"""Layers, metrics and models of the parity cases that are not Keras' own, as users write them."""

from typing import Any

import keras
import tensorflow as tf


class AddsLoss(keras.layers.Dense):
    """A dense layer that adds the mean square of its outputs to the loss."""

    def call(self, inputs: Any, training: bool | None = None):
        outputs = super().call(inputs, training=training)
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(outputs)))
        return outputs


class Iterates(keras.layers.Layer):
    """A layer that applies the same weights three times."""

    def build(self, shape: tuple):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, inputs: Any):
        return keras.ops.fori_loop(
            0, 3, lambda _, values: keras.ops.tanh(keras.ops.matmul(values, self.kernel)), inputs
        )


class SubtractsMean(keras.layers.Layer):
    """Subtracts a trained part of the mean over the batch, which is NaN without examples."""

    def build(self, input_shape: tuple):
        self.part = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="part")

    def call(self, inputs: Any):
        return inputs - 0.5 * self.part * keras.ops.mean(inputs, axis=0)


class HasUnusedVariable(keras.layers.Dense):
    """A dense layer with a variable that it does not use."""

    def build(self, input_shape: tuple):
        super().build(input_shape)
        self.unused = self.add_weight(shape=(3,), name="unused")


def root_mean_square(y: Any, predictions: Any):
    """Returns a number per batch."""
    return keras.ops.sqrt(keras.ops.mean(keras.ops.square(y - predictions)))


def largest_ratio(y: Any, predictions: Any):
    """Returns a number per example, relative to the largest one of the batch."""
    errors = keras.ops.abs(y - predictions)[:, 0]
    return errors / keras.ops.max(errors)


class LargestError(keras.metrics.Metric):
    """The largest error of all examples, and the mean of the largest ones of the batches."""

    def __init__(self, name: str = "largest_error"):
        super().__init__(name=name)
        # Not 0, which remains where a state is divided over replicas.
        self.largest = self.add_weight(shape=(), initializer="ones", name="largest")
        self.mean = keras.metrics.Mean()

    def update_state(self, y: Any, predictions: Any, sample_weight: Any = None):
        errors = keras.ops.abs(y - predictions)
        if sample_weight is not None:
            errors *= sample_weight[:, None]
        largest = keras.ops.max(errors)
        self.largest.assign(keras.ops.maximum(self.largest, largest))
        self.mean.update_state(largest)

    def result(self):
        return self.largest + self.mean.result()

    def reset_state(self):
        self.largest.assign(1.0)
        self.mean.reset_state()


class Subclassed(keras.Model):
    """A model that is a class."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.head = keras.layers.Dense(1)

    def call(self, inputs: Any):
        return self.head(self.hidden(inputs))


class HasTrainStep(keras.Model):
    """A model whose train_step knows nothing of replicas."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.loss_average = keras.metrics.Mean(name="my_loss")

    @property
    def metrics(self):
        return [self.loss_average]

    def train_step(self, data: tuple):
        x, y = data[:2]
        loss, gradients = self.gradients(x, y)
        self.update(x, y, gradients)
        self.loss_average.update_state(loss)
        return {"my_loss": self.loss_average.result(), "last": loss}

    def gradients(self, x: Any, y: Any):
        """Returns the loss of a batch, and its gradients."""
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self(x, training=True) - y))
        return loss, tape.gradient(loss, self.trainable_variables)

    def update(self, x: Any, y: Any, gradients: Any):
        """Updates the weights."""
        self.optimizer.apply(gradients, self.trainable_variables)


class Clips(HasTrainStep):
    """A model that clips gradients before its optimizer has them, to less from step to step."""

    def update(self, x: Any, y: Any, gradients: Any):
        norm = 1.0 / (1.0 + keras.ops.cast(self.optimizer.iterations, "float32"))
        clipped, _ = tf.clip_by_global_norm(gradients, norm)
        super().update(x, y, clipped)


class ClimbsFirst(HasTrainStep):
    """A model that takes its gradients a step uphill: sharpness-aware minimization."""

    def update(self, x: Any, y: Any, gradients: Any):
        norm = tf.linalg.global_norm(gradients)
        moves = [0.05 * gradient / norm for gradient in gradients]
        for variable, move in zip(self.trainable_variables, moves, strict=True):
            variable.assign_add(move)
        _, gradients = self.gradients(x, y)
        for variable, move in zip(self.trainable_variables, moves, strict=True):
            variable.assign_sub(move)
        super().update(x, y, gradients)


class Accumulates(HasTrainStep):
    """A model that adds up two gradients by itself before it applies them."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.number = tf.Variable(0, trainable=False)
        self.sums = [
            tf.Variable(tf.zeros(each.shape), trainable=False) for each in self.trainable_variables
        ]

    def update(self, x: Any, y: Any, gradients: Any):
        self.number.assign_add(1)
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient / 2)
        tf.cond(self.number % 2 == 0, lambda: self.apply_sums(x, y), lambda: None)

    def apply_sums(self, x: Any, y: Any):
        """Updates the weights with what has been added up, and begins anew."""
        super().update(x, y, self.sums)
        for total in self.sums:
            total.assign(tf.zeros(total.shape))


class HasFunctionAsStep(HasTrainStep):
    """A model that compiles its train_step itself."""

    @tf.function
    def train_step(self, data: tuple):
        if tf.shape(data[0])[1] < 2:
            tf.print("Too few features.")
        return super().train_step(data)


class ReadsFirst(Subclassed):
    """A model that reads what its layers make before it calls them for the first time."""

    def __init__(self):
        super().__init__()
        self.hidden.kernel_regularizer = keras.regularizers.L2(0.1)

    def train_step(self, data: tuple):
        x, y = data[:2]
        variables = self.trainable_variables
        with tf.GradientTape() as tape:
            penalty = keras.ops.sum(self.losses)
            loss = keras.ops.mean(keras.ops.square(self(x, training=True) - y)) + penalty
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss, "penalty": penalty}


class HasTwoOptimizers(keras.Model):
    """A model that trains each of its layers with another optimizer."""

    def train_step(self, data: tuple):
        x, y = data[:2]
        head = self.get_layer(index=1).get_layer("head").trainable_variables
        others = self.get_layer(index=1).layers[0].trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, head), head)
        self.second_optimizer.apply(tape.gradient(loss, others), others)
        return {"loss": loss}
