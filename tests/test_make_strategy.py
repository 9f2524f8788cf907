"""make_strategy: what it makes, what it refuses, and that nobody else notices."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.cluster import Cluster, Task
from kerasdist.config import DeploymentConfig
from kerasdist.strategies import mirrored
from kerasdist.support import environment, launch_note, memory
from kerasdist.training.context.deployment import Deployment
from tests.cases import exhaustive
from tests.plain import check_as_plain
from tests.warned import warned_by

X = np.random.default_rng(7).normal(size=(33, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def make_strategy(**config):
    return kerasdist.make_strategy(DeploymentConfig(**config), cluster=Cluster.local())


def train(scope, num_examples=33):
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    model.fit(X[:num_examples], Y[:num_examples], batch_size=16, shuffle=False, verbose=0)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def without_strategy():
    return tf.distribute.get_strategy().scope()


def test_what_is_chosen_is_said_once_and_why(caplog, monkeypatch):
    monkeypatch.setattr(memory.PROCESS, "said", set())
    for _ in range(2):
        make_strategy(num_clones=2, clone_on_cpu=True)

    said = "MirroredStrategy, 2 replicas on CPU:0, CPU:1 (num_clones=2: 2 logical CPUs of one "
    assert [each.message for each in caplog.records] == [f"{said}machine)."]


def test_one_clone_is_one_device():
    strategy = make_strategy(clone_on_cpu=True)

    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
    assert strategy.num_replicas_in_sync == 1
    np.testing.assert_allclose(train(strategy.scope()), train(without_strategy()), atol=1e-6)


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("config", "mirrored", TypeError),
        ("cluster", "a:1", TypeError),
        ("start_timeout_secs", "x", TypeError),
        ("start_timeout_secs", 0, ValueError),
        ("start_timeout_secs", float("inf"), ValueError),
        ("heartbeat_timeout_secs", -1, ValueError),
        ("heartbeat_timeout_secs", float("inf"), ValueError),
        ("step_timeout_secs", "60", TypeError),
        ("chief_timeout_secs", 0, ValueError),
        ("wait_for_chief", "no", TypeError),
        ("steps_per_call", 0, ValueError),
        ("communication_options", "nccl", TypeError),
        ("allreduce_dtype", "float8", ValueError),
        ("allreduce_dtype", tf.float16, TypeError),
        ("variable_partitioner", 3, TypeError),
    ],
)
def test_arguments_are_checked_also_where_they_have_no_effect(argument, value, error):
    with pytest.raises(error, match=f"^`{argument}` must .* Received: {argument}={value!r}.$"):
        kerasdist.make_strategy(**{argument: value})


def test_the_limit_of_the_start_is_that_of_the_meeting(monkeypatch):
    known = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "RANK": "1"}
    for name, value in known.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(kerasdist.ClusterStartError, match=r"within 0\.5 s.*torchrun \(RANK=1, WOR"):
        kerasdist.make_strategy(start_timeout_secs=0.5)


NO_EFFECT = {
    "communication_options": tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1),
    "allreduce_dtype": "float16",
    "wait_for_chief": True,
    "steps_per_call": 2,
    "variable_partitioner": tf.distribute.experimental.partitioners.FixedShardsPartitioner(2),
}


@pytest.mark.parametrize("argument", NO_EFFECT)
def test_an_argument_without_effect_is_told(argument):
    arguments: Any = {argument: NO_EFFECT[argument]}

    with pytest.warns(UserWarning, match=rf"^`{argument}` has no effect here: it is") as told:
        kerasdist.make_strategy(cluster=Cluster.local(), **arguments)

    assert [each.filename for each in told] == [__file__]


def test_an_evaluator_is_given_what_the_others_need():
    cluster = Cluster(jobs={"worker": ["a:1", "b:1"]}, task=Task("evaluator", 0))

    assert warned_by(lambda: kerasdist.make_strategy(cluster=cluster, steps_per_call=2)) == []


def test_launch_is_told_that_the_program_makes_a_strategy(tmp_path, monkeypatch):
    monkeypatch.setenv(environment.NOTE, str(tmp_path / "note"))

    make_strategy(clone_on_cpu=True)

    assert launch_note.words_of(tmp_path / "note") == {launch_note.JOINED}


def test_number_of_clones_in_the_environment_must_be_a_number(monkeypatch):
    monkeypatch.setenv("KERASDIST_NUM_CLONES", "two")

    with pytest.raises(ValueError, match=r"must be a number. Received: KERASDIST_NUM_CLONES='two'"):
        kerasdist.make_strategy(cluster=Cluster.local())


def test_clones_of_one_machine_are_mirrored_on_logical_cpus_of_their_own():
    strategy = make_strategy(num_clones=2, clone_on_cpu=True)

    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert [name[-5:] for name in strategy.extended.worker_devices] == ["CPU:0", "CPU:1"]
    assert strategy.deployment.reason == "num_clones=2: 2 logical CPUs of one machine"


@pytest.mark.parametrize("num_clones", [1, 2])
def test_the_same_devices_give_the_same_strategy_with_the_reason_of_the_last_call(num_clones):
    config = DeploymentConfig(num_clones=num_clones, clone_on_cpu=True)
    strategy: Any = kerasdist.make_strategy(config, cluster=Cluster.local())
    strategy.deployment = Deployment(reason="another one")

    again = kerasdist.make_strategy(config, cluster=Cluster.local())

    assert again is strategy
    assert strategy.deployment.reason.startswith(f"num_clones={num_clones}: ")


def use(model, path):
    model.save_weights(path)
    model.fit(X, Y, batch_size=16, shuffle=False, verbose=0)
    trained, predictions = model.get_weights(), model.predict(X, verbose=0)
    model.load_weights(path)
    clone = keras.models.clone_model(model)
    clone.set_weights(trained)
    return trained, predictions, model.get_weights(), clone.get_weights()


def test_a_model_is_used_in_the_scope_of_a_strategy_that_is_made_again(tmp_path):
    def make():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    def run(model):
        is_ours = isinstance(model.distribute_strategy, tf.distribute.MirroredStrategy)
        again = make_strategy(num_clones=2, clone_on_cpu=True) if is_ours else None
        with again.scope() if again else contextlib.nullcontext():
            return use(model, tmp_path / "model.weights.h5")

    check_as_plain(make_strategy(num_clones=2, clone_on_cpu=True), make, run)


@pytest.mark.parametrize("collectives", ["of CPUs", *exhaustive("of GPUs")])
def test_strategies_with_other_numbers_of_devices_follow_each_other(collectives, monkeypatch):
    if collectives == "of GPUs":
        monkeypatch.setattr(mirrored, "_cross_device_ops", lambda devices: None)
    make_strategy(num_clones=4, clone_on_cpu=True)  # Makes the logical CPUs.
    # Not by `make_strategy`, which keeps them.
    made = [
        mirrored.MirroredStrategy([f"CPU:{index}" for index in range(number)])
        for number in (2, 4, 2)
    ]
    truth = train(without_strategy())

    for strategy in (*made, made[0]):
        np.testing.assert_allclose(train(strategy.scope()), truth, atol=1e-5)


def test_replicas_are_summed_in_their_order_also_where_others_read_what_is_summed():
    strategy = make_strategy(num_clones=3, clone_on_cpu=True)

    @tf.function
    def sums(values):
        def sum_of_replicas():
            context = tf.distribute.get_replica_context()
            replica = tf.get_static_value(context.replica_id_in_sync_group)
            value = 2.0 * tf.fill([8], values[replica])
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, value)
            return total, (value if replica < 2 else total)

        return strategy.run(sum_of_replicas)

    # In float32 another order gives 2: the last two cancel each other before the small one comes.
    for _ in range(50):
        totals, _ = sums(tf.constant([1.0, 1e8, -1e8]))
        for total in strategy.experimental_local_results(totals):
            np.testing.assert_array_equal(total, np.zeros(8))


def test_tensorflows_own_mirrored_strategy_works_beside_ours():
    ours = make_strategy(num_clones=2, clone_on_cpu=True)
    stock = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    # Whole batches only: with others, stock Keras has numbers of its own.
    results = [train(strategy.scope(), num_examples=32) for strategy in (ours, stock, ours)]

    np.testing.assert_allclose(results[1], results[0], atol=1e-5)
    assert np.array_equal(results[0], results[2])


def test_workers_without_a_cluster_say_how_to_start_one():
    says = (
        r"num_replicas=2 .*alone.*launch --workers 2 -- .* devices of one machine use num_clones=2"
    )
    with pytest.raises(RuntimeError, match=says):
        make_strategy(num_replicas=2)


def test_parameter_servers_without_a_cluster_say_how_to_start_one():
    with pytest.raises(RuntimeError, match=r"num_ps_tasks=1 .*launch --workers 1 --ps 1 -- "):
        make_strategy(num_ps_tasks=1)


def test_a_cluster_comes_before_the_first_tensor():
    cluster = kerasdist.Cluster(
        jobs={"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, task=kerasdist.Task("worker", 0)
    )
    tf.constant(0)

    with pytest.raises(RuntimeError, match=r"started without the cluster.*make_strategy. first"):
        kerasdist.make_strategy(cluster=cluster)


def test_left_over_tf_config_is_an_error_that_names_both(monkeypatch):
    cluster = {"worker": ["a:2222", "b:2222"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))

    with pytest.raises(ValueError, match=r"num_replicas=1.*the cluster has 2 workers.*unset"):
        kerasdist.make_strategy(DeploymentConfig(num_clones=2, clone_on_cpu=True))


FORKS = """
    import os
    import keras, numpy as np, tensorflow as tf
    import kerasdist

    def fit(model):
        model.fit(np.ones((1, 1)), np.ones((1, 1)), verbose=0)

    def make_and_fit():
        with kerasdist.make_strategy().scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        fit(model)
        return model

    def fork(function, *arguments):
        if not os.fork():
            try:
                function(*arguments)
            except RuntimeError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.mark.processes
def test_a_process_forked_after_tensorflow_started_is_told_and_does_not_wait():
    result = run_python(
        f"""{FORKS}
    fork(make_and_fit)
    tf.constant(1)
    fork(make_and_fit)
    fork(fit, make_and_fit())
    """
    )

    assert result.count("This process was forked from one in which TensorFlow had started") == 2


@pytest.mark.processes
def test_tensorflow_that_has_started_is_an_error_with_the_remedy():
    result = run_python("""
        import tensorflow as tf
        import kerasdist

        tf.constant(1.0)
        try:
            kerasdist.make_strategy(kerasdist.DeploymentConfig(num_clones=2, clone_on_cpu=True))
        except RuntimeError as error:
            print(error)
        kerasdist.make_strategy(kerasdist.DeploymentConfig(clone_on_cpu=True))
    """)

    assert "2 clones on CPU need 2 logical CPUs" in result
    assert "TensorFlow has started with 1. Call `make_strategy` before creating tensors" in result


@pytest.mark.processes
def test_models_outside_the_scope_train_as_in_a_process_without_kerasdist():
    printed = run_python("""
        import sys
        import keras, numpy as np

        def train():
            keras.utils.set_random_seed(1)
            model = keras.Sequential([
                keras.Input((3, 5)), keras.layers.Masking(), keras.layers.Dense(4),
                keras.layers.BatchNormalization(), keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ])
            optimizer = keras.optimizers.Adam(global_clipnorm=0.1, use_ema=True)
            model.compile(keras.optimizers.LossScaleOptimizer(optimizer), "mse",
                          weighted_metrics=["mae"])
            x = np.random.default_rng(0).normal(size=(21, 3, 5)).astype("float32")
            y, weights = x[..., :1], np.abs(x[..., 1])
            history = model.fit(x, y, sample_weight=weights, batch_size=4, epochs=2,
                                validation_split=0.2, verbose=0).history
            results = history, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)
            return repr(results), [weight.tobytes() for weight in model.get_weights()]

        before = train()
        assert "kerasdist" not in sys.modules
        import kerasdist
        kerasdist.make_strategy()
        print(train() == before, type(keras.callbacks.CallbackList()).__module__)
    """)

    assert printed.split() == ["True", keras.callbacks.CallbackList.__module__]


def run_python(program: str) -> str:
    """Runs a program in a process of its own and returns what it prints."""
    environ = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=Path(__file__).parents[1],
        env=environ,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_keras_that_is_imported_a_second_time_is_one_error(monkeypatch):
    anew: Any = types.ModuleType("keras")
    anew.config, anew.Model = keras.config, type("Model", (keras.Model,), {})
    monkeypatch.setitem(sys.modules, "keras", anew)

    with pytest.raises(RuntimeError, match=r"Keras was imported a second time.*restart the kernel"):
        make_strategy(clone_on_cpu=True)


def test_keras_that_is_reloaded_trains_as_before():
    importlib.reload(keras)

    strategy = make_strategy(num_clones=2, clone_on_cpu=True)
    np.testing.assert_allclose(train(strategy.scope()), train(without_strategy()), atol=1e-6)
