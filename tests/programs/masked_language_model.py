"""In the manner of Keras' example of a masked language model: a loss per word, weights of words.

The example's train_step differentiates the losses of all words, not their mean: a sum over the
batch, as `run_as_published` does it. `run` says that it is one of the global batch.
"""

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.programs.scope import scope

VOCABULARY, LENGTH, DIM = 20, 6, 8
MASK_TOKEN = VOCABULARY - 1

loss_fn = keras.losses.SparseCategoricalCrossentropy(reduction=None)


class MaskedLanguageModel(keras.Model):
    def __init__(self, *args, total=lambda losses: losses, **kwargs):
        super().__init__(*args, **kwargs)
        self.total = total
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def train_step(self, inputs):
        if len(inputs) == 3:
            features, labels, sample_weight = inputs
        else:
            features, labels = inputs
            sample_weight = None
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            loss = loss_fn(labels, predictions, sample_weight=sample_weight)
            total = self.total(loss)
        trainable_vars = self.trainable_variables
        gradients = tape.gradient(total, trainable_vars)
        self.optimizer.apply_gradients(zip(gradients, trainable_vars, strict=True))
        self.loss_tracker.update_state(loss, sample_weight=sample_weight)
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


def create_masked_language_model(total, dropout):
    inputs = keras.Input((LENGTH,), dtype="int64")
    word_embeddings = keras.layers.Embedding(VOCABULARY, DIM, name="word_embedding")(inputs)
    positions = keras.layers.Embedding(LENGTH, DIM, name="position_embedding")
    position_embeddings = positions(keras.ops.arange(start=0, stop=LENGTH, step=1))
    embeddings = word_embeddings + position_embeddings
    attention = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    output = keras.layers.Dropout(dropout)(attention(embeddings, embeddings, embeddings))
    output = keras.layers.LayerNormalization(epsilon=1e-6)(embeddings + output)
    outputs = keras.layers.Dense(VOCABULARY, activation="softmax", name="mlm_cls")(output)
    model = MaskedLanguageModel(inputs, outputs, name="masked_bert_model", total=total)
    model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001))
    return model


class MaskedTextGenerator(keras.callbacks.Callback):
    def __init__(self, sample_tokens):
        super().__init__()
        self.sample_tokens = sample_tokens
        self.probabilities = []

    def on_epoch_end(self, epoch, logs=None):
        prediction = self.model.predict(self.sample_tokens)
        masked_index = np.where(self.sample_tokens == MASK_TOKEN)
        self.probabilities.append(prediction[masked_index])


def get_masked_input_and_labels(encoded_texts, rng):
    inp_mask = rng.random(encoded_texts.shape) < 0.3
    inp_mask[:, 1] = True
    labels = np.where(inp_mask, encoded_texts, -1)
    encoded_texts_masked = np.where(inp_mask, MASK_TOKEN, encoded_texts)
    sample_weights = np.ones(labels.shape)
    sample_weights[labels == -1] = 0
    return encoded_texts_masked, np.copy(encoded_texts), sample_weights


def train(strategy, total, *, comparable):
    keras.utils.set_random_seed(17)
    rng = np.random.default_rng(0)
    x, y, sample_weights = get_masked_input_and_labels(rng.integers(1, 19, size=(37, LENGTH)), rng)
    dataset = tf.data.Dataset.from_tensor_slices((x, y, sample_weights))
    dataset = dataset.shuffle(1000).batch(8)
    with scope(strategy):
        model = create_masked_language_model(total, dropout=0.0 if comparable else 0.1)
    generator = MaskedTextGenerator(x[:1])
    history = model.fit(dataset, epochs=2, callbacks=[generator])
    return {
        "history": history.history,
        "probabilities": generator.probabilities,
        "weights": model.get_weights(),
    }


def run(strategy, *, comparable=False):
    return train(strategy, kerasdist.global_sum, comparable=comparable)


def run_as_published(strategy, *, comparable=False):
    return train(strategy, lambda losses: losses, comparable=comparable)
