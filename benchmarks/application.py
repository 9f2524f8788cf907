"""What the image application costs over a hand-written loop, and what its input pipeline gives.

    python benchmarks/application.py                   # about twenty minutes on two cores
    python benchmarks/application.py --only steps --nets resnet_v1_50 --rounds 3

Steps: nets of models/ on two clones under `fit`, over the same nets in the loop of TensorFlow's
guide under TensorFlow's own strategy. First step: a process each, on two clones over one device,
the making of the net left out. Input: `models.input_pipeline` beside the tf.data pipeline that one
writes by hand with the same distortions, on 1,200 JPEG of 500 x 375 pixels in TFRecords or in a
folder: a process each. Rate: what one device trains, beside it.
"""

import argparse
import functools
import json
import os
import resource
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
from models.datasets import slim_records

STEPS = ("resnet_v1_50", "inception_v3")
FIRST_STEPS = ("resnet_v1_50", "mobilenet_v2", "inception_v3")
# Small ones: what is compared does not depend on them, and they spare time.
IMAGE_SIZE, BATCH_SIZE, NUM_CLASSES = 128, 8, 100
PARTS = ("steps", "first", "input", "rate")
NUM_IMAGES, NUM_SHARDS, NUM_KINDS, NUM_EPOCHS = 1200, 20, 10, 4
CPUS = ("CPU:0", "CPU:1")


def main() -> None:
    """Parses the flags, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="default: all")
    parser.add_argument("--nets", nargs="*", choices=nets.NETS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--forms", nargs="*", choices=FORMS, default=list(FORMS))
    parser.add_argument("--alone", nargs="*", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.alone:
        what, *arguments = flags.alone
        print(json.dumps({"first": first_step, "input": epochs_of}[what](*arguments)))
        return
    parts = [flags.only] if flags.only else PARTS
    if "steps" in parts:
        report_steps(flags.nets or STEPS, flags.rounds)
    if "first" in parts:
        report_first_steps(flags.nets or FIRST_STEPS, flags.rounds)
    if "input" in parts:
        report_input(flags.nets or STEPS, flags.forms, flags.rounds)
    if "rate" in parts:
        report_rate(flags.nets or STEPS)


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
                times.append(alone("first", name, num_clones))
        ratios = [two / one for one, two in zip(secs["1"], secs["2"], strict=True)]
        one, two = (statistics.median(times) for times in secs.values())
        spread = f"[{min(ratios):.2f}, {max(ratios):.2f}]"
        print(f"{name:<28} {two / one:5.2f}  {spread}  {one:.1f} s, {two:.1f} s", flush=True)


def alone(*arguments: str):
    """Returns what a function of this program returns in a process of its own."""
    command = [sys.executable, __file__, "--alone", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return json.loads(result.stdout.splitlines()[-1])


def first_step(name: str, num_clones: str) -> float:
    """Returns the seconds of a `fit` of one step, the making of the net left out."""
    model = make_model(make_strategy(int(num_clones)), name)
    start = time.perf_counter()
    model.fit(batches(), steps_per_epoch=1, verbose=0, shuffle=False)
    return time.perf_counter() - start


def report_input(names, forms, rounds) -> None:
    """Prints what the pipeline of the application does, and the one that is written by hand."""
    print("\nInput, the application / by hand: images/s; medians of both: images/s,", flush=True)
    print("s to the first batch, s of the longest wait after it, MiB of the process at most")
    with tempfile.TemporaryDirectory(prefix="kerasdist_") as folder:
        write_images(Path(folder))
        for form in forms:
            for name in names:
                report_pipelines(folder, form, nets.find(name).preprocessing, rounds)


def report_pipelines(folder, form, kind, rounds) -> None:
    """Prints a line of `report_input`."""
    results = {arm: [] for arm in ARMS}
    for index in range(rounds):
        for arm in ARMS if index % 2 == 0 else reversed(ARMS):
            results[arm].append(alone("input", arm, form, kind, folder))
    ours, by_hand = results.values()
    ratios = [one[0] / two[0] for one, two in zip(ours, by_hand, strict=True)]
    spread = f"[{min(ratios):.2f}, {max(ratios):.2f}]"
    print(f"{form + ', ' + kind:<20} {statistics.median(ratios):5.2f}  {spread}", end="")
    for column, digits in enumerate((0, 2, 2, 0)):
        medians = (statistics.median(each[column] for each in arm) for arm in (ours, by_hand))
        print("   " + ", ".join(f"{median:.{digits}f}" for median in medians), end="")
    print(flush=True)


def write_images(folder: Path) -> None:
    """Writes pictures of 500 x 375 pixels, about as detailed as photographs, in both forms."""
    rng = np.random.default_rng(0)
    contents = []
    for _ in range(NUM_IMAGES // NUM_KINDS):
        pictures = (rng.uniform(0, 255, size=(12 * 8**scale, 16 * 8**scale, 3)) for scale in (0, 1))
        coarse, fine = (tf.image.resize(each, (375, 500)) for each in pictures)
        picture = tf.cast(0.85 * coarse + 0.15 * fine, tf.uint8)
        contents.append(tf.io.encode_jpeg(picture).numpy())
    for kind in range(NUM_KINDS):
        (folder / f"folder/{kind}").mkdir(parents=True)
        for number, content in enumerate(contents):
            (folder / f"folder/{kind}/{number:04d}.jpg").write_bytes(content)
    (folder / "records").mkdir()
    (folder / "records/labels.txt").write_text("".join(f"{i}:{i}\n" for i in range(NUM_KINDS)))
    examples = [
        slim_records.Encoded(content, 375, 500, kind)
        for content in contents
        for kind in range(NUM_KINDS)
    ]
    for shard in range(NUM_SHARDS):
        path = folder / f"records/records_train_{shard:05d}-of-{NUM_SHARDS:05d}.tfrecord"
        slim_records.write(path, examples[shard::NUM_SHARDS])


def epochs_of(arm: str, form: str, kind: str, folder: str) -> list[float]:
    """Reads some epochs; returns the numbers of `report_input`."""
    start = time.perf_counter()
    times = [start]
    for _ in ARMS[arm](Path(folder) / form, kind).take(NUM_EPOCHS * NUM_IMAGES // 32):
        times.append(time.perf_counter())
    num_images = 32 * (len(times) - 2)
    waits = np.diff(times[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [num_images / (times[-1] - times[1]), times[1] - start, float(waits.max()), peak]


def of_application(folder: Path, kind: str) -> tf.data.Dataset:
    """Returns the batches of `models.train`, with the defaults of its flags."""
    return input_pipeline.train_batches(
        datasets.load(folder.name, split="train", data_dir=str(folder)),
        preprocess=preprocessing.find(kind),
        image_size=224,
        labels_offset=0,
        global_batch_size=32,
        num_threads=4,
        num_readers=4,
        seed=0,
    )


def by_hand(folder: Path, kind: str) -> tf.data.Dataset:
    """Returns the batches of a program that was written for these files."""
    encoded, load = FORMS[folder.name](folder)
    distort = functools.partial(preprocessing.find(kind), image_size=224)

    def prepare(example):
        content, label = load(example)
        image = tf.io.decode_jpeg(content, channels=3)
        seed = tf.random.uniform([2], maxval=tf.int64.max, dtype=tf.int64)
        return distort(image, seed=seed), tf.one_hot(label, NUM_KINDS)

    prepared = encoded.repeat().map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    return prepared.batch(32).prefetch(tf.data.AUTOTUNE)


def from_records(folder: Path):
    """Returns a dataset of shuffled records, and a function that finds JPEG and label in one."""
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def load(record):
        example = tf.io.parse_single_example(record, features)
        return example["image/encoded"], example["image/class/label"]

    paths = sorted(map(str, folder.glob("*.tfrecord")))
    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    records = files.interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE
    )
    return records.shuffle(10_000), load


def from_folder(folder: Path):
    """Returns a dataset of shuffled paths, and a function that finds JPEG and label of one."""
    paths = sorted(map(str, folder.glob("*/*.jpg")))

    def load(path):
        return tf.io.read_file(path), tf.strings.to_number(
            tf.strings.split(path, os.sep)[-2], tf.int64
        )

    return tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)), load


FORMS = {"records": from_records, "folder": from_folder}
ARMS = {"application": of_application, "by hand": by_hand}


def report_rate(names) -> None:
    """Prints the images/s that one device trains."""
    print("\nimages/s of training on one device", flush=True)
    for name in names:
        print(f"{name:<28} {rate_of_training(name):7.1f}", flush=True)


def rate_of_training(name) -> float:
    """Returns the images/s of `fit` on one device, after the first steps."""
    run = fit(make_strategy(1), name)
    run(2)
    start = time.perf_counter()
    run(5)
    return 5 * BATCH_SIZE / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
