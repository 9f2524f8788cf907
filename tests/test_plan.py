"""The plan says what a run is going to do, row by row, in exact numbers."""

import dataclasses
import re
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.cluster import Cluster, Task
from kerasdist.config import DeploymentConfig
from kerasdist.plan import Plan, plan_deployment, plan_training
from kerasdist.strategies.choice import choose
from kerasdist.training.hooks import differing_layers
from tests import fork_server, strategies, xla
from tests.strategies import each_kind_of_strategy


def rows_of(plan):
    title, *lines = str(plan).splitlines()
    assert title == "Plan"
    return dict(re.split(r"  +", line.strip(), maxsplit=1) for line in lines)


def rows_of_plan(num_replicas=2, **numbers):
    devices = tuple(f"GPU:{index}" for index in range(num_replicas))
    return rows_of(Plan(strategy="Any (why)", devices=devices, **numbers))


def test_text_has_one_aligned_row_for_each_thing():
    plan = Plan(
        strategy="MirroredStrategy (why)",
        devices=("GPU:0", "GPU:1"),
        settings={"optimizer": "SGD"},
        files={"model": "run/model.keras"},
        warnings=("One thing.", "Another."),
    )

    assert str(plan) == (
        "Plan\n"
        "  strategy   MirroredStrategy (why)\n"
        "  devices    GPU:0, GPU:1\n"
        "  replicas   2 copies of the model\n"
        "  optimizer  SGD\n"
        "  model      run/model.keras\n"
        "  note       One thing.\n"
        "  note       Another."
    )


@pytest.mark.parametrize(
    ("num_replicas", "global_batch_size", "text"),
    [
        (1, 64, "64 examples"),
        (1, 1, "1 example"),
        (2, 64, "64 examples (global), 32 on each replica"),
        (2, 33, "33 examples (global), 16 or 17 on each replica"),
        (4, 33, "33 examples (global), 8 or 9 on each replica"),
        (4, 1, "1 example (global), 0 or 1 on each replica"),
        (4, 4096, "4,096 examples (global), 1,024 on each replica"),
        (
            3,
            3 * 10**16 + 3,
            f"{3 * 10**16 + 3:,} examples (global), {10**16 + 1:,} on each replica",
        ),
    ],
)
def test_batch_is_global_and_per_replica(num_replicas, global_batch_size, text):
    assert rows_of_plan(num_replicas, global_batch_size=global_batch_size)["batch"] == text


@pytest.mark.parametrize(
    ("num_replicas", "num_examples", "text"),
    [
        (2, 128, "as large as the others"),
        (2, 100, "36 examples, weighted by their number; none dropped"),
        (2, 10, "10 examples, weighted by their number; none dropped"),
        (1, 65, "1 example, weighted by its number; none dropped"),
        (2, 65, "1 example, weighted by its number; none dropped; 1 replica without any"),
        (4, 65, "1 example, weighted by its number; none dropped; 3 replicas without any"),
        (4, 68, "4 examples, weighted by their number; none dropped"),
    ],
)
def test_last_batch_says_what_becomes_of_it(num_replicas, num_examples, text):
    rows = rows_of_plan(num_replicas, global_batch_size=64, num_examples=num_examples)

    assert rows["last batch"] == text


@pytest.mark.parametrize(
    ("num_examples", "text"),
    [(128, "2 for 128 examples"), (129, "3 for 129 examples"), (128_000, "2,000 for 128,000 exa")],
)
def test_steps_include_the_smaller_last_one(num_examples, text):
    rows = rows_of_plan(global_batch_size=64, num_examples=num_examples)

    assert rows["steps per epoch"].startswith(text)


@pytest.mark.parametrize("numbers", [{}, {"global_batch_size": 64}])
def test_what_is_not_known_has_no_row(numbers):
    assert not {"last batch", "steps per epoch"} & rows_of_plan(**numbers).keys()
    assert Plan(strategy="Any", devices=("CPU:0",), **numbers).steps_per_epoch is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"global_batch_size": -3}, ValueError, "`global_batch_size` must be at least 1"),
        ({"global_batch_size": 2.5}, TypeError, "global_batch_size=2.5"),
        ({"num_examples": -2}, ValueError, "num_examples=-2"),  # tf.data.UNKNOWN_CARDINALITY
        ({"num_workers": 0}, ValueError, "num_workers=0"),
        ({"devices": ()}, ValueError, r"`devices` must not be empty. Received: devices=\(\)."),
    ],
)
def test_numbers_that_no_run_can_have_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Plan(**({"strategy": "Any", "devices": ("CPU:0",)} | arguments))


def test_examples_may_be_counted_by_numpy():
    rows = rows_of_plan(global_batch_size=64, num_examples=np.int64(65))

    assert rows["steps per epoch"].startswith("2 for 65 examples")


def test_examples_without_a_batch_size_are_not_dropped():
    rows = rows_of_plan(num_examples=1437)

    assert rows["steps per epoch"] == "not known for 1,437 examples without a batch size"
    assert "last batch" not in rows


ASYNCHRONOUS_BATCH = "64 examples, one worker's step; asynchronous: no worker waits for another"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"strategy": "OneDeviceStrategy (num_clones=1: one GPU)", "batch": "64 examples"}),
        (
            {"num_clones": 2},
            {
                "strategy": "MirroredStrategy (num_clones=2: 2 GPUs of one machine)",
                "devices": "GPU:0, GPU:1",
                "batch": "64 examples (global), 32 on each replica",
            },
        ),
        (
            {"num_replicas": 2, "num_clones": 2},
            {
                "devices": "GPU:0, GPU:1 on each of 2 workers",
                "replicas": "4 copies of the model",
                "batch": "64 examples (global), 16 on each replica",
            },
        ),
        (
            {"num_replicas": 2, "num_ps_tasks": 3},
            {
                "devices": "GPU:0 on each of 2 workers",
                "parameter servers": "3",
                "replicas": "2 copies of the model",
                "batch": ASYNCHRONOUS_BATCH,
            },
        ),
        (
            {"num_replicas": 3, "num_ps_tasks": 1, "sync_replicas": True},
            {
                "strategy": "ParameterServerStrategy (num_ps_tasks=1: synchronous workers, each "
                "update the mean of 3 gradients, one of each worker)",
                "batch": "64 examples, one worker's; an update has 192 examples: the mean of 3 "
                "gradients, one of each worker",
                "last batch": "100 examples in the last update, weighted by their number; none "
                "dropped",
                "steps per epoch": "1 for 100 examples",
                "epoch": "An epoch has each batch in exactly one update.",
            },
        ),
        (
            {
                **{"num_replicas": 3, "num_ps_tasks": 1},
                **{"sync_replicas": True, "replicas_to_aggregate": 1},
            },
            {
                "batch": "64 examples, one worker's; an update has 64 examples: the first of 3 "
                "gradients",
                "steps per epoch": "2 for 100 examples",
                "epoch": "An epoch has each batch in exactly one update: a gradient that is late "
                "is stale, it is dropped, and its batch computed again. `stale` in the logs counts "
                "these.",
            },
        ),
    ],
)
def test_plan_of_each_deployment(config, expected):
    choice = choose(DeploymentConfig(**config), Cluster.local(), num_gpus=2)

    rows = rows_of(plan_deployment(choice, global_batch_size=64, num_examples=100))

    assert expected.items() <= rows.items()
    assert rows["steps per epoch"] == expected.get("steps per epoch", "2 for 100 examples")
    assert ("epoch" in rows) == ("sync_replicas" in config)
    assert ("parameter servers" in rows) == ("num_ps_tasks" in config)


def rows_of_training(strategy, *layers, optimizer="sgd", **compile_arguments):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
        model.compile(optimizer, "mse", **compile_arguments)
    return rows_of(plan_training(model, global_batch_size=64, num_examples=100))


def test_several_replicas_of_an_asynchronous_worker_share_its_batch():
    rows = rows_of_plan(num_workers=3, num_ps=1, global_batch_size=64, num_examples=65)

    assert rows["batch"] == f"{ASYNCHRONOUS_BATCH}, 32 on each replica"
    assert rows["last batch"].endswith("; 1 replica without any")
    assert rows["replicas"] == "6 copies of the model"


@each_kind_of_strategy
def test_plan_of_training_says_what_is_in_force(strategy):
    num_replicas = strategy.num_replicas_in_sync

    rows = rows_of_training(strategy)

    assert rows["strategy"] == f"{type(strategy).__name__} ({strategy.deployment.reason})"
    assert rows["devices"] == ", ".join(f"CPU:{index}" for index in range(num_replicas))
    assert rows["steps per epoch"] == "2 for 100 examples"
    assert rows["optimizer"] == "SGD, learning rate 0.01"
    assert rows["precision"] == "float32"
    assert rows["XLA"] == 'off ("auto": no GPU)'
    assert "note" not in rows


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [
        (lambda: keras.optimizers.Adam(0.001), "Adam, learning rate 0.001"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5)),
            "SGD, learning rate 0.5",
        ),
        (
            lambda: keras.optimizers.SGD(
                keras.optimizers.schedules.ExponentialDecay(0.1, 1000, 0.96, staircase=True)
            ),
            "SGD, learning rate ExponentialDecay(initial_learning_rate=0.1, decay_steps=1000, "
            "decay_rate=0.96, staircase=True)",
        ),
    ],
    ids=["number", "loss scale", "schedule"],
)
def test_optimizer_is_shown_with_its_learning_rate(optimizer, text):
    strategy = strategies.get("2 replicas")
    with strategy.scope():
        made = optimizer()

    assert rows_of_training(strategy, optimizer=made)["optimizer"] == text


def test_precision_is_that_of_the_model():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        rows = rows_of_training(strategies.get("2 replicas"))
    finally:
        keras.config.set_dtype_policy("float32")

    assert rows["precision"] == "mixed_bfloat16"


OF_EACH_REPLICA = "for what each replica computes by itself: loss and gradient"


@pytest.mark.parametrize(
    ("name", "text"), [("one device", "on"), ("2 replicas", f"on, {OF_EACH_REPLICA}")]
)
def test_xla_is_shown_as_it_runs(name, text, monkeypatch):
    strategy = strategies.get(name)

    assert rows_of_training(strategy, jit_compile=True)["XLA"] == text
    assert rows_of_training(strategy, jit_compile=False)["XLA"] == "off"
    xla.turn_on_auto(monkeypatch)
    assert rows_of_training(strategy)["XLA"] == text.replace("on", 'on ("auto": there is a GPU)', 1)


def test_why_xla_compiles_nothing_is_shown():
    layer = keras.layers.BatchNormalization(synchronized=True, name="norm")

    rows = rows_of_training(strategies.get("2 replicas"), layer, jit_compile=True)

    assert rows["XLA"] == "off: replicas meet in synchronized batch normalizations (norm)"


def test_steps_per_call_are_shown_where_there_are_several():
    strategy = strategies.get("one device")

    assert rows_of_training(strategy, steps_per_execution=10)["steps per call"] == "10"
    assert "steps per call" not in rows_of_training(strategy)


@each_kind_of_strategy
def test_statistics_per_replica_are_noted_where_there_are_several(strategy):
    rows = rows_of_training(strategy, keras.layers.BatchNormalization(name="bn"))

    assert ("note" in rows) == (strategy.num_replicas_in_sync > 1)
    assert rows.get("note", "Batch normalization (bn)").startswith("Batch normalization (bn)")


def test_synchronized_statistics_need_no_note():
    layer = keras.layers.BatchNormalization(synchronized=True)

    assert "note" not in rows_of_training(strategies.get("2 replicas"), layer)


RANDOM_LAYERS = {
    "Dropout": lambda: keras.layers.Dropout(0.5),
    "GaussianNoise": lambda: keras.layers.GaussianNoise(0.1),
    "RandomFlip": lambda: keras.layers.RandomFlip(),
    "LSTM": lambda: keras.layers.LSTM(2, dropout=0.1),
    "nested": lambda: keras.layers.Bidirectional(keras.layers.GRU(2, recurrent_dropout=0.1)),
    "attention": lambda: keras.layers.Attention(dropout=0.1),
}
LAYERS_OF_ONE_RESULT = {
    "Dropout(0)": lambda: keras.layers.Dropout(0.0),
    "LSTM": lambda: keras.layers.LSTM(2),
    "Rescaling": lambda: keras.layers.Rescaling(2.0),
}


@each_kind_of_strategy
def test_random_layers_are_noted_where_there_are_several_replicas(strategy):
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, name="drop")
    rows = rows_of_training(strategy, layer)

    assert ("note" in rows) == (strategy.num_replicas_in_sync > 1)
    assert rows.get("note", "Random layers (drop)").startswith("Random layers (drop)")


@pytest.mark.parametrize("name", RANDOM_LAYERS)
def test_random_layers_are_of_many_kinds(name):
    model = keras.Sequential([RANDOM_LAYERS[name]()])

    assert len(differing_layers.notes_of_random_numbers(model, 2)) == 1


@pytest.mark.parametrize("name", LAYERS_OF_ONE_RESULT)
def test_layers_that_draw_nothing_are_not_noted(name):
    model = keras.Sequential([LAYERS_OF_ONE_RESULT[name]()])

    assert differing_layers.notes_of_random_numbers(model, 2) == ()


@pytest.mark.processes
def test_plan_of_parameter_servers_says_what_lives_where():
    chief, *_ = fork_server.run_cluster(plans_of_parameter_servers, num_workers=1, num_ps=2)
    assert chief.exit_code == 0, chief.output
    before, waiting, after = map(rows_of, chief.value)

    assert before["devices"] == "CPU:0"
    assert before["parameter servers"] == "2"
    assert before["batch"] == ASYNCHRONOUS_BATCH
    assert before["steps per call"].startswith("chosen while training, about 0.1 s each; make_str")
    assert before["update"] == "each worker's gradient, clip global_norm=1"
    assert before["XLA"].startswith("off")
    table = "sequential/table/embeddings (part {} of 2) 1.3"
    assert before["ps 0"] == f"1.3 MB: {table.format(1)}, 1 smaller"
    assert before["ps 1"] == f"1.3 MB: {table.format(2)}, 1 smaller"
    assert before["slots"].startswith("made by `fit`, each on the ps of its weight")
    assert after["ps 0"].startswith("1.3 MB, and 2.6 MB of the optimizer: sequential/table")
    assert waiting["steps per call"] == "1, because LambdaCallback has a hook for each batch"
    assert after["steps per call"] == "5"
    assert not {"slots", "update"} & after.keys()


def plans_of_parameter_servers():
    partitioners = tf.distribute.experimental.partitioners
    strategy = kerasdist.make_strategy(
        variable_partitioner=partitioners.MinSizePartitioner(min_shard_bytes=2**18, max_shards=2)
    )
    with strategy.scope():
        table = keras.layers.Embedding(10_000, 64, name="table")
        model = keras.Sequential([keras.Input((), dtype="int32"), table, keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=True)
    clip = kerasdist.callbacks.GradientClipping(global_norm=1.0)
    before = kerasdist.plan_training(model, global_batch_size=64, callbacks=[clip])
    look = keras.callbacks.LambdaCallback(on_train_batch_end=print)
    waiting = kerasdist.plan_training(model, callbacks=[look])
    with strategy.scope():
        model.compile("adam", "mse", steps_per_execution=5)
        model.optimizer.build(model.trainable_variables)
    after = kerasdist.plan_training(model, global_batch_size=64)
    return list(map(str, (before, waiting, after)))


def test_updates_of_synchronous_workers_are_of_several_batches(monkeypatch):
    strategy = strategies.get("one device")
    jobs = {"chief": ["a:1"], "worker": ["b:1", "c:1", "d:1"], "ps": ["e:1"]}
    as_seen = dataclasses.replace(
        strategy.deployment,
        cluster=Cluster(jobs=jobs, task=Task("chief", 0)),
        remote=types.SimpleNamespace(num_to_aggregate=2, steps_per_call=None),
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()])
        model.compile("sgd", "mse")
    clip = kerasdist.callbacks.GradientClipping(norm=1.0)
    look = keras.callbacks.LambdaCallback(on_train_batch_end=print)

    monkeypatch.setattr(strategy, "deployment", as_seen)
    rows = rows_of(kerasdist.plan_training(model, callbacks=[clip, look]))

    assert rows["update"] == "mean of the first 2 of 3 gradients, clip norm=1"
    assert rows["steps per call"] == "1, because LambdaCallback has a hook for each batch"
    assert "the statistics of each of 2 batches of an update, so" in rows["note"]


class Described(keras.callbacks.Callback):
    """Not ours, with a method of the same name."""

    def describe(self, verbose):
        raise NotImplementedError


def test_the_update_is_shown_in_the_order_of_what_acts():
    with strategies.get("2 replicas").scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    callbacks = [
        Described(),
        kerasdist.callbacks.GradientClipping(norm=1.0),
        kerasdist.callbacks.StopOnNonFinite(),
    ]

    rows = rows_of(kerasdist.plan_training(model, callbacks=callbacks))

    assert rows["update"] == (
        "sum of 2 gradients, leave out steps that are not finite (raise), clip norm=1"
    )


def test_model_that_is_not_compiled_has_no_plan():
    with strategies.get("2 replicas").scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="raw")

    with pytest.raises(ValueError, match=r"'raw' is not compiled.*`model\.compile\(\.\.\.\)`"):
        kerasdist.plan_training(model, global_batch_size=64)


def test_model_outside_our_strategies_has_no_plan():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="stranger")
    model.compile("sgd", "mse")

    with pytest.raises(RuntimeError, match=r"'stranger', which was created outside the scope"):
        kerasdist.plan_training(model, global_batch_size=64)


def test_a_schedule_that_cannot_be_described_does_not_stop_the_plan():
    class Half(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.5

    with strategies.get("2 replicas").scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(Half()), "mse")

    assert "SGD" in str(kerasdist.plan_training(model, global_batch_size=64))
