"""Our trainer against the parts of slim's: from one checkpoint, the same weights and averages."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from models import learning_rates, nets, train, weights
from models.datasets import slim_records
from models.nets import auxiliary, slim_names
from tests.models.optimizers.test_optimizers import OF_TENSORFLOW_1
from tests.slim import legacy, trainer
from tests.slim import nets as of_slim

pytestmark = legacy.needs_slim

NUM_EXAMPLES = 16  # As many as a step has: so each step has all of them, in any order.
# Names of datasets whose records are gray or colored, with as many classes.
DATASETS = {1: "mnist", 3: "cifar10"}
LABELS = np.arange(NUM_EXAMPLES) % of_slim.NUM_CLASSES
# Layers whose gradients are multiplied, and the size of the images.
NETS = {
    "cifarnet": ("fc4", 32),
    "inception_v3": ("Mixed_7c/Branch_0/Conv2d_0a_1x1", 139),
    "lenet": ("fc4", 12),
    "mobilenet_v1_025": ("Conv2d_13_pointwise", 64),
    "mobilenet_v2_035": ("Conv_1", 64),
    "resnet_v1_50": ("block4/unit_3/bottleneck_v1/conv1", 64),
}
KINDS = ("weights", "biases", "BatchNorm/beta", "BatchNorm/gamma")
BOUND = 1e-5  # Of the largest change in a variable.
IN_QUICK_PART = {"momentum", "rmsprop"}  # Those that Keras has with other steps.


@pytest.fixture
def in_float64(monkeypatch):
    """Lets both compute in float64.

    The many layers of a net multiply what rounding changes: in float32 slim's own MobileNet v1, of
    weights that differ in their last bit, has other weights within five steps.
    """
    legacy.with_default(monkeypatch, "batch_norm", fused=False)  # The kernel is of float32.
    # Slim weighs its losses in float32.
    monkeypatch.setattr(auxiliary, "WEIGHT", float(np.float32(auxiliary.WEIGHT)))
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * (name not in IN_QUICK_PART))
        for name in OF_TENSORFLOW_1
    ],
)
def test_each_optimizer_trains_as_that_of_slim(optimizer, tmp_path, monkeypatch):
    check("lenet", tmp_path, monkeypatch, optimizer=optimizer)


def test_two_clones_train_as_those_of_slim(tmp_path, monkeypatch):
    check("lenet", tmp_path, monkeypatch, num_clones=2)


@pytest.mark.parametrize(
    "name",
    [
        "mobilenet_v1_025",
        pytest.param("resnet_v1_50", marks=pytest.mark.thorough),
        *(
            pytest.param(name, marks=[pytest.mark.thorough, pytest.mark.exhaustive])
            for name in ("inception_v3", "mobilenet_v2_035")
        ),
    ],
)
def test_nets_train_as_those_of_slim(name, tmp_path, monkeypatch, in_float64):
    # TensorFlow's RMSProp has its decay, and our clipping the norms, in float32 nevertheless.
    check(
        name,
        tmp_path,
        monkeypatch,
        optimizer="sgd",
        clip_gradient_norm=0.0,
        max_number_of_steps=5,
    )


@pytest.mark.thorough
def test_cifarnet_trains_as_that_of_slim(tmp_path, monkeypatch):
    # TensorFlow normalizes local responses in float32 only.
    check("cifarnet", tmp_path, monkeypatch, max_number_of_steps=5)


@pytest.mark.parametrize("decay_type", ["exponential", "polynomial"])
def test_the_learning_rate_of_each_step_is_that_of_slim(decay_type):
    values = flags.FlagValues()
    learning_rates.define_flags(values)
    flags.DEFINE_integer("batch_size", 100, "Per clone.", flag_values=values)
    values(["", f"--learning_rate_decay_type={decay_type}", "--num_epochs_per_decay=2"])
    # As slim divides, every 58 / 3 steps.
    schedule = learning_rates.build(values, num_examples=2900, num_to_aggregate=3)
    # A graph, as in training: it multiplies by the inverse where Python divides by 58 / 3.
    ours = tf.function(lambda step: schedule(step))
    steps = [tf.constant(step, tf.int64) for step in range(785)]

    np.testing.assert_array_equal(
        [ours(step) for step in steps], slims_rates(decay_type, 58 / 3, len(steps))
    )


def test_moving_variances_of_slim_are_of_one_number_less():
    images = np.random.default_rng(0).normal(size=(2, 3, 3, 4)).astype("float32")
    layer = keras.layers.BatchNormalization(momentum=0.9)
    layer(images, training=True)

    slim = legacy.load("tf_slim")
    with legacy.session() as session:
        output = slim.batch_norm(tf.constant(images), decay=0.9, updates_collections=None)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(output)
        mean, variance = map(session.run, slim.get_model_variables("BatchNorm/moving_"))

    np.testing.assert_allclose(layer.moving_mean, mean, atol=1e-7)
    share = 0.9  # Of its start, which is one.
    count = 2 * 3 * 3
    np.testing.assert_allclose(
        (layer.moving_variance - share) * count / (count - 1), variance - share, rtol=1e-5
    )


def slims_rates(decay_type, decay_steps, num_steps):
    of_slim = tf.compat.v1.train
    with legacy.session() as session:
        step = tf.compat.v1.placeholder(tf.int64, [])
        rate = {
            "exponential": lambda: of_slim.exponential_decay(
                0.01, step, decay_steps, 0.94, staircase=True
            ),
            "polynomial": lambda: of_slim.polynomial_decay(
                0.01, step, decay_steps, 0.0001, power=1.0, cycle=False
            ),
        }[decay_type]()
        return [session.run(rate, {step: each}) for each in range(num_steps)]


def check(name, folder, monkeypatch, *, optimizer="rmsprop", num_clones=1, **changes):
    """Trains both from one checkpoint, and compares what each training has changed."""
    legacy.never_dropping(monkeypatch)
    monkeypatch.setattr(keras.layers.Dropout, "call", lambda layer, inputs, training=False: inputs)
    layer, size = NETS[name]
    scaled = [slim_names.name_of(name, f"{layer}/{kind}") for kind in KINDS]
    settings = trainer.Settings(
        model_name=name,
        batch_size=NUM_EXAMPLES // num_clones,
        optimizer=OF_TENSORFLOW_1[optimizer],
        gradient_multipliers=dict.fromkeys(scaled, 3.0),
        num_clones=num_clones,
        **changes,
    )
    stored = write_examples(folder, name, size)
    images = (stored.astype(keras.config.floatx()) - 128) / 128  # As LeNet's preprocessing does.
    start = of_slim.compute(name, images, folder, weight_decay=0.01).checkpoint
    theirs = trainer.train(settings, images, LABELS, start=start, folder=folder)

    assert train.main(flags_of(settings, optimizer, layer, start, folder, size)) == 0

    begun = net(name, size, start)
    for averages in False, True:
        ours = net(name, size, str(folder / "run/checkpoints"), averages=averages)
        expected = net(name, size, theirs, averages=averages)
        compare(begun, ours, expected)


def write_examples(folder, name, size):
    """Writes records for our trainer; returns the images as they are stored."""
    channels = nets.NETS[name].channels
    draw = np.random.default_rng(2)
    images = draw.integers(0, 256, (NUM_EXAMPLES, size, size, channels)).astype("uint8")
    encoded = (
        slim_records.Encoded(tf.io.encode_png(image).numpy(), size, size, int(label))
        for image, label in zip(images, LABELS, strict=True)
    )
    slim_records.write(folder / f"{DATASETS[channels]}_train.tfrecord", encoded)
    return images


def flags_of(settings, optimizer, layer, start, folder, size):
    (factor,) = set(settings.gradient_multipliers.values())
    same = dataclasses.asdict(settings) | {
        "optimizer": optimizer,
        "gradient_multipliers": f"{layer}={factor}",
        "checkpoint_path": start,
        "dataset_dir": folder,
        "dataset_name": DATASETS[nets.NETS[settings.model_name].channels],
        "preprocessing_name": "lenet",  # It draws nothing.
        "train_dir": folder / "run",
        "train_image_size": size,
    }
    return [*(f"--{name}={value}" for name, value in same.items()), "--clone_on_cpu"]


def net(name, size, path, **options):
    model = nets.build(name, num_classes=of_slim.NUM_CLASSES, weight_decay=0.0, image_size=size)
    weights.start(model, path, **options)
    return model


def compare(begun, ours, theirs):
    for before, mine, other in zip(begun.weights, ours.weights, theirs.weights, strict=True):
        change = np.max(np.abs(other.numpy() - before.numpy()))
        assert change > 0, other.path
        # Each step rounds the weights themselves, too. And what is added before another batch
        # normalization has no gradient but what rounding gives.
        rounding = 3 * np.finfo(mine.dtype).eps * np.max(np.abs(other.numpy()))
        atol = BOUND * max(change, 1e-6) + rounding
        np.testing.assert_allclose(
            mine.numpy(), other.numpy(), rtol=0, atol=atol, err_msg=other.path
        )
