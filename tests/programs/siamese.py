"""In the manner of Keras' examples of siamese networks: triplets, and pairs.

The triplets have a train_step and a test_step of their own and a base that is partly frozen; the
pairs two inputs of one tower and a contrastive loss. The example differentiates the losses of all
triplets, not their mean: a sum over the batch, as `run_as_published` does it. `run` says that it is
one of the global batch.
"""

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.programs.scope import epsilon, scope


class DistanceLayer(keras.layers.Layer):
    def call(self, anchor, positive, negative):
        ap_distance = keras.ops.sum(tf.square(anchor - positive), -1)
        an_distance = keras.ops.sum(tf.square(anchor - negative), -1)
        return (ap_distance, an_distance)


class SiameseModel(keras.Model):
    def __init__(self, siamese_network, margin=0.5, total=lambda losses: losses):
        super().__init__()
        self.total = total
        self.siamese_network = siamese_network
        self.margin = margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.siamese_network(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
            total = self.total(loss)
        gradients = tape.gradient(total, self.siamese_network.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.siamese_network.trainable_weights, strict=True)
        )
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        loss = self._compute_loss(data)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def _compute_loss(self, data):
        ap_distance, an_distance = self.siamese_network(data)
        loss = ap_distance - an_distance
        return tf.maximum(loss + self.margin, 0.0)

    @property
    def metrics(self):
        return [self.loss_tracker]


def make_tower():
    inputs = keras.Input(shape=(8, 8, 3))
    x = keras.layers.Conv2D(4, 3, activation="relu", name="frozen")(inputs)
    x = keras.layers.Conv2D(4, 3, activation="relu")(x)
    x = keras.layers.Dense(8, activation="relu")(keras.layers.Flatten()(x))
    embedding = keras.Model(inputs, keras.layers.Dense(4)(x), name="Embedding")
    embedding.get_layer("frozen").trainable = False
    return embedding


def euclidean_distance(vects):
    x, y = vects
    sum_square = keras.ops.sum(keras.ops.square(x - y), axis=1, keepdims=True)
    return keras.ops.sqrt(keras.ops.maximum(sum_square, keras.config.epsilon()))


def contrastive_loss(y_true, y_pred):
    square_pred = keras.ops.square(y_pred)
    margin_square = keras.ops.square(keras.ops.maximum(1 - y_pred, 0))
    return keras.ops.mean((1 - y_true) * square_pred + y_true * margin_square)


def train(strategy, total, adam_epsilon=1e-7):
    keras.utils.set_random_seed(33)
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(3, 45, 8, 8, 3)).astype("float32")
    dataset = tf.data.Dataset.zip(tuple(map(tf.data.Dataset.from_tensor_slices, images)))
    train_dataset = dataset.take(37).shuffle(buffer_size=1024).batch(8, drop_remainder=False)
    val_dataset = dataset.skip(37).batch(8, drop_remainder=False).prefetch(tf.data.AUTOTUNE)
    with scope(strategy):
        embedding = make_tower()
        inputs = [keras.Input(name=name, shape=(8, 8, 3)) for name in ("a", "p", "n")]
        distances = DistanceLayer()(*[embedding(each) for each in inputs])
        siamese_model = SiameseModel(keras.Model(inputs, distances), total=total)
        siamese_model.compile(
            optimizer=keras.optimizers.Adam(0.001, epsilon=adam_epsilon), weighted_metrics=[]
        )
    triplets = siamese_model.fit(train_dataset, epochs=2, validation_data=val_dataset)

    with scope(strategy):
        tower = make_tower()
        left, right = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
        merge_layer = keras.layers.Lambda(euclidean_distance, output_shape=(1,))(
            [tower(left), tower(right)]
        )
        output_layer = keras.layers.Dense(1, activation="sigmoid")(merge_layer)
        siamese = keras.Model(inputs=[left, right], outputs=output_layer)
        siamese.compile(loss=contrastive_loss, optimizer="RMSprop", metrics=["accuracy"])
    labels = (np.arange(45) % 2).astype("float32")
    x_1, x_2 = images[0], images[1]
    pairs = siamese.fit(
        [x_1[:37], x_2[:37]],
        labels[:37],
        validation_data=([x_1[37:], x_2[37:]], labels[37:]),
        batch_size=8,
        epochs=2,
    )
    return {
        "histories": [triplets.history, pairs.history],
        "scores": siamese.evaluate([x_1, x_2], labels),
        "weights": [siamese_model.get_weights(), siamese.get_weights()],
    }


def run(strategy, *, comparable=False):
    return train(strategy, kerasdist.global_sum, epsilon(comparable))


def run_as_published(strategy):
    return train(strategy, lambda losses: losses)
