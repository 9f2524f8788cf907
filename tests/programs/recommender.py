"""In the manner of Keras' example of collaborative filtering: embeddings of users and movies.

A subclassed model built by `fit`, two columns of integers as data, tensordot of the embeddings.
"""

import keras
import numpy as np

from tests.programs.scope import scope

NUM_USERS, NUM_MOVIES, EMBEDDING_SIZE = 12, 20, 4


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        self.user_embedding = keras.layers.Embedding(
            num_users,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-6),
        )
        self.user_bias = keras.layers.Embedding(num_users, 1)
        self.movie_embedding = keras.layers.Embedding(
            num_movies,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-6),
        )
        self.movie_bias = keras.layers.Embedding(num_movies, 1)

    def call(self, inputs):
        user_vector = self.user_embedding(inputs[:, 0])
        user_bias = self.user_bias(inputs[:, 0])
        movie_vector = self.movie_embedding(inputs[:, 1])
        movie_bias = self.movie_bias(inputs[:, 1])
        dot_user_movie = keras.ops.sum(user_vector * movie_vector, axis=1, keepdims=True)
        x = dot_user_movie + user_bias + movie_bias
        return keras.ops.nn.sigmoid(x)


def run(strategy):
    keras.utils.set_random_seed(46)
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, NUM_USERS, 53), rng.integers(0, NUM_MOVIES, 53)], axis=1)
    y = rng.uniform(size=53)
    with scope(strategy):
        model = RecommenderNet(NUM_USERS, NUM_MOVIES, EMBEDDING_SIZE)
        model.compile(
            loss=keras.losses.BinaryCrossentropy(),
            optimizer=keras.optimizers.Adam(learning_rate=0.001),
        )
    history = model.fit(
        x=x[:45], y=y[:45], batch_size=8, epochs=3, verbose=1, validation_data=(x[45:], y[45:])
    )
    user_movie_array = np.stack([np.full(NUM_MOVIES, 3), np.arange(NUM_MOVIES)], axis=1)
    ratings = model.predict(user_movie_array).flatten()
    return {
        "history": history.history,
        "ratings": ratings,
        "weights": model.get_weights(),
    }
