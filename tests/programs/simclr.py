"""In the manner of Keras' example of contrastive pretraining: the batch is its own negatives.

Every image is compared with every other of the batch, so that two halves of it are another loss:
there is only the form `run_as_published`, which on several replicas is to warn.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope


class ContrastiveModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.temperature = 0.1
        self.encoder = keras.Sequential(
            [
                keras.layers.Conv2D(4, kernel_size=3, strides=2, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(6, activation="relu"),
            ],
            name="encoder",
        )
        self.projection_head = keras.Sequential(
            [keras.Input(shape=(6,)), keras.layers.Dense(6)], name="projection_head"
        )
        self.linear_probe = keras.Sequential(
            [keras.layers.Input(shape=(6,)), keras.layers.Dense(3)], name="linear_probe"
        )
        self.encoder.build((None, 8, 8, 1))

    def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
        super().compile(**kwargs)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.contrastive_loss_tracker = keras.metrics.Mean(name="c_loss")
        self.contrastive_accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.probe_loss_tracker = keras.metrics.Mean(name="p_loss")
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self):
        return [
            self.contrastive_loss_tracker,
            self.contrastive_accuracy,
            self.probe_loss_tracker,
            self.probe_accuracy,
        ]

    def contrastive_loss(self, projections_1, projections_2):
        projections_1 = keras.ops.normalize(projections_1, axis=1)
        projections_2 = keras.ops.normalize(projections_2, axis=1)
        similarities = (
            keras.ops.matmul(projections_1, keras.ops.transpose(projections_2)) / self.temperature
        )
        batch_size = keras.ops.shape(projections_1)[0]
        contrastive_labels = keras.ops.arange(batch_size)
        self.contrastive_accuracy.update_state(contrastive_labels, similarities)
        self.contrastive_accuracy.update_state(
            contrastive_labels, keras.ops.transpose(similarities)
        )
        loss_1_2 = keras.losses.sparse_categorical_crossentropy(
            contrastive_labels, similarities, from_logits=True
        )
        loss_2_1 = keras.losses.sparse_categorical_crossentropy(
            contrastive_labels, keras.ops.transpose(similarities), from_logits=True
        )
        return keras.ops.mean(loss_1_2 + loss_2_1) / 2

    def train_step(self, data):
        images_1, images_2, labels = data
        with tf.GradientTape() as tape:
            projections_1 = self.projection_head(self.encoder(images_1, training=True))
            projections_2 = self.projection_head(self.encoder(images_2, training=True))
            contrastive_loss = self.contrastive_loss(projections_1, projections_2)
        weights = self.encoder.trainable_weights + self.projection_head.trainable_weights
        gradients = tape.gradient(contrastive_loss, weights)
        self.contrastive_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.contrastive_loss_tracker.update_state(contrastive_loss)
        with tf.GradientTape() as tape:
            features = self.encoder(images_1, training=False)
            class_logits = self.linear_probe(features, training=True)
            probe_loss = self.probe_loss(labels, class_logits)
        gradients = tape.gradient(probe_loss, self.linear_probe.trainable_weights)
        self.probe_optimizer.apply_gradients(
            zip(gradients, self.linear_probe.trainable_weights, strict=True)
        )
        self.probe_loss_tracker.update_state(probe_loss)
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        images, labels = data
        class_logits = self.linear_probe(self.encoder(images, training=False), training=False)
        self.probe_loss_tracker.update_state(self.probe_loss(labels, class_logits))
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics[2:]}


def run_as_published(strategy):
    keras.utils.set_random_seed(48)
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(45, 8, 8, 1)).astype("float32")
    views = images + rng.normal(size=(2, 45, 8, 8, 1)).astype("float32") / 10
    labels = np.arange(45) % 3
    train = tf.data.Dataset.from_tensor_slices((views[0][:37], views[1][:37], labels[:37]))
    train_dataset = train.shuffle(buffer_size=80).batch(8, drop_remainder=True)
    test_dataset = tf.data.Dataset.from_tensor_slices((images[37:], labels[37:])).batch(8)
    with scope(strategy):
        pretraining_model = ContrastiveModel()
        pretraining_model.compile(
            contrastive_optimizer=keras.optimizers.Adam(),
            probe_optimizer=keras.optimizers.Adam(),
        )
    history = pretraining_model.fit(train_dataset, epochs=2, validation_data=test_dataset)
    return {"history": history.history, "weights": pretraining_model.get_weights()}
