"""Run a step with some examples, undone: what it would update, and what it returns and assigns."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import collectives, custom_parts
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.losses.metric_results import MetricResults
from kerasdist.training.replica import custom_attributes, replicas
from kerasdist.training.trial import examples, tolerances, undone_run
from kerasdist.training.trial.outcome import Arrays, Outcome


class Mode(enum.Enum):
    """How the replicas compute a step, in the order in which it is tried.

    Attributes:
        DIVIDED: Each replica has its part of the batch.
        DIVIDED_WITH_ALL_IN_LOSSES: The same, and compiled losses see all examples.
        WHOLE: Each replica has the whole batch, as one device has it.
    """

    DIVIDED = enum.auto()
    DIVIDED_WITH_ALL_IN_LOSSES = enum.auto()
    WHOLE = enum.auto()


def adding_metrics_of(model: keras.Model) -> dict[int, keras.metrics.Metric]:
    """Returns the metrics of Keras' whose sums over the replicas are what one device counts.

    Metrics of the user's own see all examples, and are left out.
    """
    metrics = filter(custom_parts.adds_up, custom_parts.metrics_of(model))
    # What holds metrics, the user's among them, counts nothing by itself.
    ones = [each for each in metrics if each.variables and not getattr(each, "metrics", ())]
    return {id(metric): metric for metric in ones}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A step, and the examples that it is run with.

    Attributes:
        model: A compiled model whose variables exist.
        step: Called with the data of a replica.
        batch: The examples: tensors [examples, ...].
        twin: The same, different by rounding.
        is_read: Whether what the step returns, and what it counts in metrics, is compared.
        weighs_loss: See `Replica.weighs_loss`.
        sums_of: Returns the metrics of a model, by their ids, of which what they count is compared.
        perturb: Called with a number; returns the step with perturbed weights, or predictions.
    """

    model: keras.Model
    step: Callable
    batch: Any
    twin: Any
    is_read: bool = True
    weighs_loss: bool = False
    sums_of: Callable[[keras.Model], dict[int, keras.metrics.Metric]] = adding_metrics_of
    perturb: Callable[[int], Callable] | None = None

    def take_attributes(self) -> custom_attributes.Snapshot:
        """Returns what the user's own parts keep in Python."""
        return custom_attributes.Snapshot(self.model)

    def perturbed(self, seed: int) -> "Tried":
        """Returns the same with weights, or predictions, that are perturbed."""
        assert self.perturb is not None
        step = self.perturb(seed)
        return dataclasses.replace(self, step=step, twin=self.batch, is_read=False)


def of_one_device(tried: Tried) -> tuple[Outcome, Outcome]:
    """Returns what one device gives, and what it gives where rounding has touched its inputs."""
    read: dict[bool, tuple] = {}

    def step(data: Any) -> None:
        if not tried.is_read:
            tried.step(data)
            return
        is_twin = data is tried.twin
        set_counts_to_zero(tried)
        if is_twin:  # Inputs such as words cannot be touched.
            examples.move_weights(tried.model, tolerances.LAST_BITS)
        arrays = numbers_in(tried.step(data))
        read[is_twin] = arrays, counts_of(tried)

    truth, twin, *_ = run_on_one_device(tried, step)
    if read:
        logs, counts = read.get(False, read.get(True, ({}, {})))
        truth = dataclasses.replace(truth, logs=logs, counts=counts)
        logs, counts = read.get(True, (logs, counts))
        twin = dataclasses.replace(twin, logs=logs, counts=counts)
    return truth, twin


def run_on_one_device(
    tried: Tried, step: Callable, *, undoes_attributes: bool = True
) -> list[Outcome]:
    """Runs a step with all examples, and with those that rounding has touched, on a replica each.

    Args:
        tried: Whose step it is.
        step: Called with the data.
        undoes_attributes: Whether attributes in Python are put back between the replicas.
    """
    size = batches.num_examples(tried.batch)
    strategy = tried.model.distribute_strategy
    number = len(peers.local_replicas(strategy))
    copies = ([tried.batch, tried.twin] * number)[: max(number, 2)]

    def run(data: list) -> list[Outcome]:
        shares = batches.Shares(
            data=tuple(data), counts=[size] * len(data), total=size, may_be_empty=False
        )
        take_own = tried.take_attributes if undoes_attributes else None
        return undone_run.run(strategy, step, shares, is_whole=True, take_own=take_own)

    # On workers of one replica each in two runs, which all of them make.
    return run(copies) if number > 1 else [*run(copies[:1]), *run(copies[1:])]


def of_replicas(tried: Tried, mode: Mode, truth: Outcome, assigned: list) -> Outcome:
    """Returns what the replicas give; all of them call it.

    Args:
        tried: What they run.
        mode: How.
        truth: The outcome of one device, with what is to be compared.
        assigned: TensorFlow's variables of which it is known whether all replicas assign the same;
            in a trial the optimizer leaves the trained ones alone.
    """
    model, strategy = tried.model, tried.model.distribute_strategy
    results = MetricResults(model)
    read = _Reading(tried, truth, assigned)
    divide = batches.whole_for_each if mode is Mode.WHOLE else batches.shares_of
    with results.watched():
        first, *_ = undone_run.run(
            strategy,
            read.run,
            divide(tried.batch, strategy),
            is_whole=False,
            weighs_loss=tried.weighs_loss,
            take_own=tried.take_attributes,
        )
    returned = read.returned
    return dataclasses.replace(
        first,
        logs=read.logs,
        shapes=read.shapes,
        results=frozenset(results.among(returned)) if isinstance(returned, dict) else frozenset(),
        counts=read.counts,
        deviations=read.deviations,
    )


def try_parts(tried: Tried) -> None:
    """Runs a step with this worker's parts of a batch alone, to see whether it fails with them."""
    strategy = tried.model.distribute_strategy
    if peers.count(strategy) > 1:
        shares = batches.shares_of(tried.batch, strategy)
        undone_run.run(strategy, tried.step, shares, is_whole=True, take_own=tried.take_attributes)


class _Reading:
    """Reads what a step of the replicas returns, counts and assigns, added up over all of them.

    Args:
        tried: See `of_replicas`.
        truth: See `of_replicas`.
        assigned: See `of_replicas`.
    """

    def __init__(self, tried: Tried, truth: Outcome, assigned: list):
        self._tried, self._truth, self._assigned = tried, truth, assigned
        self.returned: Any = None
        self.logs: Arrays = {}
        self.shapes: dict[tuple, tuple] = {}
        self.counts: dict[int, list[np.ndarray]] = {}
        self.deviations: list[float] = []

    def run(self, data: Any) -> None:
        """Runs the step with the data of a replica; all of them call it."""
        before = [tf.convert_to_tensor(variable) for variable in self._assigned]
        parts: list[np.ndarray] = []
        if self._tried.is_read:
            set_counts_to_zero(self._tried)
            self.returned = self._tried.step(data)
            parts = [*self._parts_of_logs(), *self._parts_of_counts()]
        else:
            self._tried.step(data)
        changes = np.array(
            [_sketch_of_change(*each) for each in zip(before, self._assigned, strict=True)]
        )
        sums = iter(_summed([*parts, changes, np.square(changes)]))
        if self._tried.is_read:
            self.logs = {path: next(sums) for path in self._truth.logs}
            self.counts = {
                key: [next(sums) for _ in states] for key, states in self._truth.counts.items()
            }
        self.deviations = _deviations(*sums).tolist()

    def _parts_of_logs(self) -> list[np.ndarray]:
        """Returns what this replica adds to the means of the logs that one device has."""
        replica: Any = replicas.current()
        share = float(replica.share)
        arrays = numbers_in(self.returned)
        self.shapes = {path: each.shape for path, each in arrays.items()}
        return [
            arrays[path] * share
            if share and path in arrays and arrays[path].shape == whole.shape
            else np.zeros(whole.shape)
            for path, whole in self._truth.logs.items()
        ]

    def _parts_of_counts(self) -> list[np.ndarray]:
        replica: Any = replicas.current()
        # Where each has the whole batch, the first one's share is 1, and its numbers are read.
        counts = float(replica.share > 0)
        added = counts_of(self._tried)
        return [
            counts * each
            for key, whole in self._truth.counts.items()
            for each in added.get(key, map(np.zeros_like, whole))
        ]


def _summed(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Returns arrays, which are of the same shapes on all replicas, summed over them."""
    flat = np.concatenate([np.ravel(each) for each in arrays])
    if not flat.size:
        return arrays
    (sums,) = collectives.sum_over_replicas([tf.constant(flat, tf.float64)])
    ends = np.cumsum([each.size for each in arrays])[:-1]
    return [
        found.reshape(each.shape)
        for found, each in zip(np.split(sums.numpy(), ends), arrays, strict=True)
    ]


def _deviations(sums: np.ndarray, sums_of_squares: np.ndarray) -> np.ndarray:
    number = peers.num_replicas(tf.distribute.get_strategy())
    means, mean_squares = sums / number, sums_of_squares / number
    variances = np.maximum(mean_squares - means**2, 0.0)
    return np.sqrt(variances / np.maximum(mean_squares, np.finfo("float64").tiny))


def _sketch_of_change(before: tf.Tensor, variable: Any) -> float:
    """Returns a number that is the same where a variable has changed alike; 0.0 for rounding.

    Weights that are moved and moved back, as for a perturbed gradient, keep their values but for
    that.
    """
    now = tf.convert_to_tensor(variable)
    if tf.reduce_all(tf.equal(before, now)):  # Nearly always, and cheaper than what follows.
        return 0.0
    before, now = (tf.cast(tf.reshape(each, [-1]), tf.float64) for each in (before, now))
    change = now - before
    if tf.norm(change) <= tolerances.MOVED_BACK * tf.norm(before):
        return 0.0
    return float(tf.reduce_sum(change * tf.cos(tf.range(tf.size(change), dtype=tf.float64))))


def numbers_in(logs: Any) -> Arrays:
    """Returns the numbers in logs by their paths, as float64."""
    arrays = {}
    for path, leaf in keras.tree.flatten_with_path(logs):
        value = leaf.value if isinstance(leaf, keras.Variable) else leaf
        array = np.asarray(tf.convert_to_tensor(value)) if value is not None else np.array("")
        if array.dtype.kind in "biufV":  # NumPy does not know bfloat16.
            arrays[path] = array.astype("float64")
    return arrays


def set_counts_to_zero(tried: Tried) -> None:
    """Lets metrics begin with zeros on this replica: a step may reset them, or not."""
    for metric in tried.sums_of(tried.model).values():
        for variable in metric.variables:
            variable.assign(tf.zeros_like(variable.value))


def counts_of(tried: Tried) -> dict[int, list[np.ndarray]]:
    """Returns what metrics hold on this replica, those that the step has made as well."""
    return {
        key: [np.asarray(variable.value, "float64") for variable in metric.variables]
        for key, metric in tried.sums_of(tried.model).items()
    }
