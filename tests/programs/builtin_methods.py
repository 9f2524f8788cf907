"""In the manner of Keras' guide to the built-in methods: two inputs, two outputs, dicts of losses.

Weights of samples and of classes, validation data of each form, a PyDataset, a metric of one's own.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope


@keras.saving.register_keras_serializable(package="builtin_methods")
class CategoricalTruePositives(keras.metrics.Metric):
    def __init__(self, name="categorical_true_positives", **kwargs):
        super().__init__(name=name, **kwargs)
        self.true_positives = self.add_variable(
            shape=(), name="ctp", initializer="zeros", dtype="float32"
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = keras.ops.reshape(keras.ops.argmax(y_pred, axis=1), (-1, 1))
        y_true = keras.ops.reshape(y_true, (-1, 1))  # Without, each is compared with all others.
        values = keras.ops.cast(y_true, "int32") == keras.ops.cast(y_pred, "int32")
        values = keras.ops.cast(values, "float32")
        if sample_weight is not None:
            values = keras.ops.multiply(values, keras.ops.cast(sample_weight, "float32"))
        self.true_positives.assign_add(keras.ops.sum(values))

    def result(self):
        return self.true_positives

    def reset_state(self):
        self.true_positives.assign(0)


class ExamplePyDataset(keras.utils.PyDataset):
    def __init__(self, x, y, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.batch_size = x, y, batch_size

    def __len__(self):
        return int(np.ceil(len(self.y) / self.batch_size))

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.x[rows], self.y[rows]


def get_uncompiled_model():
    inputs = keras.Input(shape=(12,), name="digits")
    x = keras.layers.Dense(16, activation="relu", name="dense_1")(inputs)
    x = keras.layers.Dense(16, activation="relu", name="dense_2")(x)
    return keras.Model(inputs, keras.layers.Dense(3, activation="softmax", name="predictions")(x))


def get_compiled_model():
    model = get_uncompiled_model()
    model.compile(
        optimizer="rmsprop",
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy", CategoricalTruePositives()],
    )
    return model


def get_two_headed_model():
    image_input = keras.Input(shape=(8, 8, 3), name="img_input")
    timeseries_input = keras.Input(shape=(None, 4), name="ts_input")
    x1 = keras.layers.GlobalMaxPooling2D()(keras.layers.Conv2D(3, 3)(image_input))
    x2 = keras.layers.GlobalMaxPooling1D()(keras.layers.Conv1D(3, 3)(timeseries_input))
    x = keras.layers.concatenate([x1, x2])
    score_output = keras.layers.Dense(1, name="score_output")(x)
    class_output = keras.layers.Dense(5, name="class_output")(x)
    model = keras.Model([image_input, timeseries_input], [score_output, class_output])
    model.compile(
        optimizer=keras.optimizers.RMSprop(1e-3),
        loss=[
            keras.losses.MeanSquaredError(),
            keras.losses.CategoricalCrossentropy(from_logits=True),
        ],
        metrics=[
            [keras.metrics.MeanAbsolutePercentageError(), keras.metrics.MeanAbsoluteError()],
            [keras.metrics.CategoricalAccuracy()],
        ],
        loss_weights=[2.0, 1.0],
    )
    return model


def get_model_with_dicts():
    inputs = keras.Input(shape=(12,), name="digits")
    x = keras.layers.Dense(8, activation="relu", kernel_regularizer="l2")(inputs)
    outputs = {
        "score": keras.layers.Dense(1, name="score")(x),
        "label": keras.layers.Dense(3, activation="softmax", name="label")(x),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer="adam",
        loss={"score": "mse", "label": "sparse_categorical_crossentropy"},
        loss_weights={"score": 2.0, "label": 0.5},
        metrics={"score": ["mae"], "label": ["accuracy"]},
        weighted_metrics={"label": ["sparse_categorical_crossentropy"]},
    )
    return model


def run(strategy):
    keras.utils.set_random_seed(2)
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(53, 12)).astype("float32")
    y = np.argmax(x[:, :3], axis=1).astype("float32")
    x_train, y_train, x_val, y_val = x[:37], y[:37], x[37:], y[37:]
    sample_weight = np.ones(shape=(len(y_train),))
    sample_weight[y_train == 2] = 2.0
    results = {}

    with scope(strategy):
        model = get_compiled_model()
    history = model.fit(x_train, y_train, batch_size=8, epochs=2, validation_data=(x_val, y_val))
    results["arrays"] = history.history
    results["evaluate"] = model.evaluate(x_val, y_val, batch_size=8)
    results["predict"] = model.predict(x_val[:3])
    class_weight = {0: 1.0, 1: 1.0, 2: 2.0}
    history = model.fit(x_train, y_train, class_weight=class_weight, batch_size=8, epochs=1)
    results["class_weight"] = history.history
    history = model.fit(x_train, y_train, sample_weight=sample_weight, batch_size=8, epochs=1)
    results["sample_weight"] = history.history
    history = model.fit(x_train, y_train, batch_size=8, validation_split=0.2, epochs=2)
    results["validation_split"] = history.history
    train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train, sample_weight))
    train_dataset = train_dataset.shuffle(buffer_size=64).batch(8)
    val_dataset = tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(8)
    history = model.fit(train_dataset, epochs=2, validation_data=val_dataset, validation_steps=1)
    results["dataset"] = history.history
    history = model.fit(ExamplePyDataset(x_train, y_train, batch_size=8), epochs=2)
    results["PyDataset"] = history.history
    results["weights"] = model.get_weights()

    with scope(strategy):
        two_headed = get_two_headed_model()
    img_data = rng.uniform(size=(37, 8, 8, 3)).astype("float32")
    ts_data = rng.uniform(size=(37, 7, 4)).astype("float32")
    score_targets = rng.uniform(size=(37, 1)).astype("float32")
    class_targets = rng.uniform(size=(37, 5)).astype("float32")
    history = two_headed.fit(
        {"img_input": img_data, "ts_input": ts_data},
        [score_targets, class_targets],
        batch_size=12,
        epochs=2,
    )
    results["two heads"] = history.history
    results["two heads' weights"] = two_headed.get_weights()

    with scope(strategy):
        with_dicts = get_model_with_dicts()
    history = with_dicts.fit(
        x_train,
        {"score": x_train[:, :1], "label": y_train},
        sample_weight={"score": sample_weight, "label": sample_weight},
        batch_size=8,
        epochs=2,
        validation_data=(x_val, {"score": x_val[:, :1], "label": y_val}),
    )
    results["dicts"] = history.history
    results["dicts' predictions"] = with_dicts.predict(x_val)
    results["dicts' logs"] = with_dicts.evaluate(
        x_val, {"score": x_val[:, :1], "label": y_val}, return_dict=True
    )
    return results
