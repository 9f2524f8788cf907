"""In the manner of Keras' example of OCR with CTC: a layer that adds the loss, labels as an input.

The data are dicts without targets, `compile` has no loss, and a prediction model shares the layers.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

WIDTH, HEIGHT, LENGTH, NUM_CHARACTERS = 16, 8, 3, 6


class CTCLayer(keras.layers.Layer):
    def call(self, y_true, y_pred):
        batch_len = keras.ops.shape(y_true)[0]
        input_length = keras.ops.shape(y_pred)[1] * keras.ops.ones((batch_len,), dtype="int32")
        label_length = keras.ops.shape(y_true)[1] * keras.ops.ones((batch_len,), dtype="int32")
        losses = keras.ops.ctc_loss(
            keras.ops.cast(y_true, "int32"), y_pred, label_length, input_length, mask_index=0
        )
        self.add_loss(keras.ops.mean(losses))
        return y_pred


def build_model(dropout):
    input_img = keras.layers.Input(shape=(WIDTH, HEIGHT, 1), name="image", dtype="float32")
    labels = keras.layers.Input(name="label", shape=(None,), dtype="int64")
    x = keras.layers.Conv2D(4, (3, 3), activation="relu", padding="same", name="Conv1")(input_img)
    x = keras.layers.MaxPooling2D((2, 2), name="pool1")(x)
    x = keras.layers.Reshape(target_shape=(WIDTH // 2, HEIGHT // 2 * 4), name="reshape")(x)
    x = keras.layers.Dense(8, activation="relu", name="dense1")(x)
    x = keras.layers.Dropout(dropout)(x)
    x = keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True, dropout=dropout))(x)
    x = keras.layers.Dense(NUM_CHARACTERS + 1, name="dense2")(x)
    output = CTCLayer(name="ctc_loss")(labels, x)
    model = keras.models.Model(inputs=[input_img, labels], outputs=output, name="ocr_model_v1")
    model.compile(optimizer=keras.optimizers.Adam())
    return model


def encode_single_sample(img, label):
    img = tf.transpose(img, perm=[1, 0, 2])
    return {"image": img, "label": label}


def decode_batch_predictions(pred):
    input_len = np.ones(pred.shape[0]) * pred.shape[1]
    results, _ = keras.ops.ctc_decode(pred, sequence_lengths=input_len, mask_index=0)
    return keras.ops.convert_to_numpy(results[0])


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(41)
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(45, HEIGHT, WIDTH, 1)).astype("float32")
    labels = rng.integers(1, NUM_CHARACTERS + 1, size=(45, LENGTH))
    datasets = []
    for rows in (slice(0, 37), slice(37, 45)):
        dataset = tf.data.Dataset.from_tensor_slices((images[rows], labels[rows]))
        dataset = dataset.map(encode_single_sample, num_parallel_calls=tf.data.AUTOTUNE)
        datasets.append(dataset.batch(8).prefetch(buffer_size=tf.data.AUTOTUNE))
    train_dataset, validation_dataset = datasets
    early_stopping = keras.callbacks.EarlyStopping(
        monitor="val_loss", patience=2, restore_best_weights=True
    )
    with scope(strategy):
        model = build_model(0.0 if comparable else 0.25)
    history = model.fit(
        train_dataset,
        validation_data=validation_dataset,
        epochs=3,
        callbacks=[early_stopping],
    )
    prediction_model = keras.models.Model(
        model.get_layer(name="image").output, model.get_layer(name="dense2").output
    )
    decoded = []
    for batch in validation_dataset.take(1):
        preds = prediction_model.predict(batch["image"])
        decoded.append(decode_batch_predictions(preds))
    return {
        "history": history.history,
        "predictions": preds,
        "decoded": decoded,
        "weights": model.get_weights(),
    }
