"""Holds on a worker what its step assigns besides weights that it trains: statistics, seeds.

These variables are on parameter servers. Workers that assigned to them would take back what others
assign, and a batch that is dropped would count. So others stand in for them while a step is traced.
They begin with the values of the servers, the same for all batches of an update; what the step
makes of them is staged, and the update assigns what becomes of that.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts, keras_layers, keras_threads, stand_ins, variable_adapter
from kerasdist.training.gradients import aggregated_states
from kerasdist.training.hooks import differing_layers, divided_values
from kerasdist.training.parameter_servers import local_copies
from kerasdist.training.replica import graph_facts
from kerasdist.training.step.model_step import TraceAgainError
from kerasdist.training.synchronous_servers.contributions import How, Value


class HeldStates:
    """Stands in for variables to which a step assigns by itself.

    Args:
        model: The model.
        copies: What steps read in the place of small weights, if they do.
    """

    def __init__(self, model: keras.Model, copies: local_copies.LocalCopies | None = None):
        self._model, self._copies = model, copies
        self._prefix = variable_adapter.unique_name()
        self._variables = _expected(model)
        self._staged: list[tuple[keras.Variable, How]] = []  # By the step that was traced last.

    @property
    def remote(self) -> list[tf.Variable]:
        """TensorFlow's variables that others stand in for."""
        return [variable.value for variable in self._variables]

    @contextlib.contextmanager
    def held(self, fetch: Callable[[list], list]) -> Generator[list[Value]]:
        """Traces a step on a worker; yields a list that then has what is to be staged.

        Args:
            fetch: Called as fetch(variables); returns their values.

        Raises:
            TraceAgainError: The step assigns to other variables, too, which the next trace holds.
        """
        found: list[Value] = []
        remote = self.remote
        begun = fetch(remote)
        held = [
            variable_adapter.worker_copy(each, f"{self._prefix}_{index}", value, is_apart=True)
            for index, (each, value) in enumerate(zip(remote, begun, strict=True))
        ]
        with stand_ins.standing_in(self._variables, held):
            yield found
        self._note_others()
        self._staged = []
        for variable, local, value in zip(self._variables, held, begun, strict=True):
            if graph_facts.is_set(local):
                how = _how_of(variable, self._model)
                end = local.read_value()
                tensor = end - value if how is How.SUM else end
                found.append(Value(tensor, how, beside=_server_variable(variable)))
                self._staged.append((variable, how))

    def _note_others(self) -> None:
        known = {id(each) for each in self._variables}
        others = [
            each
            for each in _of_program(self._model)
            if id(each) not in known and graph_facts.is_set(each.value)
        ]
        if others:
            self._variables += others
            if self._copies:
                self._copies.let_go(others)
            raise TraceAgainError

    def set_by_first(self) -> list[keras.Variable]:
        """Returns what the step that was traced last sets, and an update as its first batch does.

        Not the states of random numbers, of which each batch makes the same.
        """
        generator = keras_threads.known_global_seed_generator()
        generators = [*keras_layers.seed_generators_of(self._model), generator]
        seeds = {id(each.state) for each in generators if each is not None}
        return [
            variable
            for variable, how in self._staged
            if how is How.FIRST and id(variable) not in seeds
        ]

    def assign(self, values: list) -> list[tuple]:
        """Assigns what became of the states of several batches, on the chief.

        Args:
            values: In the order of `held`.

        Returns:
            Pairs of each variable and of what it was before.
        """
        before = []
        for (variable, how), value in zip(self._staged, values, strict=True):
            state = variable.value
            with tf.device(state.device):
                before.append((state, state.read_value()))
                set_state = state.assign_add if how is How.SUM else state.assign
                set_state(tf.cast(value, state.dtype), read_value=False)
        return before


def _expected(model: keras.Model) -> list[keras.Variable]:
    """Returns what hardly a step leaves alone, so that few are traced again."""
    return [
        *_statistics(model),
        *(generator.state for generator in keras_layers.seed_generators_of(model)),
    ]


def _statistics(model: keras.Model) -> list[keras.Variable]:
    layers = [layer for layer in differing_layers.unsynchronized(model) if layer.trainable]
    return [variable for layer in layers for variable in layer.non_trainable_variables]


def _of_program(model: keras.Model) -> list[keras.Variable]:
    """Returns what a step may assign to: all in one piece but metrics, which are counted."""
    generator = keras_threads.known_global_seed_generator()
    variables = [*model.variables, *([generator.state] if generator else [])]
    metrics = custom_parts.metrics_of(model)
    counted = {id(each) for metric in metrics for each in metric.variables}
    return [
        each
        for each in variables
        if id(each) not in counted and not divided_values.is_sharded(each.value)
    ]


def _how_of(variable: keras.Variable, model: keras.Model) -> How:
    """Returns what the values of several batches become: as those of several replicas."""
    if any(variable is each for each in _statistics(model)):
        return How.MEAN_OF_EXAMPLES
    together = aggregated_states.how_together(variable)
    return {"mean": How.MEAN_OF_EXAMPLES, "sum": How.SUM}.get(together, How.FIRST)


def _server_variable(variable: keras.Variable) -> Any:
    """Returns a variable of TensorFlow's; None for one of the chief, where nothing is to wait."""
    is_of_chief = tf.DeviceSpec.from_string(variable.value.device).job == "chief"
    return None if is_of_chief else variable.value
