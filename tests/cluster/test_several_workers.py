"""What `fit` does over several workers beside the parity table."""

import csv
import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import callbacks
from kerasdist.parity import models
from kerasdist.training.context import peers
from tests import fork_server, strategies
from tests.cluster import record_files
from tests.event_files import scalars
from tests.strategies import each_worker_deployment, run_on_workers
from tests.times_seen import TimesSeen
from tests.warned import warned_by

NUM_EXAMPLES = 53
COLLECTIVES = ("CollectiveReduce", "CollectiveGather", "CollectiveBcast", "CollectiveAllToAll")


def data(num_examples=NUM_EXAMPLES):
    x = np.random.default_rng(0).normal(size=(num_examples, 6)).astype("float32")
    return x, np.tanh(x.sum(axis=1, keepdims=True))


def fit_with_callbacks(strategy) -> dict:
    """Trains with all callbacks of the update; returns weights, averages and history."""
    keras.utils.set_random_seed(3)
    average = callbacks.MovingAverage(0.9, validate=True)
    with strategy.scope():
        model = models.normalized()
        model.compile("sgd", "mse", metrics=["mae"], steps_per_execution=10)
    history = model.fit(
        *data(),
        batch_size=8,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=data(11),
        callbacks=[
            callbacks.GradientMultipliers({".*kernel": 2.0}),
            callbacks.GradientClipping(global_norm=0.5),
            callbacks.GradientAccumulation(steps=2),
            average,
            callbacks.LossAverages(0.5),
        ],
    ).history
    averages = average.get_state()
    return {
        **{f"weight {index}": weight for index, weight in enumerate(model.get_weights())},
        **{f"average {index}": value for index, value in enumerate(averages.values())},
        **{name: np.array(values) for name, values in history.items()},
    }


@functools.cache
def truth() -> dict:
    return fit_with_callbacks(strategies.get("one device"))


def fit_even_batches_with_averages(strategy) -> dict:
    """Trains with batches that are as large on every worker, which TensorFlow knows beforehand."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = models.regression()
    averages = callbacks.LossAverages(0.5)
    return model.fit(*data(48), batch_size=8, epochs=2, verbose=0, callbacks=[averages]).history


def fit_shuffled_without_a_seed(strategy) -> dict:
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[TimesSeen(NUM_EXAMPLES)])
    indices = np.arange(NUM_EXAMPLES, dtype="float32")[:, None]
    logs = [
        model.fit(data()[0], indices, batch_size=8, epochs=2, shuffle=True, verbose=0).history,
        model.fit(
            tf.data.Dataset.from_tensor_slices((data()[0], indices)).shuffle(60).batch(8),
            epochs=2,
            verbose=0,
        ).history,
    ]
    return {name: [*logs[0][name], *logs[1][name]] for name in ("fewest", "most")}


def fit_differently(strategy) -> str:
    """Fits a dataset that is another one on every worker; returns the error."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = data()
    seed = strategy.deployment.cluster.task.index
    try:
        model.fit(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(60, seed=seed).batch(8))
    except ValueError as error:
        return str(error)
    return ""


class LearnsByItself(keras.callbacks.Callback):
    """Sets a learning rate of its own on each worker, like one that looks at its own logs."""

    def on_epoch_end(self, epoch, logs=None):
        strategy = self.model.distribute_strategy
        self.model.optimizer.learning_rate = 0.01 * (1 + strategy.deployment.cluster.task.index)


def fit_apart(strategy) -> list[str]:
    """Returns the warnings of a `fit` whose workers go their own ways."""
    with strategy.scope():
        model = models.regression()
    return warned_by(lambda: model.fit(*data(), epochs=3, verbose=0, callbacks=[LearnsByItself()]))


def fit_what_differs_later(strategy) -> str:
    """Fits data that each worker shuffles for itself, but for the first epoch."""
    passes = itertools.count()

    def examples():
        order = np.arange(NUM_EXAMPLES)
        if next(passes):
            np.random.default_rng(strategy.deployment.cluster.task.index).shuffle(order)
        return zip(*(array[order] for array in data()), strict=True)

    spec = (tf.TensorSpec((6,)), tf.TensorSpec((1,)))
    with strategy.scope():
        model = models.regression()
    dataset = tf.data.Dataset.from_generator(examples, output_signature=spec).batch(8)
    with pytest.raises(ValueError) as caught:
        model.fit(dataset, epochs=3, shuffle=False, verbose=0)
    return str(caught.value)


def fit_from_a_data_service(strategy) -> dict:
    """Fits what two servers of tf.data prepare, whoever asks first; returns what was counted."""
    service = tf.data.experimental.service
    servers: list = [service.DispatchServer()] if kerasdist.is_chief() else []
    port = servers[0].target.rpartition(":")[2] if servers else 0
    address = f"localhost:{int(peers.sum_over(strategy, int(port)))}"
    servers.append(service.WorkerServer(service.WorkerConfig(dispatcher_address=address)))
    kerasdist.barrier("servers of tf.data")

    def batches(size, name):
        rows = tf.data.Dataset.from_tensor_slices((data()[0], indices)).batch(size)
        return rows.apply(service.distribute("distributed_epoch", f"grpc://{address}", name))

    indices = np.arange(NUM_EXAMPLES, dtype="float32")[:, None]
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[TimesSeen(NUM_EXAMPLES)])
    own = str(strategy.deployment.cluster.task.index)
    errors = []
    for call, given in (
        (model.fit, batches(8, "global")),
        (model.evaluate, batches(8, None)),
        (model.fit, lambda context: batches(4, None)),
        (model.fit, lambda context: batches(4, own)),
        (model.predict, batches(8, None)),
    ):
        with pytest.raises(ValueError) as caught:
            call(given, verbose=0)
        errors.append(str(caught.value))
    history = model.fit(
        lambda context: batches(context.get_per_replica_batch_size(8), "train"), epochs=3, verbose=0
    ).history
    kerasdist.barrier("all that tf.data serves is read")
    return {**history, "errors": errors}


def evaluate_differently(strategy) -> str:
    with strategy.scope():
        model = models.regression()
    known = tf.data.Dataset.from_tensor_slices(
        data(20 + 8 * strategy.deployment.cluster.task.index)
    ).batch(8)
    told = ""
    for given in (known, known.filter(lambda x, y: True)):
        with pytest.raises(ValueError) as caught:
            model.evaluate(given, verbose=0)
        told += str(caught.value)
    return told


def fit_pipelines_of_different_length(strategy) -> dict:
    """Fits a dataset of one's own per worker; the second one ends two batches before the first."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[TimesSeen(NUM_EXAMPLES)])
    bounds = [0, 37, NUM_EXAMPLES]

    def dataset(context):
        part = slice(*bounds[context.input_pipeline_id :][:2])
        indices = np.arange(NUM_EXAMPLES, dtype="float32")[:, None]
        rows = tf.data.Dataset.from_tensor_slices((data()[0][part], indices[part]))
        return rows.batch(8 // context.num_replicas_in_sync)

    distributed = strategy.distribute_datasets_from_function(dataset)
    return model.fit(distributed, epochs=2, shuffle=False, verbose=0).history


def fit_parts_that_grow(strategy) -> int:
    """Fits parts of workers with 2, then with 5 batches; returns how many steps there were."""
    lengths, batch = iter((2, 5)), tuple(each[:4] for each in data())
    spec = (tf.TensorSpec((4, 6)), tf.TensorSpec((4, 1)))

    def dataset(context):
        return tf.data.Dataset.from_generator(
            lambda: [batch] * next(lengths), output_signature=spec
        )

    with strategy.scope():
        model = models.regression()
    model.fit(dataset, epochs=2, verbose=0)
    return int(model.optimizer.iterations.numpy())


def fit_from_a_function(strategy) -> dict:
    """Fits a function that makes each worker's part of the global batches of 8."""

    def dataset(context):
        size = context.get_per_replica_batch_size(8)
        start = size * context.input_pipeline_id
        whole = tf.data.Dataset.from_tensor_slices(data()).batch(8)
        return whole.map(lambda x, y: (x[start : start + size], y[start : start + size]))

    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = models.regression()
    arguments = {"epochs": 2, "shuffle": False, "verbose": 0, "validation_data": dataset}
    history = model.fit(dataset, **arguments).history
    return {**history, "outputs": model.predict(dataset, verbose=0)}


def fit_without_synchronized_statistics(strategy) -> list:
    """Returns the moving statistics, and the first global batch's loss with them."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = models.normalized()
    model.layers[1].synchronized = False
    average = callbacks.MovingAverage(0.5)
    model.fit(*data(), batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[average])
    layer = next(each for each in model.layers if "normalization" in each.name)
    averages = {name: each for name, each in average.get_state().items() if "moving" in name}
    losses = model.evaluate(*data(), verbose=0, return_dict=True)
    return [*map(np.array, layer.non_trainable_variables), *averages.values(), losses["loss"]]


def fit_with_decisions(strategy) -> dict:
    """Trains with Keras' callbacks that look at the logs and change the training."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = models.regression()
    return model.fit(
        *data(),
        batch_size=8,
        epochs=30,
        shuffle=False,
        verbose=0,
        validation_data=data(11),
        callbacks=[
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.98),
            keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=0.01, cooldown=1),
            keras.callbacks.EarlyStopping(patience=4, min_delta=0.01, restore_best_weights=True),
        ],
    ).history


class CompilesAtTheEnd(keras.callbacks.Callback):
    """Compiles and stops in the last step of an epoch, as those do that train in stages."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.compile("sgd", "mse")
            self.model.stop_training = True


def fit_in_stages(strategy) -> dict:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = models.regression()
    arguments = {"batch_size": 8, "shuffle": False, "verbose": 0}
    first = model.fit(*data(16), callbacks=[CompilesAtTheEnd()], epochs=2, **arguments)
    second = model.fit(*data(16), **arguments)
    return {"first": first.history["loss"], "second": second.history["loss"]}


def fit_with_an_accumulated_mask(strategy) -> list:
    """Trains with a mask of which every batch, and every replica, has another part; the weights."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = models.masked()
    words = np.random.default_rng(0).integers(1, 20, size=(NUM_EXAMPLES, 5))
    words *= np.arange(5) < np.linspace(1, 5.99, NUM_EXAMPLES).astype(int)[:, None]
    accumulation = callbacks.GradientAccumulation(steps=2)
    fit = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    model.fit(words, words % 3, callbacks=[accumulation], **fit)
    return [np.array(weight) for weight in model.get_weights()]


def trained(strategy):
    """Returns a model after an epoch."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = models.regression()
    model.fit(*data(), batch_size=8, epochs=1, shuffle=False, verbose=0)
    return model


def collectives_of_a_step(strategy) -> int:
    """Returns how many messages the compiled training step sends."""
    return count_collectives(trained(strategy).train_function._graphs._graphs["next", False, False])


def count_collectives(function) -> int:
    return len(collectives_in(function))


def collectives_in(function) -> list:
    (concrete,) = function._list_all_concrete_functions()
    graphs = [concrete.graph.as_graph_def()]
    nodes = itertools.chain(
        *(graph.node for graph in graphs),
        *(function.node_def for graph in graphs for function in graph.library.function),
    )
    return [node for node in nodes if node.op.startswith(COLLECTIVES)]


class Noise(keras.layers.Layer):
    """Keeps what TensorFlow draws in a step."""

    def build(self, shape):
        self.drawn = self.add_weight(shape=(3,), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.drawn.assign(tf.random.normal([3]))
        return inputs


def draw_in_a_step(strategy) -> list:
    """Returns what each replica of this worker has drawn."""
    with strategy.scope():
        noise = Noise()
        model = keras.Sequential([keras.Input((6,)), noise, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(*data(8), batch_size=8, verbose=0)
    replicas = strategy.experimental_local_results(noise.drawn.value)
    return [replica.numpy() for replica in replicas]


def predict_on_the_second_alone(strategy):
    with strategy.scope():
        model = models.regression()
    if strategy.deployment.cluster.task.index == 1:
        return model.predict(data()[0], batch_size=8, verbose=0).shape
    return None


def all_of_these(functions, strategy) -> list:
    return [function(strategy) for function in functions]


CHECKS = [
    fit_with_callbacks,
    fit_even_batches_with_averages,
    fit_shuffled_without_a_seed,
    fit_differently,
    fit_apart,
    fit_what_differs_later,
    evaluate_differently,
    fit_pipelines_of_different_length,
    fit_parts_that_grow,
    fit_from_a_function,
    fit_from_a_data_service,
    fit_without_synchronized_statistics,
    fit_with_decisions,
    fit_in_stages,
    fit_with_an_accumulated_mask,
    collectives_of_a_step,
    draw_in_a_step,
    predict_on_the_second_alone,
]


@functools.cache
def outcomes(workers) -> list[dict]:
    """Returns what each of `CHECKS` gave, on each worker: one cluster runs them all."""
    values = run_on_workers(functools.partial(all_of_these, CHECKS), workers)
    return [dict(zip(CHECKS, value, strict=True)) for value in values]


@each_worker_deployment
def test_callbacks_equal_one_device(workers):
    for outcome in outcomes(workers):
        values = outcome[fit_with_callbacks]
        assert values.keys() == truth().keys()
        for name, value in values.items():
            np.testing.assert_allclose(value, truth()[name], atol=1e-5, err_msg=name)


@each_worker_deployment
def test_losses_of_even_batches_are_means_over_all_workers(workers):
    truth = fit_even_batches_with_averages(strategies.get("one device"))

    for outcome in outcomes(workers):
        history = outcome[fit_even_batches_with_averages]
        assert history.keys() == truth.keys() >= {"loss", "loss (raw)"}
        for name, values in history.items():
            np.testing.assert_allclose(values, truth[name], atol=1e-5)


@each_worker_deployment
def test_shuffled_data_is_read_once_per_epoch(workers):
    for outcome in outcomes(workers):
        seen = outcome[fit_shuffled_without_a_seed]
        assert seen == {"fewest": [1, 1, 1, 1], "most": [1, 1, 1, 1]}


@each_worker_deployment
def test_a_worker_without_data_waits_for_the_others(workers):
    for outcome in outcomes(workers):
        seen = outcome[fit_pipelines_of_different_length]
        assert (seen["fewest"], seen["most"]) == ([1, 1], [1, 1])
        assert outcome[fit_parts_that_grow] == 2 + 5


@each_worker_deployment
def test_different_data_is_an_error_on_every_worker(workers):
    for outcome in outcomes(workers):
        assert "read different first batches" in outcome[fit_differently]
        assert "keras.utils.set_random_seed" in outcome[fit_differently]
        assert "`fit(lambda context: dataset)`" in outcome[fit_differently]


@each_worker_deployment
def test_what_a_data_service_prepares_is_read_once_or_refused(workers):
    for outcome in outcomes(workers):
        served = outcome[fit_from_a_data_service]
        assert served["fewest"] == served["most"] == [1, 1, 1]
        ways_out = [*["`fit(lambda context: dataset)`"] * 2, *["job_name="] * 2, "without `distri"]
        for error, way_out in zip(served["errors"], ways_out, strict=True):
            assert way_out in error


@each_worker_deployment
def test_workers_that_drift_apart_are_told_once(workers):
    for outcome in outcomes(workers):
        (warning,) = outcome[fit_apart]
        assert "after epoch 1 they differ in the learning rate. " in warning


@each_worker_deployment
def test_data_that_differs_later_is_an_error_on_every_worker(workers):
    for outcome in outcomes(workers):
        assert "read different first batches" in outcome[fit_what_differs_later]
        assert "different length: 20 on worker 0, 28 on worker 1." in outcome[evaluate_differently]
        assert "in batches: 3 on worker 0, 4 on worker 1. Every" in outcome[evaluate_differently]


@each_worker_deployment
def test_moving_statistics_are_the_same_on_all_workers(workers):
    first, second = (outcome[fit_without_synchronized_statistics] for outcome in outcomes(workers))

    assert len(first) == 5
    for ours, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@each_worker_deployment
@pytest.mark.parametrize("training", [fit_from_a_function, fit_in_stages])
def test_training_equals_one_device(workers, training):
    truth = training(strategies.get("one device"))

    for outcome in outcomes(workers):
        assert outcome[training].keys() == truth.keys()
        for name, values in outcome[training].items():
            np.testing.assert_allclose(values, truth[name], atol=1e-5, err_msg=name)


@each_worker_deployment
def test_callbacks_that_decide_do_the_same_on_all_workers(workers):
    truth = fit_with_decisions(strategies.get("one device"))
    rates = truth["learning_rate"]
    assert len(rates) < 30
    assert min(later / earlier for earlier, later in itertools.pairwise(rates)) < 0.5

    for outcome in outcomes(workers):
        history = outcome[fit_with_decisions]
        assert history.keys() == truth.keys()
        for name, values in history.items():
            np.testing.assert_allclose(values, truth[name], atol=1e-5, err_msg=name)


@each_worker_deployment
def test_accumulated_batches_count_with_the_mask_of_all_workers(workers):
    truth = fit_with_an_accumulated_mask(strategies.get("one device"))

    for outcome in outcomes(workers):
        for ours, theirs in zip(outcome[fit_with_an_accumulated_mask], truth, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


@each_worker_deployment
def test_a_step_sends_one_message_per_replica(workers):
    num_clones = strategies.WORKER_DEPLOYMENTS[workers].get("num_clones", 1)

    assert [outcome[collectives_of_a_step] for outcome in outcomes(workers)] == [num_clones] * 2


@each_worker_deployment
def test_each_replica_draws_numbers_of_its_own(workers):
    drawn = [each for outcome in outcomes(workers) for each in outcome[draw_in_a_step]]

    assert len(np.unique(drawn, axis=0)) == len(drawn)


@each_worker_deployment
def test_one_worker_can_predict_alone(workers):
    first, second = (outcome[predict_on_the_second_alone] for outcome in outcomes(workers))

    assert first is None
    assert second == (NUM_EXAMPLES, 1)


def train_with_small_messages() -> tuple[list, str, list]:
    """Returns the dtypes of the messages of a step, the plan, and weights."""
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=32)
    strategy = kerasdist.make_strategy(communication_options=options, allreduce_dtype="float16")
    with strategy.scope():
        plan = kerasdist.plan_training(models.regression(), global_batch_size=8)
    model = trained(strategy)
    graph = model.train_function._graphs._graphs["next", False, False]
    dtypes = [tf.as_dtype(node.attr["T"].type).name for node in collectives_in(graph)]
    return dtypes, str(plan), [np.array(weight) for weight in model.get_weights()]


def test_messages_can_be_made_smaller_and_sent_in_16_bits():
    truth = trained(strategies.get("one device")).get_weights()
    outputs = fork_server.run_cluster(train_with_small_messages)

    for output in outputs:
        dtypes, plan, weights = output.value
        assert dtypes.count("float16") > 1
        assert "float32" in dtypes  # The largest of each gradient, and the extra sums.
        assert "of a step in messages of 32 bytes, rounded to float16" in plan
        assert "all-reduce AUTO, all gradients" in plan
        assert "on each of 2 workers" in plan
        for ours, theirs, first in zip(weights, truth, outputs[0].value[2], strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-3)
            np.testing.assert_array_equal(ours, first)
        assert not all(map(np.array_equal, weights, truth))


def join_with_other_sums() -> str:
    """Returns the error where each worker sends gradients in its own way."""
    index = kerasdist.Cluster.from_env().task.index
    with pytest.raises(kerasdist.ClusterStartError) as caught:
        kerasdist.make_strategy(allreduce_dtype=["float16", None][index])
    return str(caught.value)


def test_workers_agree_on_how_they_send_gradients():
    for output in fork_server.run_cluster(join_with_other_sums):
        assert "allreduce_dtype is " in output.value
        assert "that of the gradients" in output.value


def write_files(folder, strategy) -> list:
    """Trains with everything that writes files, all workers to the same folder; returns weights."""
    with strategy.scope():
        model = models.regression()
    model.fit(
        *data(),
        batch_size=8,
        epochs=2,
        verbose=2,
        callbacks=[
            keras.callbacks.ModelCheckpoint(folder / "checkpoint.keras"),
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.TensorBoard(folder / "events", write_graph=False),
            keras.callbacks.BackupAndRestore(folder / "backup"),
        ],
    )
    own = folder / str(strategy.deployment.cluster.task)
    own.mkdir()
    model.save(own / "model.keras")
    model.save_weights(own / "model.weights.h5")
    return [np.array(weight) for weight in model.get_weights()]


def interrupt_after_an_epoch(folder, strategy) -> tuple:
    """Trains until an error in the second epoch, then again; returns epochs and updates."""
    arguments = {"batch_size": 8, "epochs": 3, "verbose": 0}
    epochs = []

    def fail(epoch, logs):
        epochs.append(epoch)
        if epochs == [0, 1]:
            raise InterruptedError

    for _ in range(2):
        with strategy.scope():
            model = models.regression()
        backup = keras.callbacks.BackupAndRestore(folder)
        begin = keras.callbacks.LambdaCallback(on_epoch_begin=fail)
        try:
            model.fit(*data(), callbacks=[backup, begin], **arguments)
        except InterruptedError:
            continue
    return epochs, int(model.optimizer.iterations.numpy())


def write_and_interrupt(folder, strategy) -> tuple:
    return write_files(folder / "all", strategy), interrupt_after_an_epoch(folder / "two", strategy)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Returns the folder that two workers wrote to, and what each of them returned."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "all").mkdir()
    run = functools.partial(write_and_interrupt, folder)
    return folder / "all", run_on_workers(run, "2 workers")


def test_the_chief_alone_writes(written):
    folder, ((weights, _), _) = written

    assert [step for name, step in scalars(folder) if name == "epoch_loss"] == [0, 1]
    assert len(list(folder.glob("events/**/events.out.*"))) == 1
    files = {str(path.relative_to(folder)) for path in folder.glob("*") if path.is_file()}
    assert files == {"checkpoint.keras", "log.csv"}
    for own in ("worker 0", "worker 1"):
        names = {path.name for path in folder.glob(f"{own}/*")}
        assert names == {"model.keras", "model.weights.h5"}
    with open(folder / "log.csv") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1"]
    for own in ("worker 0", "worker 1"):
        saved = keras.models.load_model(folder / own / "model.keras").get_weights()
        for ours, theirs in zip(saved, weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_backup_is_restored_on_every_worker(written):
    _, outcomes_of_workers = written

    for _, epochs_and_updates in outcomes_of_workers:
        assert epochs_and_updates == ([0, 1, 1, 2], 3 * 7)


def fit_files(paths, strategy) -> list[dict]:
    return [fit_files_in_executions_of(steps, paths, strategy) for steps in (1, 3)]


def fit_files_in_executions_of(steps_per_execution, paths, strategy) -> dict:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = models.regression(steps_per_execution=steps_per_execution)
    dataset = record_files.read(paths).batch(8)
    history = model.fit(
        dataset, epochs=2, shuffle=False, verbose=0, validation_data=dataset
    ).history
    graphs = model.train_function._graphs._graphs
    return {
        "weights": [np.array(weight) for weight in model.get_weights()],
        "history": history,
        "iterations": int(model.optimizer.iterations.numpy()),
        "predictions": model.predict(dataset, verbose=0).shape,
        "collectives": count_collectives(graphs["with_own_batches", False, False]),
    }


def union_of_batches():
    """Yields what the two workers read in each step: 4 examples of each one's own files."""
    files = record_files.examples()
    first, second = np.concatenate(files[0::2]), np.concatenate(files[1::2])
    for start in range(0, len(first), 4):
        rows = np.concatenate([first[start : start + 4], second[start : start + 4]])
        yield rows[:, :6], rows[:, 6:]


@each_worker_deployment
def test_each_worker_reads_its_own_files(tmp_path, workers):
    keras.utils.set_random_seed(3)
    with strategies.get("one device").scope():
        truth = models.regression()
    spec = (tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None, 1], tf.float32))
    dataset = tf.data.Dataset.from_generator(union_of_batches, output_signature=spec)
    history = truth.fit(
        dataset, epochs=2, shuffle=False, verbose=0, validation_data=dataset
    ).history
    fit = functools.partial(fit_files, record_files.write(tmp_path))

    for outcome in itertools.chain(*run_on_workers(fit, workers)):
        assert outcome["iterations"] == 2 * 7
        assert outcome["collectives"] == strategies.WORKER_DEPLOYMENTS[workers].get("num_clones", 1)
        assert outcome["predictions"] == (sum(record_files.SIZES), 1)
        for ours, theirs in zip(outcome["weights"], truth.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        for name, values in history.items():
            np.testing.assert_allclose(outcome["history"][name], values, atol=1e-5)
