"""Starting with weights that were trained before: from many sources, in part, under other names."""

import sys
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.callbacks import Checkpoint, MovingAverage
from kerasdist.parity.data import examples
from tests import strategies, unwritable
from tests.cases import named
from tests.strategies import each_strategy

pytestmark = pytest.mark.thorough

LAYERS = ("stem", "norm", "head")


def make_model(strategy=None, *, num_outputs=3, names=LAYERS, seed=1, optimizer="adam"):
    keras.utils.set_random_seed(seed)
    with (strategy or strategies.get("one device")).scope():
        inputs = keras.Input((6,))
        stem = keras.layers.Dense(4, name=names[0])(inputs)
        norm = keras.layers.BatchNormalization(name=names[1], synchronized=True)(stem)
        outputs = keras.layers.Dense(num_outputs, name=names[2])(norm)
        model = keras.Model(inputs, outputs, name="net")
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fit(model, *callbacks):
    x, y = examples()
    labels = np.digitize(y[:, 0], [-0.3, 0.3])
    model.fit(x, labels, batch_size=16, verbose=0, shuffle=False, callbacks=list(callbacks))
    return model


def trained(**arguments):
    return fit(make_model(seed=2, **arguments))


def values_of(model):
    return {each.path: np.asarray(each) for each in model.weights}


def assert_restored(model, source, *paths):
    ours, theirs = values_of(model), values_of(source)
    for path in paths or ours:
        # The mean over three equal values is not always that value.
        np.testing.assert_allclose(ours[path], theirs[path], rtol=1e-6)


def as_keras(model, folder):
    model.save(folder / "model.keras")
    return folder / "model.keras"


def as_weights(model, folder):
    model.save_weights(folder / "model.weights.h5")
    return folder / "model.weights.h5"


def as_legacy(model, folder):
    from keras.src.legacy.saving import legacy_h5_format

    legacy_h5_format.save_model_to_hdf5(model, str(folder / "model.h5"))
    return folder / "model.h5"


def as_objects(model, folder):
    return tf.train.Checkpoint(model=model).write(str(folder / "objects"))


def as_dict(model, folder):
    return values_of(model)


def as_checkpoint(model, folder):
    x, y = examples()
    labels = np.digitize(y[:, 0], [-0.3, 0.3])
    model.fit(x, labels, verbose=0, callbacks=[Checkpoint(folder / "run")])
    return folder / "run"


SOURCES = [as_keras, as_weights, as_legacy, as_objects, as_dict, as_checkpoint]
each_source = pytest.mark.parametrize("save", SOURCES, ids=lambda save: save.__name__)
# For what is asked of each once more.
each_kind_of_source = pytest.mark.parametrize(
    "save",
    named(
        {save.__name__: save for save in SOURCES},
        exhaustive={"as_weights", "as_keras", "as_legacy", "as_dict"},
    ),
)


@each_source
@each_strategy
def test_every_source_under_every_strategy(strategy, save, tmp_path):
    source = trained()
    path = save(source, tmp_path)
    model = make_model(strategy)

    report = kerasdist.warm_start(model, path)

    assert_restored(model, source)
    assert report.restored.keys() == values_of(model).keys()
    assert not (report.missing or report.left_alone)
    for variable, value in zip(model.weights, source.get_weights(), strict=True):
        for copy in strategy.experimental_local_results(variable.value):
            np.testing.assert_array_equal(copy.numpy(), value)


@each_kind_of_source
def test_a_new_head_keeps_what_it_has(save, tmp_path):
    source = trained()
    path = save(source, tmp_path)
    model = make_model(num_outputs=5)
    head = [np.asarray(each) for each in model.layers[-1].weights]

    report = kerasdist.warm_start(model, path, exclude=["head/.*"])

    assert_restored(model, source, "stem/kernel", "norm/moving_mean")
    for ours, before in zip(model.layers[-1].weights, head, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), before)
    assert report.left_alone == ("head/kernel", "head/bias")
    assert any(name.startswith(("head", "net/head")) for name in report.unused)


@each_kind_of_source
def test_names_become_those_of_the_model(save, tmp_path):
    source = trained(names=("conv0", "bn", "logits"))
    path = save(source, tmp_path)
    model = make_model()

    rename = {"conv0": "stem", "bn": "norm", "logits": "head"}
    report = kerasdist.warm_start(model, path, rename=rename)

    assert len(report.restored) == len(model.weights)
    for ours, theirs in zip(model.get_weights(), source.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("save", [as_keras, as_weights])
def test_a_model_with_other_names_of_its_own_takes_them_by_their_places(save, tmp_path):
    source = trained(names=(None, None, None))
    path = save(source, tmp_path)
    model = make_model(names=(None, None, None))

    kerasdist.warm_start(model, path)

    for ours, theirs in zip(model.get_weights(), source.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def slim_checkpoint(folder):
    """Writes a checkpoint as TF-Slim did, with averages; returns its prefix and values."""
    rng = np.random.default_rng(0)
    shapes = {
        "net/stem/weights": (6, 4),
        "net/stem/biases": (4,),
        "net/norm/gamma": (4,),
        "net/norm/beta": (4,),
        "net/norm/moving_mean": (4,),
        "net/norm/moving_variance": (4,),
        "net/head/weights": (4, 3),
        "net/head/biases": (3,),
    }
    values = {name: rng.random(shape, "float32") for name, shape in shapes.items()}
    values |= {f"{name}/ExponentialMovingAverage": value + 1 for name, value in values.items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = {
            name: tf.compat.v1.get_variable(name, initializer=tf.constant(value))
            for name, value in values.items()
        }
        session.run(tf.compat.v1.global_variables_initializer())
        prefix = tf.compat.v1.train.Saver(variables).save(session, str(folder / "model.ckpt"))
    return prefix, values


@pytest.mark.parametrize("averages", [False, True])
def test_a_checkpoint_by_names(averages, tmp_path):
    prefix, values = slim_checkpoint(tmp_path)
    model = make_model()

    report = kerasdist.warm_start(model, prefix, averages=averages)

    ending = "/ExponentialMovingAverage" if averages else ""
    np.testing.assert_array_equal(model.get_weights()[0], values[f"net/stem/weights{ending}"])
    assert len(report.restored) == 8
    assert not report.unused
    again = kerasdist.warm_start(make_model(), tmp_path)  # The latest in the folder.
    assert len(again.restored) == 8


class Average(MovingAverage):
    """One with other defaults."""


@pytest.mark.parametrize("kind", [MovingAverage, Average])
def test_the_averages_of_a_run(kind, tmp_path):
    average = kind(0.5)
    source = fit(make_model(seed=2), average, Checkpoint(tmp_path))
    model = make_model()

    kerasdist.warm_start(model, tmp_path, averages=True)

    for path, value in average.get_state().items():
        np.testing.assert_array_equal(values_of(model)[path], value)
    assert not np.array_equal(values_of(model)["stem/kernel"], values_of(source)["stem/kernel"])
    step = next(path for path in tmp_path.iterdir() if path.name.startswith("step-"))
    kerasdist.warm_start(model, step)
    assert_restored(model, source)


def test_only_what_is_included(tmp_path):
    source = trained()
    model = make_model()
    before = values_of(model)

    report = kerasdist.warm_start(model, as_dict(source, tmp_path), include=["stem", ".*/gamma"])

    assert set(report.restored) == {"stem/kernel", "stem/bias", "norm/gamma"}
    assert_restored(model, source, "stem/kernel", "norm/gamma")
    np.testing.assert_array_equal(values_of(model)["head/kernel"], before["head/kernel"])


def test_patterns_rename_and_values_are_cast_and_reshaped(tmp_path):
    source = {f"tower/{path}": value for path, value in values_of(trained()).items()}
    source["tower/stem/kernel"] = source["tower/stem/kernel"].astype("float64").reshape(1, 6, 4)
    model = make_model()

    with pytest.raises(ValueError, match=r"stem/kernel: \(6, 4\) in the model, \(1, 6, 4\)"):
        kerasdist.warm_start(model, source, rename=[(r"^tower/(.*)", r"\1")])
    kerasdist.warm_start(model, source, rename=[[r"^tower/(.*)", r"\1"]], reshape=True)

    np.testing.assert_array_equal(model.get_weights()[0], source["tower/stem/kernel"][0])


def test_what_is_missing_is_named_and_may_be_ignored(tmp_path):
    values = values_of(trained())
    del values["head/bias"]
    model = make_model()
    before = values_of(model)

    with pytest.raises(ValueError, match=r"lacks head/bias\. Leave them out"):
        kerasdist.warm_start(model, values)
    for path, value in values_of(model).items():  # Nothing has changed.
        np.testing.assert_array_equal(value, before[path])
    report = kerasdist.warm_start(model, values, ignore_missing=True)

    assert report.missing == ("head/bias",)
    assert "missing in the source (1): head/bias" in str(report)


def test_weights_are_restored_where_the_report_cannot_be_written(monkeypatch):
    source, model = make_model(seed=2), make_model()
    monkeypatch.setattr(sys, "stderr", unwritable.FullDisk())

    kerasdist.warm_start(model, values_of(source))

    assert_restored(model, source)


def test_the_report_is_printed(tmp_path, capsys):
    kerasdist.warm_start(make_model(), values_of(trained()), exclude=["head"])

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Warm start from a dict: 6 variables restored"
    assert "  left alone (2): head/kernel, head/bias" in lines


def test_training_goes_on_with_the_slots_and_averages_of_the_optimizer():
    source = trained()
    model = fit(make_model(optimizer=keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True)))
    slots = [np.asarray(each) for each in model.optimizer.variables]

    kerasdist.warm_start(model, values_of(source))

    after = [np.asarray(each) for each in model.optimizer.variables]
    names = [each.path for each in model.optimizer.variables]
    for name, ours, before in zip(names, after, slots, strict=True):
        assert np.array_equal(ours, before) == ("average" not in name), name
    fit(model)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"include": "stem"}, TypeError, r"Write include=\['stem'\]"),
        ({"exclude": "stem"}, TypeError, r"Write exclude=\['stem'\]"),
        ({"include": ["sten"]}, ValueError, "`include` holds 'sten'.* Closest paths: stem"),
        ({"exclude": ["("]}, ValueError, "not a regular expression"),
        ({"include": [3]}, TypeError, "`include` must hold regular expressions. Received: 3 of"),
        ({"rename": {"sten": "stem"}}, ValueError, "`rename` holds 'sten'.* Closest names: stem"),
        ({"rename": [("(", "x")]}, ValueError, r"`rename` holds '\('"),
        ({"rename": [("stem", r"\1")]}, ValueError, "replaces 'stem' by .* not a replacement"),
        ({"rename": [("stem",)]}, TypeError, r"list of pairs.* Received: \('stem',\)"),
        ({"rename": ["ab"]}, TypeError, "list of pairs.* Received: 'ab'"),
        ({"rename": {"stem": 3}}, TypeError, r"Received: \{'stem': 3\}"),
        ({"rename": "stem"}, TypeError, "Received: 'stem'"),
        ({"averages": True}, ValueError, "the dict has no averages"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        kerasdist.warm_start(make_model(), values_of(trained()), **arguments)


def test_a_source_of_which_nothing_fits():
    with pytest.raises(ValueError, match="Nothing in 'a dict' is for a variable of the model"):
        kerasdist.warm_start(make_model(), {"other": np.zeros(3)})
    with pytest.raises(TypeError, match="`source` must be a path or a dict of arrays"):
        kerasdist.warm_start(make_model(), 3)


def test_a_model_without_variables():
    with pytest.raises(ValueError, match="has no variables yet"):
        kerasdist.warm_start(keras.Sequential([keras.layers.Dense(1)]), {"a": np.zeros(1)})


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5", "model.ckpt", "nothing"])
def test_files_that_cannot_be_read(name, tmp_path):
    path = tmp_path / name
    if name != "nothing":
        path.write_bytes(b"half a fi")

    with pytest.raises(ValueError, match=name):
        kerasdist.warm_start(make_model(), path)


@pytest.mark.filterwarnings("ignore:The checkpoint of step")
def test_a_damaged_checkpoint_is_named(tmp_path):
    path = as_checkpoint(trained(), tmp_path)
    (step,) = path.iterdir()
    (step / "state.npz").write_bytes(b"")

    with pytest.raises(ValueError, match=r"cannot be read: .*state.npz is not what was written"):
        kerasdist.warm_start(make_model(), step)
    with pytest.raises(ValueError, match=f"{path}' cannot be read: none of its checkpoints"):
        kerasdist.warm_start(make_model(), path)


@pytest.mark.parametrize("end", ["index", "data-00000-of-00001"])
def test_one_bit_in_a_checkpoint_of_tensorflow_is_named_before_anything_changes(end, tmp_path):
    path, values = tmp_path / "model.ckpt", values_of(trained())
    tf.raw_ops.SaveV2(
        prefix=str(path),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=list(values.values()),
    )
    file = tmp_path / f"model.ckpt.{end}"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    model = make_model()
    before = values_of(model)

    with pytest.raises(ValueError, match=f"The weights in '{path}' cannot be read: .*hecksum"):
        kerasdist.warm_start(model, path)

    for name, value in values_of(model).items():
        np.testing.assert_array_equal(value, before[name])


def test_nothing_of_a_file_is_run(tmp_path):
    source = trained()
    as_keras(source, tmp_path)
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        weights = archive.read("model.weights.h5")
    with zipfile.ZipFile(tmp_path / "evil.keras", "w") as archive:
        archive.writestr("config.json", "code that nobody reads")
        archive.writestr("model.weights.h5", weights)
    model = make_model()

    kerasdist.warm_start(model, tmp_path / "evil.keras")

    assert_restored(model, source)
