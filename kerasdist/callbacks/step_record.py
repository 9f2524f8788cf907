"""Records now and then what a step does, on the device, for the chief to read afterwards.

Steps at which nobody looks are compiled without it. In the others (a call of `steps_per_execution`
has several, and workers of parameter servers do not know which number theirs gets) it is behind a
condition. Only the first replica of the chief records: the gradients of the global batch and the
updated weights are the same on all of them. Of a layer's output it sees its own share. Beside
parameter servers a worker records, and of synchronous ones the last that has outputs for the step.
"""

import dataclasses
import math
import threading
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.training.context import peers
from kerasdist.training.hooks import layer_outputs, step_variables, tensor_statistics
from kerasdist.training.hooks.divided_values import parts_of
from kerasdist.training.hooks.gradient_values import values_of
from kerasdist.training.hooks.graph_function import rare_cond
from kerasdist.training.replica import replicas

# The columns of the rows of numbers.
_NUMBERS = ("gradient_norm", "gradient_norm_applied", "update_ratio")


class StepRecord:
    """Statistics of gradients, weights, updates and outputs of layers, of one step.

    Args:
        strategy: A strategy of ours.
        variables: Keras variables that are trained, by the names that they have in the record.
        weights: The names of those whose values are recorded.
        gradients: The names of those whose gradients are recorded; norms are of all.
        layers: Layers whose outputs are recorded, by name.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        *,
        variables: Mapping,
        weights: set,
        gradients: set,
        layers: dict,
    ):
        self._strategy = strategy
        self._names = list(variables)
        self._index = {id(variable): index for index, variable in enumerate(variables.values())}
        self._variables = list(variables.values())
        self._weights, self._gradients = weights, gradients
        self._layers = layers
        self._outputs: dict = {}
        self._seen: tuple = ([], {})
        self._updated: tuple | None = None
        # A row of numbers and two of statistics for each variable, then those of the layers: a
        # variable takes the same time to read, however long it is.
        num_rows = 3 * len(self._names) + len(layers)
        with step_variables.being_made(strategy):
            # The step at which a record is due, and that of the record since; -1 for none.
            self._due = tf.Variable(tf.int64.max, trainable=False)
            self._step: Any = tf.Variable(-1, dtype=tf.int64, trainable=False)
            # What is missing is -1: the first number of a row is a norm.
            self._table: Any = tf.Variable(
                tf.fill([num_rows, tensor_statistics.NUM_COLUMNS], -1.0), trainable=False
            )
        self._planned = -1

    def plan(self, step: int) -> None:
        """Asks for a record of the step of `fit` that makes the `step`th update, from 1."""
        if step != self._planned:
            self._planned = step
            self._due.assign(step)
            self._step.assign(-1)

    def read(self) -> "Record | None":
        """Returns the record that was planned; None if there is none yet."""
        if int(self._step.numpy()) < 0:
            return None
        num, table = len(self._names), self._table.numpy()
        columns = zip(_NUMBERS, table[:num, : len(_NUMBERS)].T, strict=True)
        return Record(
            numbers={kind: _found(self._names, column) for kind, column in columns},
            statistics={
                "gradients": _statistics(self._names, table[num : 2 * num]),
                "weights": _statistics(self._names, table[2 * num : 3 * num]),
                "activations": _statistics(self._layers, table[3 * num :]),
            },
        )

    # What follows is traced.

    def watching(self):
        """Returns a context in which the outputs of the layers are seen."""
        self._outputs = {}
        return layer_outputs.watched(list(self._layers.values()), self._note)

    def _note(self, layer: keras.layers.Layer, output: Any):
        # Every replica is traced in a thread of its own.
        self._outputs[threading.get_ident(), id(layer)] = layer_outputs.first_number_of(output)

    def see_gradients(self, pairs: list) -> None:
        """Remembers the gradients of the global batch, and what layers gave, for `see_update`."""
        if self._is_recorder():
            self._seen = self._present(pairs), self._outputs_of_replica()

    def see_outputs(self, num_updates: Any) -> None:
        """Records outputs of layers, where gradients go to an update that is traced apart.

        Args:
            num_updates: Int scalar, the updates so far.
        """
        step = replicas.current()
        if step is None or not step.delivery.is_apart or not self._is_recorder():
            return
        if outputs := self._outputs_of_replica():
            is_due = tf.cast(num_updates, tf.int64) + 1 >= self._due
            rare_cond(is_due, lambda: self._record_outputs(outputs))

    def see_update(self, pairs: list) -> None:
        """Records outputs of layers, and remembers what the update is about to change.

        No condition here may wait for gradients: the update of a variable would wait for the
        gradients of all others.
        """
        if not self._is_recorder():
            return
        applied = self._present(pairs)
        (gradients, outputs), self._seen = self._seen, ([], {})
        is_due, count = self._due_update()

        def copies():
            return tf.concat([_flat(variable) for _, _, variable in applied], axis=0)

        if outputs:
            rare_cond(is_due, lambda: self._record_outputs(outputs))
        # One tensor: what goes in and out of a condition costs in the steps between, too.
        before = rare_cond(is_due, copies, lambda: tf.zeros([0])) if applied else tf.zeros([0])
        self._updated = is_due, count, gradients, applied, before

    def _record_outputs(self, outputs: dict) -> None:
        first = 3 * len(self._names)
        self._set({first + i: tensor_statistics.row_of(each) for i, each in outputs.items()})

    def see_weights(self) -> None:
        """Records gradients, as they were and as the optimizer got them, and weights after it."""
        if self._updated is None:
            return
        is_due, count, gradients, applied, before = self._updated
        self._updated = None

        def record():
            num = len(self._names)
            of_gradients = {
                num + index: tensor_statistics.row_of(values_of(gradient))
                for index, gradient, _ in gradients
                if self._names[index] in self._gradients
            }
            of_weights = {
                2 * num + index: tensor_statistics.row_of(_flat(variable))
                for index, _, variable in applied
                if self._names[index] in self._weights
            }
            self._set(_numbers(gradients, applied, before) | of_gradients | of_weights)
            self._step.assign(count)

        rare_cond(is_due, record)

    def _set(self, rows: dict) -> None:
        if rows:
            indices = [[index] for index in rows]
            self._table.scatter_nd_update(indices, tf.stack(list(rows.values())))

    def _present(self, pairs: list) -> list[tuple]:
        return [
            (self._index[id(variable)], gradient, variable)
            for gradient, variable in pairs
            if gradient is not None and id(variable) in self._index
        ]

    def _outputs_of_replica(self) -> dict:
        thread = threading.get_ident()
        found = {
            index: self._outputs.get((thread, id(layer)))
            for index, layer in enumerate(self._layers.values())
        }
        return {
            index: output
            for index, output in found.items()
            if output is not None and layer_outputs.is_reachable(output)
        }

    def _is_recorder(self) -> bool:
        step = replicas.current()
        return (
            step is not None
            and step.trial is None
            and not step.options.is_unobserved
            and peers.is_chief(self._strategy)
            and peers.replica_id() == peers.local_replicas(self._strategy)[0]
        )

    def _due_update(self) -> tuple:
        """Returns whether the update that comes is to be recorded, and the number of the step.

        Of several updates in a step the first decides, and the others follow: from its record on
        until the next one is planned.
        """
        is_recorded = self._step >= 0
        if not replicas.is_first_update():
            return is_recorded, self._step.read_value()
        count = tf.cast(replicas.num_updates(), tf.int64) + 1
        return (count >= self._due) & ~is_recorded, count


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What was recorded of one step, by kind and by the names of variables and layers.

    Attributes:
        numbers: `gradient_norm` is the L2 norm of the gradient of the global batch,
            `gradient_norm_applied` the same after clipping and the other callbacks, `update_ratio`
            the L2 norm of the change of the weights over that of the weights.
        statistics: Those of `gradients`, of the `weights` after the update, and of `activations`:
            what layers gave, for the examples of one replica.
    """

    numbers: dict[str, dict[str, float]]
    statistics: dict[str, dict[str, tensor_statistics.Statistics]]


def _found(names: Any, norms: np.ndarray) -> dict:
    """Returns the numbers that were recorded, by name: a step need not have all of them."""
    return {name: norm for name, norm in zip(names, norms, strict=True) if norm != -1}


def _statistics(names: Any, rows: np.ndarray) -> dict:
    found = _found(names, rows[:, 0])
    pairs = zip(names, rows, strict=True)
    return {name: tensor_statistics.read(row) for name, row in pairs if name in found}


def _numbers(gradients: list[tuple], applied: list[tuple], before: Any) -> dict:
    """Returns rows of each variable's norms, before and after callbacks, and update ratio."""
    norms: dict = {}  # A gradient that no callback has changed is measured once.
    for _, gradient, _ in [*gradients, *applied]:
        if id(gradient) not in norms:
            norms[id(gradient)] = tensor_statistics.norm_of(values_of(gradient))
    columns = [
        {index: norms[id(gradient)] for index, gradient, _ in gradients},
        {index: norms[id(gradient)] for index, gradient, _ in applied},
        _update_ratios(applied, before),
    ]
    indices = list(columns[0] | columns[1])
    if not indices:
        return {}
    missing = tf.constant(-1.0)
    table = [tf.stack([column.get(index, missing) for index in indices]) for column in columns]
    width = tensor_statistics.NUM_COLUMNS
    rows = tf.pad(tf.stack(table, axis=1), [[0, 0], [0, width - len(columns)]])
    return dict(zip(indices, tf.unstack(rows), strict=True))


def _update_ratios(applied: list[tuple], before: Any) -> dict:
    """Returns the norm of the change of each variable over that of the variable before it."""
    ratios, end = {}, 0
    for index, _, variable in applied:
        start, end = end, end + math.prod(variable.shape)
        old, new = before[start:end], _flat(variable)
        ratios[index] = tf.math.divide_no_nan(
            tensor_statistics.norm_of(new - old), tensor_statistics.norm_of(old)
        )
    return ratios


def _flat(variable: keras.Variable):
    parts = [tf.reshape(tf.convert_to_tensor(part), [-1]) for part in parts_of(variable.value)]
    return tf.cast(parts[0] if len(parts) == 1 else tf.concat(parts, axis=0), tf.float32)
