"""Nets whose layers are those of slim: names in its checkpoints, and what they compute."""

import keras
import numpy as np
import pytest

import kerasdist
from models import nets
from models.nets import slim_names

SCOPES = {
    "cifarnet": "CifarNet",
    "inception_resnet_v2": "InceptionResnetV2",
    "inception_v1": "InceptionV1",
    "inception_v2": "InceptionV2",
    "inception_v3": "InceptionV3",
    "inception_v4": "InceptionV4",
    "lenet": "LeNet",
    "mobilenet_v1": "MobilenetV1",
    "mobilenet_v2": "MobilenetV2",
}
# Names in slim's checkpoints, those that a pattern would not give among them.
NAMES = {
    "alexnet_v2": ["conv1/weights", "fc8/biases"],
    "cifarnet": ["conv1/weights", "fc3/biases", "logits/weights"],
    "inception_resnet_v2": [
        "Mixed_5b/Branch_0/Conv2d_1x1/weights",
        "Repeat/block35_10/Branch_2/Conv2d_0c_3x3/BatchNorm/moving_mean",
        "Repeat_1/block17_20/Conv2d_1x1/biases",
        "Repeat_2/block8_9/Branch_1/Conv2d_0b_1x3/weights",
        "Block8/Conv2d_1x1/weights",
        "AuxLogits/Logits/weights",
        "Logits/Logits/biases",
    ],
    "inception_v1": [
        "Mixed_5b/Branch_2/Conv2d_0a_3x3/weights",
        "Mixed_5c/Branch_2/Conv2d_0b_3x3/BatchNorm/beta",
        "Logits/Conv2d_0c_1x1/weights",
    ],
    "inception_v2": [
        "Conv2d_1a_7x7/depthwise_weights",
        "Conv2d_1a_7x7/pointwise_weights",
        "Conv2d_1a_7x7/biases",
        "Mixed_5a/Branch_1/Conv2d_1a_3x3/weights",
    ],
    "inception_v3": [
        "Mixed_5c/Branch_1/Conv_1_0c_5x5/weights",
        "Mixed_6a/Branch_1/Conv2d_1a_1x1/BatchNorm/moving_variance",
        "Mixed_7b/Branch_1/Conv2d_0b_3x1/weights",
        "Mixed_7c/Branch_1/Conv2d_0c_3x1/weights",
        "AuxLogits/Conv2d_2a_5x5/BatchNorm/beta",
        "AuxLogits/Conv2d_2b_1x1/weights",
        "Logits/Conv2d_1c_1x1/biases",
    ],
    "inception_v4": [
        "Mixed_4a/Branch_1/Conv2d_0c_7x1/weights",
        "Mixed_7d/Branch_2/Conv2d_0e_3x1/BatchNorm/beta",
        "AuxLogits/Aux_logits/biases",
        "AuxLogits/Conv2d_2a/weights",
        "Logits/Logits/weights",
    ],
    "lenet": ["conv1/weights", "fc3/biases", "fc4/weights"],
    "mobilenet_v1": [
        "Conv2d_0/weights",
        "Conv2d_13_depthwise/depthwise_weights",
        "Conv2d_13_pointwise/BatchNorm/gamma",
        "Logits/Conv2d_1c_1x1/weights",
    ],
    "mobilenet_v2": [
        "Conv/weights",
        "expanded_conv/depthwise/depthwise_weights",
        "expanded_conv_16/project/BatchNorm/gamma",
        "Conv_1/weights",
    ],
    "overfeat": ["fc6/weights"],
    "resnet_v1_50": [
        "conv1/BatchNorm/gamma",
        "block1/unit_1/bottleneck_v1/shortcut/weights",
        "block4/unit_3/bottleneck_v1/conv3/BatchNorm/moving_variance",
        "logits/biases",
    ],
    "resnet_v2_50": [
        "conv1/biases",
        "block1/unit_1/bottleneck_v2/preact/gamma",
        "block1/unit_1/bottleneck_v2/shortcut/biases",
        "block2/unit_4/bottleneck_v2/conv3/biases",
        "postnorm/moving_mean",
    ],
    "vgg_16": ["conv1/conv1_2/weights", "fc8/weights"],
}


@pytest.fixture
def build():
    def built(name, *, num_classes=3, weight_decay=0.0, **arguments):
        keras.utils.set_random_seed(0)
        return nets.build(name, num_classes=num_classes, weight_decay=weight_decay, **arguments)

    yield built
    keras.utils.clear_session()


# More of the same blocks.
DEEP = ("_101", "_152", "_200", "nasnet_large", "vgg_19")
# Large, and of layers of kinds that the others have.
LARGE = {"alexnet_v2", "inception_resnet_v2", "inception_v3", "inception_v4", "overfeat"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.thorough] * (name not in ("lenet", "mobilenet_v1"))
            + [pytest.mark.exhaustive] * (name.endswith(DEEP) or name in LARGE),
        )
        for name in NAMES
    ],
)
def test_a_checkpoint_of_slim_gives_every_variable_its_value(name, build):
    model = build(name)
    # Nothing is held: an array of one number seen at every place.
    of_slim = {
        slim_names.name_of(name, variable.path): np.broadcast_to(np.float32(0.5), variable.shape)
        for variable in model.weights
    }
    scope = SCOPES.get(name, name)
    assert {f"{scope}/{each}" for each in NAMES[name]} <= set(of_slim)
    of_slim["global_step"] = np.array(7)

    assert slim_names.are_slims(of_slim)
    report = kerasdist.warm_start(model, of_slim, rename=slim_names.RENAME)

    assert len(report.restored) == len(model.weights)
    assert report.unused == ("global_step",)
    assert {float(np.ravel(each)[-1]) for each in model.weights} == {0.5}


def test_all_widths_of_a_net_have_one_scope():
    kernel = slim_names.name_of("mobilenet_v1_050", "Conv2d_1_depthwise/kernel")
    gamma = slim_names.name_of("mobilenet_v2_140", "Conv_1.BatchNorm/gamma")

    assert kernel == "MobilenetV1/Conv2d_1_depthwise/depthwise_weights"
    assert gamma == "MobilenetV2/Conv_1/BatchNorm/gamma"


@pytest.mark.thorough
def test_inception_v3_computes_what_that_of_keras_does(build):
    theirs = keras.applications.InceptionV3(
        weights=None, input_shape=(139, 139, 3), classes=3, classifier_activation=None
    )
    ours = build("inception_v3", image_size=139)
    # Both make their convolutions in one order: slim's names say it, and the numbers of Keras'.
    pairs = zip(
        sorted(_convolutions(ours), key=lambda layer: (layer.name.startswith("L"), layer.name)),
        sorted(_convolutions(theirs), key=lambda layer: int(f"0{layer.name.partition('d_')[2]}")),
        strict=True,
    )
    for mine, other in pairs:
        mine.kernel.assign(other.kernel)
    ours.get_layer("Logits.Conv2d_1c_1x1").kernel.assign(
        theirs.layers[-1].kernel[None, None]  # Dense there, a convolution here.
    )
    images = np.random.default_rng(0).normal(size=(2, 139, 139, 3)).astype("float32")

    logits, auxiliary_logits = ours(images)

    np.testing.assert_allclose(logits, theirs(images), rtol=1e-4, atol=1e-5)
    assert auxiliary_logits.shape == (2, 3)


def _convolutions(model):
    return [
        layer
        for layer in model.layers
        if isinstance(layer, keras.layers.Conv2D) and "ogits" not in layer.name
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "theirs", "first"),
    [("mobilenet_v1", "MobileNet", "conv1"), ("mobilenet_v2", "MobileNetV2", "Conv1")],
)
def test_mobilenets_compute_what_those_of_keras_do(name, theirs, first, build):
    # An even size at every stride: there Keras' padding is TensorFlow's.
    theirs = getattr(keras.applications, theirs)(weights=None, input_shape=(64, 64, 3), classes=3)
    ours = build(name, image_size=64)
    # They have one order of layers: each net is a chain.
    for mine, other in zip(ours.weights, theirs.weights, strict=True):
        mine.assign(keras.ops.reshape(other, mine.shape))
    images = np.random.default_rng(0).normal(size=(2, 64, 64, 3)).astype("float32")

    assert theirs.get_layer(first)
    np.testing.assert_allclose(keras.ops.softmax(ours(images)), theirs(images), rtol=1e-4)


def test_every_kernel_decays_and_the_head_drops_half(build):
    model = build("alexnet_v2", weight_decay=0.1)
    kernels = [each for each in model.trainable_variables if each.name == "kernel"]

    expected = sum(0.05 * np.sum(np.square(each)) for each in kernels)
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-4)
    rates = [each.rate for each in model.layers if isinstance(each, keras.layers.Dropout)]
    assert rates == [0.5, 0.5]
    biases = {each.path: float(each[0]) for each in model.variables if each.name == "bias"}
    assert biases.pop("fc8/bias") == 0.0
    assert list(biases.values()) == pytest.approx([0.1] * len(biases))


def test_depthwise_kernels_do_not_decay_and_statistics_are_of_the_global_batch(build):
    model = build("mobilenet_v2", weight_decay=0.01, image_size=32)
    decaying = [each for each in model.layers if isinstance(each, keras.layers.Conv2D)]

    expected = 0.01 * sum(np.square(each.kernel.numpy()).sum() for each in decaying) / 2
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-4)
    normalised = [each for each in model.layers if "BatchNorm" in each.name]
    assert normalised
    assert all(each.synchronized for each in normalised)


def test_statistics_may_be_of_the_batch_of_each_gradient(build):
    model = build("mobilenet_v2", weight_decay=0.01, image_size=32, synchronized=False)

    normalised = [each for each in model.layers if "BatchNorm" in each.name]
    assert normalised
    assert not any(each.synchronized for each in normalised)


def test_larger_images_give_the_mean_of_several_places(build):
    model = build("alexnet_v2", image_size=320)

    assert model.get_layer("fc8").output.shape[1:] == (4, 4, 3)
    assert model.output_shape == (None, 3)


def test_smaller_images_are_refused(build):
    with pytest.raises(ValueError, match=r"What is left of them, \(1, 1\), is less than 7 x 7"):
        build("vgg_16", image_size=32)
