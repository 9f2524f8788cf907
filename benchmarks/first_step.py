"""What the first step costs: the time until training really begins.

    python benchmarks/first_step.py                    # about twenty minutes on two cores
    python benchmarks/first_step.py --layers 10 --rounds 2

Each measurement is a process of its own, since TensorFlow is quicker the second time: the first
step of a convolutional network with synchronized batch normalizations, by Keras alone, on one
device and on two replicas, there also with a train_step of its own, whose first step is checked;
and an epoch of a small dataset, by Keras alone and on one device. In turn, A B C A B C; the ratios
are of medians.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import kerasdist

OWN_STEP = "two replicas, own step"
ARMS = ("Keras alone", "one device", "two replicas", OWN_STEP)
SIZE, CHANNELS, BATCH_SIZE = 8, 8, 32


class OwnStep(keras.Model):
    """Trains as Keras' own step does."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def main() -> None:
    """Parses the flags, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="*", default=[0, 10, 20, 40])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.measure:
        what, arm = flags.measure
        print(json.dumps(epoch(arm) if what == "epoch" else first_step(int(what), arm)))
        return
    print("First step, s (median); two replicas over one device, and an own step over Keras':")
    for number in flags.layers:
        report(f"{number} batch normalizations", str(number), ARMS, flags.rounds, bases=(1, 2))
    print("An epoch of 1,000 examples, s, and over Keras alone:")
    report("the first, with the start of `fit`", "epoch", ARMS[:2], 2 * flags.rounds)


def report(title, what, arms, rounds, *, bases=(0,)) -> None:
    """Measures the arms in turn, and prints medians and how arms compare with those before them.

    Args:
        title: What is measured, in words.
        what: The argument of `measure`.
        arms: Their names.
        rounds: How many times each is measured.
        bases: The positions of arms with which the next one is compared.
    """
    secs: dict[str, list] = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm in arms:
            secs[arm].append(measure(what, arm))
    medians = {arm: statistics.median(times) for arm, times in secs.items()}
    numbers = ", ".join(f"{arm} {median:.2f}" for arm, median in medians.items())
    ratios = ", ".join(ratio(secs[arms[base]], secs[arms[base + 1]]) for base in bases)
    print(f"  {title}: {numbers}; {ratios}")


def ratio(theirs: list, ours: list) -> str:
    """Returns the ratio of the medians, with the smallest and the largest of a round."""
    spread = [our / their for their, our in zip(theirs, ours, strict=True)]
    middle = statistics.median(ours) / statistics.median(theirs)
    return f"{middle:.2f} [{min(spread):.2f}, {max(spread):.2f}]"


def measure(what, arm) -> float:
    """Returns the seconds that a new process takes."""
    command = [sys.executable, __file__, "--measure", what, arm]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return json.loads(result.stdout.splitlines()[-1])


def first_step(num_layers: int, arm: str) -> float:
    """Returns the seconds of a `fit` of one step, the making of the model left out."""
    with scope(arm):
        x = inputs = keras.Input((SIZE, SIZE, CHANNELS))
        for _ in range(num_layers):
            x = keras.layers.Conv2D(CHANNELS, 3, padding="same", use_bias=False)(x)
            x = keras.layers.BatchNormalization(synchronized=arm.startswith("two"))(x)
            x = keras.layers.ReLU()(x)
        outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(x))
        make = OwnStep if arm == OWN_STEP else keras.Model
        model = make(inputs, outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss)
    images = np.ones((BATCH_SIZE, SIZE, SIZE, CHANNELS), "float32")
    return timed(model, images, np.zeros(BATCH_SIZE, "int32"))


def epoch(arm: str) -> float:
    """Returns the seconds of the first epoch of a small network over 1,000 examples."""
    with scope(arm):
        model = keras.Sequential(
            [keras.Input((20,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
        )
        model.compile("adam", "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(1000, 20)).astype("float32")
    return timed(model, x, x.sum(axis=1, keepdims=True))


def timed(model, x, y) -> float:
    """Returns the seconds of one epoch."""
    start = time.perf_counter()
    model.fit(x, y, batch_size=BATCH_SIZE, verbose=0)
    return time.perf_counter() - start


def scope(arm: str):
    """Returns the scope in which a model of this arm is made."""
    if arm == "Keras alone":
        return contextlib.nullcontext()
    num_clones = 2 if arm.startswith("two") else 1
    config = kerasdist.DeploymentConfig(num_clones=num_clones, clone_on_cpu=num_clones > 1)
    return kerasdist.make_strategy(config).scope()


if __name__ == "__main__":
    main()
