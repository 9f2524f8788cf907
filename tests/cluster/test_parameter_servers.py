"""Stock `fit` over parameter servers: several workers, of which each takes what it can.

That one worker equals one device is in the parity table. Here are two workers and two parameter
servers, all tests in one cluster: starting TensorFlow takes longer than most of them.
"""

import contextlib
import functools
import inspect
import io
import re
import tempfile
import threading
import traceback
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import callbacks, testing
from kerasdist.training.hooks.divided_values import parts_of
from kerasdist.training.parameter_servers.sharded_variables import checked
from tests import strategies
from tests.event_files import scalars
from tests.times_seen import TimesSeen
from tests.warned import warned_by

NUM_EXAMPLES, BATCH_SIZE = 53, 4
NUM_STEPS = 14  # Of an epoch, the last one with a single example.
CHECKS = {}


def on_two_workers(check):
    """Runs a function of the strategy on the chief, with all others; the test gets its result."""
    CHECKS[check.__name__] = check
    return check


def data(num_examples=NUM_EXAMPLES):
    x = np.random.default_rng(0).normal(size=(num_examples, 6)).astype("float32")
    return x, np.tanh(x.sum(axis=1, keepdims=True))


def dataset(num_examples=NUM_EXAMPLES):
    return tf.data.Dataset.from_tensor_slices(data(num_examples)).batch(BATCH_SIZE)


def make_model(strategy, *, metrics=("mae",), optimizer=keras.optimizers.SGD, **arguments):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
        )
        made = [each if isinstance(each, str) else each() for each in metrics]
        model.compile(optimizer(), "mse", metrics=made, **arguments)
    return model


def numbered_dataset():
    x, _ = data()
    y = np.arange(NUM_EXAMPLES, dtype="float32")[:, None]
    return tf.data.Dataset.from_tensor_slices((x, y))


def counted(strategy, data, *, epochs=2, **arguments) -> dict:
    """Trains and returns the history and what was counted."""
    model = make_model(strategy, metrics=[lambda: TimesSeen(NUM_EXAMPLES)])
    history = model.fit(data, epochs=epochs, verbose=0, **arguments).history
    return {
        "iterations": int(model.optimizer.iterations.numpy()),
        "examples": int(model.train_function.num_examples.numpy()),
        **{name: values for name, values in history.items() if name != "loss"},
    }


@on_two_workers
def shuffled_dataset(strategy):
    return counted(strategy, numbered_dataset().shuffle(NUM_EXAMPLES).batch(BATCH_SIZE))


@on_two_workers
def several_steps_per_call(strategy):
    return [_counted_in_executions_of(number, strategy) for number in (3, 11)]


@on_two_workers
def waits_for_the_batch(strategy):
    """Returns the operations on parameter servers, and those of them that wait for the batch."""
    model = make_model(strategy)
    model.fit(dataset(), epochs=1, verbose=0)
    functions = model.train_function._runner._concrete.values()
    operations = [each for function in functions for each in function.graph.get_operations()]
    on_servers = [each for each in operations if "/job:ps" in each.device]
    return len(on_servers), [
        each.name
        for each in on_servers
        if any(other.type == "IteratorGetNext" for other in each.control_inputs)
    ]


@on_two_workers
def labels_of_nan(strategy):
    model = make_model(strategy)
    nan = np.where(np.arange(NUM_EXAMPLES)[:, None] == 2, np.nan, data()[1])
    texts = warned_by(
        lambda: model.fit(data()[0], nan, batch_size=BATCH_SIZE, shuffle=False, verbose=0)
    )
    return texts, int(model.optimizer.iterations.numpy())


@on_two_workers
def layers_from_outside(strategy):
    """Returns the steps that trained them, and where their weights are."""
    outside = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), *outside.layers])
        model.compile("sgd", "mse")
    model.fit(dataset(), verbose=0)
    return int(model.optimizer.iterations.numpy()), [each.value.device for each in model.weights]


@on_two_workers
def text_and_ragged_rows(strategy):
    """Trains what Keras cannot build from shapes, so that the first step makes the optimizer."""
    labels = np.arange(NUM_EXAMPLES, dtype="float32")[:, None]
    texts = np.array([f"the cat number {index}" for index in range(NUM_EXAMPLES)])
    rows = tf.ragged.constant([[1, 2], [3], [4, 5, 6]] * NUM_EXAMPLES)[:NUM_EXAMPLES]
    counts = {}
    for optimizer in ("adam", "sgd"):
        with strategy.scope():
            reader = keras.layers.TextVectorization(
                output_sequence_length=5, vocabulary=["the", "cat", "number"]
            )
            inputs = keras.Input((), dtype="string")
            of_texts = keras.Sequential([inputs, reader, keras.layers.Dense(1)])
            models = {"texts": (of_texts, texts), "rows": (SumsRows(), rows)}
        for name, (model, x) in models.items():
            with strategy.scope():
                model.compile(optimizer, "mse")
            batches = tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH_SIZE)
            model.fit(batches, shuffle=False, verbose=0)
            counts[f"{name}, {optimizer}"] = int(model.optimizer.iterations.numpy())
    return counts


class SumsRows(keras.Model):
    """Adds up entries of a table."""

    def __init__(self):
        super().__init__()
        self.table = self.add_weight(shape=(24, 1), name="table")

    def call(self, rows):
        return tf.reduce_sum(tf.gather(self.table, rows.to_tensor()), axis=1)


def _counted_in_executions_of(steps_per_execution, strategy):
    model = make_model(
        strategy,
        metrics=[lambda: TimesSeen(NUM_EXAMPLES)],
        steps_per_execution=steps_per_execution,
    )
    history = model.fit(numbered_dataset().batch(BATCH_SIZE), epochs=3, verbose=0).history
    return {"iterations": int(model.optimizer.iterations.numpy()), **history}


@on_two_workers
def epochs_shorter_than_the_data(strategy):
    return counted(strategy, numbered_dataset().batch(BATCH_SIZE), epochs=9, steps_per_epoch=5)


@on_two_workers
def endless_dataset(strategy):
    with tempfile.TemporaryDirectory() as folder:

        def note(x, y):
            tf.print(y, output_stream=f"file://{folder}/prepared")
            return x, y

        noted = numbered_dataset().map(note).batch(BATCH_SIZE, drop_remainder=True).repeat()
        result = counted(strategy, noted, steps_per_epoch=26)
        return {**result, "prepared": (Path(folder) / "prepared").read_text().count("\n")}


@on_two_workers
def unknown_length(strategy):
    ds = numbered_dataset().filter(lambda x, y: True).batch(BATCH_SIZE)
    return counted(strategy, ds)


@on_two_workers
def unknown_length_in_steps(strategy):
    """Epochs of 5 steps: the third one finds the end of the data in its last step."""
    ds = numbered_dataset().filter(lambda x, y: True).batch(BATCH_SIZE)
    return counted(strategy, ds, epochs=4, steps_per_epoch=5)


@on_two_workers
def generator(strategy):
    def batches():
        while True:
            yield from numbered_dataset().batch(BATCH_SIZE).as_numpy_iterator()

    return counted(strategy, batches(), steps_per_epoch=NUM_STEPS)


class Batches(keras.utils.PyDataset):
    """The same data in Python."""

    def __len__(self):
        return NUM_STEPS

    def __getitem__(self, index):
        batches = numbered_dataset().batch(BATCH_SIZE)
        return next(batches.skip(index).as_numpy_iterator())


@on_two_workers
def py_dataset(strategy):
    return counted(strategy, Batches())


@on_two_workers
def input_context(strategy):
    seen = []

    def make(context):
        seen.append((context.num_input_pipelines, context.input_pipeline_id))
        part = numbered_dataset().shard(context.num_input_pipelines, context.input_pipeline_id)
        return part.batch(BATCH_SIZE).repeat()

    return {**counted(strategy, make, steps_per_epoch=10), "contexts": sorted(set(seen))}


@on_two_workers
def evaluate_and_predict(strategy):
    model = make_model(strategy)
    model.fit(dataset(), epochs=1, verbose=0)
    return {
        "weights": model.get_weights(),
        "evaluated": model.evaluate(dataset(), verbose=0, return_dict=True),
        "predicted": model.predict(data()[0], batch_size=BATCH_SIZE, verbose=0),
        "on_batch": model.predict_on_batch(data(5)[0]),
    }


@on_two_workers
def learns(strategy):
    model = make_model(strategy, optimizer=lambda: keras.optimizers.SGD(0.05))
    history = model.fit(
        dataset(400).repeat(),
        steps_per_epoch=100,
        epochs=6,
        verbose=0,
        validation_data=dataset(400),
    ).history
    return history["val_loss"][-1]


def make_embedding(strategy):
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(1001, 8),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
    return model


def tokens():
    return np.random.default_rng(1).integers(0, 1001, size=(64, 4)).astype("int32")


@on_two_workers
def sharded_embedding(strategy):
    model = make_embedding(strategy)
    average = callbacks.MovingAverage(0.9)
    before = model.get_weights()[0]
    model.fit(
        tokens(),
        np.ones((64, 1)),
        batch_size=8,
        epochs=2,
        verbose=0,
        callbacks=[callbacks.GradientClipping(global_norm=1.0), average],
    )
    table = model.get_weights()[0]
    with average.applied(model):
        averaged = model.get_weights()[0]
    again = make_embedding(strategy)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/sharded.keras")
        alone = keras.models.load_model(f"{folder}/sharded.keras")
        alone.save_weights(f"{folder}/alone.weights.h5")
        again.load_weights(f"{folder}/alone.weights.h5")
    slots = [each for each in model.optimizer.variables if tuple(each.shape) == (1001, 8)]
    devices = [part.device for part in parts_of(model.layers[0].embeddings.value)]
    return {
        "moved": np.abs(table - before).max(),
        "average moved": np.abs(averaged - before).max() * (averaged != table).any(),
        "put back": np.abs(model.get_weights()[0] - table).max(),
        "alone": np.abs(alone.get_weights()[0] - table).max(),
        "again": np.abs(again.get_weights()[0] - table).max(),
        "tasks": [device.split("task:")[1][0] for device in devices],
        "slots beside": [
            [part.device for part in parts_of(slot.value)] == devices for slot in slots
        ],
    }


@on_two_workers
def weights_assigned_in_a_call(strategy):
    with strategy.scope():
        dense = keras.layers.Dense(3, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((6,)), keras.layers.SpectralNormalization(dense)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(dataset(), verbose=0)
    return np.linalg.norm(dense.kernel.numpy(), 2)


@on_two_workers
def metrics_of_batches_in_the_middle(strategy):
    model, seen = make_model(strategy, optimizer=lambda: keras.optimizers.SGD(0.0)), []
    x, y = data(12)
    methods = [functools.partial(model.evaluate, verbose=0)]
    # Keras 3.12 adds the batch to what the metrics have, also without a strategy.
    if "reset_metrics" in inspect.getsource(keras.Model.test_on_batch):
        methods += [model.test_on_batch, model.train_on_batch]

    def look(method, batch, logs):
        if batch % 4 == 2:
            seen.append(method(x, y))

    for method in methods:
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_end=functools.partial(look, method)
        )
        model.fit(dataset(), epochs=2, verbose=0, callbacks=[callback])
    return seen, 2 * len(methods), model.evaluate(x, y, verbose=0)


@on_two_workers
def stop_in_the_middle(strategy):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch >= 20:
                self.model.stop_training = True

    model = make_model(strategy)
    history = model.fit(
        dataset().repeat(), steps_per_epoch=1000, epochs=3, verbose=0, callbacks=[Stop()]
    ).history
    return len(history["loss"]), int(model.optimizer.iterations.numpy())


@on_two_workers
def nan_in_an_epoch(strategy):
    x, y = data()
    x[40] = np.nan
    model = make_model(strategy)
    callback = keras.callbacks.TerminateOnNaN()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        history = model.fit(
            x, y, batch_size=BATCH_SIZE, epochs=3, verbose=0, callbacks=[callback]
        ).history
    return len(history["loss"]), printed.getvalue().count("Invalid loss")


class ReadBeside(keras.callbacks.Callback):
    """Reads the weights in a thread until training ends; notes errors, and if there were slots."""

    def on_train_begin(self, logs=None):
        self.error, self.had_slots = "not ended", self.model.optimizer.built
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def on_train_end(self, logs=None):
        self._is_over.set()
        self._thread.join()

    def _read(self):
        try:
            while not self._is_over.wait(0.001):
                self.model.get_weights()
            self.error = ""
        except Exception as error:
            self.error = str(error)


@on_two_workers
def stock_callbacks(strategy):
    model, beside = make_model(strategy), ReadBeside()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        history = model.fit(
            dataset(),
            epochs=30,
            verbose=0,
            validation_data=dataset(11),
            callbacks=[
                keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
                keras.callbacks.EarlyStopping(patience=2, min_delta=1.0),
                keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True),
                keras.callbacks.TensorBoard(folder / "events"),
                keras.callbacks.CSVLogger(folder / "log.csv"),
                keras.callbacks.TerminateOnNaN(),
                beside,
            ],
        ).history
        return {
            "beside": (beside.error, beside.had_slots),
            "rates": history["learning_rate"],
            "files": sorted(path.name for path in folder.iterdir()),
            "events": {
                name: len(scalars(folder / "events" / name)) for name in ("train", "validation")
            },
            "saved": len(keras.models.load_model(folder / "best.keras").get_weights()),
            "rows": len((folder / "log.csv").read_text().splitlines()),
        }


@on_two_workers
def backup(strategy):
    """Is interrupted in the second of three epochs, and begins again; returns the epochs."""
    epochs = []

    def fail(epoch, logs):
        epochs.append(epoch)
        if epochs == [0, 1]:
            raise InterruptedError

    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            model = make_model(strategy)
            callbacks = [
                keras.callbacks.BackupAndRestore(folder),
                keras.callbacks.LambdaCallback(on_epoch_begin=fail),
            ]
            with contextlib.suppress(InterruptedError):
                model.fit(dataset(), epochs=3, verbose=0, callbacks=callbacks)
    return epochs, int(model.optimizer.iterations.numpy())


@on_two_workers
def logs_on_the_way(strategy):
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs["loss"])
    )
    model = make_model(strategy, steps_per_execution=2)
    history = model.fit(
        dataset(),
        epochs=2,
        verbose=0,
        callbacks=[look, callbacks.LossAverages(0.5), keras.callbacks.EarlyStopping("loss")],
    ).history
    return {"seen": seen, "history": history}


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y):
        self.value.assign(tf.maximum(self.value, tf.reduce_max(y)))

    def result(self):
        return self.value


@on_two_workers
def progress_with_a_checkpoint(strategy):
    model, output = make_model(strategy), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(output):
        checkpoint = callbacks.Checkpoint(folder, every_steps=10)
        model.fit(dataset(), epochs=3, verbose=2, callbacks=[checkpoint])
    return re.findall(r"^(\d+)/(\d+) - ", output.getvalue(), re.MULTILINE)


@on_two_workers
def loop_of_its_own(strategy):
    model = make_model(strategy)
    x, y = (tf.constant(each) for each in data(8))
    with strategy.scope():
        mean = keras.metrics.MeanSquaredError()
        above = keras.metrics.TruePositives()
        largest = Largest()

    def update():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        mean.update_state(y, model(x))
        above.update_state(tf.ones([8]), tf.ones([8]))
        # A scope of Keras' own has what is added in it, and the variable stays as it is.
        states = [tf.identity(variable.value) for variable in mean.variables]
        total, count = mean.stateless_update_state(states, y, model(x))
        return total, count - states[1]

    step = tf.function(lambda: strategy.run(update))
    keep_largest = tf.function(lambda: strategy.run(largest.update_state, args=(y,)))
    results = [strategy.deployment.remote.coordinator.schedule(step) for _ in range(100)]
    strategy.deployment.remote.coordinator.join()
    return {
        "iterations": int(model.optimizer.iterations.numpy()),
        "examples": int(mean.count.numpy()),
        "above": int(above.result()),
        "largest": error_of(keep_largest.get_concrete_function),
        "stateless": {int(result.fetch()[1]) for result in results},
    }


class CustomStep(keras.Model):
    """Applies gradients in a step of its own; its layer has its weights before it is called."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.layer.build((None, 6))

    def call(self, inputs):
        return self.layer(inputs)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def error_of(function) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@on_two_workers
def errors(strategy):
    model = make_model(strategy)
    with strategy.scope():
        eager = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        eager.compile("sgd", "mse", run_eagerly=True)
        accumulating = CustomStep()
        accumulating.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    short = dataset(20).repeat(1)
    found = {
        "endless function": error_of(lambda: model.fit(lambda c: dataset().repeat(), verbose=0)),
        "distributed": error_of(
            lambda: model.fit(strategy.experimental_distribute_dataset(dataset()), verbose=0)
        ),
        "function": error_of(lambda: model.fit(lambda c: 3, steps_per_epoch=3, verbose=0)),
        "ends early": error_of(lambda: model.fit(lambda c: short, steps_per_epoch=100, verbose=0)),
        "eager": error_of(lambda: eager.fit(dataset(), verbose=0)),
        "accumulation": error_of(
            lambda: model.fit(
                dataset(), verbose=0, callbacks=[callbacks.GradientAccumulation(steps=2)]
            )
        ),
        "optimizer's accumulation": error_of(
            lambda: accumulating.fit(
                dataset(), verbose=0, callbacks=[callbacks.GradientClipping(global_norm=1.0)]
            )
        ),
    }
    before = int(model.optimizer.iterations.numpy())
    model.fit(dataset(), verbose=0)
    return {**found, "goes on": int(model.optimizer.iterations.numpy()) - before}


def run_checks():
    strategy = kerasdist.make_strategy(
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=4000, max_shards=2
        )
    )
    return {name: _result_or_error(check, strategy) for name, check in CHECKS.items()}


def _result_or_error(check, strategy):
    try:
        return check(strategy)
    except Exception:  # The others are to be seen as well.
        return traceback.format_exc()


@functools.cache
def outputs():
    return testing.run_cluster(run_checks, num_workers=2, num_ps=2, timeout_secs=400)


def result_of(check):
    chief, *_ = outputs()
    assert chief.exit_code == 0, chief.output[-4000:]
    result = chief.value[check.__name__]
    assert not isinstance(result, str), result
    return result


def test_all_tasks_end_well():
    assert [output.exit_code for output in outputs()] == [0] * 5


def test_the_line_of_an_epoch_counts_the_steps_that_a_checkpoint_has_waited_for():
    lines = result_of(progress_with_a_checkpoint)

    assert len(lines) == 3
    assert all(made == there for made, there in lines)


@pytest.mark.parametrize("check", [shuffled_dataset, unknown_length, generator, py_dataset])
def test_each_example_is_seen_once_in_an_epoch(check):
    assert result_of(check) == {
        "iterations": 2 * NUM_STEPS,
        "examples": 2 * NUM_EXAMPLES,
        "fewest": [1, 1],
        "most": [1, 1],
        "all": [NUM_EXAMPLES] * 2,
    }


def test_each_example_is_seen_once_with_several_steps_per_call():
    for result in result_of(several_steps_per_call):
        assert result["iterations"] == 3 * NUM_STEPS
        assert result["fewest"] == result["most"] == [1, 1, 1]


def test_parameter_servers_wait_for_gradients_and_not_for_the_batch():
    num_operations, waiting = result_of(waits_for_the_batch)

    assert num_operations > 20
    assert waiting == []


def test_labels_of_nan_are_named_and_trained():
    messages, iterations = result_of(labels_of_nan)

    assert any("labels of the first batch hold NaN" in message for message in messages)
    assert iterations == NUM_STEPS


def test_layers_from_outside_the_scope_are_taken_to_parameter_servers():
    iterations, devices = result_of(layers_from_outside)

    assert iterations == NUM_STEPS
    assert len(devices) == 2 and all("/job:ps/" in device for device in devices)


def test_optimizers_that_the_first_step_makes_are_those_of_the_weights():
    assert set(result_of(text_and_ragged_rows).values()) == {NUM_STEPS}


def test_data_goes_on_over_short_epochs():
    result = result_of(epochs_shorter_than_the_data)

    # Every third epoch has the 4 batches that are left, as in plain Keras.
    assert result["all"] == [20, 20, NUM_EXAMPLES - 40] * 3
    assert result["iterations"] == 3 * NUM_STEPS


def test_data_of_unknown_length_ends_an_epoch_and_begins_anew():
    result = result_of(unknown_length_in_steps)

    assert result["iterations"] == 5 + 5 + 4 + 5
    assert result["all"] == [20, 20, NUM_EXAMPLES - 40, 20]


def test_workers_read_different_parts_of_endless_data():
    result = result_of(endless_dataset)

    assert result["iterations"] == 52
    assert result["all"] == [26 * BATCH_SIZE] * 2
    assert max(result["most"]) < 26  # Not one batch over and over.
    # Each by the worker that has trained with it, and what each of the two reads ahead.
    assert 52 * BATCH_SIZE <= result["prepared"] <= 56 * BATCH_SIZE


def test_function_of_the_input_context_makes_the_data_of_each_worker():
    result = result_of(input_context)

    assert result["contexts"] == [(2, 0), (2, 1)]
    assert result["iterations"] == 20


def test_evaluate_and_predict_equal_one_device():
    result = result_of(evaluate_and_predict)
    model = make_model(strategies.get("one device"))
    model.set_weights(result["weights"])

    expected = model.evaluate(dataset(), verbose=0, return_dict=True)
    assert result["evaluated"] == pytest.approx(expected, abs=1e-5)
    np.testing.assert_allclose(result["predicted"], model.predict(data()[0], verbose=0), atol=1e-5)
    np.testing.assert_allclose(result["on_batch"], result["predicted"][:5], atol=1e-5)


def test_learns_what_one_device_learns():
    model = make_model(strategies.get("one device"), optimizer=lambda: keras.optimizers.SGD(0.05))
    model.fit(dataset(400).repeat(), steps_per_epoch=100, epochs=6, shuffle=False, verbose=0)
    alone = model.evaluate(dataset(400), verbose=0)[0]

    assert result_of(learns) < 1.25 * alone


def test_sharded_embedding_trains_saves_and_loads():
    result = result_of(sharded_embedding)

    assert result["moved"] > 1e-4
    assert result["average moved"] > 1e-5
    assert result["put back"] == result["alone"] == result["again"] == 0
    assert sorted(result["tasks"]) == ["0", "1"]
    assert result["slots beside"] == [True, True]


def load_on_one_worker(path):
    """Loads what was trained on other tasks, goes on, and returns the weights that were loaded."""
    strategy = kerasdist.make_strategy(
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=4000, max_shards=3
        )
    )
    with strategy.scope():
        model = keras.models.load_model(path)
    weights = model.get_weights()
    parts = [part.device for part in parts_of(model.layers[0].embeddings.value)]
    model.fit(tokens(), np.ones((64, 1)), batch_size=8, verbose=0)
    return weights, [device.split("task:")[1][0] for device in parts]


@pytest.mark.exhaustive
def test_saved_model_loads_on_another_number_of_parameter_servers(tmp_path):
    model = make_embedding(strategies.get("one device"))
    model.fit(tokens(), np.ones((64, 1)), batch_size=8, verbose=0)
    model.save(tmp_path / "model.keras")

    chief, *_ = testing.run_cluster(
        functools.partial(load_on_one_worker, tmp_path / "model.keras"), num_workers=1, num_ps=3
    )
    assert chief.exit_code == 0, chief.output[-4000:]
    weights, tasks = chief.value

    assert sorted(tasks) == ["0", "1", "2"]
    for ours, theirs in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "partitioner",
    [
        tf.distribute.experimental.partitioners.FixedShardsPartitioner(3),
        lambda shape, dtype: [3, 1],
    ],
    ids=["fixed", "function"],
)
def test_more_shards_than_rows_is_an_error(partitioner):
    partition = checked(partitioner)

    assert partition(tf.TensorShape([3, 4]), tf.float32) == [3, 1]
    message = re.escape("asks for 3 shards of a variable of shape (2, 4), which has 2 rows")
    with pytest.raises(ValueError, match=message):
        partition(tf.TensorShape([2, 4]), tf.float32)


def test_a_nan_ends_the_training_in_its_epoch():
    assert result_of(nan_in_an_epoch) == (1, 1)


def test_stock_callbacks_decide_and_write():
    result = result_of(stock_callbacks)

    assert 3 <= len(result["rates"]) < 30
    np.testing.assert_allclose(
        result["rates"], 0.01 * 0.5 ** np.arange(1, 1 + len(result["rates"]))
    )
    assert result["files"] == ["best.keras", "events", "log.csv"]
    # Loss, another metric and the rate; of the validation the first two, also over the iterations.
    assert result["events"] == {
        "train": 3 * len(result["rates"]),
        "validation": 4 * len(result["rates"]),
    }
    assert result["rows"] == 1 + len(result["rates"])
    assert result["saved"] == 4
    assert result["beside"] == ("", False)


def test_interrupted_training_goes_on_from_a_backup():
    assert result_of(backup) == ([0, 1, 1, 2], 3 * NUM_STEPS)


def test_loop_of_its_own_counts_each_update_and_each_example():
    result = result_of(loop_of_its_own)

    message = result.pop("largest")
    assert "The state 'largest/value' of a metric" in message
    assert "2 workers that do so at the same time lose counts" in message
    assert result == {"iterations": 100, "examples": 800, "above": 800, "stateless": {8}}


def test_weight_that_a_layer_assigns_is_assigned_on_the_parameter_server():
    assert result_of(weights_assigned_in_a_call) == pytest.approx(1, abs=0.01)  # sqrt(18) before.


def test_metrics_of_a_batch_in_the_middle_are_without_those_of_steps_that_run():
    seen, at_least, expected = result_of(metrics_of_batches_in_the_middle)
    assert len(seen) >= at_least
    for metrics in seen:
        assert metrics == pytest.approx(expected, abs=1e-5)


def test_stops_in_the_middle_of_an_epoch():
    num_epochs, iterations = result_of(stop_in_the_middle)

    assert num_epochs == 1
    assert 20 < iterations < 1000


def test_logs_are_numbers_on_the_way_and_exact_at_the_end():
    result = result_of(logs_on_the_way)

    assert all(np.isfinite(result["seen"]))
    assert len(result["seen"]) >= NUM_STEPS
    assert result["history"].keys() == {"loss", "loss (raw)", "mae"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("endless function", "ValueError: `steps_per_epoch` .* is needed where a function"),
        ("distributed", "ValueError: .* Received: a distributed dataset"),
        ("function", "TypeError: The function given as data must return a tf.data.Dataset"),
        ("ends early", r"ValueError: The data of a worker ended .* Call `repeat\(\)`"),
        ("eager", "ValueError: `run_eagerly=True` cannot be had with parameter servers"),
        ("accumulation", "ValueError: GradientAccumulation is not supported with parameter serv"),
        ("optimizer's accumulation", "ValueError: .* cannot accumulate gradients in the same"),
    ],
)
def test_says_what_cannot_be_had(name, message):
    assert re.match(message, result_of(errors)[name], re.DOTALL), result_of(errors)[name]


def test_goes_on_after_an_error():
    assert result_of(errors)["goes on"] == NUM_STEPS


def train_and_report() -> int:
    strategy = kerasdist.make_strategy()
    model = make_model(strategy)
    model.fit(dataset(), epochs=2, verbose=0)
    return int(tf.convert_to_tensor(model.optimizer.iterations))


@pytest.mark.exhaustive
def test_machines_of_one_core_train(monkeypatch):
    # TensorFlow runs so many operations at a time; where one waits for another, one is too few.
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")

    chief, *_ = testing.run_cluster(train_and_report, num_workers=1, num_ps=1)

    assert chief.value == 2 * NUM_STEPS, chief.output
