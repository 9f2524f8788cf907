"""What Keras keeps for a thread is found where it was."""

from concurrent.futures import ThreadPoolExecutor

import keras
from keras.src.random import seed_generator

from kerasdist.private import (
    keras_threads,
)


def test_a_thread_inherits_the_settings_of_another():
    keras.config.set_dtype_policy("mixed_bfloat16")
    state = dict(keras_threads.thread_state())
    keras.config.set_dtype_policy("float32")

    def policy():
        keras_threads.inherit(state)
        return keras.config.dtype_policy().name

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(policy).result() == "mixed_bfloat16"


def test_the_generator_of_numbers_without_a_seed_is_found():
    generator = seed_generator.global_seed_generator()

    assert keras_threads.known_global_seed_generator(keras_threads.thread_state()) is generator
