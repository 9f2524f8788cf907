"""Which values in the logs of a step are results of metrics.

`metric.result()` in a train_step is the result of one replica. Most steps hand it on as it is, and
under a name of their own: then the metric, read when somebody asks, knows it for all replicas.
"""

import contextlib
import dataclasses
import itertools
import threading
import warnings
from collections.abc import Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_stock, tensorflow_adapter
from kerasdist.private.replaced_method import method_replaced


@dataclasses.dataclass(frozen=True)
class Result:
    """What a metric gives, or one number of several.

    Attributes:
        metric: The metric.
        position: Of the number, where it gives a dict or a list.
    """

    metric: keras.metrics.Metric
    position: int

    def read(self):
        """Returns it as it is now."""
        return keras.tree.flatten(self.metric.result())[self.position]


class MetricResults:
    """Watches the metrics of a model while a step runs on its replicas, or is traced.

    Args:
        model: A compiled model on several replicas, or on parameter servers.
        warns: Whether to warn, once, if the step computes with a result, which on several replicas
            is that of one of them.

    Attributes:
        computed_with: The metrics with whose results the step computed when it was last traced.
    """

    def __init__(self, model, *, warns: bool = True):
        self._model = model
        self._warns = warns
        self.computed_with: list[keras.metrics.Metric] = []
        # By the id of the metric: itself, and what it gave to each replica, by the replica's
        # thread, since that one last changed its state.
        self._results: dict[int, tuple[keras.metrics.Metric, dict]] = {}
        # By the id of the metric, all that it gave: a step may compute with what it was before.
        self._given: dict[int, list] = {}
        # By name, those with results in a tf.function of the step's: its outputs are other tensors,
        # and it is traced once for several traces of the step.
        self._in_functions: dict[str, keras.metrics.Metric] = {}
        self._has_warned = False

    @contextlib.contextmanager
    def watched(self) -> Generator[None]:
        """Notes what the metrics give inside, until `among` is asked."""
        metrics = keras_stock.metrics_of(self._model)
        self._results = {id(metric): (metric, {}) for metric in metrics}
        self._given = {id(metric): [] for metric in metrics}
        with contextlib.ExitStack() as stack:
            for metric, results in self._results.values():
                given = self._given[id(metric)]
                stack.enter_context(method_replaced(metric, "result", _note, results, given))
                for name in ("update_state", "reset_state"):
                    stack.enter_context(method_replaced(metric, name, _forget, results))
            yield

    def among(self, logs: dict) -> dict[tuple, Result]:
        """Returns the results of metrics that are in `logs`, by their path there."""
        graph = tf.compat.v1.get_default_graph()
        self._find_uses(graph)
        for metric, results in self._results.values():
            if any(each.graph is not graph for each in _symbolic(list(results.values()))):
                self._in_functions[metric.name] = metric
        leaves = keras.tree.flatten_with_path(logs)
        found = {
            id(leaf): Result(self._in_functions[path[-1]], 0)
            for path, leaf in leaves
            if path[-1] in self._in_functions
        } | {
            id(leaf): Result(metric, position)
            for metric, results in self._results.values()
            for result in itertools.chain(*results.values())
            for position, leaf in enumerate(keras.tree.flatten(result))
        }
        self._results, self._given = {}, {}  # They would keep the graph of the step alive.
        return {path: found[id(leaf)] for path, leaf in leaves if id(leaf) in found}

    def _find_uses(self, graph):
        self.computed_with = [
            metric
            for identity, (metric, _) in self._results.items()
            if any(
                each.graph is graph and each.consumers()
                for each in _symbolic(self._given[identity])
            )
            and not _is_of_all_examples(metric)
        ]
        if self.computed_with and self._warns and not self._has_warned:
            self._has_warned = True
            names = sorted(repr(metric.name) for metric in self.computed_with)
            warnings.warn(
                f"The step computes with the result of {', '.join(names)}, which in a "
                "step is that of one replica and not of all examples. Return `metric.result()` as "
                "it is; compute with it in a callback, or in a metric of your own.",
                stacklevel=2,
            )


def _is_of_all_examples(metric) -> bool:
    """Whether each replica has updated it with all examples; see `whole_metrics`."""
    return all(tensorflow_adapter.reads_first_replica(each.value) for each in metric.variables)


def _note(method, results: dict, given: list) -> Any:
    value = method()
    results.setdefault(threading.get_ident(), []).append(value)
    given.append(value)
    return value


def _forget(method, results: dict, *args, **kwargs) -> Any:
    results.pop(threading.get_ident(), None)
    return method(*args, **kwargs)


def _symbolic(results: list) -> list:
    return [each for each in keras.tree.flatten(results) if tf.is_symbolic_tensor(each)]
