"""In the manner of the examples of text classification: TextVectorization adapted to a dataset.

The vectorization runs in the pipeline; at the end, a model of strings has it inside.
"""

import re
import string

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import epsilon, scope

WORDS = ["good", "bad", "film", "plot", "actor", "great", "awful", "the", "and", "was"]


def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    stripped_html = tf.strings.regex_replace(lowercase, "<br />", " ")
    return tf.strings.regex_replace(stripped_html, f"[{re.escape(string.punctuation)}]", "")


def reviews(num_examples, seed):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(3, 9))) for _ in range(num_examples)]
    labels = [int("good" in text or "great" in text) for text in texts]
    return tf.data.Dataset.from_tensor_slices((texts, labels))


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(45)
    raw_train_ds = reviews(37, seed=0).shuffle(64, seed=42).batch(8)
    raw_val_ds = reviews(11, seed=1).batch(8)
    vectorize_layer = keras.layers.TextVectorization(
        standardize=custom_standardization,
        max_tokens=12,
        output_mode="int",
        output_sequence_length=8,
    )
    vectorize_layer.adapt(raw_train_ds.map(lambda x, y: x))

    def vectorize_text(text, label):
        return vectorize_layer(tf.expand_dims(text, -1)), label

    train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(buffer_size=10)
    val_ds = raw_val_ds.map(vectorize_text).cache().prefetch(buffer_size=10)
    dropout = 0.0 if comparable else 0.5
    with scope(strategy):
        model = keras.Sequential(
            [
                keras.layers.Embedding(12, 8),
                keras.layers.Dropout(dropout),
                keras.layers.Conv1D(8, 3, padding="valid", activation="relu", strides=2),
                keras.layers.GlobalMaxPooling1D(),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(
            loss=keras.losses.BinaryCrossentropy(),
            optimizer=keras.optimizers.Adam(epsilon=epsilon(comparable)),
            metrics=[keras.metrics.BinaryAccuracy(threshold=0.5)],
        )
    history = model.fit(train_ds, validation_data=val_ds, epochs=3)
    with scope(strategy):
        export_model = keras.Sequential([keras.Input((1,), dtype="string"), vectorize_layer, model])
        export_model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
    scores = export_model.evaluate(raw_val_ds.map(lambda x, y: (tf.expand_dims(x, -1), y)))
    examples = tf.constant([["The film was great!"], ["the plot was awful"]])
    return {
        "history": history.history,
        "scores": scores,
        "predictions": export_model.predict(examples),
        "weights": model.get_weights(),
    }
