"""In the manner of Keras' example of metric learning: a batch axis that does not count examples.

A PyDataset gives [anchor and positive, classes, height, width, channels]; the loss compares every
anchor with every positive. Two halves of this are no two smaller batches, so this is a program for
one device.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

NUM_CLASSES = 5


class AnchorPositivePairs(keras.utils.PyDataset):
    def __init__(self, num_batches):
        super().__init__()
        self.num_pairs = num_batches
        self.rng = np.random.default_rng(0)
        self.images = self.rng.uniform(size=(NUM_CLASSES, 6, 8, 8, 3))

    def __len__(self):
        return self.num_pairs

    def __getitem__(self, index):
        x = np.empty((2, NUM_CLASSES, 8, 8, 3), dtype=np.float32)
        for class_idx in range(NUM_CLASSES):
            anchor, positive = self.rng.choice(6, size=2, replace=False)
            x[0, class_idx] = self.images[class_idx, anchor]
            x[1, class_idx] = self.images[class_idx, positive]
        return x


class EmbeddingModel(keras.Model):
    def train_step(self, data):
        if isinstance(data, tuple):
            data = data[0]
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            anchor_embeddings = self(anchors, training=True)
            positive_embeddings = self(positives, training=True)
            similarities = keras.ops.einsum("ae,pe->ap", anchor_embeddings, positive_embeddings)
            similarities /= 0.2
            sparse_labels = keras.ops.arange(NUM_CLASSES)
            loss = self.compute_loss(y=sparse_labels, y_pred=similarities)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(sparse_labels, similarities)
        return {m.name: m.result() for m in self.metrics}


def run(strategy):
    keras.utils.set_random_seed(31)
    with scope(strategy):
        inputs = keras.layers.Input(shape=(8, 8, 3))
        x = keras.layers.Conv2D(filters=4, kernel_size=3, strides=2, activation="relu")(inputs)
        x = keras.layers.GlobalAveragePooling2D()(x)
        embeddings = keras.layers.Dense(units=4, activation=None)(x)
        embeddings = keras.layers.UnitNormalization()(embeddings)
        model = EmbeddingModel(inputs, embeddings)
        model.compile(
            optimizer=keras.optimizers.Adam(learning_rate=1e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    history = model.fit(AnchorPositivePairs(num_batches=6), epochs=2)
    x_test = np.random.default_rng(1).uniform(size=(9, 8, 8, 3))
    return {
        "history": history.history,
        "embeddings": model.predict(x_test),
        "weights": model.get_weights(),
    }
