"""Keeps counts and sums on a worker until the end of a call.

Metrics of a model on parameter servers live there, and a worker that updated them in every step
would send and wait for each of them. TensorFlow knows such variables by their handle, so while a
call is traced they are others: of the worker, set to 0 at the start of the call, and added to those
of the parameter server at its end, in one go. What a worker that dies has not handed over counts
for nothing, and its call runs again on another one (see `ledger`): every example counts once.
Where a custom step, or a metric, does more than add, they stay where they are; so they
do where the step computes with what a metric gives.
"""

import contextlib
import functools
from collections.abc import Generator, Iterable

import keras
import tensorflow as tf

from kerasdist.private import stand_ins, variable_adapter
from kerasdist.training.parameter_servers import local_copies, sums
from kerasdist.training.parameter_servers.ledger import Ledger


class LocalCounts:
    """Stands in for variables of the parameter servers to which steps only add.

    Args:
        metrics_variables: Of a model.
        num_examples: Another variable, to which a call adds its examples.
        ledger: Notes that the counts have arrived, in the same message; None in tests.
        unsure_metrics: Those to which a step may do more than add: see `has_found_others`.
    """

    def __init__(
        self,
        metrics_variables: list,
        num_examples: tf.Variable,
        ledger: Ledger | None = None,
        unsure_metrics: Iterable[keras.metrics.Metric] = (),
    ):
        self._variables = [
            variable for variable in metrics_variables if variable.value.dtype != tf.string
        ]
        unsure = {id(variable) for metric in unsure_metrics for variable in metric.variables}
        self._unsure = [variable for variable in self._variables if id(variable) in unsure]
        self._num_examples = num_examples
        self._ledger = ledger
        self._prefix = variable_adapter.unique_name()
        self._resets: list[tf.Operation] = []  # Those of the trace that runs.

    @contextlib.contextmanager
    def collected(self) -> Generator[tf.Variable]:
        """Traces what is inside with local variables; yields that of the examples.

        Used in a function that a worker runs, around its steps.
        """
        remote = self._remote()
        with self.held() as local:
            yield local[-1]
        for device in dict.fromkeys(variable.device for variable in remote):
            pairs = zip(remote, local, strict=True)
            add = functools.partial(
                self._add, device, [pair for pair in pairs if pair[0].device == device]
            )
            if self._ledger and self._ledger.is_again:
                tf.cond(self._ledger.are_counts_due(device), add, lambda: None)
            else:
                add()

    @contextlib.contextmanager
    def held(self) -> Generator[list[tf.Variable]]:
        """Traces what is inside with local variables, which begin at 0; yields them.

        The last one is that of the examples. See `add` for what becomes of them.
        """
        remote = self._remote()
        with tf.device("/device:CPU:0"):
            local = [
                variable_adapter.worker_variable(variable, f"{self._prefix}_{index}")
                for index, variable in enumerate(remote)
            ]
        self._resets = [
            variable.assign(tf.zeros_like(variable), read_value=False) for variable in local
        ]
        with (
            stand_ins.standing_in(self._variables, local),
            tf.control_dependencies(self._resets),
        ):
            yield local

    @property
    def variables(self) -> list[keras.Variable]:
        """Those of metrics, for which others stand in."""
        return list(self._variables)

    def add(self, counted: list[tf.Tensor]) -> None:
        """Adds what local variables have counted to those of the parameter servers, on the chief.

        Args:
            counted: In the order of `held`.
        """
        for variable, number in zip(self._remote(), counted, strict=True):
            with tf.device(variable.device):
                variable.assign_add(tf.cast(number, variable.dtype), read_value=False)

    def _remote(self) -> list[tf.Variable]:
        return [*(variable.value for variable in self._variables), self._num_examples]

    def others_among(self, metrics: Iterable[keras.metrics.Metric]) -> list[keras.metrics.Metric]:
        """Returns those of some metrics to which steps do more than add, as traces have shown."""
        known = set(map(id, self._variables))
        return [each for each in metrics if not {id(one) for one in each.variables} <= known]

    def has_found_others(self, computed_with: Iterable[keras.metrics.Metric] = ()) -> bool:
        """Whether the step that has just been traced does more to some variables than add.

        These stay on the parameter servers in the traces that follow.

        Args:
            computed_with: Metrics with whose results the step has computed, which need what their
                variables really are.
        """
        local = [variable.value for variable in self._unsure]
        found = {id(value) for value in sums.no_sums(local, but_for=self._resets)}
        pairs = zip(self._unsure, local, strict=True)
        others = {id(variable) for variable, value in pairs if id(value) in found}
        computed = {id(each) for metric in computed_with for each in metric.variables}
        others |= computed & set(map(id, self._variables))
        self._variables, self._unsure = (
            [variable for variable in variables if id(variable) not in others]
            for variables in (self._variables, self._unsure)
        )
        return bool(others)

    def _add(self, device: str, pairs: list) -> None:
        """Adds to the variables of a parameter server, with one message for all of them."""
        counted = [tf.cast(local.read_value(), tf.float64) for _, local in pairs]
        if self._ledger:
            counted.append(tf.bitcast(self._ledger.note_of_counts(), tf.float64))
        packed = local_copies.pack(counted)
        with tf.device(device):
            numbers = local_copies.unpack(packed, counted)
            noted = []
            if self._ledger:
                noted = [self._ledger.write(device, tf.bitcast(numbers.pop(), tf.int64))]
            with tf.control_dependencies(noted):
                for (variable, _), number in zip(pairs, numbers, strict=True):
                    variable.assign_add(tf.cast(number, variable.dtype), read_value=False)
