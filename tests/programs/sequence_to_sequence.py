"""In the manner of Keras' example of sequence to sequence: states handed from LSTM to LSTM.

The inference models are made from the layers of the trained one and called step by step.
"""

import keras
import numpy as np

from tests.programs.scope import scope

NUM_TOKENS, LATENT_DIM, LENGTH = 7, 6, 5


def run(strategy):
    keras.utils.set_random_seed(47)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, NUM_TOKENS, size=(2, 45, LENGTH))
    encoder_data = np.eye(NUM_TOKENS, dtype="float32")[tokens[0]]
    decoder_data = np.eye(NUM_TOKENS, dtype="float32")[tokens[1]]
    decoder_target = np.zeros_like(decoder_data)
    decoder_target[:, :-1] = decoder_data[:, 1:]
    with scope(strategy):
        encoder_inputs = keras.Input(shape=(None, NUM_TOKENS))
        encoder = keras.layers.LSTM(LATENT_DIM, return_state=True)
        _, state_h, state_c = encoder(encoder_inputs)
        encoder_states = [state_h, state_c]
        decoder_inputs = keras.Input(shape=(None, NUM_TOKENS))
        decoder_lstm = keras.layers.LSTM(LATENT_DIM, return_sequences=True, return_state=True)
        decoder_outputs, _, _ = decoder_lstm(decoder_inputs, initial_state=encoder_states)
        decoder_dense = keras.layers.Dense(NUM_TOKENS, activation="softmax")
        decoder_outputs = decoder_dense(decoder_outputs)
        model = keras.Model([encoder_inputs, decoder_inputs], decoder_outputs)
        model.compile(optimizer="rmsprop", loss="categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        [encoder_data, decoder_data],
        decoder_target,
        batch_size=8,
        epochs=2,
        validation_split=0.2,
    )
    with scope(strategy):
        encoder_model = keras.Model(encoder_inputs, encoder_states)
        state_inputs = [keras.Input(shape=(LATENT_DIM,)) for _ in range(2)]
        outputs, *states = decoder_lstm(decoder_inputs, initial_state=state_inputs)
        decoder_model = keras.Model(
            [decoder_inputs, *state_inputs], [decoder_dense(outputs), *states]
        )
    states_value = encoder_model.predict(encoder_data[:1], verbose=0)
    target_seq, decoded = decoder_data[:1, :1], []
    for _ in range(LENGTH):
        output_tokens, h, c = decoder_model.predict([target_seq, *states_value], verbose=0)
        token = int(np.argmax(output_tokens[0, -1, :]))
        decoded.append(token)
        target_seq = np.eye(NUM_TOKENS, dtype="float32")[[[token]]]
        states_value = [h, c]
    return {
        "history": history.history,
        "decoded": decoded,
        "last": output_tokens,
        "weights": model.get_weights(),
    }
