"""The nets against slim's own: the same checkpoint gives the same logits and the same decay."""

import gc
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import nets, weights
from models.exports import slim_checkpoint
from models.nets import auxiliary
from tests.slim import legacy
from tests.slim import nets as of_slim

pytestmark = legacy.needs_slim

# Height and width of the images, and what slim's net needs to be told about them.
SMALL = {
    "cifarnet": (32, {}),
    "inception_v1": (64, {"global_pool": True}),
    "lenet": (28, {}),
    "mobilenet_v1_025": (64, {}),
    "resnet_v2_50": (64, {}),
}
# Of other kinds, or larger. Inception-ResNet v2 alone has weight decay of biases.
LARGER = {
    "alexnet_v2": (224, {}),
    "inception_resnet_v2": (299, {}),
    "inception_v2": (64, {}),
    "inception_v3": (299, {}),
    "mobilenet_v2_035": (64, {}),
    "resnet_v1_50": (64, {}),
}
# More of the same layers.
OTHERS = {
    "inception_v4": (299, {}),
    "mobilenet_v1": (64, {}),
    "mobilenet_v1_050": (64, {}),
    "mobilenet_v1_075": (64, {}),
    "mobilenet_v2": (64, {}),
    "mobilenet_v2_140": (64, {}),
    "overfeat": (231, {}),
    "resnet_v1_101": (64, {}),
    "resnet_v1_152": (64, {}),
    "resnet_v1_200": (64, {}),
    "resnet_v2_101": (64, {}),
    "resnet_v2_152": (64, {}),
    "resnet_v2_200": (64, {}),
    "vgg_16": (224, {}),
    "vgg_19": (224, {}),
    "vgg_a": (224, {}),
}
COMPARED = SMALL | LARGER | OTHERS


@pytest.fixture(autouse=True)
def _forget_the_net(tmp_path):
    yield
    shutil.rmtree(tmp_path)
    keras.utils.clear_session()
    gc.collect()  # VGG-16 has half a gigabyte of weights, on either side.


def test_every_net_with_the_layers_of_slim_is_compared():
    assert set(COMPARED) == {name for name, net in nets.NETS.items() if net.has_slims_layers}
    assert set(nets.NETS) <= set(legacy.load("nets.nets_factory").networks_map)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.thorough] * (name not in SMALL)
            + [pytest.mark.exhaustive] * (name in OTHERS),
        )
        for name in COMPARED
    ],
)
def test_a_checkpoint_of_slim_gives_the_logits_of_slim_and_comes_back(name, tmp_path):
    size, arguments = COMPARED[name]
    channels = nets.NETS[name].channels
    draw = np.random.default_rng(0)
    images = draw.uniform(-1, 1, [2, size, size, channels]).astype("float32")
    theirs = of_slim.compute(name, images, tmp_path, weight_decay=0.01, **arguments)

    model = nets.build(name, num_classes=of_slim.NUM_CLASSES, weight_decay=0.01, image_size=size)
    weights.start(model, theirs.checkpoint)

    assert len(model.weights) == len(tf.train.list_variables(theirs.checkpoint))
    assert float(sum(model.losses)) == pytest.approx(float(theirs.decay), rel=1e-5)
    outputs = model(images, training=False)
    if isinstance(model, auxiliary.WithAuxiliary):
        outputs, second = outputs
        check(second, theirs.auxiliary)
    check(outputs, theirs.logits)

    slim_checkpoint.write(tmp_path / "exported", auxiliary.classifier_of(model), step=7)
    exported = read(str(tmp_path / "exported"))
    assert exported.pop("global_step") == 7
    kept = {key: value for key, value in read(theirs.checkpoint).items() if "/AuxL" not in key}
    assert exported.keys() == kept.keys()
    for key, value in kept.items():
        np.testing.assert_array_equal(exported[key], value)


def test_slim_restores_what_is_exported(tmp_path):
    name, size = "mobilenet_v1_025", 64
    images = np.random.default_rng(0).uniform(-1, 1, [2, size, size, 3]).astype("float32")
    model = nets.build(name, num_classes=of_slim.NUM_CLASSES, weight_decay=0.0, image_size=size)
    slim_checkpoint.write(tmp_path / "exported", model, step=7)

    v1, slim = tf.compat.v1, legacy.load("tf_slim")
    factory = legacy.load("nets.nets_factory")
    with legacy.session() as session:
        logits, _ = factory.get_network_fn(name, of_slim.NUM_CLASSES)(tf.constant(images))
        step = v1.train.get_or_create_global_step()
        saver = v1.train.Saver([*slim.get_model_variables(), step])
        saver.restore(session, tf.train.latest_checkpoint(str(tmp_path / "exported")))
        found, restored_step = session.run([logits, step])

    assert restored_step == 7
    check(model(images, training=False), found)


def read(checkpoint):
    reader = tf.train.load_checkpoint(checkpoint)
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


def check(ours, theirs):
    assert np.all(np.isfinite(theirs))
    assert np.std(theirs) > 1e-3 * np.max(np.abs(theirs))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.max(np.abs(theirs)))
