"""What the image application costs over a hand-written loop, and what its input pipeline gives.

    python benchmarks/application.py                   # about twenty minutes on two cores
    python benchmarks/application.py --only steps --nets resnet_v1_50 --rounds 3

Steps: nets of models/ on two clones under `fit`, over the same nets in the loop of TensorFlow's
guide under TensorFlow's own strategy. First step: a process each, on two clones over one device,
the making of the net left out. Input: images/s that `models.input_pipeline` makes of JPEG files of
500 x 375 pixels, beside those that one device trains.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import interleaved
import keras
import networks
import numpy as np
import tensorflow as tf

import kerasdist
from models import datasets, input_pipeline, nets, preprocessing

STEPS = ("resnet_v1_50", "inception_v3")
FIRST_STEPS = ("resnet_v1_50", "mobilenet_v2", "inception_v3")
# Small ones: what is compared does not depend on them, and they spare time.
IMAGE_SIZE, BATCH_SIZE, NUM_CLASSES = 128, 8, 100
PARTS = ("steps", "first", "input")
CPUS = ("CPU:0", "CPU:1")


def main() -> None:
    """Parses the flags, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="default: all")
    parser.add_argument("--nets", nargs="*", choices=nets.NETS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first_step_of", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.first_step_of:
        print(json.dumps(first_step(*flags.first_step_of)))
        return
    parts = [flags.only] if flags.only else PARTS
    if "steps" in parts:
        report_steps(flags.nets or STEPS, flags.rounds)
    if "first" in parts:
        report_first_steps(flags.nets or FIRST_STEPS, flags.rounds)
    if "input" in parts:
        report_input(flags.nets or STEPS)


def report_steps(names, rounds) -> None:
    """Prints the time of a step of `fit` over that of a hand-written loop, on two clones."""
    strategy = make_strategy(2)
    for name in names:
        print(f"\n{name} on two clones: time / hand-written loop", flush=True)
        stock = tf.distribute.MirroredStrategy(list(CPUS), tf.distribute.ReductionToOneDevice())
        arms = {
            "hand-written loop": hand_loop(stock, name),
            "the same again (A/A)": hand_loop(stock, name),
            "fit": fit(strategy, name),
        }
        ratios, _ = interleaved.compare(arms, rounds=rounds, short=1, long=4)
        print(*ratios, sep="\n", flush=True)
        keras.utils.clear_session()


def hand_loop(strategy, name):
    """Returns a function that runs the loop of TensorFlow's guide."""
    return networks.hand_loop(strategy, make_model(strategy, name), batches())


def fit(strategy, name):
    """Returns a function that runs stock `fit`."""
    model = make_model(strategy, name)
    data = batches()
    return lambda num_steps: model.fit(data, steps_per_epoch=num_steps, verbose=0, shuffle=False)


def make_model(strategy, name):
    """Returns a net, compiled as the application does it."""
    with strategy.scope():
        model = nets.build(name, num_classes=NUM_CLASSES, weight_decay=4e-5, image_size=IMAGE_SIZE)
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, weighted_metrics=["accuracy"])
    return model


def batches() -> tf.data.Dataset:
    """Returns one batch again and again."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(BATCH_SIZE, IMAGE_SIZE, IMAGE_SIZE, 3)).astype("float32")
    labels = np.eye(NUM_CLASSES, dtype="float32")[rng.integers(NUM_CLASSES, size=BATCH_SIZE)]
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


def make_strategy(num_clones: int) -> tf.distribute.Strategy:
    """Returns the strategy of the application for so many clones on the CPU."""
    config = kerasdist.DeploymentConfig(num_clones=num_clones, clone_on_cpu=num_clones > 1)
    return kerasdist.make_strategy(config)


def report_first_steps(names, rounds) -> None:
    """Prints the time to the end of the first step on two clones over that on one device."""
    print("\nFirst step, s (median), two clones / one device:", flush=True)
    for name in names:
        secs: dict[str, list[float]] = {"1": [], "2": []}
        for _ in range(rounds):
            for num_clones, times in secs.items():
                command = [sys.executable, __file__, "--first_step_of", name, num_clones]
                result = subprocess.run(
                    command, capture_output=True, text=True, check=True, timeout=900
                )
                times.append(json.loads(result.stdout.splitlines()[-1]))
        ratios = [two / one for one, two in zip(secs["1"], secs["2"], strict=True)]
        one, two = (statistics.median(times) for times in secs.values())
        spread = f"[{min(ratios):.2f}, {max(ratios):.2f}]"
        print(f"{name:<28} {two / one:5.2f}  {spread}  {one:.1f} s, {two:.1f} s", flush=True)


def first_step(name: str, num_clones: str) -> float:
    """Returns the seconds of a `fit` of one step, the making of the net left out."""
    model = make_model(make_strategy(int(num_clones)), name)
    start = time.perf_counter()
    model.fit(batches(), steps_per_epoch=1, verbose=0, shuffle=False)
    return time.perf_counter() - start


def report_input(names) -> None:
    """Prints images/s of the input pipeline, and those that one device trains."""
    with tempfile.TemporaryDirectory(prefix="kerasdist_") as folder:
        write_images(Path(folder))
        dataset = datasets.load("folder", split="train", data_dir=folder)
        print("\nimages/s: input pipeline, training on one device", flush=True)
        for name in names:
            net = nets.find(name)
            made = rate_of_input(dataset, net)
            trained = rate_of_training(name)
            print(f"{name:<28} {made:7.0f} {trained:7.1f}  ({net.preprocessing})", flush=True)


def write_images(folder: Path, count: int = 200) -> None:
    """Writes pictures of 500 x 375 pixels, smooth ones as photographs are."""
    rng = np.random.default_rng(0)
    (folder / "pictures").mkdir()
    for number in range(count):
        coarse = rng.uniform(0, 255, size=(12, 16, 3))
        picture = tf.cast(tf.image.resize(coarse, (375, 500)), tf.uint8)
        (folder / f"pictures/{number:04d}.jpg").write_bytes(tf.io.encode_jpeg(picture).numpy())


def rate_of_input(dataset, net) -> float:
    """Returns the images/s that come out of the pipeline for training."""
    pipeline = input_pipeline.train_batches(
        dataset,
        preprocess=preprocessing.find(net.preprocessing),
        image_size=net.image_size,
        labels_offset=0,
        global_batch_size=32,
        num_threads=tf.data.AUTOTUNE,
        seed=0,
    )
    start, count = None, 0
    for images, _ in pipeline.repeat(4):
        if start is None:  # The first batch waits for the shuffle buffer.
            start = time.perf_counter()
        else:
            count += len(images)
    return count / (time.perf_counter() - start)


def rate_of_training(name) -> float:
    """Returns the images/s of `fit` on one device, after the first steps."""
    run = fit(make_strategy(1), name)
    run(2)
    start = time.perf_counter()
    run(5)
    return 5 * BATCH_SIZE / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
