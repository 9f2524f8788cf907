"""Find the values in the logs of a step that are results of metrics.

`metric.result()` in a train_step is the result of one replica. Most steps hand it on as it is, and
under a name of their own: then the metric, read when somebody asks, knows it for all replicas.

One that the step takes before it updates the metric once more, as `super().compute_metrics(...)`
does of metrics that are updated after it, nobody can read later: the step adds up what the metric
then held on all replicas.
"""

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts, variable_adapter
from kerasdist.support.replaced_method import method_replaced
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, traits
from kerasdist.training.replica import graph_facts, replicas


@dataclasses.dataclass(frozen=True)
class Result:
    """What a metric gives, or one number of several.

    Attributes:
        compute: The method that gives it: a metric's `result`, or `get_metrics_result` of a model.
        position: Of the number, where it gives a dict or a list.
    """

    compute: Callable
    position: int

    def read(self):
        """Returns it as it is now."""
        return keras.tree.flatten(self.compute())[self.position]


@dataclasses.dataclass(frozen=True)
class _Given:
    """What a metric has given to a replica.

    Attributes:
        value: A number, or several.
        states: The values of the metric's variables on that replica at the time.
    """

    value: Any
    states: list


@dataclasses.dataclass(frozen=True)
class _OfModel:
    """What `get_metrics_result` of a model, maybe the user's own, has given to a replica.

    Attributes:
        numbers: The numbers, in the order of its keys; a step may add others to what it has got.
        uses: By the ids of results of metrics, how many operations of that method use them. They
            do no harm: it is called again, for all replicas, where its numbers are read.
    """

    numbers: list
    uses: dict


class MetricResults:
    """Watches the metrics of a model while a step runs on its replicas, or is traced.

    Args:
        model: A compiled model on several replicas, or on parameter servers.
        warns: Whether to warn, once, if the step computes with a result, which on several replicas
            is that of one of them.

    Attributes:
        computed_with: The metrics with whose results the step computed when it was last traced.
    """

    def __init__(self, model: keras.Model, *, warns: bool = True):
        self._model = model
        self._warns = warns
        self.computed_with: list[keras.metrics.Metric] = []
        # By the id of the metric: itself, and the `_Given` of each replica, by the replica's
        # thread, since that one last changed its state.
        self._results: dict[int, tuple[keras.metrics.Metric, dict]] = {}
        # By the id of a number that a metric gave before its state changed: the metric, the
        # position of the number, and the `_Given`.
        self._past: dict[int, tuple[keras.metrics.Metric, int, _Given]] = {}
        # What the model's `get_metrics_result` gave, by the replica's thread, since a metric last
        # changed its state.
        self._of_model: dict[int, _OfModel] = {}
        # By the id of the metric, all that it gave: a step may compute with what it was before.
        self._given: dict[int, list] = {}
        # By name, those with results in a tf.function of the step's: its outputs are other tensors,
        # and it is traced once for several traces of the step.
        self._in_functions: dict[str, keras.metrics.Metric] = {}
        self._has_warned = False

    @contextlib.contextmanager
    def watched(self) -> Generator[None]:
        """Notes what the metrics give inside, until `among` is asked."""
        metrics = custom_parts.metrics_of(self._model)
        self._results = {id(metric): (metric, {}) for metric in metrics}
        self._given = {id(metric): [] for metric in metrics}
        self._past, self._of_model = {}, {}
        with contextlib.ExitStack() as stack:
            # Those on parameter servers are of all workers in the step, too.
            if not traits.has_remote_variables(self._model.distribute_strategy):
                stack.enter_context(
                    method_replaced(self._model, "get_metrics_result", self._note_of_model)
                )
            for metric, results in self._results.values():
                given = self._given[id(metric)]
                stack.enter_context(
                    method_replaced(metric, "result", _note, metric, results, given)
                )
                for name in ("update_state", "reset_state"):
                    stack.enter_context(
                        method_replaced(metric, name, self._forget, metric, results)
                    )
                stack.enter_context(method_replaced(metric, "reset_state", _note_reset, metric))
            yield

    def _note_of_model(self, method: Any) -> dict:
        earlier = self._num_uses()
        logs = method()
        uses = {
            key: number - earlier.get(key, 0)
            for key, number in self._num_uses().items()
            if number > earlier.get(key, 0)  # Not those of other replicas.
        }
        self._of_model[threading.get_ident()] = _OfModel(keras.tree.flatten(logs), uses)
        return logs

    def _num_uses(self) -> dict[int, int]:
        given = _symbolic([*self._given.values()])
        return {id(each): graph_facts.num_uses(each) for each in given}

    def _forget(
        self, method: Any, metric: keras.Metric, results: dict, *args: Any, **kwargs: Any
    ) -> Any:
        self._of_model.pop(threading.get_ident(), None)
        for given in results.pop(threading.get_ident(), []):
            for position, leaf in enumerate(keras.tree.flatten(given.value)):
                if tf.is_tensor(leaf):  # A variable knows its value later.
                    self._past[id(leaf)] = (metric, position, given)
        return method(*args, **kwargs)

    def of_all_replicas(self, replicas: list) -> list:
        """Returns logs in which past results of metrics are those of all replicas.

        Args:
            replicas: What the step has returned on each replica of this worker.
        """
        if traits.has_remote_variables(self._model.distribute_strategy):
            return replicas
        first, *others = [keras.tree.flatten_with_path(logs) for logs in replicas]
        values = [
            self._past_of_all([leaf, *(other[index][1] for other in others)])
            for index, (_, leaf) in enumerate(first)
        ]
        self._past = {}  # It would keep the graph of the step alive.
        return [
            keras.tree.pack_sequence_as(
                logs,
                [
                    leaf if value is None else value
                    for leaf, value in zip(keras.tree.flatten(logs), values, strict=True)
                ],
            )
            for logs in replicas
        ]

    def _past_of_all(self, leaves: list):
        """Returns the past result of which the leaves are those of the replicas, or None."""
        if not all(id(leaf) in self._past for leaf in leaves):
            return None
        found = [self._past[id(leaf)] for leaf in leaves]
        metric, position, _ = found[0]
        states = [given.states for *_, given in found]
        # It may have made its variables with its first update.
        if _is_of_all_examples(metric) or len(states[0]) != len(metric.variables):
            return None
        strategy = self._model.distribute_strategy
        sums = [tf.add_n(each) for each in zip(*states, strict=True)]
        states = [peers.sum_in_graph(strategy, each) for each in sums]
        return keras.tree.flatten(metric.stateless_result(states))[position]

    def among(self, logs: dict) -> dict[tuple, Result]:
        """Returns the results of metrics that are in `logs`, by their path there."""
        graph = tf.compat.v1.get_default_graph()
        self._find_uses(graph)
        for metric, results in self._results.values():
            values = [given.value for given in itertools.chain(*results.values())]
            if any(each.graph is not graph for each in _symbolic(values)):
                self._in_functions[metric.name] = metric
        leaves = keras.tree.flatten_with_path(logs)
        found = (
            {
                id(leaf): Result(self._model.get_metrics_result, position)
                for given in self._of_model.values()
                for position, leaf in enumerate(given.numbers)
            }
            | {
                id(leaf): Result(self._in_functions[path[-1]].result, 0)
                for path, leaf in leaves
                if path[-1] in self._in_functions
            }
            | {
                id(leaf): Result(metric.result, position)
                for metric, results in self._results.values()
                for given in itertools.chain(*results.values())
                for position, leaf in enumerate(keras.tree.flatten(given.value))
            }
        )
        # They would keep the graph of the step alive.
        self._results, self._given, self._of_model = {}, {}, {}
        return {path: found[id(leaf)] for path, leaf in leaves if id(leaf) in found}

    def _find_uses(self, graph: tf.Graph):
        uses = dict(itertools.chain(*(each.uses.items() for each in self._of_model.values())))
        self.computed_with = [
            metric
            for identity, (metric, _) in self._results.items()
            if any(
                each.graph is graph and graph_facts.num_uses(each) > uses.get(id(each), 0)
                for each in _symbolic(self._given[identity])
            )
            and not _is_of_all_examples(metric)
        ]
        if self.computed_with and self._warns and not self._has_warned:
            self._has_warned = True
            names = sorted(repr(metric.name) for metric in self.computed_with)
            warn(
                f"The step computes with the result of {', '.join(names)}, which in a "
                "step is that of one replica and not of all examples. Return `metric.result()` as "
                "it is; compute with it in a callback, or in a metric of your own."
            )


def _note_reset(method: Any, metric: keras.Metric, *args: Any, **kwargs: Any) -> Any:
    """Lets the step know what a replica without examples is to leave: not what was there before."""
    result = method(*args, **kwargs)
    replica = replicas.current()
    if replica is not None and replica.is_in_step_graph():
        for variable in metric.variables:
            replica.states.resets[id(variable.value)] = tf.convert_to_tensor(variable.value)
    return result


def _is_of_all_examples(metric: keras.Metric) -> bool:
    """Whether each replica has updated it with all examples; see `whole_metrics`."""
    return all(variable_adapter.reads_first_replica(each.value) for each in metric.variables)


def _note(method: Any, metric: keras.Metric, results: dict, given: list) -> Any:
    states = [tf.convert_to_tensor(variable.value) for variable in metric.variables]
    value = method()
    results.setdefault(threading.get_ident(), []).append(_Given(value, states))
    given.append(value)
    return value


def _symbolic(results: list) -> list:
    return [each for each in keras.tree.flatten(results) if tf.is_symbolic_tensor(each)]
