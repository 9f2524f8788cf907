"""In the manner of TensorFlow's tutorial on translation with a Transformer.

Embeddings with masks, positions, cross attention, a learning-rate schedule, and a loss and an
accuracy that are ratios of sums over what is not padding. `run_as_published` has these as the
tutorial writes them: given to `compile`, they see the whole batch. `run` takes the means over the
global batch.
"""

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.programs.scope import epsilon, scope

D_MODEL = 8


def positional_encoding(length, depth):
    depth = depth / 2
    positions = np.arange(length)[:, np.newaxis]
    depths = np.arange(depth)[np.newaxis, :] / depth
    angle_rads = positions * (1 / (10000**depths))
    encoding = np.concatenate([np.sin(angle_rads), np.cos(angle_rads)], axis=-1)
    return tf.cast(encoding, dtype=tf.float32)


class PositionalEmbedding(keras.layers.Layer):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.d_model = d_model
        self.embedding = keras.layers.Embedding(vocab_size, d_model, mask_zero=True)
        self.pos_encoding = positional_encoding(length=64, depth=d_model)

    def compute_mask(self, *args, **kwargs):
        return self.embedding.compute_mask(*args, **kwargs)

    def call(self, x):
        length = tf.shape(x)[1]
        x = self.embedding(x)
        x *= tf.math.sqrt(tf.cast(self.d_model, tf.float32))
        return x + self.pos_encoding[tf.newaxis, :length, :]


class Attention(keras.layers.Layer):
    def __init__(self, dropout):
        super().__init__()
        self.mha = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4, dropout=dropout)
        self.layernorm = keras.layers.LayerNormalization()
        self.add = keras.layers.Add()

    def call(self, x, context, use_causal_mask=False):
        attn_output = self.mha(query=x, key=context, value=context, use_causal_mask=use_causal_mask)
        return self.layernorm(self.add([x, attn_output]))


class FeedForward(keras.layers.Layer):
    def __init__(self, dropout):
        super().__init__()
        self.seq = keras.Sequential(
            [
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(D_MODEL),
                keras.layers.Dropout(dropout),
            ]
        )
        self.layer_norm = keras.layers.LayerNormalization()

    def call(self, x):
        return self.layer_norm(x + self.seq(x))


class Transformer(keras.Model):
    def __init__(self, vocab_size, dropout):
        super().__init__()
        self.source_embedding = PositionalEmbedding(vocab_size, D_MODEL)
        self.encoder_attention = Attention(dropout)
        self.encoder_ffn = FeedForward(dropout)
        self.target_embedding = PositionalEmbedding(vocab_size, D_MODEL)
        self.causal_attention = Attention(dropout)
        self.cross_attention = Attention(dropout)
        self.decoder_ffn = FeedForward(dropout)
        self.final_layer = keras.layers.Dense(vocab_size)

    def call(self, inputs):
        context, x = inputs
        context = self.source_embedding(context)
        context = self.encoder_ffn(self.encoder_attention(context, context))
        x = self.target_embedding(x)
        x = self.causal_attention(x, x, use_causal_mask=True)
        x = self.decoder_ffn(self.cross_attention(x, context))
        return self.final_layer(x)


class CustomSchedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, d_model, warmup_steps=40):
        super().__init__()
        self.d_model = tf.cast(d_model, tf.float32)
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = tf.cast(step, dtype=tf.float32)
        arg1 = tf.math.rsqrt(step)
        arg2 = step * (self.warmup_steps**-1.5)
        return tf.math.rsqrt(self.d_model) * tf.math.minimum(arg1, arg2)


def losses_and_mask(label, pred):
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return loss_object(label, pred), tf.cast(label != 0, tf.float32)


def matches_and_mask(label, pred):
    pred = tf.cast(tf.argmax(pred, axis=2), label.dtype)
    return tf.cast(label == pred, tf.float32), tf.cast(label != 0, tf.float32)


def masked_loss(label, pred):
    loss, mask = losses_and_mask(label, pred)
    return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)


def masked_accuracy(label, pred):
    match, mask = matches_and_mask(label, pred)
    return tf.reduce_sum(match * mask) / tf.reduce_sum(mask)


def global_masked_loss(label, pred):
    loss, mask = losses_and_mask(label, pred)
    return kerasdist.global_mean(loss, weights=mask)


def global_masked_accuracy(label, pred):
    match, mask = matches_and_mask(label, pred)
    return kerasdist.global_mean(match, weights=mask)


global_masked_loss.__name__, global_masked_accuracy.__name__ = "masked_loss", "masked_accuracy"


def sentences(num_examples, length, seed):
    rng = np.random.default_rng(seed)
    words = rng.integers(1, 20, size=(num_examples, length))
    words[np.arange(length) >= rng.integers(2, length + 1, size=(num_examples, 1))] = 0
    return words


def train(strategy, loss, accuracy, *, comparable):
    keras.utils.set_random_seed(16)
    source, target = sentences(45, 6, seed=0), sentences(45, 7, seed=1)
    examples = ((source, target[:, :-1]), target[:, 1:])
    dataset = tf.data.Dataset.from_tensor_slices(examples)
    train_batches = dataset.take(37).shuffle(64).batch(8).prefetch(tf.data.AUTOTUNE)
    val_batches = dataset.skip(37).batch(8)
    with scope(strategy):
        transformer = Transformer(20, dropout=0.0 if comparable else 0.1)
        optimizer = keras.optimizers.Adam(
            CustomSchedule(D_MODEL), beta_1=0.9, beta_2=0.98, epsilon=epsilon(comparable)
        )
        transformer.compile(loss=loss, optimizer=optimizer, metrics=[accuracy])
    history = transformer.fit(train_batches, epochs=2, validation_data=val_batches)
    return {
        "history": history.history,
        "predictions": transformer.predict(val_batches),
        "weights": transformer.get_weights(),
    }


def run(strategy, *, comparable=False):
    return train(strategy, global_masked_loss, global_masked_accuracy, comparable=comparable)


def run_as_published(strategy, *, comparable=False):
    return train(strategy, masked_loss, masked_accuracy, comparable=comparable)
