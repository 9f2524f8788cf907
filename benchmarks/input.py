"""How much faster two workers are than one where preparing the data is what takes the time.

    python benchmarks/input.py                         # about five minutes
    python benchmarks/input.py --rounds 2 --width 1000 --images 1000

Every worker has a core of its own, and decodes JPEG images (`--width 500`: of 500 x 375) for a
network that does next to nothing. `2 workers, all of it` has a `filter` behind the `map`, so that
each of them has to decode every image, as all pipelines had before. To begin an epoch takes the
workers about 0.1 s together, so an epoch has to be of some seconds.
"""

import argparse
import functools
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import interleaved

from kerasdist import testing

BATCH_SIZE, SIDE, EPOCHS = 32, 96, 4
ARMS = {
    "1 worker": {"num_workers": 1, "decode_all": False},
    "2 workers": {"num_workers": 2, "decode_all": False},
    "2 workers, all of it": {"num_workers": 2, "decode_all": True},
}


def main() -> None:
    """Parses the flags, measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--width", type=int, default=500, help="pixels of a row of an image")
    parser.add_argument("--output", default="input.json")
    flags = parser.parse_args()
    rates: dict = {arm: [] for arm in ARMS}
    for index in range(flags.rounds):
        for arm in list(ARMS) if index % 2 == 0 else list(ARMS)[::-1]:
            rates[arm].append(_images_per_sec(flags.images, flags.width, **ARMS[arm]))
    base = rates["1 worker"]
    for arm, numbers in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(numbers, base, strict=True)]
        print(
            f"{arm:<24} {statistics.median(numbers):7.0f} images/s  "
            f"{statistics.median(ratios):5.2f} [{min(ratios):.2f}, {max(ratios):.2f}]",
            flush=True,
        )
    interleaved.write(flags.output, images_per_sec=rates)


def _images_per_sec(num_images: int, width: int, *, num_workers: int, decode_all: bool) -> float:
    program = functools.partial(_fit, num_images, width, decode_all)
    chief, *_ = testing.run_cluster(program, num_workers=num_workers, timeout_secs=300)
    return chief.value


def _fit(num_images: int, width: int, decode_all: bool) -> float:
    """Trains; returns how many images there were in a second of the median epoch."""
    import kerasdist

    core = kerasdist.Cluster.from_env().worker_index or 0
    os.sched_setaffinity(0, {core})  # Before TensorFlow makes its threads.
    import keras

    with kerasdist.make_strategy().scope():
        model = keras.Sequential([keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    clock = _Epochs(keras)
    data = _dataset(num_images, width, decode_all)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[clock.callback])
    return num_images / statistics.median(clock.secs[1:])


def _dataset(num_images: int, width: int, decode_all: bool):
    import numpy as np
    import tensorflow as tf

    # A smooth image is decoded in a fraction of the time that a photograph takes.
    noise = np.random.default_rng(0).normal(128, 50, [8, 24, 32, 3])
    grain = np.random.default_rng(1).normal(0, 12, [8, width * 3 // 4, width, 3])
    pixels = tf.clip_by_value(tf.image.resize(noise, [width * 3 // 4, width]) + grain, 0, 255)
    encoded = [tf.io.encode_jpeg(each).numpy() for each in tf.cast(pixels, tf.uint8)]

    def decode(index):
        image = tf.io.decode_jpeg(tf.gather(encoded, index % len(encoded)), channels=3)
        image = tf.image.resize(image, [SIDE, SIDE]) / 255
        return image, tf.reduce_mean(image, axis=[0, 1])[:1]

    data = tf.data.Dataset.range(num_images).shuffle(num_images, seed=1)
    data = data.map(decode, num_parallel_calls=1)
    if decode_all:
        data = data.filter(lambda image, label: True)
    return data.batch(BATCH_SIZE).prefetch(2)


class _Epochs:
    """Notes how long each epoch takes, in `secs`, by a callback."""

    def __init__(self, keras):
        self.secs: list[float] = []
        self.callback = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: self._begin(),
            on_epoch_end=lambda epoch, logs: self.secs.append(time.perf_counter() - self._start),
        )

    def _begin(self) -> None:
        self._start = time.perf_counter()


if __name__ == "__main__":
    main()
