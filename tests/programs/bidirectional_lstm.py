"""In the manner of Keras' examples of sequence classification: Embedding, bidirectional LSTMs.

Arrays with the default shuffle, validation data; the last batch has 1 example.
"""

import keras
import numpy as np

from tests.programs.scope import scope

MAX_FEATURES, MAX_LEN = 30, 9


def run(strategy):
    keras.utils.set_random_seed(34)
    rng = np.random.default_rng(0)
    sentences = [rng.integers(1, MAX_FEATURES, size=length) for length in rng.integers(2, 12, 57)]
    y = np.array([int(words.mean() > 15) for words in sentences])
    x = keras.utils.pad_sequences(sentences, maxlen=MAX_LEN)
    x_train, y_train, x_val, y_val = x[:33], y[:33], x[33:], y[33:]
    with scope(strategy):
        inputs = keras.Input(shape=(None,), dtype="int32")
        x = keras.layers.Embedding(MAX_FEATURES, 8)(inputs)
        x = keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True))(x)
        x = keras.layers.Bidirectional(keras.layers.LSTM(4))(x)
        outputs = keras.layers.Dense(1, activation="sigmoid")(x)
        model = keras.Model(inputs, outputs)
        model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
    history = model.fit(x_train, y_train, batch_size=8, epochs=2, validation_data=(x_val, y_val))
    return {
        "history": history.history,
        "predictions": model.predict(x_val, batch_size=23),
        "one sentence": model.predict(x_val[:1, -4:]),
        "weights": model.get_weights(),
    }
