"""In the manner of Keras' examples of object detection: heads in a dict, losses of their own.

The losses are classes that weigh anchors by the number of positive ones of each image, as the
example of RetinaNet does it; labels come as a dict, a callback predicts between epochs.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

NUM_CLASSES, NUM_ANCHORS = 3, 4


class RetinaNetBoxLoss(keras.losses.Loss):
    def __init__(self, delta):
        super().__init__(name="RetinaNetBoxLoss")
        self._delta = delta

    def call(self, y_true, y_pred):
        difference = y_true - y_pred
        absolute_difference = tf.abs(difference)
        squared_difference = difference**2
        loss = tf.where(
            tf.less(absolute_difference, self._delta),
            0.5 * squared_difference,
            absolute_difference - 0.5,
        )
        return tf.reduce_sum(loss, axis=-1)


class RetinaNetClassificationLoss(keras.losses.Loss):
    def __init__(self, alpha=0.25, gamma=2.0):
        super().__init__(name="RetinaNetClassificationLoss")
        self._alpha = alpha
        self._gamma = gamma

    def call(self, y_true, y_pred):
        cross_entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=y_true, logits=y_pred)
        probs = tf.nn.sigmoid(y_pred)
        alpha = tf.where(tf.equal(y_true, 1.0), self._alpha, (1.0 - self._alpha))
        pt = tf.where(tf.equal(y_true, 1.0), probs, 1 - probs)
        return tf.reduce_sum(alpha * tf.pow(1.0 - pt, self._gamma) * cross_entropy, axis=-1)


class RetinaNetLoss(keras.losses.Loss):
    """Boxes count where there is an object; both are divided by the objects of the image."""

    def __init__(self, loss, last):
        super().__init__(name="RetinaNetLoss")
        self._loss = loss
        self._last = last

    def call(self, y_true, y_pred):
        values, positive_mask = y_true[..., :-1], y_true[..., -1]
        loss = self._loss.call(values, y_pred)
        if self._last == "box":
            loss = tf.where(tf.equal(positive_mask, 1.0), loss, 0.0)
        normalizer = tf.reduce_sum(positive_mask, axis=-1)
        return tf.math.divide_no_nan(tf.reduce_sum(loss, axis=-1), normalizer)


def build_head(output_filters, bias_init, name):
    return keras.Sequential(
        [
            keras.Input(shape=(2, 2, 4)),
            keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(output_filters, 3, padding="same", bias_initializer=bias_init),
            keras.layers.Reshape((NUM_ANCHORS, output_filters)),
        ],
        name=name,
    )


class Detector(keras.Model):
    def __init__(self, num_classes, synchronized):
        super().__init__(name="RetinaNet")
        self.backbone = keras.Sequential(
            [
                keras.layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False),
                keras.layers.BatchNormalization(synchronized=synchronized),
                keras.layers.ReLU(),
                keras.layers.Conv2D(4, 3, strides=2, padding="same"),
            ]
        )
        prior_probability = keras.initializers.Constant(-np.log((1 - 0.01) / 0.01))
        self.cls_head = build_head(num_classes, prior_probability, "cls_head")
        self.box_head = build_head(4, "zeros", "box_head")

    def call(self, image, training=False):
        features = self.backbone(image, training=training)
        return {"boxes": self.box_head(features), "classes": self.cls_head(features)}


class EvaluateCallback(keras.callbacks.Callback):
    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset
        self.means = []

    def on_epoch_end(self, epoch, logs):
        for images, _ in self.dataset:
            y_pred = self.model.predict(images, verbose=0)
            self.means.append([float(y_pred[name].mean()) for name in sorted(y_pred)])
        return logs


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(42)
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(45, 8, 8, 3)).astype("float32")
    positive = rng.integers(0, 2, size=(45, NUM_ANCHORS, 1)).astype("float32")
    boxes = np.concatenate([rng.uniform(size=(45, NUM_ANCHORS, 4)), positive], axis=-1)
    classes = np.eye(NUM_CLASSES)[rng.integers(0, NUM_CLASSES, size=(45, NUM_ANCHORS))] * positive
    labels = {
        "boxes": boxes.astype("float32"),
        "classes": np.concatenate([classes, positive], axis=-1).astype("float32"),
    }
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    train_dataset = dataset.take(37).shuffle(16).batch(8, drop_remainder=False)
    val_dataset = dataset.skip(37).batch(5)
    with scope(strategy):
        learning_rate_fn = keras.optimizers.schedules.PiecewiseConstantDecay(
            boundaries=[4, 8], values=[0.01, 0.02, 0.005]
        )
        model = Detector(NUM_CLASSES, synchronized=comparable)
        model.compile(
            loss={
                "boxes": RetinaNetLoss(RetinaNetBoxLoss(1.0), "box"),
                "classes": RetinaNetLoss(RetinaNetClassificationLoss(), "class"),
            },
            loss_weights={"boxes": 1.0, "classes": 2.0},
            optimizer=keras.optimizers.SGD(learning_rate_fn, momentum=0.9, global_clipnorm=10.0),
        )
    callback = EvaluateCallback(val_dataset)
    history = model.fit(train_dataset, validation_data=val_dataset, epochs=2, callbacks=[callback])
    predictions = model.predict(val_dataset)
    return {
        "history": history.history,
        "means": callback.means,
        "predictions": predictions,
        "scores": model.evaluate(val_dataset, return_dict=True),
        "weights": model.get_weights(),
    }
