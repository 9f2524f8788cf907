"""A training of TF-Slim that goes on: in --train_dir, or with --continue_training."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import flags

import kerasdist
from models import nets, optimizers, train
from models.learning_rates import Fixed
from models.training import slim_run
from models.usage_error import UsageError

v1 = tf.compat.v1
KINDS = {"kernel": "weights", "bias": "biases"}
# The optimizers as slim's trainer makes them.
THERE = {
    "adadelta": lambda: v1.train.AdadeltaOptimizer(0.1, rho=0.95, epsilon=1.0),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1, initial_accumulator_value=0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.1, epsilon=1.0),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, momentum=0.9),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.1, decay=0.9, momentum=0.9, epsilon=1.0),
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
}


def flag_values(*argv):
    train.define_flags(values := flags.FlagValues())
    values(["", *argv])
    return values


@pytest.mark.parametrize("name", THERE)
def test_each_optimizer_makes_the_steps_that_it_would_have_made_there(name, tmp_path):
    """The loss is half the sum of squares, so that a gradient is the weight."""
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("Net/fc1/weights", initializer=tf.constant([[3.0, -2.0]]))
        step = v1.train.get_or_create_global_step()
        update = THERE[name]().minimize(tf.reduce_sum(weight**2) / 2, step)
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(update)
        v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), step)
        for _ in range(2):
            session.run(update)
        expected = session.run(weight)
    values = flag_values(f"--optimizer={name}")
    with kerasdist.make_strategy().scope():
        dense = keras.layers.Dense(2, use_bias=False, name="fc1")
        model = keras.Sequential([keras.Input([1]), dense])
        model.compile(optimizers.build(values, learning_rate=Fixed(0.1)), "mse")

    path = str(tmp_path / "model.ckpt-3")
    slim_run.restore(model, path, values, flag="--train_dir", only_step=False)
    with model.distribute_strategy.scope():
        for _ in range(2):
            model.optimizer.apply([keras.ops.copy(dense.kernel)])

    assert slim_run.find(tmp_path) == path
    assert int(model.optimizer.iterations.numpy()) == 5
    np.testing.assert_allclose(dense.kernel.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("place", [0, 8, 16], ids=["weight", "slot", "step"])
def test_one_bit_in_its_checkpoint_is_named(place, tmp_path):
    path = tmp_path / "model.ckpt-3"
    names = ["Net/fc1/weights", "Net/fc1/weights/Momentum", "global_step"]  # As they are stored.
    tensors = [tf.ones([1, 2]), tf.ones([1, 2]), tf.constant(3, tf.int64)]
    slices = [""] * len(names)
    tf.raw_ops.SaveV2(
        prefix=str(path), tensor_names=names, shape_and_slices=slices, tensors=tensors
    )
    file = path.with_name(f"{path.name}.data-00000-of-00001")
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    values = flag_values("--optimizer=momentum")
    with kerasdist.make_strategy().scope():
        dense = keras.layers.Dense(2, use_bias=False, name="fc1")
        model = keras.Sequential([keras.Input([1]), dense])
        model.compile(optimizers.build(values, learning_rate=Fixed(0.1)), "mse")

    with pytest.raises(UsageError, match=r"^--train_dir.* cannot be read: .*hecksum"):
        slim_run.restore(model, str(path), values, flag="--train_dir", only_step=False)


@pytest.mark.parametrize("content", [b"caf\xe9", b"model_checkpoint_path: 3"])
def test_a_file_that_names_no_checkpoint_is_told(content, tmp_path):
    (tmp_path / "checkpoint").write_bytes(content)

    with pytest.raises(UsageError, match="checkpoint"):
        slim_run.find(tmp_path)


@pytest.fixture
def slim(tmp_path):
    """A folder with a training of LeNet by RMSProp, at step 4321, with averages of one."""
    model = nets.build("lenet", num_classes=10, weight_decay=0.0)
    with tf.Graph().as_default(), v1.Session() as session:
        for variable in model.weights:
            layer, kind = variable.path.split("/")
            name = f"LeNet/{layer}/{KINDS[kind]}"
            for end, value in (
                ("", 0.25),
                ("/RMSProp", 1.0),
                ("/RMSProp_1", 0.0),
                ("/ExponentialMovingAverage", 1.0),
            ):
                array = np.full(variable.shape, value, "float32")
                v1.get_variable(f"{name}{end}", initializer=array)
        v1.get_variable("global_step", initializer=np.int64(4321))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "slim/model.ckpt"), 4321)
    return tmp_path / "slim"


@pytest.mark.parametrize("is_chief", [True, False])
def test_the_chief_alone_says_where_it_goes_on(is_chief, slim, monkeypatch, capsys):
    monkeypatch.setattr(kerasdist, "is_chief", lambda: is_chief)
    values = flag_values("--optimizer=rmsprop")
    with kerasdist.make_strategy().scope():
        model = nets.build("lenet", num_classes=10, weight_decay=0.0)
        model.compile(optimizers.build(values, learning_rate=Fixed(0.1)), "mse")

    slim_run.restore(model, str(slim), values, flag="--train_dir", only_step=False)

    assert ("Going on from step 4321" in capsys.readouterr().out) == is_chief


def arguments(data_dir, train_dir, *others):
    return [
        *("--dataset_name=digits", f"--dataset_dir={data_dir}", "--model_name=lenet"),
        *("--dataset_split_name=train[:40]", "--batch_size=16", f"--train_dir={train_dir}"),
        *("--learning_rate=0", "--weight_decay=0", "--moving_average_decay=0.9", *others),
    ]


@pytest.mark.thorough
def test_a_training_in_train_dir_goes_on_and_is_resumed(slim, data_dir, capsys, caplog):
    (slim / "checkpoint").unlink()  # As if the folder had been moved: it names the old place.

    def train_until(step):
        steps = ["--log_every_n_steps=2", f"--max_number_of_steps={step}"]
        assert train.main(arguments(data_dir, slim, *steps)) == 0
        told = capsys.readouterr()
        assert (slim / f"checkpoints/step-{step:08d}").is_dir()
        average = keras.saving.load_model(slim / "model.keras").weights[0].numpy()
        # The weights stay, and the average moves towards them.
        np.testing.assert_allclose(average, 0.25 + 0.75 * 0.9 ** (step - 4321), rtol=1e-5)
        return told

    told = train_until(4325)
    assert f"Going on from step 4321 of TF-Slim: --train_dir {str(slim)!r}" in told.out
    assert "global step 4324: loss" in caplog.text

    told = train_until(4328)
    assert "Going on from step 4321" not in told.out
    assert "step-00004325" in told.err
    assert "global step 4328: loss" in caplog.text


@pytest.mark.thorough
def test_a_checkpoint_goes_on_in_another_folder(slim, data_dir, tmp_path, capsys):
    path = f"--checkpoint_path={slim}/model.ckpt-4321"
    steps = ["--max_number_of_steps=4323", "--continue_training"]

    assert train.main(arguments(data_dir, tmp_path / "run", path, *steps)) == 0

    assert "Going on from step 4321" in capsys.readouterr().out
    assert (tmp_path / "run/checkpoints/step-00004323").is_dir()


def test_what_cannot_go_on_is_a_mistake(slim, data_dir, tmp_path, capsys):
    path = f"--checkpoint_path={slim}/model.ckpt-4321"
    for folder, others, message in (
        (slim, ["--optimizer=adam"], "it was trained with rmsprop, and --optimizer is 'adam'."),
        (slim, ["--optimizer=sgd"], "it was trained with rmsprop, and --optimizer is 'sgd'."),
        (slim, ["--max_number_of_steps=4321"], "it has trained 4321 steps already."),
        (slim, ["--overwrite"], "--overwrite does not replace"),
        (slim, ["--model_name=cifarnet", "--train_image_size=28"], "Are they of another net?"),
        (tmp_path / "a", ["--continue_training"], "--continue_training needs --checkpoint_path"),
        (
            tmp_path / "a",
            [path, "--continue_training", "--checkpoint_exclude_scopes=fc4"],
            "--continue_training takes all",
        ),
    ):
        assert train.main(arguments(data_dir, folder, *others)) == 2
        assert message in capsys.readouterr().err
    assert not (slim / "checkpoints").exists()


def test_a_file_that_names_a_missing_checkpoint_is_a_mistake(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')

    with pytest.raises(UsageError, match="but not the checkpoint that it names"):
        slim_run.find(tmp_path)


def test_a_checkpoint_of_another_kind_is_a_mistake(tmp_path):
    path = tf.train.Checkpoint(w=tf.Variable(1.0)).save(str(tmp_path / "ckpt"))

    with pytest.raises(UsageError, match="'x': it is not a training of TF-Slim"):
        slim_run.restore(keras.Model(), path, flag_values(), flag="'x'", only_step=False)
